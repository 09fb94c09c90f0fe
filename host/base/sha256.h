/* SHA-256 of memory, of parts as they come, and of files. */
#ifndef PK_DATA_SHA256_H
#define PK_DATA_SHA256_H

#include <nettle/sha2.h>

#include "base/base.h"

#define PK_SHA256_TEXT 65 /* 64 hexadecimal digits and a NUL */

typedef struct sha256_ctx pk_sha256;

void pk_sha256_begin(pk_sha256 *hash);
void pk_sha256_add(pk_sha256 *hash, const void *data, int64_t bytes);

/* The digits of everything added so far, into text. The hash is at its beginning again. */
void pk_sha256_end(pk_sha256 *hash, char text[PK_SHA256_TEXT]);

/* The digits of one piece of memory. */
void pk_sha256_of(const void *data, int64_t bytes, char text[PK_SHA256_TEXT]);

#endif
