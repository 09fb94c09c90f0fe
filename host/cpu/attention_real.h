/* The arithmetic of attention.c for one REAL: included once for float and once for double. */

/* Scores of query rows first .. first+rows-1 against keys 0 .. visible-1, scaled, [rows, visible].
 */
static void NAMED(scores)(const attention_job *job, const REAL *q, const REAL *k, int64_t rows,
                          int64_t visible, REAL *panel) {
  REAL_GEMM(false, true, rows, visible, job->width, (REAL)job->scale, q, job->ld, k, job->ld, 0,
            panel, visible);
}

/* Turns row i's visible scores into e^(s - max) and zeros what lies after it; returns the sum. */
static REAL NAMED(exponentials)(REAL *restrict row, int64_t seen, int64_t visible, REAL *largest) {
  REAL top = row[0];
  for (int64_t j = 1; j < seen; j++) top = row[j] > top ? row[j] : top;
  REAL lanes[LANES] = {0};
  int64_t j = 0;
  for (; j + LANES <= seen; j += LANES) {
    for (int l = 0; l < LANES; l++) {
      row[j + l] = REAL_EXP(row[j + l] - top);
      lanes[l] += row[j + l];
    }
  }
  for (int l = 0; j < seen; j++, l++) {
    row[j] = REAL_EXP(row[j] - top);
    lanes[l] += row[j];
  }
  for (; j < visible; j++) row[j] = 0;
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
  *largest = top;
  return lanes[0];
}

/* One head of one sequence: blocks of query rows, each against the keys that its last row sees. */
static void NAMED(head_forward)(const attention_job *job, const REAL *q, const REAL *k,
                                const REAL *v, REAL *o, REAL *lse, REAL *panel) {
  REAL sums[ROWS];
  for (int64_t first = 0; first < job->length; first += ROWS) {
    int64_t rows = job->length - first < ROWS ? job->length - first : ROWS;
    int64_t visible = first + rows;
    NAMED(scores)(job, q + first * job->ld, k, rows, visible, panel);
    for (int64_t i = 0; i < rows; i++) {
      REAL largest;
      sums[i] = NAMED(exponentials)(panel + i * visible, first + i + 1, visible, &largest);
      lse[first + i] = largest + REAL_LOG(sums[i]);
      if (job->rounds) round_to_bf16((float *)panel + i * visible, first + i + 1);
    }
    REAL *block = o + first * job->out_ld;
    REAL_GEMM(false, false, rows, job->width, visible, 1, panel, visible, v, job->ld, 0, block,
              job->out_ld);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t c = 0; c < job->width; c++) block[i * job->out_ld + c] /= sums[i];
  }
}

/* In place: panel becomes P = e^(s - lse), d_panel becomes dS = P (dP - delta) scale. */
static void NAMED(score_gradients)(const attention_job *job, REAL *restrict panel,
                                   REAL *restrict d_panel, int64_t seen, int64_t visible, REAL lse,
                                   REAL delta) {
  REAL scale = (REAL)job->scale;
  for (int64_t j = 0; j < seen; j++) {
    panel[j] = REAL_EXP(panel[j] - lse);
    d_panel[j] = panel[j] * (d_panel[j] - delta) * scale;
  }
  for (int64_t j = seen; j < visible; j++) panel[j] = d_panel[j] = 0;
}

static void NAMED(head_backward)(const attention_job *job, const REAL *q, const REAL *k,
                                 const REAL *v, const REAL *g, const REAL *full_g, const REAL *o,
                                 const REAL *lse, REAL *q_grad, REAL *k_grad, REAL *v_grad,
                                 REAL *panel) {
  REAL *d_panel = panel + ROWS * job->length;
  for (int64_t first = 0; first < job->length; first += ROWS) {
    int64_t rows = job->length - first < ROWS ? job->length - first : ROWS;
    int64_t visible = first + rows, ld = job->ld, out_ld = job->out_ld;
    const REAL *g_block = g + first * out_ld;
    NAMED(scores)(job, q + first * ld, k, rows, visible, panel);
    REAL_GEMM(false, true, rows, visible, job->width, 1, g_block, out_ld, v, ld, 0, d_panel,
              visible);
    for (int64_t i = 0; i < rows; i++) {
      REAL delta = 0;
      for (int64_t c = 0; c < job->width; c++)
        delta += full_g[(first + i) * out_ld + c] * o[(first + i) * out_ld + c];
      NAMED(score_gradients)
      (job, panel + i * visible, d_panel + i * visible, first + i + 1, visible, lse[first + i],
       delta);
      if (job->rounds) {
        round_to_bf16((float *)panel + i * visible, first + i + 1);
        round_to_bf16((float *)d_panel + i * visible, first + i + 1);
      }
    }
    REAL_GEMM(false, false, rows, job->width, visible, 1, d_panel, visible, k, ld, 0,
              q_grad + first * out_ld, out_ld);
    REAL_GEMM(true, false, visible, job->width, rows, 1, d_panel, visible, q + first * ld, ld, 1,
              k_grad, out_ld);
    REAL_GEMM(true, false, visible, job->width, rows, 1, panel, visible, g_block, out_ld, 1, v_grad,
              out_ld);
  }
}
