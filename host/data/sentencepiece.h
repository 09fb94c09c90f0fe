/* The C face of the SentencePiece library; sentencepiece.cc is the only C++ in packlua. */
#ifndef PK_DATA_SENTENCEPIECE_H
#define PK_DATA_SENTENCEPIECE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pk_spm pk_spm;

/* Functions return NULL for success or a message, which the caller frees. */
char *pk_spm_open(const char *model, int64_t bytes, pk_spm **spm);
void pk_spm_close(pk_spm *spm);
int64_t pk_spm_size(const pk_spm *spm);
int64_t pk_spm_eos(const pk_spm *spm);
int64_t pk_spm_unknown(const pk_spm *spm);

/* Calls take(target, ids, count) for successive pieces of the result until it returns non-zero. */
typedef int (*pk_spm_take)(void *target, const int *ids, int64_t count);
char *pk_spm_encode(const pk_spm *spm, const char *text, int64_t bytes, pk_spm_take take,
                    void *target);

/* *text is malloc'd and ends with a NUL. Ids must lie in the vocabulary. */
char *pk_spm_decode(const pk_spm *spm, const int32_t *ids, int64_t count, char **text,
                    int64_t *bytes);
char *pk_spm_piece(const pk_spm *spm, int64_t id);

#ifdef __cplusplus
}
#endif

#endif
