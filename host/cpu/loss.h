/* What the two forms of the cross-entropy share: targets, rows, and the sums over a worker. */
#ifndef PK_LOSS_H
#define PK_LOSS_H

#include "cpu/cpu.h"

/* Refuses targets that are neither PK_IGNORED nor in 0 .. vocabulary-1, naming the first. */
pk_status PK_KERNEL(check_targets)(const pk_call *call, const pk_tensor *targets,
                                   int64_t vocabulary);

/* Sums each worker's losses in row order into loss and its valid targets into count, from lse and
 * picked, the target's logit [N, R] in f64. */
void PK_KERNEL(sum_losses)(const pk_tensor *targets, const pk_tensor *lse, const double *picked,
                           pk_tensor *loss, pk_tensor *count);

#endif
