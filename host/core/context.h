/* The insides of contexts and storages, for core alone. */
#ifndef PK_CONTEXT_H
#define PK_CONTEXT_H

#include "core/core.h"

enum { PK_SIZE_CLASSES = 512 };

/* A free block kept for the next request of its size class; the node lives in host memory, as a
 * block may be out of the host's reach. */
typedef struct pk_free_block {
  void *memory;
  struct pk_free_block *next;
} pk_free_block;

struct pk_context {
  pk_device *device;
  int64_t references; /* the owner's, and one per live storage */
  pk_memory memory;
  int64_t pressure; /* bytes taken since the collector last ran */
  pk_free_block *free_blocks[PK_SIZE_CLASSES];
  char description[256];
};

struct pk_storage {
  pk_context *context;
  void *memory;
  int64_t bytes;
  int64_t references;
  int32_t category;
};

void pk_context_retain(pk_context *context);
void pk_context_release(pk_context *context);

#endif
