/* Largest value, sums and products of one row, for one REAL (real_f32.h). LANES accumulators in
 * turn, then added by halves: an order that no instruction set changes. */

enum { NAMED(LANES) = 32 };

/* -INFINITY for no elements; a NaN is passed over. */
static inline REAL NAMED(row_largest)(const REAL *restrict x, int64_t count) {
  REAL lanes[NAMED(LANES)];
  for (int l = 0; l < NAMED(LANES); l++) lanes[l] = -INFINITY;
  int64_t i = 0;
  for (; i + NAMED(LANES) <= count; i += NAMED(LANES))
    for (int l = 0; l < NAMED(LANES); l++) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  for (int l = 0; i < count; i++, l++) lanes[l] = x[i] > lanes[l] ? x[i] : lanes[l];
  for (int half = NAMED(LANES) / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++)
      lanes[l] = lanes[l + half] > lanes[l] ? lanes[l + half] : lanes[l];
  return lanes[0];
}

static inline REAL NAMED(row_sum)(const REAL *restrict x, int64_t count) {
  REAL lanes[NAMED(LANES)] = {0};
  int64_t i = 0;
  for (; i + NAMED(LANES) <= count; i += NAMED(LANES))
    for (int l = 0; l < NAMED(LANES); l++) lanes[l] += x[i + l];
  for (int l = 0; i < count; i++, l++) lanes[l] += x[i];
  for (int half = NAMED(LANES) / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
  return lanes[0];
}

static inline REAL NAMED(row_dot)(const REAL *a, const REAL *b, int64_t count) {
  REAL lanes[NAMED(LANES)] = {0};
  int64_t i = 0;
  for (; i + NAMED(LANES) <= count; i += NAMED(LANES))
    for (int l = 0; l < NAMED(LANES); l++) lanes[l] += a[i + l] * b[i + l];
  for (int l = 0; i < count; i++, l++) lanes[l] += a[i] * b[i];
  for (int half = NAMED(LANES) / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
  return lanes[0];
}

/* x, or 0 for a subnormal one: some processors take a hundred times as long over a product with
 * those, and softmax makes many where logits lie far apart. */
static inline REAL NAMED(flushed)(REAL x) {
  return REAL_ABS(x) < REAL_LEAST ? 0 : x;
}

/* x <- e^(x - shift), flushed */
static inline void NAMED(row_exponentials)(REAL *restrict x, REAL shift, int64_t count) {
  for (int64_t i = 0; i < count; i++) x[i] = NAMED(flushed)(REAL_EXP(x[i] - shift));
}
