/* Matrix products by oneDNN's primitives: bf16 operands on processors that multiply them. f32
 * products go through dnnl_sgemm (blas.c), which runs the same code as a primitive would and was as
 * fast.
 *
 * A primitive is made for one set of sizes and strides. Every thread keeps those that it made, so
 * that they are found without locks, and are run by the thread that made them, as their scratch
 * memory requires. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "cpu/products.h"

#ifndef PK_HAVE_DNNL
bool pk_cpu_has_bf16(void) {
  return false;
}

bool pk_cpu_uses_primitives(int dtype) {
  (void)dtype;
  return false;
}

bool pk_cpu_primitive_gemm(const pk_product *product, const void *a, const void *b, float *c) {
  (void)product, (void)a, (void)b, (void)c;
  return false;
}
#else
#include <dnnl.h>

#include "cpu/guard.h"

enum { MOST_PRODUCTS = 128 }; /* that a thread keeps; a training step has some thirty */

typedef struct kept_product {
  pk_product product;
  dnnl_primitive_t primitive; /* NULL: the library has none */
  dnnl_memory_t a, b, c;
} kept_product;

typedef struct product_cache {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  int count, oldest;
  kept_product products[MOST_PRODUCTS];
} product_cache;

/* --- what differs between oneDNN 2 and 3 --- */

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t describe(dnnl_memory_desc_t *made, const dnnl_dims_t extents,
                              const dnnl_dims_t strides, dnnl_data_type_t type) {
  return dnnl_memory_desc_create_with_strides(made, 2, extents, type, strides);
}

static void forget(dnnl_memory_desc_t description) {
  dnnl_memory_desc_destroy(description);
}

