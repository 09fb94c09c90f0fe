/* A context's device memory: the limit, the accounts by category, and blocks kept for reuse.
 *
 * A freed block waits in a list of blocks of about its size (eight classes per power of two): a
 * training step asks for the same sizes again and again, and fresh pages cost more than the
 * arithmetic on them. Small blocks are as large as their class, large ones only as was asked.
 *
 * The limit is on the bytes asked for, which is what a forecast counts, so that a step runs under
 * exactly the limit that it is planned to take. Blocks that wait are given back before a request
 * makes more memory than the limit reserved; what rounding takes besides is not counted. */
#include <stdio.h>
#include <stdlib.h>

#include "core/context.h"

static const char *const category_names[PK_CATEGORIES] = {"parameters",  "gradients", "moments",
                                                          "activations", "data",      "workspace"};

const char *pk_category_name(int category) {
  return category >= 0 && category < PK_CATEGORIES ? category_names[category] : "unknown";
}

/* The number of bytes' size class; *rounded becomes the bytes that the class holds. */
static int size_class(int64_t bytes, int64_t *rounded) {
  /* Steps of 64 bytes up to 1 KiB, then of an eighth of the power of two below. */
  int64_t units = (bytes + 63) / 64;
  if (units < 1) units = 1;
  if (units <= 16) {
    *rounded = units * 64;
    return (int)units;
  }
  int octave = 63 - __builtin_clzll((unsigned long long)(units - 1));
  int64_t step = (int64_t)1 << (octave - 3);
  int64_t eighths = (units + step - 1) / step; /* 9 .. 16 */
  *rounded = eighths * step * 64;
  return 16 + (octave - 4) * 8 + (int)(eighths - 8);
}

/* Bytes of a new block. */
static int64_t room_for(int64_t bytes) {
  const int64_t large = (int64_t)1 << 20;
  int64_t rounded;
  size_class(bytes, &rounded);
  return bytes > large ? pk_aligned(bytes) : rounded;
}

/* Takes the block at a place of a list out of it. */
static void *take_out(pk_free_block **place, int64_t *room) {
  pk_free_block *block = *place;
  void *memory = block->memory;
  *room = block->room;
  *place = block->next;
  free(block);
  return memory;
}

/* Gives the first block of a list back to the system. */
static void give_back(pk_context *context, pk_free_block **list) {
  int64_t room;
  void *memory = take_out(list, &room);
  context->device->release(context->device, memory, room);
  context->memory.reserved -= room;
}

/* Takes a waiting block that has room for so many bytes, or NULL. Where all of its class are too
 * small one is given back: sizes that grow bit by bit must not leave a block behind at each. */
static void *reuse(pk_context *context, int64_t bytes, int64_t *room) {
  int64_t rounded;
  pk_free_block **list = &context->free_blocks[size_class(bytes, &rounded)], **place = list;
  while (*place && (*place)->room < bytes) place = &(*place)->next;
  if (*place) return take_out(place, room);
  if (*list) give_back(context, list);
  return NULL;
}

static void describe_use(const pk_context *context, char *text, size_t size) {
  int used = 0;
  text[0] = 0;
  for (int c = 0; c < PK_CATEGORIES && used < (int)size; c++) {
    if (context->memory.used[c] == 0) continue;
    used += snprintf(text + used, size - (size_t)used, "%s%s %.1f MiB", used ? ", " : "",
                     category_names[c], (double)context->memory.used[c] / 1048576.0);
  }
  if (used == 0) snprintf(text, size, "nothing");
}

