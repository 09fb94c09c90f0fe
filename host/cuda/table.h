/* A table of numbers by number, for what CUPTI tells by its ids. */
#ifndef PK_CUDA_TABLE_H
#define PK_CUDA_TABLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct pk_table {
  uint64_t *keys; /* [room]: open addressing; 0: free */
  int64_t *values;
  int64_t count, room;
} pk_table;

/* Sets the value of a key, which is not 0. False without memory. */
bool pk_table_set(pk_table *table, uint64_t key, int64_t value);

/* The value of a key, or otherwise. */
int64_t pk_table_get(const pk_table *table, uint64_t key, int64_t otherwise);

void pk_table_free(pk_table *table);

#endif
