/* Recorded operations, for the program and the passes over it. */
#ifndef PK_RECORDED_H
#define PK_RECORDED_H

#include "core/core.h"

enum { PK_RECORDED_TENSORS = PK_MAX_INPUTS + PK_MAX_OUTPUTS };

/* A recorded call with tensors of its own, each of which shares its storage. */
typedef struct pk_recorded {
  pk_call call;
  pk_tensor tensors[PK_RECORDED_TENSORS]; /* inputs, then outputs from PK_MAX_INPUTS on */
  int64_t workspace_bytes, workspace_offset;
  bool live;
} pk_recorded;

/* A recorded copy of a call; it takes shares of the storages. */
pk_status pk_recorded_create(const pk_call *call, pk_recorded **created);
void pk_recorded_free(pk_recorded *entry);

/* Makes *place a share of tensor, and returns it; NULL for NULL. */
const pk_tensor *pk_recorded_share(pk_tensor *place, const pk_tensor *tensor);

/* Whether the input is written to ("x!" in the row). */
bool pk_recorded_writes_input(const pk_op_info *info, int index);

#endif