/* Refuses a request as it would be too much: more than the limit, or than the device has. */
static pk_status refuse(const pk_context *context, int64_t bytes, int category, bool by_limit) {
  char use[400], reason[96];
  describe_use(context, use, sizeof use);
  if (by_limit)
    snprintf(reason, sizeof reason, "would pass the limit of %.1f MiB on %s",
             (double)context->memory.limit / 1048576.0, context->device->name);
  else
    snprintf(reason, sizeof reason, "is more than %s has left", context->device->name);
  return pk_fail(PK_NO_MEMORY,
                 "out of memory: %.1f MiB more for %s %s; in use: %s. Free tensors, make the batch "
                 "or model smaller%s",
                 (double)bytes / 1048576.0, pk_category_name(category), reason, use,
                 by_limit ? ", or raise runtime.memory_limit_mib" : "");
}

void pk_memory_trim(pk_context *context) {
  for (int c = 0; c < PK_SIZE_CLASSES; c++)
    while (context->free_blocks[c]) give_back(context, &context->free_blocks[c]);
}

/* What a forecast hands out: an address that nothing reads. */
static char no_memory[64];

static void count_taken(pk_context *context, int64_t bytes, int category) {
  pk_memory *memory = &context->memory;
  memory->used[category] += bytes;
  memory->total += bytes;
  memory->allocations++;
  memory->live++;
  context->pressure += bytes;
  if (memory->total > memory->total_peak) {
    memory->total_peak = memory->total;
    for (int c = 0; c < PK_CATEGORIES; c++) memory->peak[c] = memory->used[c];
  }
}

/* A new block of the device's memory. */
static pk_status allocate(pk_context *context, int64_t bytes, int category, void **memory,
                          int64_t *room) {
  pk_device *device = context->device;
  *room = room_for(bytes);
  if (context->memory.reserved + *room > context->memory.limit) pk_memory_trim(context);
  pk_status status = device->allocate(device, *room, memory);
  if (status == PK_NO_MEMORY) {
    pk_memory_trim(context);
    status = device->allocate(device, *room, memory);
  }
  if (status == PK_NO_MEMORY) return refuse(context, bytes, category, false);
  if (status == PK_OK) context->memory.reserved += *room;
  return status;
}

pk_status pk_memory_take(pk_context *context, int64_t bytes, int category, void **memory,
                         int64_t *room) {
  if (bytes < 0 || bytes > INT64_MAX / 4) {
    return pk_fail(PK_INVALID, "a request for %lld bytes is not possible", (long long)bytes);
  }
  if (context->memory.total + bytes > context->memory.limit)
    return refuse(context, bytes, category, true);
  if (context->forecast) {
    *memory = no_memory;
    *room = bytes;
  } else if (!(*memory = reuse(context, bytes, room))) {
    pk_status status = allocate(context, bytes, category, memory, room);
    if (status != PK_OK) return status;
  }
  count_taken(context, bytes, category);
  return PK_OK;
}

void pk_memory_give(pk_context *context, void *memory, int64_t bytes, int64_t room, int category) {
  if (!memory) return;
  context->memory.used[category] -= bytes;
  context->memory.total -= bytes;
  context->memory.live--;
  if (context->forecast) return;
  int64_t rounded;
  pk_free_block **list = &context->free_blocks[size_class(room, &rounded)];
  pk_free_block *block = malloc(sizeof *block);
  if (!block) {
    context->device->release(context->device, memory, room);
    context->memory.reserved -= room;
    return;
  }
  *block = (pk_free_block){.memory = memory, .room = room, .next = *list};
  *list = block;
}

void pk_memory_read(const pk_context *context, pk_memory *memory) {
  *memory = context->memory;
}

void pk_memory_reset_peak(pk_context *context) {
  pk_memory *memory = &context->memory;
  memory->total_peak = memory->total;
  for (int c = 0; c < PK_CATEGORIES; c++) memory->peak[c] = memory->used[c];
}

int pk_memory_presses(const pk_context *context) {
  const int64_t least = (int64_t)64 << 20;
  return context->pressure > (context->tolerated > least ? context->tolerated : least);
}

void pk_memory_collected(pk_context *context) {
  pk_memory memory;
  pk_memory_read(context, &memory);
  context->pressure = 0;
  context->tolerated = memory.total / 2;
}
