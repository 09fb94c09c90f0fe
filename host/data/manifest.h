/* The manifest of a token cache, read and checked: version 1 of the layout in docs/data.md. */
#ifndef PK_DATA_MANIFEST_H
#define PK_DATA_MANIFEST_H

#include "data/tokens.h"

typedef struct pk_manifest_split {
  char *name;
  pk_tokens *tokens;                  /* paths of the files are as the manifest has them */
  char tokens_sha256[PK_SHA256_TEXT]; /* of all its ids, "" if not stated */
} pk_manifest_split;

typedef struct pk_manifest {
  char identity[PK_SHA256_TEXT];
  pk_manifest_split *splits;
  int64_t split_count;
} pk_manifest;

/* Checks everything that the text alone can tell: types and ranges, that files lie inside the
 * folder, that the shards of a split add up to its tokens, and the identity. name is what messages
 * call the text. Owned: pk_manifest_clear. */
pk_status pk_manifest_read(const char *text, int64_t bytes, const char *name,
                           pk_manifest *manifest);

/* Reads every byte of a split whose files are located, and compares it with the manifest: checksums
 * of files and tokens, and ids. folder is for messages. */
pk_status pk_manifest_verify_split(const pk_manifest_split *split, const char *folder);

/* Frees what manifest holds, not the struct. */
void pk_manifest_clear(pk_manifest *manifest);

#endif
