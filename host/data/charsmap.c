/* Checking the normalization rules of a SentencePiece model before the library follows them.
 *
 * A charsmap is the size of a trie (32 bits), the trie, and the texts that its keys become, each
 * ended by a NUL. The trie is a double array of 32-bit units as Darts-clone writes it: at a node, a
 * byte of the key leads to the unit at (node XOR offset of its unit) XOR byte, if that unit has the
 * byte for its label. The library looks at units without asking whether they are in the array,
 * takes their values for places in the texts, and has room for so many keys that begin a text. */
#include "data/charsmap.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PREFIXES = 32, UNSEEN = -1, OPEN = -2 };

static uint32_t offset_of(uint32_t unit) {
  return unit >> 10 << ((unit & 512) >> 6);
}

static bool has_leaf(uint32_t unit) {
  return unit >> 8 & 1;
}

/* The label of a unit; no byte is the label of a unit that holds a value. */
static uint32_t label_of(uint32_t unit) {
  return unit & 0x800000ffu;
}

typedef struct step {
  uint32_t node;
  int next; /* byte of the key to try */
} step;

typedef struct trie {
  uint32_t *units;
  size_t count;
  size_t texts; /* bytes */
  int *longest; /* [count]: most keys on the way down from a node, or UNSEEN, or OPEN */
  step *path;   /* [count] */
} trie;

/* Enters a node: all that a key can lead to must be there, and the text of its own key. */
static const char *enter(trie *t, uint32_t node) {
  uint32_t unit = t->units[node];
  size_t base = node ^ offset_of(unit);
  if ((base | 255) >= t->count) return "its trie leads out of itself";
  if (has_leaf(unit) && (t->units[base] & 0x7fffffffu) >= t->texts) {
    return "its trie leads out of its texts";
  }
  t->longest[node] = OPEN;
  return NULL;
}

/* Goes through all nodes, depth first; nodes may be shared, but no way may be endless. */
static const char *walk(trie *t) {
  size_t depth = 0;
  const char *problem = enter(t, 0);
  t->path[depth++] = (step){0, 0};
  int *most = calloc((size_t)t->count + 1, sizeof *most);
  if (!most) problem = "no memory to check it";
  while (depth > 0 && !problem) {
    step *at = &t->path[depth - 1];
    uint32_t base = at->node ^ offset_of(t->units[at->node]);
    if (at->next == 256) {
      int keys = most[at->node] + (at->node != 0 && has_leaf(t->units[at->node]));
      t->longest[at->node] = keys;
      if (keys > MOST_PREFIXES) problem = "too many of its keys begin each other";
      depth--;
      if (depth > 0 && most[t->path[depth - 1].node] < keys) most[t->path[depth - 1].node] = keys;
      continue;
    }
    uint32_t byte = (uint32_t)at->next++, child = base ^ byte;
    if (label_of(t->units[child]) != byte) continue;
    if (t->longest[child] == OPEN) {
      problem = "its trie has a circle";
    } else if (t->longest[child] == UNSEEN) {
      problem = enter(t, child);
      if (!problem) t->path[depth++] = (step){child, 0};
    } else if (t->longest[child] > most[at->node]) {
      most[at->node] = t->longest[child];
    }
  }
  free(most);
  return problem;
}

const char *pk_charsmap_problem(const char *data, size_t bytes) {
  uint32_t size = 0;
  if (bytes == 0) return NULL;
  if (bytes > sizeof size) memcpy(&size, data, sizeof size);
  if (bytes <= sizeof size || size >= bytes - sizeof size) return "it is cut off";
  if (size % 4 != 0 || size < 1024) return "the size of its trie is none that a trie has";
  if (data[bytes - 1] != '\0') return "its last text has no end";
  trie t = {.count = size / 4, .texts = bytes - sizeof size - size};
  t.units = malloc(size);
  t.longest = malloc(t.count * sizeof *t.longest);
  t.path = malloc(t.count * sizeof *t.path);
  const char *problem = "no memory to check it";
  if (t.units && t.longest && t.path) {
    memcpy(t.units, data + sizeof size, size);
    for (size_t i = 0; i < t.count; i++) t.longest[i] = UNSEEN;
    problem = walk(&t);
  }
  free(t.units);
  free(t.longest);
  free(t.path);
  return problem;
}
