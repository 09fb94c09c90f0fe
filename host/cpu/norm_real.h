/* The arithmetic of norm.c for one REAL: included once for float and once for double. */

/* A row of a + b, which may be in the memory of either. */
static const REAL *NAMED(sum_row)(const norm_job *job, int64_t worker, int64_t row) {
  int64_t start = row * job->width;
  const REAL *a = (const REAL *)job->x + worker * job->x_stride + start;
  const REAL *b = (const REAL *)job->b + worker * job->b_stride + start;
  REAL *sum = (REAL *)job->sum + worker * job->sum_stride + start;
  PK_EACH
  for (int64_t c = 0; c < job->width; c++) sum[c] = a[c] + b[c];
  return sum;
}

static void NAMED(norm_rows)(const norm_job *job, int64_t worker, int64_t first, int64_t last) {
  const REAL *weight = (const REAL *)job->weight + worker * job->weight_stride;
  int64_t width = job->width;
  for (int64_t row = first; row < last; row++) {
    int64_t x_start = worker * job->x_stride + row * width;
    const REAL *x = job->sum ? NAMED(sum_row)(job, worker, row) : (const REAL *)job->x + x_start;
    int64_t y_start = worker * job->y_stride + row * width;
    REAL mean = NAMED(row_dot)(x, x, width) / (REAL)width;
    REAL rstd = 1 / REAL_SQRT(mean + (REAL)job->eps);
    ((REAL *)job->rstd)[worker * job->rstd_stride + row] = rstd;
    if (job->to_bf16) {
      uint16_t *restrict y = (uint16_t *)job->y + y_start;
      for (int64_t c = 0; c < width; c++) y[c] = pk_bf16_from_f32((float)(x[c] * rstd * weight[c]));
    } else {
      REAL *restrict y = (REAL *)job->y + y_start;
      for (int64_t c = 0; c < width; c++) y[c] = x[c] * rstd * weight[c];
    }
  }
}

/* x_grad = rstd * (g w - xhat mean(g w xhat)) with xhat = x rstd; adds g xhat to weight_grad. */
static void NAMED(norm_grad_rows)(const norm_job *job, int64_t worker, int64_t first, int64_t last,
                                  REAL *restrict weight_grad, REAL *restrict gw) {
  const REAL *restrict weight = (const REAL *)job->weight + worker * job->weight_stride;
  int64_t width = job->width;
  for (int64_t row = first; row < last; row++) {
    const REAL *restrict x = (const REAL *)job->x + worker * job->x_stride + row * width;
    const REAL *restrict g = (const REAL *)job->g + worker * job->g_stride + row * width;
    REAL *restrict x_grad = (REAL *)job->y + worker * job->y_stride + row * width;
    REAL rstd = ((const REAL *)job->rstd)[worker * job->rstd_stride + row];
    for (int64_t c = 0; c < width; c++) {
      gw[c] = g[c] * weight[c];
      weight_grad[c] += g[c] * (x[c] * rstd);
    }
    REAL mean = NAMED(row_dot)(gw, x, width) * rstd / (REAL)width;
    if (job->accumulate_x) {
      for (int64_t c = 0; c < width; c++) x_grad[c] += rstd * (gw[c] - x[c] * rstd * mean);
    } else {
      for (int64_t c = 0; c < width; c++) x_grad[c] = rstd * (gw[c] - x[c] * rstd * mean);
    }
  }
}

/* Adds the pieces' weight gradients in order. */
static void NAMED(add_partials)(const norm_job *job, REAL *weight_grad, int64_t worker) {
  int64_t width = job->width;
  REAL *restrict total = weight_grad + worker * job->weight_grad_stride;
  if (!job->accumulate_weight)
    for (int64_t c = 0; c < width; c++) total[c] = 0;
  for (int64_t block = 0; block < job->blocks; block++) {
    const REAL *restrict part =
        (const REAL *)job->partials + (worker * job->blocks + block) * width;
    for (int64_t c = 0; c < width; c++) total[c] += part[c];
  }
}
