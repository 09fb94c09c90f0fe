/* Merging operations of a recorded program with their gradients. */
#ifndef PK_MERGE_H
#define PK_MERGE_H

#include "program/recorded.h"

/* Where an operation and its gradient have a common form that does both in one pass, and the device
 * has a kernel for it, puts that form at the operation's place, if all that the gradient reads can
 * be computed before it. *merged becomes the number of pairs. */
pk_status pk_merge_gradients(const pk_context *context, pk_recorded_list *list, int64_t *merged);

#endif
