/* What a tensor's values are like: their range, mean and deviation, read in pieces. */
#include <math.h>
#include <stdlib.h>

#include "core/core.h"

enum { PIECE = 65536 };

/* Mean and sum of squared deviations of values are added to what was seen before (Chan, Golub and
 * LeVeque 1979), so that large means do not cancel. */
static void add_piece(pk_statistics *all, double *squares, const double *values, int64_t count) {
  int64_t finite = 0;
  double sum = 0, own = 0;
  for (int64_t i = 0; i < count; i++) {
    if (!isfinite(values[i])) continue;
    if (all->finite + finite == 0 || values[i] < all->minimum) all->minimum = values[i];
    if (all->finite + finite == 0 || values[i] > all->maximum) all->maximum = values[i];
    sum += values[i];
    finite++;
  }
  all->count += count;
  if (finite == 0) return;
  double mean = sum / (double)finite;
  for (int64_t i = 0; i < count; i++)
    if (isfinite(values[i])) own += (values[i] - mean) * (values[i] - mean);
  double before = (double)all->finite, now = before + (double)finite, apart = mean - all->mean;
  all->mean += apart * ((double)finite / now);
  *squares += own + apart * apart * (before * (double)finite / now);
  all->finite += finite;
}

pk_status pk_tensor_statistics(const pk_tensor *tensor, pk_statistics *statistics) {
  *statistics = (pk_statistics){.count = 0};
  double squares = 0;
  double *values = malloc(PIECE * sizeof *values);
  if (!values) return pk_fail(PK_NO_MEMORY, "no host memory for statistics");
  int64_t rows = tensor->rank ? tensor->shape[0] : 1, inner = pk_tensor_inner(tensor);
  pk_status status = pk_tensor_check_values(tensor, false);
  for (int64_t row = 0; row < rows && status == PK_OK; row++) {
    for (int64_t first = 0; first < inner && status == PK_OK; first += PIECE) {
      pk_tensor piece = *tensor; /* borrows the storage */
      piece.rank = 1;
      piece.stride = 1;
      piece.numel = piece.shape[0] = inner - first < PIECE ? inner - first : PIECE;
      piece.offset += row * tensor->stride + first;
      status = pk_tensor_read_numbers(&piece, values);
      if (status == PK_OK) add_piece(statistics, &squares, values, piece.numel);
      if (status == PK_OK) status = pk_interrupt_check();
    }
  }
  free(values);
  if (statistics->finite > 0) statistics->deviation = sqrt(squares / (double)statistics->finite);
  return status;
}
