/* A matrix product in plain loops for one REAL: what blas.c does without a library. */

enum { NAMED(PANEL) = 64 };

/* Rows and columns of op(B) from (l, j) on, one after the other, where the inner loop reads them.
 */
static void NAMED(pack_panel)(bool transpose, const REAL *b, int64_t ldb, int64_t l, int64_t sum,
                              int64_t j, int64_t columns, REAL panel[NAMED(PANEL)][NAMED(PANEL)]) {
  for (int64_t r = 0; r < sum; r++)
    for (int64_t c = 0; c < columns; c++)
      panel[r][c] = transpose ? b[(j + c) * ldb + l + r] : b[(l + r) * ldb + j + c];
}

/* C <- beta C, without reading C where beta is 0. */
static void NAMED(scale)(int64_t m, int64_t p, REAL beta, REAL *c, int64_t ldc) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < p; j++) c[i * ldc + j] = beta == 0 ? 0 : c[i * ldc + j] * beta;
}

static void NAMED(plain_gemm)(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                              REAL alpha, const REAL *a, int64_t lda, const REAL *b, int64_t ldb,
                              REAL beta, REAL *c, int64_t ldc) {
  REAL panel[NAMED(PANEL)][NAMED(PANEL)];
  NAMED(scale)(m, p, beta, c, ldc);
  for (int64_t j = 0; j < p; j += NAMED(PANEL)) {
    int64_t columns = p - j < NAMED(PANEL) ? p - j : NAMED(PANEL);
    for (int64_t l = 0; l < k; l += NAMED(PANEL)) {
      int64_t sum = k - l < NAMED(PANEL) ? k - l : NAMED(PANEL);
      NAMED(pack_panel)(transpose_b, b, ldb, l, sum, j, columns, panel);
      for (int64_t i = 0; i < m; i++) {
        REAL *restrict row = c + i * ldc + j;
        for (int64_t r = 0; r < sum; r++) {
          REAL x = alpha * (transpose_a ? a[(l + r) * lda + i] : a[i * lda + l + r]);
          for (int64_t n = 0; n < columns; n++) row[n] += x * panel[r][n];
        }
      }
    }
  }
}
