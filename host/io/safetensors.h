/* What the reader and the writer of safetensors share. */
#ifndef PK_IO_SAFETENSORS_H
#define PK_IO_SAFETENSORS_H

#include "base/sha256.h"
#include "core/core.h"

/* What a file says about its own content, in metadata that readers of other programs pass over: the
 * SHA-256 of each tensor's bytes, in the order of their names, and one of all that the header says,
 * those included. */
#define PK_SAFETENSORS_TENSORS_SHA256 "packlua_tensors_sha256"
#define PK_SAFETENSORS_SHA256 "packlua_sha256"

enum {
  PK_SAFETENSORS_RANK = 8,          /* of pk_safetensors_entry.shape */
  PK_SAFETENSORS_HEADER = 100000000 /* largest header in bytes: the reference implementation's */
};

/* Bytes per element of a dtype as files name it; 0 if there is no such dtype. */
int64_t pk_safetensors_dtype_size(const char *dtype);

/* Bytes of a tensor. False if that is 2^63 or more. Extents must not be negative. */
bool pk_safetensors_bytes(int64_t element, int rank, const int64_t *shape, int64_t *bytes);

/* Part of a header: a pair of its metadata, or a tensor, which has no value. */
typedef struct pk_safetensors_part {
  const char *name;
  const char *value;
  const char *dtype;
  int rank;
  const int64_t *shape;
  int64_t index; /* for the caller */
} pk_safetensors_part;

/* Sorts the metadata, and after them the tensors, by name: other programs write both in an order of
 * their own. */
void pk_safetensors_sort_parts(pk_safetensors_part *parts, int64_t count);

/* The SHA-256 of a header's content, whatever its layout was. parts: sorted. tensors: the digits of
 * all tensors in the same order. */
void pk_safetensors_header_sha256(const pk_safetensors_part *parts, int64_t count,
                                  const char *tensors, char digits[PK_SHA256_TEXT]);

/* Has the writer compress (see io/frames.h, which has a checksum of its own); before any data. */
pk_status pk_safetensors_writer_compress(pk_safetensors_writer *writer, int level, int threads);

/* Ends the file and brings it to disk, still under its temporary name, which *temporary is while
 * the writer lives; pk_safetensors_writer_finish is what publishes it. */
pk_status pk_safetensors_writer_complete(pk_safetensors_writer *writer, const char **temporary);

#endif
