/* Content in zstd frames that each carry a checksum, with a SHA-256 of all that is stored at the
 * end: what .zst files of states are made of. zstd's own program unpacks them. */
#ifndef PK_IO_FRAMES_H
#define PK_IO_FRAMES_H

#include "base/output.h"

enum { PK_FRAME_BYTES = 1 << 24 }; /* content of every frame but the last; readers refuse more */

typedef struct pk_frame_writer pk_frame_writer;

/* Writes frames to an output, which must outlive it. level is zstd's; threads 1 compresses in the
 * calling thread, more in as many threads of zstd's own. Owned. */
pk_status pk_frame_writer_create(pk_output *output, int level, int threads,
                                 pk_frame_writer **writer);
void pk_frame_writer_free(pk_frame_writer *writer);

/* Appends content. */
pk_status pk_frame_writer_add(pk_frame_writer *writer, const void *data, int64_t bytes);

/* Writes what is left and the SHA-256. */
pk_status pk_frame_writer_end(pk_frame_writer *writer);

typedef struct pk_frames pk_frames;

/* Whether a file that begins with these bytes is one of frames. */
bool pk_frames_begin(const void *head, int64_t bytes);

/* Finds the frames of a file of `stored` bytes and checks its SHA-256; fd and path must outlive the
 * result. Owned. Errors name the file: no SHA-256 at its end, another one, no frames. */
pk_status pk_frames_open(int fd, const char *path, int64_t stored, pk_frames **frames);
void pk_frames_free(pk_frames *frames);

/* Bytes of the whole content. */
int64_t pk_frames_bytes(const pk_frames *frames);

/* Content from offset on. Reading forward unpacks every frame once. */
pk_status pk_frames_read(pk_frames *frames, int64_t offset, void *data, int64_t bytes);

#endif
