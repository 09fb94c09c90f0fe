/* Recorded operations and lists of them, for the program and the passes over it. */
#ifndef PK_RECORDED_H
#define PK_RECORDED_H

#include "core/core.h"

enum { PK_RECORDED_TENSORS = PK_MAX_INPUTS + PK_MAX_OUTPUTS };

/* A recorded call with tensors of its own, each of which shares its storage. */
typedef struct pk_recorded {
  pk_call call;
  pk_tensor tensors[PK_RECORDED_TENSORS]; /* inputs, then outputs from PK_MAX_INPUTS on */
  int64_t workspace_bytes, workspace_offset;
} pk_recorded;

/* Entries in the order in which they run; the list owns them. */
typedef struct pk_recorded_list {
  pk_recorded **entries;
  int64_t count, room;
} pk_recorded_list;

/* A recorded copy of a call; it takes shares of the storages. */
pk_status pk_recorded_create(const pk_call *call, pk_recorded **created);
void pk_recorded_free(pk_recorded *entry);

/* Makes *place a share of tensor, and returns it; NULL for NULL. */
const pk_tensor *pk_recorded_share(pk_tensor *place, const pk_tensor *tensor);

/* Appends an entry, which the list owns from then on, also on failure. */
pk_status pk_recorded_append(pk_recorded_list *list, pk_recorded *entry);
void pk_recorded_list_free(pk_recorded_list *list);

/* Whether an input is written to ("x!" in the row). */
bool pk_recorded_writes_input(const pk_op_info *info, int index);

/* Whether the entry reads the storage, or writes to it; an output that is added to is both. */
bool pk_recorded_reads(const pk_recorded *entry, const pk_storage *storage);
bool pk_recorded_writes(const pk_recorded *entry, const pk_storage *storage);

/* Whether two entries must stay in their order: one writes what the other reads or writes. */
bool pk_recorded_conflict(const pk_recorded *a, const pk_recorded *b);

/* Numbers the storages of all entries, in their span, in the order in which they are met; returns
 * how many there are. forget takes the numbers back. Storages of NULL entries are not met. */
int64_t pk_recorded_number_storages(const pk_recorded_list *list);
void pk_recorded_forget_numbers(const pk_recorded_list *list);

/* Gives tensor t of the entry another storage, of the same size. */
void pk_recorded_redirect(pk_recorded *entry, int t, pk_storage *storage);

#endif
