/* The arithmetic of linear_loss.c for one REAL: included once for float and once for double. */

/* Logits of rows first .. first+rows-1 for the vocabulary tile from token v on, [rows, tokens]. */
static void NAMED(logits_tile)(const linear_job *job, int64_t worker, int64_t first, int64_t rows,
                               int64_t v, int64_t tokens, REAL *logits, int64_t ld) {
  const REAL *x = (const REAL *)job->x.data + worker * job->x.stride + first * job->width;
  const REAL *weight =
      (const REAL *)job->weight.data + worker * job->weight.stride + v * job->width;
  REAL_GEMM(false, true, rows, tokens, job->width, 1, x, job->width, weight, job->width, 0, logits,
            ld);
}

/* Adds a tile's row to a running log-sum-exp: sum of e^(logit - top). */
static void NAMED(extend_sum)(const REAL *restrict row, int64_t count, REAL *top, double *sum) {
  REAL largest = *top, lanes[LANES] = {0};
  for (int64_t j = 0; j < count; j++) largest = row[j] > largest ? row[j] : largest;
  int64_t j = 0;
  for (; j + LANES <= count; j += LANES)
    for (int l = 0; l < LANES; l++) lanes[l] += REAL_EXP(row[j + l] - largest);
  for (int l = 0; j < count; j++, l++) lanes[l] += REAL_EXP(row[j] - largest);
  double added = 0;
  for (int l = 0; l < LANES; l++) added += lanes[l];
  *sum = *sum * exp((double)*top - (double)largest) + added;
  *top = largest;
}

/* log-sum-exp and target logit of a block of rows, the vocabulary in tiles. */
static void NAMED(forward_rows)(const linear_job *job, int64_t worker, int64_t first, int64_t rows,
                                REAL *logits) {
  const int32_t *targets = targets_of(job, worker) + first;
  REAL *lse = (REAL *)pk_tensor_data(job->lse) + worker * job->lse->stride + first;
  double *picked = job->picked + worker * job->rows + first;
  REAL tops[FORWARD_ROWS];
  double sums[FORWARD_ROWS];
  for (int64_t r = 0; r < rows; r++) {
    tops[r] = -REAL_LARGEST;
    sums[r] = 0;
  }
  for (int64_t v = 0; v < job->vocabulary; v += TOKENS) {
    int64_t tokens = job->vocabulary - v < TOKENS ? job->vocabulary - v : TOKENS;
    NAMED(logits_tile)(job, worker, first, rows, v, tokens, logits, tokens);
    for (int64_t r = 0; r < rows; r++) {
      NAMED(extend_sum)(logits + r * tokens, tokens, &tops[r], &sums[r]);
      if (targets[r] >= v && targets[r] < v + tokens)
        picked[r] = logits[r * tokens + targets[r] - v];
    }
  }
  for (int64_t r = 0; r < rows; r++) lse[r] = (REAL)(tops[r] + log(sums[r]));
}

/* A tile of the chunk's logit gradients, (softmax - onehot) g, in place. */
static void NAMED(gradient_tile)(const linear_job *job, int64_t v, int64_t tokens) {
  int64_t worker = job->worker, first = job->first;
  REAL *chunk = (REAL *)job->chunk + v;
  NAMED(logits_tile)(job, worker, first, job->chunk_rows, v, tokens, chunk, job->vocabulary);
  const int32_t *targets = targets_of(job, worker) + first;
  const REAL *lse = (const REAL *)pk_tensor_data(job->lse) + worker * job->lse->stride + first;
  REAL g = ((const REAL *)pk_tensor_data(job->g))[worker * job->g->stride];
  for (int64_t r = 0; r < job->chunk_rows; r++) {
    REAL *restrict row = chunk + r * job->vocabulary;
    REAL shift = lse[r];
    if (targets[r] == PK_IGNORED) {
      memset(row, 0, (size_t)tokens * sizeof *row);
      continue;
    }
    bool has_target = targets[r] >= v && targets[r] < v + tokens;
    REAL own = has_target ? (REAL_EXP(row[targets[r] - v] - shift) - 1) * g : 0;
    for (int64_t j = 0; j < tokens; j++) row[j] = REAL_EXP(row[j] - shift) * g;
    if (has_target) row[targets[r] - v] = own;
    if (job->rounds) round_to_bf16((float *)row, tokens);
  }
}

/* Rows of x_grad from the chunk: dlogits times weight. */
static void NAMED(x_gradient)(const linear_job *job, int64_t row, int64_t rows) {
  const pk_tensor *x_grad = job->x_grad;
  REAL *to = (REAL *)pk_tensor_data(x_grad) + job->worker * x_grad->stride +
             (job->first + row) * job->width;
  const REAL *weight = (const REAL *)job->weight.data + job->worker * job->weight.stride;
  REAL_GEMM(false, false, rows, job->width, job->vocabulary, 1,
            (const REAL *)job->chunk + row * job->vocabulary, job->vocabulary, weight, job->width,
            job->accumulate_x, to, job->width);
}

/* A vocabulary tile of weight_grad: the chunk's dlogits, transposed, times x. */
static void NAMED(weight_gradient)(const linear_job *job, int64_t v, int64_t tokens) {
  const pk_tensor *weight_grad = job->weight_grad;
  REAL *to =
      (REAL *)pk_tensor_data(weight_grad) + job->worker * weight_grad->stride + v * job->width;
  const REAL *x = (const REAL *)job->x.data + job->worker * job->x.stride + job->first * job->width;
  bool adds = job->first > 0 || job->accumulate_weight;
  REAL_GEMM(true, false, tokens, job->width, job->chunk_rows, 1, (const REAL *)job->chunk + v,
            job->vocabulary, x, job->width, adds, to, job->width);
}
