/* Choosing cuBLASLt's algorithm for a product: what it proposes, timed, and remembered on disk.
 *
 * The file, $XDG_CACHE_HOME/packlua/cublaslt-UUID-VERSION, is for one device and one version of the
 * library: a header, then lines of a form, an algorithm and a checksum. One line that is not whole
 * makes the whole file void; it is written anew when the next product is timed. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/products.h"

enum { MOST_PROPOSALS = 8, ROUNDS = 3, RUNS = 3, ALGORITHM_WORDS = 8, PATH_BYTES = 1024 };
enum { LINE_NUMBERS = PK_FORM_NUMBERS + ALGORITHM_WORDS, LINE_BYTES = 22 * (LINE_NUMBERS + 1) };

typedef struct remembered {
  int64_t form[PK_FORM_NUMBERS];
  uint64_t algorithm[ALGORITHM_WORDS];
} remembered;

typedef struct pk_algorithms {
  char path[PATH_BYTES]; /* empty: there is no place for a file */
  char header[160];
  int64_t count, room;
  remembered *list;
} pk_algorithms;

void pk_algorithms_free(pk_algorithms *algorithms) {
  if (!algorithms) return;
  free(algorithms->list);
  free(algorithms);
}

/* --- the file --- */

static bool add(pk_algorithms *all, const remembered *entry) {
  if (all->count == all->room) {
    int64_t room = all->room ? 2 * all->room : 64;
    remembered *list = realloc(all->list, (size_t)room * sizeof *list);
    if (!list) return false;
    all->list = list;
    all->room = room;
  }
  all->list[all->count++] = *entry;
  return true;
}

/* FNV-1a of an entry: its line's last number. */
static uint64_t checksum_of(const remembered *entry) {
  const unsigned char *bytes = (const unsigned char *)entry;
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < sizeof *entry; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
  return hash;
}

/* The entry of a line, all of it and nothing else. */
static bool parse(const char *line, remembered *entry) {
  uint64_t checksum = 0;
  for (int i = 0; i <= LINE_NUMBERS; i++) {
    char *end;
    errno = 0;
    uint64_t number = strtoull(line, &end, 16);
    if (end == line || errno || *end != (i < LINE_NUMBERS ? ' ' : '\n')) return false;
    line = end + 1;
    if (i < PK_FORM_NUMBERS)
      entry->form[i] = (int64_t)number;
    else if (i < LINE_NUMBERS)
      entry->algorithm[i - PK_FORM_NUMBERS] = number;
    else
      checksum = number;
  }
  return *line == '\0' && checksum == checksum_of(entry);
}

static void read_file(pk_algorithms *all) {
  FILE *file = fopen(all->path, "r");
  if (!file) return;
  char line[LINE_BYTES];
  bool good = fgets(line, sizeof line, file) && strcmp(line, all->header) == 0;
  while (good && fgets(line, sizeof line, file)) {
    remembered entry;
    good = parse(line, &entry) && add(all, &entry);
  }
  if (!good) all->count = 0;
  fclose(file);
}

static void write_entry(FILE *file, const remembered *entry) {
  for (int i = 0; i < PK_FORM_NUMBERS; i++) fprintf(file, "%" PRIx64 " ", (uint64_t)entry->form[i]);
  for (int i = 0; i < ALGORITHM_WORDS; i++) fprintf(file, "%" PRIx64 " ", entry->algorithm[i]);
  fprintf(file, "%" PRIx64 "\n", checksum_of(entry));
}

/* Puts a new file in the old one's place. That it cannot be written is no failure: the next process
 * times again. */
static void write_file(const pk_algorithms *all) {
  char fresh[PATH_BYTES + 32];
  snprintf(fresh, sizeof fresh, "%s.%ld", all->path, (long)getpid());
  FILE *file = fopen(fresh, "w");
  if (!file) return;
  fputs(all->header, file);
  for (int64_t i = 0; i < all->count; i++) write_entry(file, &all->list[i]);
  bool good = !ferror(file);
  good = fclose(file) == 0 && good;
  if (!good || rename(fresh, all->path) != 0) unlink(fresh);
}

