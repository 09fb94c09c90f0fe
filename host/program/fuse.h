/* Fusing operations of a recorded program with their neighbours. */
#ifndef PK_FUSE_H
#define PK_FUSE_H

#include "program/recorded.h"

/* Where an f32 result is only ever cast to bf16, and its operation can write bf16, has it do so.
 * *fused becomes the number of casts that went away. */
pk_status pk_fuse_casts(pk_recorded_list *list, int64_t *fused);

/* Makes one operation of an addition and the rmsnorm of its sum, if the device has a kernel for it.
 * *fused grows by the number of such pairs. */
pk_status pk_fuse_additions(const pk_context *context, pk_recorded_list *list, int64_t *fused);

#endif
