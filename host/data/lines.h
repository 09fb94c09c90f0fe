/* Lines and whole texts out of a stream. */
#ifndef PK_DATA_LINES_H
#define PK_DATA_LINES_H

#include "base/buffer.h"
#include "base/stream.h"

typedef struct pk_lines {
  pk_stream *stream;
  char *piece; /* what was read and is not used yet is piece[begin .. end) */
  int64_t begin, end;
  int64_t number; /* of the line that was read last, from 1 */
  bool started;
} pk_lines;

/* Takes over the stream, also on failure. A byte order mark at the beginning is dropped. */
pk_status pk_lines_open(pk_lines *lines, pk_stream *stream);
void pk_lines_close(pk_lines *lines);

/* Appends the next line without its newline to line. A line that would make it longer than limit
 * bytes is read to its end, but not kept: *too_long. *found is false at the end of the stream. */
pk_status pk_lines_next(pk_lines *lines, pk_buffer *line, int64_t limit, bool *found,
                        bool *too_long);

/* Appends everything that is left, at most limit bytes. */
pk_status pk_lines_rest(pk_lines *lines, pk_buffer *text, int64_t limit, bool *too_long);

/* The next byte without taking it, or -1 at the end; then pk_lines_take takes it. */
pk_status pk_lines_peek(pk_lines *lines, int *byte);
void pk_lines_take(pk_lines *lines);

#endif
