/* Computing again what is cheap, instead of keeping it. */
#ifndef PK_RECOMPUTE_H
#define PK_RECOMPUTE_H

#include "core/recorded.h"

/* Where the result of a cheap operation (a norm, an activation, a cast) waits long for its next use
 * while the inputs are kept anyway, the operation is run again just before that use, to the same
 * bits. Replaces the list by one with these operations in it. */
pk_status pk_recompute(pk_recorded ***list, int64_t *count, int64_t *recomputed);

#endif
