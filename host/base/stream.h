/* Reading a file that may be compressed, piece by piece. */
#ifndef PK_DATA_STREAM_H
#define PK_DATA_STREAM_H

#include "base/base.h"

typedef enum pk_stream_kind {
  PK_STREAM_PLAIN,     /* the bytes as they are stored */
  PK_STREAM_BY_CONTENT /* gzip (any number of members) and zstd (any number of frames) by their
                          first bytes, everything else as it is */
} pk_stream_kind;

typedef struct pk_stream pk_stream;

/* Owned. Errors: no such file, a directory; by content also a file named .gz or .zst that is too
 * short to be one. */
pk_status pk_stream_open(const char *path, pk_stream_kind kind, pk_stream **stream);
void pk_stream_close(pk_stream *stream);

/* The next bytes, at most limit of them, into data; *count is 0 at the end and never before. Errors
 * name the file: unreadable, damaged, or ending in the middle of a member or frame. */
pk_status pk_stream_read(pk_stream *stream, void *data, int64_t limit, int64_t *count);

/* Stored bytes read so far: how far along a compressed file is. */
int64_t pk_stream_stored(const pk_stream *stream);

#endif
