/* The arithmetic of linear_loss.c for one REAL: included once for float and once for double. */

/* A tile of logits: rows of x [rows, d] against tokens of weight [tokens, d], ld apart. */
static void NAMED(logits_tile)(const linear_job *job, const REAL *x, const REAL *weight,
                               int64_t rows, int64_t tokens, REAL *tile) {
  REAL_GEMM(false, true, rows, tokens, job->width, 1, x, job->width, weight, job->width, 0, tile,
            job->ld);
}

/* A tile's row of logits becomes e^(logit - top); returns top, the largest of them. */
static REAL NAMED(tile_exponentials)(REAL *row, int64_t count) {
  REAL top = NAMED(row_largest)(row, count);
  NAMED(row_exponentials)(row, top > -INFINITY ? top : 0, count);
  return top;
}

/* Adds a tile's sum to that of the tiles before it. */
static void NAMED(extend_sum)(REAL *top, double *sum, REAL tile_top, double tile_sum) {
  REAL largest = tile_top > *top ? tile_top : *top;
  *sum = scaled(*sum, (double)*top - (double)largest) +
         scaled(tile_sum, (double)tile_top - (double)largest);
  *top = largest;
}

/* log-sum-exp and target logit of a block of rows, the vocabulary in tiles. */
static void NAMED(forward_block)(const linear_job *job, int64_t worker, int64_t first, int64_t rows,
                                 void *scratch) {
  const int32_t *targets = targets_of(job, worker) + first;
  REAL *lse = (REAL *)pk_tensor_data(job->lse) + worker * job->lse->stride + first;
  double *picked = job->picked + worker * job->rows + first, sums[MOST_ROWS] = {0};
  REAL tops[MOST_ROWS], *tile = scratch;
  REAL *weight_scratch = tile + job->tile_rows * job->ld;
  const REAL *x = pk_widened(job->x, worker * job->x->stride + first * job->width,
                             rows * job->width, weight_scratch + job->tokens * job->width);
  for (int64_t r = 0; r < rows; r++) tops[r] = -INFINITY;
  for (int64_t v = 0; v < job->vocabulary; v += job->tokens) {
    int64_t tokens = at_most(job->vocabulary - v, job->tokens);
    const REAL *weight = pk_widened(job->weight, worker * job->weight->stride + v * job->width,
                                    tokens * job->width, weight_scratch);
    for (int64_t r = 0; r < rows; r++) {
      if (r % job->tile_rows == 0) {
        int64_t tile_rows = at_most(rows - r, job->tile_rows);
        NAMED(logits_tile)(job, x + r * job->width, weight, tile_rows, tokens, tile);
      }
      REAL *row = tile + r % job->tile_rows * job->ld;
      if (targets[r] >= v && targets[r] < v + tokens) picked[r] = row[targets[r] - v];
      REAL top = NAMED(tile_exponentials)(row, tokens);
      NAMED(extend_sum)(&tops[r], &sums[r], top, (double)NAMED(row_sum)(row, tokens));
    }
  }
  for (int64_t r = 0; r < rows; r++) lse[r] = (REAL)((double)tops[r] + log(sums[r]));
}

/* The kept tile from chunk row `row` and token v on. */
static REAL *NAMED(kept_tile)(const linear_job *job, int64_t row, int64_t v) {
  int64_t row_tiles = (job->chunk_rows + job->tile_rows - 1) / job->tile_rows;
  int64_t tile = v / job->tokens * row_tiles + row / job->tile_rows;
  return (REAL *)(void *)job->tiles + tile * job->tile_rows * job->ld;
}

/* One group of the vocabulary against the chunk's rows: its tiles, whose logits become
 * exponentials, their sums, and the logits of targets among them. */
static void NAMED(keep_group)(const linear_job *job, int64_t group, void *scratch) {
  int64_t width = job->width, first = group * job->group_tokens, tiles = token_tiles(job);
  int64_t last = at_most(first + job->group_tokens, job->vocabulary);
  const int32_t *targets = targets_of(job, job->worker) + job->first;
  double *picked = job->picked + job->worker * job->rows + job->first;
  REAL *weight_scratch = (REAL *)scratch + job->tile_rows * job->ld;
  for (int64_t v = first; v < last; v += job->tokens) {
    int64_t tokens = at_most(last - v, job->tokens);
    const REAL *weight = pk_widened(job->weight, job->worker * job->weight->stride + v * width,
                                    tokens * width, weight_scratch);
    for (int64_t r = 0; r < job->chunk_rows; r += job->tile_rows) {
      int64_t rows = at_most(job->chunk_rows - r, job->tile_rows);
      REAL *tile = NAMED(kept_tile)(job, r, v);
      NAMED(logits_tile)(job, (const REAL *)job->x_chunk + r * width, weight, rows, tokens, tile);
      for (int64_t i = 0; i < rows; i++) {
        REAL *row = tile + i * job->ld;
        int64_t target = targets[r + i], place = (r + i) * tiles + v / job->tokens;
        if (target >= v && target < v + tokens) picked[r + i] = row[target - v];
        ((REAL *)job->tops)[place] = NAMED(tile_exponentials)(row, tokens);
        job->sums[place] = (double)NAMED(row_sum)(row, tokens);
      }
    }
  }
}

