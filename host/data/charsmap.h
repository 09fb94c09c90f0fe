/* Checking the normalization rules of a SentencePiece model before the library follows them. */
#ifndef PK_DATA_CHARSMAP_H
#define PK_DATA_CHARSMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is wrong with a precompiled charsmap, or NULL: then no text leads the library out of it. */
const char *pk_charsmap_problem(const char *data, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