static dnnl_status_t make_memory(dnnl_memory_t *made, dnnl_memory_desc_t description,
                                 dnnl_engine_t engine) {
  return dnnl_memory_create(made, description, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t choose(dnnl_primitive_desc_t *made, dnnl_engine_t engine,
                            const dnnl_memory_desc_t places[3], dnnl_primitive_attr_t attributes) {
  return dnnl_matmul_primitive_desc_create(made, engine, places[0], places[1], NULL, places[2],
                                           attributes);
}

static dnnl_status_t add_to_result(dnnl_post_ops_t operations) {
  return dnnl_post_ops_append_sum(operations, 1, 0, dnnl_data_type_undef);
}
#else
static dnnl_status_t describe(dnnl_memory_desc_t *made, const dnnl_dims_t extents,
                              const dnnl_dims_t strides, dnnl_data_type_t type) {
  return dnnl_memory_desc_init_by_strides(made, 2, extents, type, strides);
}

static void forget(dnnl_memory_desc_t description) {
  (void)description;
}

static dnnl_status_t make_memory(dnnl_memory_t *made, dnnl_memory_desc_t description,
                                 dnnl_engine_t engine) {
  return dnnl_memory_create(made, &description, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t choose(dnnl_primitive_desc_t *made, dnnl_engine_t engine,
                            const dnnl_memory_desc_t places[3], dnnl_primitive_attr_t attributes) {
  dnnl_matmul_desc_t product;
  dnnl_status_t status = dnnl_matmul_desc_init(&product, &places[0], &places[1], NULL, &places[2]);
  if (status != dnnl_success) return status;
  return dnnl_primitive_desc_create(made, &product, attributes, engine, NULL);
}

static dnnl_status_t add_to_result(dnnl_post_ops_t operations) {
  return dnnl_post_ops_append_sum(operations, 1);
}
#endif

/* --- making --- */

static dnnl_status_t describe_matrix(dnnl_memory_desc_t *made, int64_t rows, int64_t columns,
                                     bool transpose, int64_t ld, int dtype) {
  const dnnl_dims_t extents = {rows, columns}, strides = {transpose ? 1 : ld, transpose ? ld : 1};
  return describe(made, extents, strides, dtype == PK_BF16 ? dnnl_bf16 : dnnl_f32);
}

/* The attributes of a primitive that adds to C; NULL for one that writes it. */
static dnnl_status_t make_attributes(bool adds, dnnl_primitive_attr_t *attributes) {
  *attributes = NULL;
  if (!adds) return dnnl_success;
  dnnl_post_ops_t operations = NULL;
  dnnl_status_t status = dnnl_primitive_attr_create(attributes);
  if (status == dnnl_success) status = dnnl_post_ops_create(&operations);
  if (status == dnnl_success) status = add_to_result(operations);
  if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(*attributes, operations);
  if (operations) dnnl_post_ops_destroy(operations);
  return status;
}

/* What the making of a product goes through. */
typedef struct making {
  dnnl_engine_t engine;
  kept_product *kept;
  dnnl_memory_desc_t places[3];
  int described;
  dnnl_primitive_attr_t attributes;
  dnnl_primitive_desc_t description;
  dnnl_status_t status;
} making;

static void make(void *argument) {
  making *m = argument;
  const pk_product *p = &m->kept->product;
  dnnl_memory_t *operands[3] = {&m->kept->a, &m->kept->b, &m->kept->c};
  dnnl_status_t status =
      describe_matrix(&m->places[0], p->m, p->k, p->transpose_a, p->lda, p->dtype);
  if (status == dnnl_success) m->described++;
  if (status == dnnl_success)
    status = describe_matrix(&m->places[1], p->k, p->p, p->transpose_b, p->ldb, p->dtype);
  if (status == dnnl_success) m->described++;
  if (status == dnnl_success)
    status = describe_matrix(&m->places[2], p->m, p->p, false, p->ldc, PK_F32);
  if (status == dnnl_success) m->described++;
  if (status == dnnl_success) status = make_attributes(p->adds, &m->attributes);
  if (status == dnnl_success) status = choose(&m->description, m->engine, m->places, m->attributes);
  for (int i = 0; i < 3 && status == dnnl_success; i++)
    status = make_memory(operands[i], m->places[i], m->engine);
  if (status == dnnl_success) status = dnnl_primitive_create(&m->kept->primitive, m->description);
  m->status = status;
}

/* Notes that a product had no memory, for an exception or for what the library answered. */
static void note_no_memory(const pk_product *p, const char *problem) {
  pk_cpu_product_failed(pk_fail(PK_NO_MEMORY, "a product [%lld, %lld] x [%lld, %lld] by oneDNN: %s",
                                (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->p,
                                problem));
}

/* Makes a product's primitive and the objects that hold its operands; leaves primitive NULL where
 * the library has none. False, with the failure noted, if there is no memory. */
static bool make_product(dnnl_engine_t engine, kept_product *kept) {
  making m = {.engine = engine, .kept = kept};
  char problem[PK_GUARD_TEXT] = "the system refused memory";
  bool returned = pk_cpu_has_room(PK_DNNL_MIB) && pk_cpu_guard(make, &m, problem);
  bool failed = !returned || m.status == dnnl_out_of_memory;
  if (failed) note_no_memory(&kept->product, problem);
  if (failed || m.status != dnnl_success) kept->primitive = NULL;
  if (m.description) dnnl_primitive_desc_destroy(m.description);
  if (m.attributes) dnnl_primitive_attr_destroy(m.attributes);
  for (int i = 0; i < m.described; i++) forget(m.places[i]);
  return !failed;
}

static void free_product(kept_product *kept) {
  if (kept->primitive) dnnl_primitive_destroy(kept->primitive);
  if (kept->a) dnnl_memory_destroy(kept->a);
  if (kept->b) dnnl_memory_destroy(kept->b);
  if (kept->c) dnnl_memory_destroy(kept->c);
  *kept = (kept_product){.primitive = NULL};
}

/* --- the cache of a thread --- */

static pthread_key_t cache_key;
static bool has_key;

static void free_cache(void *argument) {
  product_cache *cache = argument;
  for (int i = 0; i < cache->count; i++) free_product(&cache->products[i]);
  if (cache->stream) dnnl_stream_destroy(cache->stream);
  if (cache->engine) dnnl_engine_destroy(cache->engine);
  free(cache);
}

static void make_key(void) {
  has_key = pthread_key_create(&cache_key, free_cache) == 0;
}

static void start_cache(void *argument) {
  product_cache *cache = argument;
  if (dnnl_engine_create(&cache->engine, dnnl_cpu, 0) != dnnl_success) return;
  dnnl_stream_create(&cache->stream, cache->engine, dnnl_stream_default_flags);
}

/* This thread's cache, made at its first call; NULL where that fails. */
static product_cache *cache_of_thread(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_key);
  if (!has_key) return NULL;
  product_cache *cache = pthread_getspecific(cache_key);
  if (cache) return cache;
  pk_cpu_limit_library_threads();
  cache = calloc(1, sizeof *cache);
  if (!cache) return NULL;
  char problem[PK_GUARD_TEXT];
  if (!pk_cpu_guard(start_cache, cache, problem) || !cache->stream ||
      pthread_setspecific(cache_key, cache) != 0) {
    free_cache(cache);
    return NULL;
  }
  return cache;
}

static bool is_same(const pk_product *a, const pk_product *b) {
  return a->m == b->m && a->p == b->p && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
         a->ldc == b->ldc && a->dtype == b->dtype && a->transpose_a == b->transpose_a &&
         a->transpose_b == b->transpose_b && a->adds == b->adds;
}

/* The product as this thread keeps it; made anew, in place of the oldest if there are many. NULL,
 * with the failure noted, if there is no memory for it. */
static kept_product *find_product(product_cache *cache, const pk_product *product) {
  for (int i = 0; i < cache->count; i++)
    if (is_same(&cache->products[i].product, product)) return &cache->products[i];
  kept_product *kept;
  if (cache->count < MOST_PRODUCTS) {
    kept = &cache->products[cache->count++];
  } else {
    kept = &cache->products[cache->oldest];
    cache->oldest = (cache->oldest + 1) % MOST_PRODUCTS;
    free_product(kept);
  }
  kept->product = *product;
  if (make_product(cache->engine, kept)) return kept;
  free_product(kept); /* it is made at its next call, having no sizes until then */
  return NULL;
}

typedef struct execution {
  const product_cache *cache;
  const kept_product *kept;
  dnnl_status_t status;
} execution;

static void execute(void *argument) {
  execution *e = argument;
  const dnnl_exec_arg_t operands[] = {
      {DNNL_ARG_SRC, e->kept->a}, {DNNL_ARG_WEIGHTS, e->kept->b}, {DNNL_ARG_DST, e->kept->c}};
  e->status = dnnl_primitive_execute(e->kept->primitive, e->cache->stream, 3, operands);
  if (e->status == dnnl_success) e->status = dnnl_stream_wait(e->cache->stream);
}

bool pk_cpu_primitive_gemm(const pk_product *product, const void *a, const void *b, float *c) {
  product_cache *cache = cache_of_thread();
  if (!cache) {
    note_no_memory(product, "the system refused memory to start it");
    return true;
  }
  kept_product *kept = find_product(cache, product);
  if (!kept) return true;
  if (!kept->primitive) return false;
  /* The library takes what it only reads as void * too. */
  void *left, *right;
  memcpy(&left, &a, sizeof left);
  memcpy(&right, &b, sizeof right);
  dnnl_memory_set_data_handle(kept->a, left);
  dnnl_memory_set_data_handle(kept->b, right);
  dnnl_memory_set_data_handle(kept->c, c);
  execution run = {cache, kept, dnnl_success};
  char problem[PK_GUARD_TEXT] = "the system refused memory";
  bool returned = pk_cpu_guard(execute, &run, problem);
  if (returned && run.status != dnnl_out_of_memory) return run.status == dnnl_success;
  note_no_memory(product, problem);
  return true;
}

/* --- when they are used --- */

#if defined(__x86_64__)
/* AMX-BF16, which compilers' own tests do not all know by name. */
static bool has_bf16_tiles(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1;
}
#endif

/* Whether the processor multiplies bf16 pairs faster than it does f32 numbers. Intel's do by tiles
 * alone: their vector instruction for it takes two cycles where two f32 ones take one (measured:
 * half the f32 rate on an Emerald Rapids whose tiles a virtual machine hides). The instruction sets
 * that PACKLUA_ISA can ask for are all without. */
static bool processor_has_bf16(void) {
  const char *set = getenv("PACKLUA_ISA");
  if (set && *set) return false;
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") && (has_bf16_tiles() || !__builtin_cpu_is("intel"));
#elif defined(__aarch64__)
  return getauxval(AT_HWCAP2) & HWCAP2_BF16;
#else
  return false;
#endif
}

/* Whether the library has a bf16 product that is not its reference code: it may have been built
 * without, or been told by ONEDNN_MAX_CPU_ISA to keep to an older processor. */
static void look_at_library(void *argument) {
  bool *fast = argument;
  dnnl_engine_t engine;
  if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) return;
  dnnl_memory_desc_t places[3];
  dnnl_primitive_desc_t description = NULL;
  const char *implementation = "ref";
  int described = 0;
  for (; described < 3; described++) {
    int dtype = described < 2 ? PK_BF16 : PK_F32;
    if (describe_matrix(&places[described], 64, 64, false, 64, dtype) != dnnl_success) break;
  }
  if (described == 3 && choose(&description, engine, places, NULL) == dnnl_success)
    dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, (void *)&implementation);
  *fast = strncmp(implementation, "ref", 3) != 0;
  if (description) dnnl_primitive_desc_destroy(description);
  for (int i = 0; i < described; i++) forget(places[i]);
  dnnl_engine_destroy(engine);
}

static bool library_has_bf16(void) {
  bool fast = false;
  char problem[PK_GUARD_TEXT] = "the system refused memory";
  if (!pk_cpu_has_room(PK_DNNL_MIB) || !pk_cpu_guard(look_at_library, &fast, problem))
    pk_cpu_product_failed(pk_fail(PK_NO_MEMORY, "oneDNN could not be started: %s", problem));
  return fast;
}

static bool has_bf16, is_forced;

static void look(void) {
  pk_cpu_guard_prepare();
  const char *products = getenv("PACKLUA_PRODUCTS");
  is_forced = products && strcmp(products, "primitives") == 0;
  has_bf16 = processor_has_bf16() && library_has_bf16();
}

static void look_once(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, look);
}

bool pk_cpu_has_bf16(void) {
  look_once();
  return has_bf16;
}

bool pk_cpu_uses_primitives(int dtype) {
  look_once();
  return is_forced ? dtype != PK_F64 : has_bf16 && dtype == PK_BF16;
}
#endif
