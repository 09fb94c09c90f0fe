/* Computing results again instead of keeping them. */
#ifndef PK_RECOMPUTE_H
#define PK_RECOMPUTE_H

#include "program/recorded.h"

/* Where a result waits long for its next use, the operations that lead to it from what is there
 * anyway are run again just before that use, to the same bits. level is a pk_recompute: which
 * operations. Replaces the list by one with these operations in it. *recomputed becomes their
 * number. */
pk_status pk_recompute_results(pk_recorded_list *list, int level, int64_t *recomputed);

#endif
