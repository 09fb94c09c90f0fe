/* The CPU as a device: its memory, its threads, and the choice of kernels by instruction set. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/trace.h"
#include "cpu/products.h"

/* From here on, blocks are mapped on their own, on 2 MiB pages where the kernel has them. */
enum { LARGE_BYTES = 4 << 20 };

typedef struct cpu_device {
  pk_device base; /* first, so that a pk_device of the CPU is a cpu_device */
  pk_threads *threads;
  pk_busy *notes; /* [threads] while the context is traced */
  char description[192];
} cpu_device;

typedef struct instruction_set {
  const char *name;  /* what PACKLUA_ISA says */
  const char *title; /* what people call it */
  const pk_kernel *kernels;
  const pk_workspace_rule *workspaces;
} instruction_set;

#if defined(__x86_64__)
extern const pk_kernel pk_cpu_kernels_v2[], pk_cpu_kernels_v3[], pk_cpu_kernels_v4[];
extern const pk_workspace_rule pk_cpu_workspaces_v2[], pk_cpu_workspaces_v3[],
    pk_cpu_workspaces_v4[];
static const instruction_set sets[] = {{"v2", "sse4.2", pk_cpu_kernels_v2, pk_cpu_workspaces_v2},
                                       {"v3", "avx2", pk_cpu_kernels_v3, pk_cpu_workspaces_v3},
                                       {"v4", "avx512", pk_cpu_kernels_v4, pk_cpu_workspaces_v4}};

/* The index of the best set that this processor has. */
static int best_set(void) {
  bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
            __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl");
  return v4 ? 2 : v3 ? 1 : 0;
}
#else
extern const pk_kernel pk_cpu_kernels_neon[];
extern const pk_workspace_rule pk_cpu_workspaces_neon[];
static const instruction_set sets[] = {
    {"neon", "neon", pk_cpu_kernels_neon, pk_cpu_workspaces_neon}};

static int best_set(void) {
  return 0;
}
#endif

/* The best set, or a lower one that the environment asks for. */
static pk_status choose_set(const instruction_set **chosen) {
  int best = best_set();
  const char *cap = getenv("PACKLUA_ISA");
  *chosen = &sets[best];
  if (!cap || !*cap) return PK_OK;
  for (int s = 0; s < (int)(sizeof sets / sizeof *sets); s++) {
    if (strcmp(sets[s].name, cap) != 0) continue;
    if (s > best) {
      return pk_fail(PK_UNSUPPORTED, "PACKLUA_ISA=%s: this processor has up to %s", cap,
                     sets[best].name);
    }
    *chosen = &sets[s];
    return PK_OK;
  }
  return pk_fail(PK_INVALID, "PACKLUA_ISA=%s is not an instruction set of this build", cap);
}

/* Refuses a PACKLUA_PRODUCTS that onednn.c does not know. */
static pk_status check_products(void) {
  const char *products = getenv("PACKLUA_PRODUCTS");
  if (!products || !*products || strcmp(products, "primitives") == 0) return PK_OK;
  return pk_fail(PK_INVALID, "PACKLUA_PRODUCTS=%s: 'primitives' is all that it can ask for",
                 products);
}

static pk_status allocate(pk_device *device, int64_t bytes, void **memory) {
  (void)device;
  void *block;
  if (bytes < LARGE_BYTES) {
    block = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
    if (!block) return pk_fail(PK_NO_MEMORY, "the system refused %lld bytes", (long long)bytes);
  } else {
    block = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) {
      return pk_fail(PK_NO_MEMORY, "the system refused %lld bytes", (long long)bytes);
    }
    madvise(block, (size_t)bytes, MADV_HUGEPAGE);
  }
  *memory = block;
  return PK_OK;
}

static void release(pk_device *device, void *memory, int64_t bytes) {
  (void)device;
  if (bytes < LARGE_BYTES) {
    free(memory);
  } else {
    munmap(memory, (size_t)bytes);
  }
}

/* Whole pages of a mapped block are given back instead of written: the kernel gives zeroed ones
 * when they are touched, which for a block that nobody has touched yet costs nothing now and is not
 * done twice. */
