/* What the reader and the writer of safetensors share. */
#ifndef PK_IO_SAFETENSORS_H
#define PK_IO_SAFETENSORS_H

#include "core/core.h"

enum {
  PK_SAFETENSORS_RANK = 8,          /* of pk_safetensors_entry.shape */
  PK_SAFETENSORS_HEADER = 100000000 /* largest header in bytes: the reference implementation's */
};

/* Bytes per element of a dtype as files name it; 0 if there is no such dtype. */
int64_t pk_safetensors_dtype_size(const char *dtype);

/* Bytes of a tensor. False if that is 2^63 or more. Extents must not be negative. */
bool pk_safetensors_bytes(int64_t element, int rank, const int64_t *shape, int64_t *bytes);

/* Has the writer compress (see io/frames.h); before any data. */
pk_status pk_safetensors_writer_compress(pk_safetensors_writer *writer, int level, int threads);

/* Ends the file and brings it to disk, still under its temporary name, which *temporary is while
 * the writer lives; pk_safetensors_writer_finish is what publishes it. */
pk_status pk_safetensors_writer_complete(pk_safetensors_writer *writer, const char **temporary);

#endif