/* Where the file is; empty without a home. Makes the folders. */
static void find_path(const pk_cuda_device *cuda, size_t version, pk_algorithms *all) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  char folder[PATH_BYTES - 128];
  int used = 0, size = (int)sizeof folder;
  if (cache && *cache)
    used = snprintf(folder, sizeof folder, "%s", cache);
  else if (home && *home)
    used = snprintf(folder, sizeof folder, "%s/.cache", home);
  if (used <= 0 || used + 16 >= size) return;
  mkdir(folder, 0777);
  snprintf(folder + used, sizeof folder - (size_t)used, "/packlua");
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) return;
  snprintf(all->path, sizeof all->path, "%s/cublaslt-%s-%zu", folder, cuda->properties.uuid,
           version);
}

static bool may_time(const pk_cuda_device *cuda) {
  const char *tune = getenv("PACKLUA_TUNE");
  return !cuda->deterministic && !(tune && strcmp(tune, "0") == 0);
}

static pk_algorithms *open_algorithms(pk_cuda_device *cuda) {
  pk_cuda_products *products = cuda->products;
  if (products->algorithms) return products->algorithms;
  pk_algorithms *all = calloc(1, sizeof *all);
  if (!all) return NULL;
  size_t version = products->lt.version();
  find_path(cuda, version, all);
  snprintf(all->header, sizeof all->header, "packlua cublaslt 1 %zu %s\n", version,
           cuda->properties.uuid);
  if (all->path[0]) read_file(all);
  products->algorithms = all;
  return all;
}

/* --- choosing --- */

typedef cublasLtMatmulHeuristicResult_t proposal;

static pk_status propose(pk_cuda_device *cuda, const pk_planned_product *planned,
                         const pk_product *product, proposal proposals[MOST_PROPOSALS],
                         int *count) {
  const pk_cublaslt *lt = &cuda->products->lt;
  const int64_t *alignments =
      planned->form.alignment; /* of a, b and c, where cuBLASLt has b first */
  uint64_t bytes = (uint64_t)pk_cuda_product_workspace(cuda, product);
  /* Parts of a split sum are added in order, by a kernel of their own. */
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  static const cublasLtMatmulPreferenceAttributes_t names[4] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  uint32_t least[4] = {(uint32_t)alignments[1], (uint32_t)alignments[0], (uint32_t)alignments[2],
                       (uint32_t)alignments[2]};
  cublasLtMatmulPreference_t preference = NULL;
  cublasStatus_t status = lt->preference_create(&preference);
  if (!status)
    status = lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                sizeof bytes);
  if (!status)
    status = lt->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                                sizeof reduction);
  for (int i = 0; i < 4 && !status; i++)
    status = lt->preference_set(preference, names[i], &least[i], sizeof least[i]);
  if (!status)
    status = lt->propose(cuda->products->handle, planned->product, planned->b, planned->a,
                         planned->c, planned->c, preference, MOST_PROPOSALS, proposals, count);
  if (preference) lt->preference_destroy(preference);
  if (!status && *count == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
  return pk_cublaslt_check(lt, status, "looking for an algorithm");
}

static bool recall(pk_cuda_device *cuda, pk_planned_product *planned, const pk_product *product) {
  const pk_algorithms *all = open_algorithms(cuda);
  for (int64_t i = 0; all && i < all->count; i++) {
    const remembered *entry = &all->list[i];
    if (memcmp(entry->form, planned->form.numbers, sizeof entry->form) != 0) continue;
    memcpy(planned->algorithm.data, entry->algorithm, sizeof entry->algorithm);
    proposal checked;
    cublasStatus_t status =
        cuda->products->lt.check(cuda->products->handle, planned->product, planned->b, planned->a,
                                 planned->c, planned->c, &planned->algorithm, &checked);
    return status == CUBLAS_STATUS_SUCCESS &&
           (int64_t)checked.workspaceSize <= pk_cuda_product_workspace(cuda, product);
  }
  return false;
}

