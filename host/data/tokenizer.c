/* Tokenizers: bytes, and SentencePiece where the build has it. */
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "data/sentencepiece.h"

enum { BYTES_EOS = 256, MODEL_LIMIT = 1 << 28 };

struct pk_tokenizer {
  pk_spm *spm; /* NULL: bytes */
  char sha256[PK_SHA256_TEXT];
};

#ifndef PK_HAVE_SENTENCEPIECE

/* A build without the library refuses models; these are never reached with one. */
char *pk_spm_open(const char *model, int64_t bytes, pk_spm **spm) {
  (void)model, (void)bytes;
  *spm = NULL;
  return strdup("this build of packlua has no SentencePiece (Debian: libsentencepiece-dev)");
}
void pk_spm_close(pk_spm *spm) {
  (void)spm;
}
int64_t pk_spm_size(const pk_spm *spm) {
  (void)spm;
  return 0;
}
int64_t pk_spm_eos(const pk_spm *spm) {
  (void)spm;
  return -1;
}
int64_t pk_spm_unknown(const pk_spm *spm) {
  (void)spm;
  return -1;
}
char *pk_spm_encode(const pk_spm *spm, const char *text, int64_t bytes, pk_spm_take take,
                    void *target) {
  (void)spm, (void)text, (void)bytes, (void)take, (void)target;
  return NULL;
}
char *pk_spm_decode(const pk_spm *spm, const int32_t *ids, int64_t count, char **text,
                    int64_t *bytes) {
  (void)spm, (void)ids, (void)count, (void)text, (void)bytes;
  return NULL;
}
char *pk_spm_piece(const pk_spm *spm, int64_t id) {
  (void)spm, (void)id;
  return NULL;
}

#endif

/* Turns a message of the shim into a failure. */
static pk_status spm_status(char *message, pk_status status, const char *what) {
  if (!message) return PK_OK;
  pk_fail(status, "%s: %s", what, message);
  free(message);
  return status;
}

static pk_status open_model(pk_tokenizer *tokenizer, const char *path) {
  char *model = NULL;
  int64_t bytes = 0;
  pk_status status = pk_file_read(path, &model, &bytes, MODEL_LIMIT);
  if (status) return pk_fail_within(status, "tokenizer");
  pk_sha256_of(model, bytes, tokenizer->sha256);
  status = spm_status(pk_spm_open(model, bytes, &tokenizer->spm), PK_FORMAT, path);
  if (!status && pk_spm_eos(tokenizer->spm) < 0) {
    status = pk_fail(PK_FORMAT,
                     "%s: the model has no piece for the end of a text (spm_train --eos_id)", path);
  }
  pk_bytes_free(model);
  return status;
}

pk_status pk_tokenizer_open(const char *spec, pk_tokenizer **result) {
  *result = NULL;
  pk_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
  if (!tokenizer) return pk_fail(PK_NO_MEMORY, "no memory for a tokenizer");
  if (strcmp(spec, "bytes") != 0) {
    pk_status status = open_model(tokenizer, spec);
    if (status) {
      pk_tokenizer_free(tokenizer);
      return status;
    }
  }
  *result = tokenizer;
  return PK_OK;
}

void pk_tokenizer_free(pk_tokenizer *tokenizer) {
  if (!tokenizer) return;
  if (tokenizer->spm) pk_spm_close(tokenizer->spm);
  free(tokenizer);
}

int64_t pk_tokenizer_vocab_size(const pk_tokenizer *tokenizer) {
  return tokenizer->spm ? pk_spm_size(tokenizer->spm) : BYTES_EOS + 1;
}

int64_t pk_tokenizer_eos(const pk_tokenizer *tokenizer) {
  return tokenizer->spm ? pk_spm_eos(tokenizer->spm) : BYTES_EOS;
}

int64_t pk_tokenizer_unknown(const pk_tokenizer *tokenizer) {
  return tokenizer->spm ? pk_spm_unknown(tokenizer->spm) : -1;
}

const char *pk_tokenizer_kind(const pk_tokenizer *tokenizer) {
  return tokenizer->spm ? "sentencepiece" : "bytes";
}

const char *pk_tokenizer_sha256(const pk_tokenizer *tokenizer) {
  return tokenizer->sha256;
}