/* log-sum-exp of some of the chunk's rows. */
static void NAMED(join_sums)(const linear_job *job, int64_t row, int64_t rows) {
  int64_t tiles = token_tiles(job);
  REAL *lse = (REAL *)pk_tensor_data(job->lse) + job->worker * job->lse->stride + job->first;
  for (int64_t r = row; r < row + rows; r++) {
    REAL top = -INFINITY;
    double sum = 0;
    for (int64_t tile = r * tiles; tile < (r + 1) * tiles; tile++)
      NAMED(extend_sum)(&top, &sum, ((const REAL *)job->tops)[tile], job->sums[tile]);
    lse[r] = (REAL)((double)top + log(sum));
  }
}

/* A tile from chunk row `row` and token v on becomes (softmax - onehot) g, its e^(logit - top)
 * times e^(top - lse) g. Tiles that were not kept hold logits still. */
static void NAMED(slopes_tile)(const linear_job *job, int64_t row, int64_t rows, int64_t v,
                               int64_t tokens, REAL *restrict tile) {
  const int32_t *targets = targets_of(job, job->worker) + job->first + row;
  const REAL *lse =
      (const REAL *)pk_tensor_data(job->lse) + job->worker * job->lse->stride + job->first + row;
  REAL g = ((const REAL *)pk_tensor_data(job->g))[job->worker * job->g->stride];
  int64_t tiles = token_tiles(job);
  for (int64_t r = 0; r < rows; r++) {
    REAL *restrict slopes = tile + r * job->ld;
    if (targets[r] == PK_IGNORED) {
      memset(slopes, 0, (size_t)tokens * sizeof *slopes);
      continue;
    }
    REAL top = job->tiles ? ((const REAL *)job->tops)[(row + r) * tiles + v / job->tokens]
                          : NAMED(tile_exponentials)(slopes, tokens);
    REAL factor = REAL_EXP(top - lse[r]) * g;
    for (int64_t j = 0; j < tokens; j++) slopes[j] = NAMED(flushed)(slopes[j] * factor);
    if (targets[r] >= v && targets[r] < v + tokens) slopes[targets[r] - v] -= g;
    if (job->rounds) pk_round_to_bf16((float *)slopes, tokens);
  }
}

/* One group of the vocabulary against the chunk's rows: its rows of weight_grad, and its share of
 * x_grad in partial [chunk_rows, d]. */
static void NAMED(backward_group)(const linear_job *job, int64_t group, void *scratch) {
  int64_t width = job->width, worker = job->worker, first = group * job->group_tokens;
  int64_t last = at_most(first + job->group_tokens, job->vocabulary);
  REAL *tile = scratch, *weight_scratch = tile + job->tile_rows * job->ld;
  REAL *partial = (REAL *)job->partials + group * job->chunk_rows * width;
  REAL *grads = (REAL *)pk_tensor_data(job->weight_grad) + worker * job->weight_grad->stride;
  const REAL *x = job->x_chunk;
  for (int64_t v = first; v < last; v += job->tokens) {
    int64_t tokens = at_most(last - v, job->tokens);
    const REAL *weight = pk_widened(job->weight, worker * job->weight->stride + v * width,
                                    tokens * width, weight_scratch);
    for (int64_t r = 0; r < job->chunk_rows; r += job->tile_rows) {
      int64_t rows = at_most(job->chunk_rows - r, job->tile_rows);
      bool adds = job->accumulate_weight || job->first + r > 0;
      if (job->tiles)
        tile = NAMED(kept_tile)(job, r, v);
      else
        NAMED(logits_tile)(job, x + r * width, weight, rows, tokens, tile);
      NAMED(slopes_tile)(job, r, rows, v, tokens, tile);
      REAL_GEMM(true, false, tokens, width, rows, 1, tile, job->ld, x + r * width, width, adds,
                grads + v * width, width);
      REAL_GEMM(false, false, rows, width, tokens, 1, tile, job->ld, weight, width, v > first,
                partial + r * width, width);
    }
  }
}

/* x_grad of some of the chunk's rows: the groups' shares in order. */
static void NAMED(add_partials)(const linear_job *job, int64_t row, int64_t rows) {
  int64_t count = rows * job->width, start = row * job->width;
  REAL *restrict x_grad = (REAL *)pk_tensor_data(job->x_grad) + job->worker * job->x_grad->stride +
                          job->first * job->width + start;
  if (!job->accumulate_x) memset(x_grad, 0, (size_t)count * sizeof *x_grad);
  for (int64_t group = 0; group < job->groups; group++) {
    const REAL *restrict partial =
        (const REAL *)job->partials + group * job->chunk_rows * job->width + start;
    for (int64_t i = 0; i < count; i++) x_grad[i] += partial[i];
  }
}
