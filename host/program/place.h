/* The memory of a recorded program. */
#ifndef PK_PLACE_H
#define PK_PLACE_H

#include "program/recorded.h"

/* Gives every buffer and workspace of the list its place in a slab by its lifetime. An output whose
 * row says that it can takes the place of an input that is used up. Fills in buffers, activations,
 * workspace and slab of the plan. */
pk_status pk_place_buffers(pk_recorded_list *list, pk_program_plan *plan);

#endif
