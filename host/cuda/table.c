/* Tables of numbers by number (table.h). */
#include "cuda/table.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 256 };

/* Where a key is, or would go. The room is a power of two, the factor 2^64 divided by the golden
 * ratio (Knuth, The Art of Computer Programming, volume 3, section 6.4). */
static int64_t place_of(const pk_table *table, uint64_t key) {
  uint64_t mask = (uint64_t)table->room - 1, at = (key * 0x9e3779b97f4a7c15ull >> 32) & mask;
  while (table->keys[at] && table->keys[at] != key) at = (at + 1) & mask;
  return (int64_t)at;
}

static bool grow(pk_table *table) {
  int64_t room = table->room ? 2 * table->room : FIRST_ROOM;
  pk_table grown = {.keys = calloc((size_t)room, sizeof *grown.keys),
                    .values = malloc((size_t)room * sizeof *grown.values),
                    .count = table->count,
                    .room = room};
  if (!grown.keys || !grown.values) {
    pk_table_free(&grown);
    return false;
  }
  for (int64_t i = 0; i < table->room; i++) {
    if (!table->keys[i]) continue;
    int64_t at = place_of(&grown, table->keys[i]);
    grown.keys[at] = table->keys[i];
    grown.values[at] = table->values[i];
  }
  pk_table_free(table);
  *table = grown;
  return true;
}

bool pk_table_set(pk_table *table, uint64_t key, int64_t value) {
  if (2 * table->count >= table->room && !grow(table)) return false;
  int64_t at = place_of(table, key);
  table->count += table->keys[at] == 0;
  table->keys[at] = key;
  table->values[at] = value;
  return true;
}

int64_t pk_table_get(const pk_table *table, uint64_t key, int64_t otherwise) {
  if (!table->room || !key) return otherwise;
  int64_t at = place_of(table, key);
  return table->keys[at] ? table->values[at] : otherwise;
}

void pk_table_free(pk_table *table) {
  free(table->keys);
  free(table->values);
  memset(table, 0, sizeof *table);
}