pk_status pk_ids_reserve(pk_ids *ids, int64_t more) {
  int64_t wanted = ids->count + more;
  if (wanted <= ids->capacity) return PK_OK;
  int64_t capacity = ids->capacity + ids->capacity / 2;
  if (capacity < wanted) capacity = wanted;
  if (capacity < 64) capacity = 64;
  int32_t *data = realloc(ids->data, (size_t)capacity * sizeof *data);
  if (!data) return pk_fail(PK_NO_MEMORY, "no memory for %lld tokens", (long long)capacity);
  ids->data = data;
  ids->capacity = capacity;
  return PK_OK;
}

static int take_ids(void *target, const int *found, int64_t count) {
  pk_ids *ids = target;
  if (pk_ids_reserve(ids, count)) return 1;
  for (int64_t i = 0; i < count; i++) ids->data[ids->count + i] = found[i];
  ids->count += count;
  return 0;
}

pk_status pk_tokenizer_append(const pk_tokenizer *tokenizer, const char *text, int64_t bytes,
                              pk_ids *ids) {
  if (tokenizer->spm) {
    return spm_status(pk_spm_encode(tokenizer->spm, text, bytes, take_ids, ids), PK_INVALID,
                      "tokenizer");
  }
  pk_status status = pk_ids_reserve(ids, bytes);
  if (status) return status;
  for (int64_t i = 0; i < bytes; i++) ids->data[ids->count + i] = (unsigned char)text[i];
  ids->count += bytes;
  return PK_OK;
}

pk_status pk_tokenizer_encode(const pk_tokenizer *tokenizer, const char *text, int64_t bytes,
                              int32_t **result, int64_t *count) {
  *result = NULL;
  *count = 0;
  pk_ids ids = {0};
  pk_status status = pk_ids_reserve(&ids, 1);
  if (!status) status = pk_tokenizer_append(tokenizer, text, bytes, &ids);
  if (status) {
    free(ids.data);
    return status;
  }
  *result = ids.data;
  *count = ids.count;
  return PK_OK;
}

void pk_ids_free(int32_t *ids) {
  free(ids);
}

static pk_status decode_bytes(const int32_t *ids, int64_t count, char **text, int64_t *bytes) {
  char *result = malloc((size_t)count + 1);
  if (!result) return pk_fail(PK_NO_MEMORY, "no memory for %lld bytes of text", (long long)count);
  int64_t used = 0;
  for (int64_t i = 0; i < count; i++) {
    if (ids[i] != BYTES_EOS) result[used++] = (char)ids[i];
  }
  result[used] = '\0';
  *text = result;
  *bytes = used;
  return PK_OK;
}

pk_status pk_tokenizer_decode(const pk_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                              char **text, int64_t *bytes) {
  *text = NULL;
  *bytes = 0;
  int64_t size = pk_tokenizer_vocab_size(tokenizer);
  for (int64_t i = 0; i < count; i++) {
    if (ids[i] < 0 || ids[i] >= size) {
      return pk_fail(PK_INVALID, "id %d at place %lld is outside the vocabulary, 0 .. %lld", ids[i],
                     (long long)i + 1, (long long)size - 1);
    }
  }
  if (!tokenizer->spm) return decode_bytes(ids, count, text, bytes);
  return spm_status(pk_spm_decode(tokenizer->spm, ids, count, text, bytes), PK_INVALID,
                    "tokenizer");
}

char *pk_tokenizer_piece(const pk_tokenizer *tokenizer, int64_t id) {
  if (id < 0 || id >= pk_tokenizer_vocab_size(tokenizer)) return NULL;
  if (tokenizer->spm) return pk_spm_piece(tokenizer->spm, id);
  char piece[2] = {(char)id, '\0'};
  char *copy = malloc(8);
  if (!copy) return NULL;
  strcpy(copy, id == BYTES_EOS ? "<eos>" : id >= 0x20 && id < 0x7f ? piece : "");
  if (!*copy) {
    static const char digits[] = "0123456789ABCDEF";
    memcpy(copy, "<0x00>", 7);
    copy[3] = digits[id >> 4];
    copy[4] = digits[id & 15];
  }
  return copy;
}
