/* The insides of contexts and storages, for core alone. */
#ifndef PK_CONTEXT_H
#define PK_CONTEXT_H

#include "core/core.h"

enum { PK_SIZE_CLASSES = 512 };

/* A free block kept for the next request of its size class; the node lives in host memory, as a
 * block may be out of the host's reach. */
typedef struct pk_free_block {
  void *memory;
  int64_t room; /* bytes */
  struct pk_free_block *next;
} pk_free_block;

/* How a call goes to the program that is being recorded. */
typedef pk_status (*pk_recorder)(pk_program *program, const pk_call *call);

struct pk_context {
  pk_device *device;
  int64_t references; /* the owner's, and one per live storage */
  pk_memory memory;
  int64_t pressure;  /* bytes taken since the collector last ran */
  int64_t tolerated; /* up to so much pressure it does not run; 0: up to the least */
  pk_free_block *free_blocks[PK_SIZE_CLASSES];
  bool forecast;             /* memory is counted, not taken, and nothing is computed */
  pk_program *recording;     /* the program that operations go to, or NULL */
  int64_t recordings;        /* programs that were begun; the last one's number */
  pk_recorder record;        /* while there is one: appends a checked call, whose outputs exist */
  pk_trace *trace;           /* what notes the operations that run, or NULL */
  bool watched;              /* there is a trace, or a tool that wants ranges */
  int phase;                 /* what operations are for at present: see pk_phase_enter */
  bool without[PK_OP_COUNT]; /* operations that are as if the device had no kernel for them */
  char description[256];
};

/* Memory that tensors share. One made while a program is recorded is the program's: it has no
 * memory of its own, and from the program's first run on a place in its slab, which other storages
 * use before and after it unless it is a result. */
struct pk_storage {
  pk_context *context;
  void *memory;
  int64_t bytes;
  int64_t room; /* bytes of the block of memory, as pk_memory_take said */
  int64_t references;
  int64_t writes; /* how often it was written to */
  int64_t noted;  /* and how often operations that were recorded would have */
  int32_t category;
  int64_t recording;   /* the number of the program whose it is; 0: it has memory of its own */
  bool kept;           /* a program's result: readable after a run */
  int64_t holds;       /* of a slab: the number of the program that ran last; 0: none */
  bool needed;         /* while planning: a live operation reads it */
  int64_t span;        /* while planning: its number, or -1 */
  int64_t slab_offset; /* bytes */
  pk_storage *slab;    /* a share, once there is one */
};

/* A storage of the device's memory. */
pk_status pk_storage_create(pk_context *context, int64_t bytes, int category, pk_storage **storage);
void pk_storage_release(pk_storage *storage);

/* Gives a program's storage its place in the slab, of which it takes a share. */
void pk_storage_place(pk_storage *storage, pk_storage *slab);

/* Whether the storage belongs to the program that was begun last in its context: the one that is
 * being recorded, or planned. To that program all others are from outside. */
static inline bool pk_storage_is_planned(const pk_storage *storage) {
  return storage->recording && storage->recording == storage->context->recordings;
}

/* Whether the context's device has a kernel for an operation. */
bool pk_op_available(const pk_context *context, int op);

void pk_context_retain(pk_context *context);
void pk_context_release(pk_context *context);

#endif