static void remember(pk_cuda_device *cuda, const pk_planned_product *planned) {
  pk_algorithms *all = open_algorithms(cuda);
  if (!all) return;
  remembered entry;
  memcpy(entry.form, planned->form.numbers, sizeof entry.form);
  memcpy(entry.algorithm, planned->algorithm.data, sizeof entry.algorithm);
  int64_t i = 0;
  while (i < all->count && memcmp(all->list[i].form, entry.form, sizeof entry.form) != 0) i++;
  if (i < all->count)
    all->list[i] = entry;
  else if (!add(all, &entry))
    return;
  if (all->path[0]) write_file(all);
}

/* The shortest of some rounds in milliseconds, a first run left out; negative if it cannot be run.
 */
static float time_of(pk_cuda_device *cuda, const pk_planned_product *planned,
                     const cublasLtMatmulAlgo_t *algorithm, const pk_product *product,
                     void *workspace, const cudaEvent_t events[2]) {
  float best = -1;
  if (pk_cuda_run_planned(cuda, planned, algorithm, product, workspace) != PK_OK) return -1;
  for (int round = 0; round < ROUNDS; round++) {
    float milliseconds = 0;
    cudaError_t error = cudaEventRecord(events[0], cuda->stream);
    for (int run = 0; run < RUNS; run++)
      if (pk_cuda_run_planned(cuda, planned, algorithm, product, workspace) != PK_OK) return -1;
    if (!error) error = cudaEventRecord(events[1], cuda->stream);
    if (!error) error = cudaEventSynchronize(events[1]);
    if (!error) error = cudaEventElapsedTime(&milliseconds, events[0], events[1]);
    if (error) return -1;
    if (best < 0 || milliseconds < best) best = milliseconds;
  }
  return best;
}

/* The fastest of the proposals on the product's own operands. What they write is thrown away: a c
 * that is added to has to stay as it is, any other is written by the product afterwards. -1 where
 * none could be timed, as without memory for that. */
static int fastest(pk_cuda_device *cuda, const pk_planned_product *planned,
                   const pk_product *product, void *workspace, const proposal *proposals,
                   int count) {
  pk_product trial = *product;
  int64_t last = (product->batch - 1) * product->c.stride + (product->m - 1) * product->c.ld;
  int64_t bytes = (last + product->p) * pk_dtype_size(product->c_dtype);
  cudaEvent_t events[2] = {0};
  int best = -1;
  float shortest = -1;
  void *scratch = NULL;
  bool ready = !product->accumulate || cudaMalloc(&scratch, (size_t)bytes) == cudaSuccess;
  if (scratch) trial.c.at = scratch;
  for (int e = 0; e < 2 && ready; e++)
    ready = cudaEventCreateWithFlags(&events[e], cudaEventDefault) == cudaSuccess;
  for (int i = 0; i < count && ready; i++) {
    if (proposals[i].state != CUBLAS_STATUS_SUCCESS) continue;
    float time = time_of(cuda, planned, &proposals[i].algo, &trial, workspace, events);
    if (time < 0 || (shortest >= 0 && time >= shortest)) continue;
    shortest = time;
    best = i;
  }
  for (int e = 0; e < 2; e++)
    if (events[e]) cudaEventDestroy(events[e]);
  cudaStreamSynchronize(cuda->stream);
  if (scratch) cudaFree(scratch);
  cudaGetLastError(); /* what failed here is met again where it matters */
  return best;
}

pk_status pk_cuda_choose_algorithm(pk_cuda_device *cuda, pk_planned_product *planned,
                                   const pk_product *product, void *workspace) {
  bool timing = may_time(cuda);
  if (timing && recall(cuda, planned, product)) return PK_OK;
  proposal proposals[MOST_PROPOSALS];
  int count = 0, best = -1;
  pk_status status = propose(cuda, planned, product, proposals, &count);
  if (status != PK_OK) return status;
  enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  status = pk_cuda_check(cudaStreamIsCapturing(cuda->stream, &capture), "asking the stream");
  if (status != PK_OK) return status;
  timing = timing && count > 1 && capture == cudaStreamCaptureStatusNone;
  if (timing) best = fastest(cuda, planned, product, workspace, proposals, count);
  planned->algorithm = proposals[best < 0 ? 0 : best].algo;
  if (best >= 0) remember(cuda, planned);
  return PK_OK;
}