static pk_status zero(pk_device *device, void *memory, int64_t bytes) {
  (void)device;
  char *start = memory, *end = start + bytes;
  if (bytes >= LARGE_BYTES) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    char *pages = start + (page - (uintptr_t)start % page) % page;
    char *pages_end = end - (uintptr_t)end % page;
    if (madvise(pages, (size_t)(pages_end - pages), MADV_DONTNEED) == 0) {
      memset(start, 0, (size_t)(pages - start));
      start = pages_end;
    }
  }
  memset(start, 0, (size_t)(end - start));
  return PK_OK;
}

static pk_status upload(pk_device *device, void *memory, const void *data, int64_t bytes) {
  (void)device;
  if (bytes > 0) memcpy(memory, data, (size_t)bytes);
  return PK_OK;
}

static pk_status download(pk_device *device, const pk_part *parts, int64_t count) {
  (void)device;
  for (int64_t p = 0; p < count; p++)
    if (parts[p].bytes > 0) memcpy(parts[p].data, parts[p].memory, (size_t)parts[p].bytes);
  return PK_OK;
}

static pk_status synchronize(pk_device *device) {
  (void)device;
  return PK_OK;
}

static pk_status trace_begin(pk_device *device, pk_trace *trace) {
  (void)trace;
  cpu_device *cpu = (cpu_device *)device;
  cpu->notes = calloc((size_t)pk_threads_count(cpu->threads), sizeof *cpu->notes);
  if (!cpu->notes) return pk_fail(PK_NO_MEMORY, "no host memory to trace threads");
  pk_threads_watch(cpu->threads, cpu->notes);
  return PK_OK;
}

/* Lane 0 is the trace's own, so that a thread's is one more than its number. */
static void trace_after(pk_device *device, pk_trace *trace, int64_t operation) {
  cpu_device *cpu = (cpu_device *)device;
  for (int t = 0; t < pk_threads_count(cpu->threads); t++) {
    if (cpu->notes[t].pieces > 0) pk_trace_add_lane(trace, t + 1, operation, &cpu->notes[t]);
    cpu->notes[t] = (pk_busy){.pieces = 0};
  }
}

static void trace_end(pk_device *device, pk_trace *trace) {
  (void)trace;
  cpu_device *cpu = (cpu_device *)device;
  pk_threads_watch(cpu->threads, NULL);
  free(cpu->notes);
  cpu->notes = NULL;
}

static void destroy(pk_device *device) {
  cpu_device *cpu = (cpu_device *)device;
  pk_threads_free(cpu->threads);
  free(cpu);
}

static void processor_name(char *name, size_t size) {
  snprintf(name, size, "processor");
  FILE *file = fopen("/proc/cpuinfo", "r");
  if (!file) return;
  char line[256];
  while (fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || !colon) continue;
    line[strcspn(line, "\n")] = 0;
    snprintf(name, size, "%s", colon + 2);
    break;
  }
  fclose(file);
}

pk_threads *pk_cpu_threads(const pk_call *call) {
  return ((cpu_device *)pk_context_get_device(call->context))->threads;
}

static pk_status create(pk_device **device, int64_t threads) {
  const instruction_set *set;
  pk_status status = choose_set(&set);
  if (!status) status = check_products();
  if (status != PK_OK) return status;
  cpu_device *cpu = calloc(1, sizeof *cpu);
  if (!cpu) return pk_fail(PK_NO_MEMORY, "no host memory for the CPU device");
  int64_t count = threads > 0 ? threads : pk_cores();
  status = pk_threads_create(&cpu->threads, (int)count);
  if (status != PK_OK) {
    free(cpu);
    return status;
  }
  pk_cblas_expect_threads(count);
  char processor[128];
  processor_name(processor, sizeof processor);
  snprintf(cpu->description, sizeof cpu->description, "%s, %lld thread%s, %s", processor,
           (long long)count, count == 1 ? "" : "s", set->title);
  cpu->base = (pk_device){
      .name = "cpu",
      .description = cpu->description,
      .isa = set->title,
      .has_bf16 = pk_cpu_has_bf16(),
      .attention = "flash",
      .threads = count,
      .memory_available = pk_cpu_memory_left(),
      .kernels = set->kernels,
      .workspaces = set->workspaces,
      .allocate = allocate,
      .release = release,
      .zero = zero,
      .upload = upload,
      .download = download,
      .synchronize = synchronize,
      .destroy = destroy,
      .trace_begin = trace_begin,
      .trace_after = trace_after,
      .trace_end = trace_end,
  };
  *device = &cpu->base;
  return PK_OK;
}

const pk_builtin_device pk_builtin = {.name = "cpu", .create = create};
