/* Runs a libFuzzer harness without libFuzzer, so that any compiler can smoke-test it:
 *   HARNESS [-runs=N] SEED_FILE_OR_FOLDER...
 * gives it every seed, then N mutations of the seeds, the same ones every time. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { MAX_SEEDS = 256, MAX_BYTES = 1 << 16 };

typedef struct seed {
  uint8_t *data;
  size_t bytes;
} seed;

static seed seeds[MAX_SEEDS];
static int seed_count;

/* xorshift64 (Marsaglia 2003). */
static uint64_t random_state = 88172645463325252u;

static size_t random_below(size_t limit) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (size_t)(random_state % limit);
}

static int read_seed(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || seed_count == MAX_SEEDS) {
    fprintf(stderr, "%s: cannot be read as a seed\n", path);
    if (file) fclose(file);
    return 1;
  }
  uint8_t *data = malloc(MAX_BYTES);
  size_t bytes = data ? fread(data, 1, MAX_BYTES, file) : 0;
  fclose(file);
  if (!data) return 1;
  seeds[seed_count++] = (seed){data, bytes};
  return 0;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Reads a folder's files in the order of their names, which is the same on every machine. */
static int read_folder(const char *path) {
  DIR *folder = opendir(path);
  if (!folder) return 1;
  char *names[MAX_SEEDS];
  size_t count = 0;
  int failed = 0;
  for (struct dirent *entry; (entry = readdir(folder)) && count < MAX_SEEDS;) {
    if (entry->d_name[0] != '.') names[count++] = strdup(entry->d_name);
  }
  closedir(folder);
  qsort(names, count, sizeof *names, compare_names);
  for (size_t i = 0; i < count; i++) {
    char full[4096];
    snprintf(full, sizeof full, "%s/%s", path, names[i]);
    failed |= read_seed(full);
    free(names[i]);
  }
  return failed;
}

static void insert(uint8_t *data, size_t *bytes, size_t at, const uint8_t *piece, size_t count) {
  if (*bytes + count > MAX_BYTES) return;
  memmove(data + at + count, data + at, *bytes - at);
  memmove(data + at, piece, count);
  *bytes += count;
}

/* One of: flip a bit, set a byte, cut a piece, repeat a piece, splice in another seed, stop early.
 */
static void mutate(uint8_t *data, size_t *bytes) {
  static const uint8_t telling[] = {0,   1,   0x7f, 0x80, 0xff, '"', '\\', '{', '}', '[', ']',
                                    ':', ',', '-',  '9',  'e',  '.', '\n', ' ', '&', '*', '!'};
  if (*bytes == 0) {
    data[0] = telling[random_below(sizeof telling)];
    *bytes = 1;
    return;
  }
  size_t at = random_below(*bytes), count = 1 + random_below(*bytes - at < 32 ? *bytes - at : 32);
  uint8_t piece[32];
  switch (random_below(6)) {
  case 0:
    data[at] ^= (uint8_t)(1u << random_below(8));
    break;
  case 1:
    data[at] = telling[random_below(sizeof telling)];
    break;
  case 2:
    memmove(data + at, data + at + count, *bytes - at - count);
    *bytes -= count;
    break;
  case 3:
    memcpy(piece, data + at, count);
    insert(data, bytes, random_below(*bytes + 1), piece, count);
    break;
  case 4: {
    const seed *other = &seeds[random_below((size_t)seed_count)];
    if (other->bytes == 0) break;
    size_t from = random_below(other->bytes);
    size_t left = other->bytes - from;
    insert(data, bytes, at, other->data + from, left < 32 ? left : 32);
    break;
  }
  default:
    *bytes = at;
  }
}

int main(int argc, char **argv) {
  long runs = 10000;
  int failed = 0;
  for (int i = 1; i < argc; i++) {
    struct stat status;
    if (strncmp(argv[i], "-runs=", 6) == 0) {
      runs = atol(argv[i] + 6);
    } else if (stat(argv[i], &status) == 0 && S_ISDIR(status.st_mode)) {
      failed |= read_folder(argv[i]);
    } else {
      failed |= read_seed(argv[i]);
    }
  }
  if (failed || seed_count == 0) {
    fprintf(stderr, "usage: %s [-runs=N] SEED_FILE_OR_FOLDER...\n", argv[0]);
    return 2;
  }
  for (int i = 0; i < seed_count; i++) LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].bytes);
  static uint8_t buffer[MAX_BYTES];
  for (long run = 0; run < runs; run++) {
    const seed *base = &seeds[random_below((size_t)seed_count)];
    size_t bytes = base->bytes;
    memcpy(buffer, base->data, bytes);
    for (size_t k = 1 + random_below(4); k > 0; k--) mutate(buffer, &bytes);
    /* A copy of exactly this size, so that a sanitizer sees a read past its end. */
    uint8_t *input = malloc(bytes ? bytes : 1);
    if (!input) return 1;
    memcpy(input, buffer, bytes);
    LLVMFuzzerTestOneInput(input, bytes);
    free(input);
  }
  printf("%s: %d seeds and %ld mutations\n", argv[0], seed_count, runs);
  for (int i = 0; i < seed_count; i++) free(seeds[i].data);
  return 0;
}
