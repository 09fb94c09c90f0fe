/* The arithmetic of loss.c for one REAL: included once for float and once for double. */

/* log of the sum of e^x, summed in parts. */
static double NAMED(row_lse)(const REAL *row, int64_t count) {
  REAL largest = NAMED(row_largest)(row, count), part[PART];
  double sum = 0;
  for (int64_t first = 0; first < count; first += PART) {
    int64_t columns = count - first < PART ? count - first : PART;
    memcpy(part, row + first, (size_t)columns * sizeof *part);
    NAMED(row_exponentials)(part, largest, columns);
    sum += (double)NAMED(row_sum)(part, columns);
  }
  return (double)largest + log(sum);
}

/* (softmax - onehot) * g of one row; zeros where the target is ignored. */
static void NAMED(row_gradient)(const REAL *restrict row, REAL *restrict grad, int64_t count,
                                REAL lse, REAL g, int32_t target) {
  if (target == PK_IGNORED) {
    memset(grad, 0, (size_t)count * sizeof *grad);
    return;
  }
  for (int64_t j = 0; j < count; j++) grad[j] = NAMED(flushed)(REAL_EXP(row[j] - lse) * g);
  grad[target] = (REAL_EXP(row[target] - lse) - 1) * g;
}
