/* A bounded buffer from which documents leave in random order. */
#include <stdio.h>
#include <stdlib.h>

#include "data/prepare.h"

void pk_shuffle_begin(pk_shuffle *shuffle, const pk_prepare_options *options, const char *split) {
  *shuffle = (pk_shuffle){.seed = (uint64_t)options->shuffle_seed,
                          .limit = options->shuffle_buffer,
                          .bytes_limit = options->shuffle_bytes};
  snprintf(shuffle->name, sizeof shuffle->name, "documents/%s", split);
}

pk_status pk_shuffle_add(pk_shuffle *shuffle, pk_document document) {
  if (shuffle->count == shuffle->capacity) {
    int64_t capacity = shuffle->capacity ? 2 * shuffle->capacity : 64;
    pk_document *documents =
        realloc(shuffle->documents, (size_t)capacity * sizeof *shuffle->documents);
    if (!documents) {
      free(document.text);
      return pk_fail(PK_NO_MEMORY, "no memory to shuffle %lld documents", (long long)capacity);
    }
    shuffle->documents = documents;
    shuffle->capacity = capacity;
  }
  shuffle->documents[shuffle->count++] = document;
  shuffle->bytes += document.bytes;
  return PK_OK;
}

bool pk_shuffle_is_full(const pk_shuffle *shuffle) {
  return shuffle->count >= shuffle->limit ||
         (shuffle->count > 0 && shuffle->bytes > shuffle->bytes_limit);
}

pk_document pk_shuffle_draw(pk_shuffle *shuffle) {
  double uniform;
  pk_random_uniform(shuffle->seed, shuffle->name, shuffle->drawn++, 1, &uniform);
  int64_t index = (int64_t)(uniform * (double)shuffle->count);
  pk_document document = shuffle->documents[index];
  shuffle->documents[index] = shuffle->documents[--shuffle->count];
  shuffle->bytes -= document.bytes;
  return document;
}

void pk_shuffle_end(pk_shuffle *shuffle) {
  for (int64_t i = 0; i < shuffle->count; i++) free(shuffle->documents[i].text);
  free(shuffle->documents);
  *shuffle = (pk_shuffle){0};
}
