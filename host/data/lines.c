/* Lines and whole texts out of a stream. */
#include "data/lines.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 17 };

pk_status pk_lines_open(pk_lines *lines, pk_stream *stream) {
  *lines = (pk_lines){.stream = stream, .piece = malloc(PIECE)};
  if (!lines->piece) return pk_fail(PK_NO_MEMORY, "no memory to read a file");
  return PK_OK;
}

void pk_lines_close(pk_lines *lines) {
  pk_stream_close(lines->stream);
  free(lines->piece);
  *lines = (pk_lines){0};
}

/* Reads on when everything is used; afterwards begin == end means the end of the stream. */
static pk_status refill(pk_lines *lines) {
  if (lines->begin < lines->end) return PK_OK;
  lines->begin = lines->end = 0;
  int64_t count = 0;
  do { /* the mark of the beginning needs three bytes at once */
    pk_status status =
        pk_stream_read(lines->stream, lines->piece + lines->end, PIECE - lines->end, &count);
    if (status) return status;
    lines->end += count;
  } while (!lines->started && lines->end < 3 && count > 0);
  if (!lines->started && lines->end >= 3 && memcmp(lines->piece, "\xef\xbb\xbf", 3) == 0) {
    lines->begin = 3;
  }
  lines->started = true;
  /* A file may hold the mark and nothing else; another read finds its end. */
  return lines->begin == lines->end && count > 0 ? refill(lines) : PK_OK;
}

/* Adds count bytes to text unless that makes it too long: then it is emptied and stays empty. */
static pk_status keep(pk_buffer *text, const char *data, int64_t count, int64_t limit,
                      bool *too_long) {
  if (*too_long) return PK_OK;
  if (count > limit - text->bytes) {
    *too_long = true;
    pk_buffer_clear(text, 0);
    return PK_OK;
  }
  return pk_buffer_add(text, data, count);
}

pk_status pk_lines_next(pk_lines *lines, pk_buffer *line, int64_t limit, bool *found,
                        bool *too_long) {
  *found = *too_long = false;
  for (;;) {
    pk_status status = refill(lines);
    if (status) return status;
    if (lines->begin == lines->end) {
      if (*found) lines->number++;
      return PK_OK;
    }
    *found = true;
    const char *start = lines->piece + lines->begin;
    int64_t there = lines->end - lines->begin;
    const char *newline = memchr(start, '\n', (size_t)there);
    int64_t count = newline ? newline - start : there;
    status = keep(line, start, count, limit, too_long);
    if (status) return status;
    lines->begin += count;
    if (newline) {
      lines->begin++;
      lines->number++;
      return PK_OK;
    }
  }
}

pk_status pk_lines_rest(pk_lines *lines, pk_buffer *text, int64_t limit, bool *too_long) {
  *too_long = false;
  for (;;) {
    pk_status status = refill(lines);
    if (status || lines->begin == lines->end) return status;
    status = keep(text, lines->piece + lines->begin, lines->end - lines->begin, limit, too_long);
    /* Nothing after a text that is too long can be used: its end is not looked for. */
    if (status || *too_long) return status;
    lines->begin = lines->end;
  }
}

pk_status pk_lines_peek(pk_lines *lines, int *byte) {
  pk_status status = refill(lines);
  if (status) return status;
  *byte = lines->begin < lines->end ? (unsigned char)lines->piece[lines->begin] : -1;
  return PK_OK;
}

void pk_lines_take(pk_lines *lines) {
  if (lines->piece[lines->begin++] == '\n') lines->number++;
}
