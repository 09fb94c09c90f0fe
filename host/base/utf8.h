/* UTF-8: checking, and writing one character. */
#ifndef PK_DATA_UTF8_H
#define PK_DATA_UTF8_H

#include <stdbool.h>
#include <stdint.h>

/* The position of the first byte that does not belong to UTF-8 (Unicode 15, table 3-7), or -1. */
int64_t pk_utf8_defect(const char *text, int64_t bytes);

/* Writes a code point, surrogates as if they were characters, and returns its 1 .. 4 bytes. */
int pk_utf8_write(uint32_t point, char *text);

/* Reads the code point at text, which must be valid UTF-8 (surrogates allowed), and its length. */
uint32_t pk_utf8_read(const char *text, int *length);

#endif
