/* The arithmetic of attention.c for one REAL: included once for float and once for double. */

/* The rows [T, K] of one head, one after the other; widened from bf16, or rounded to it. */
static void NAMED(gather_head)(const attention_job *job, const pk_tensor *tensor, int64_t head,
                               bool round, REAL *to) {
  int64_t width = job->width, start = head_start(job, head, tensor->stride);
  for (int64_t i = 0; i < job->length; i++) {
    const REAL *row = pk_widened(tensor, start + i * job->heads * width, width, to + i * width);
    if (row != to + i * width) memcpy(to + i * width, row, (size_t)width * sizeof *to);
  }
  if (round) pk_round_to_bf16((float *)to, job->length * width);
}

static void NAMED(scatter_head)(const attention_job *job, pk_tensor *tensor, int64_t head,
                                const REAL *from) {
  int64_t width = job->width;
  REAL *to = (REAL *)pk_tensor_data(tensor) + head_start(job, head, tensor->stride);
  for (int64_t i = 0; i < job->length; i++)
    memcpy(to + i * job->heads * width, from + i * width, (size_t)width * sizeof *to);
}

/* Scaled scores of the block's query rows against the keys that its last row sees. */
static void NAMED(scores)(const attention_job *job, const REAL *q, const REAL *k, int64_t rows,
                          int64_t visible, REAL *panel) {
  REAL_GEMM(false, true, rows, visible, job->width, (REAL)job->scale, q, job->width, k, job->width,
            0, panel, job->ld);
}

/* A row's scores become e^(s - largest), 0 where the row does not see. */
static REAL NAMED(exponentials)(const attention_job *job, REAL *row, int64_t seen, int64_t visible,
                                REAL *largest) {
  *largest = NAMED(row_largest)(row, seen);
  NAMED(row_exponentials)(row, *largest, seen);
  memset(row + seen, 0, (size_t)(visible - seen) * sizeof *row);
  REAL sum = NAMED(row_sum)(row, seen);
  if (job->rounds) pk_round_to_bf16((float *)row, seen);
  return sum;
}

static void NAMED(head_forward)(const attention_job *job, int64_t head, void *scratch) {
  int64_t length = job->length, width = job->width, spread = job->heads * width;
  REAL *panel = scratch, *q = panel + ROWS * job->ld, *k = q + length * width;
  REAL *v = k + length * width, sums[ROWS];
  NAMED(gather_head)(job, job->q, head, false, q);
  NAMED(gather_head)(job, job->k, head, false, k);
  NAMED(gather_head)(job, job->v, head, false, v);
  REAL *o = (REAL *)pk_tensor_data(job->out[0]) + head_start(job, head, job->out[0]->stride);
  REAL *lse = (REAL *)pk_tensor_data(job->out[1]) + lse_start(job, head, job->out[1]->stride);
  for (int64_t first = 0; first < length; first += ROWS) {
    int64_t rows = length - first < ROWS ? length - first : ROWS, visible = first + rows;
    NAMED(scores)(job, q + first * width, k, rows, visible, panel);
    for (int64_t i = 0; i < rows; i++) {
      REAL largest;
      sums[i] = NAMED(exponentials)(job, panel + i * job->ld, first + i + 1, visible, &largest);
      lse[first + i] = largest + REAL_LOG(sums[i]);
    }
    REAL *block = o + first * spread;
    REAL_GEMM(false, false, rows, width, visible, 1, panel, job->ld, v, width, 0, block, spread);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t c = 0; c < width; c++) block[i * spread + c] /= sums[i];
  }
}

/* In place: scores become P = e^(s - lse), dP becomes P (dP - delta); 0 where the row does not see.
 * delta is dO . O, which is taken as P . dP: then a row's gradients add up to 0 as closely as these
 * very P and dP allow, however lse and O were rounded. */
static void NAMED(score_gradients)(const attention_job *job, REAL *restrict p, REAL *restrict dp,
                                   int64_t seen, int64_t visible, REAL lse) {
  for (int64_t j = 0; j < seen; j++) p[j] = NAMED(flushed)(REAL_EXP(p[j] - lse));
  REAL delta = NAMED(row_dot)(p, dp, seen);
  for (int64_t j = 0; j < seen; j++) dp[j] = NAMED(flushed)(p[j] * (dp[j] - delta));
  memset(p + seen, 0, (size_t)(visible - seen) * sizeof *p);
  memset(dp + seen, 0, (size_t)(visible - seen) * sizeof *dp);
  if (!job->rounds) return;
  pk_round_to_bf16((float *)p, seen);
  pk_round_to_bf16((float *)dp, seen);
}

static void NAMED(head_backward)(const attention_job *job, int64_t head, void *scratch) {
  int64_t length = job->length, width = job->width, spread = job->heads * width, ld = job->ld;
  REAL *p = scratch, *dp = p + ROWS * ld, *q = dp + ROWS * ld, *k = q + length * width;
  REAL *v = k + length * width, *g = v + length * width, *k_grad = g + length * width;
  REAL *v_grad = k_grad + length * width;
  NAMED(gather_head)(job, job->q, head, false, q);
  NAMED(gather_head)(job, job->k, head, false, k);
  NAMED(gather_head)(job, job->v, head, false, v);
  NAMED(gather_head)(job, job->g, head, job->rounds, g);
  memset(k_grad, 0, (size_t)(2 * length * width) * sizeof *k_grad);
  const REAL *lse = (const REAL *)pk_tensor_data(job->lse) + lse_start(job, head, job->lse->stride);
  REAL *q_grad = (REAL *)pk_tensor_data(job->out[0]) + head_start(job, head, job->out[0]->stride);
  REAL scale = (REAL)job->scale;
  for (int64_t first = 0; first < length; first += ROWS) {
    int64_t rows = length - first < ROWS ? length - first : ROWS, visible = first + rows;
    const REAL *g_block = g + first * width, *q_block = q + first * width;
    NAMED(scores)(job, q_block, k, rows, visible, p);
    REAL_GEMM(false, true, rows, visible, width, 1, g_block, width, v, width, 0, dp, ld);
    for (int64_t i = 0; i < rows; i++) {
      REAL *p_row = p + i * ld, *dp_row = dp + i * ld;
      NAMED(score_gradients)(job, p_row, dp_row, first + i + 1, visible, lse[first + i]);
    }
    REAL_GEMM(false, false, rows, width, visible, scale, dp, ld, k, width, 0,
              q_grad + first * spread, spread);
    REAL_GEMM(true, false, visible, width, rows, scale, dp, ld, q_block, width, 1, k_grad, width);
    REAL_GEMM(true, false, visible, width, rows, 1, p, ld, g_block, width, 1, v_grad, width);
  }
  NAMED(scatter_head)(job, job->out[1], head, k_grad);
  NAMED(scatter_head)(job, job->out[2], head, v_grad);
}
