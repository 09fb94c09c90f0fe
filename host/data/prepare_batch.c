/* Documents on their way from the reader through a tokenizer to the writer. */
#include "data/prepare_batch.h"

#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "shards are little-endian, and tokens are written as the machine holds them"
#endif

enum { KEEP_TOKENS = 1 << 20, KEEP_NOTES = 1 << 16 };

void pk_batch_clear(pk_batch *batch) {
  for (int64_t i = 0; i < batch->count; i++) free(batch->documents[i].text);
  if (batch->ids.capacity > KEEP_TOKENS) {
    free(batch->ids.data);
    batch->ids = (pk_ids){0};
  }
  pk_buffer_clear(&batch->notes, KEEP_NOTES);
  batch->ids.count = 0;
  batch->count = batch->bytes = batch->unknown = batch->refused = 0;
  batch->last = false;
}

void pk_batch_free(pk_batch *batch) {
  pk_batch_clear(batch);
  pk_buffer_free(&batch->notes);
  free(batch->ids.data);
  batch->ids = (pk_ids){0};
}

pk_status pk_batch_note(pk_batch *batch, const char *note) {
  return pk_buffer_format(&batch->notes, "%s\n",
                          note ? note : "a document without memory to name it");
}

/* Appends one document's tokens and its end. */
static pk_status encode_document(pk_batch *batch, const pk_document *document,
                                 const pk_tokenizer *tokenizer) {
  pk_ids *ids = &batch->ids;
  int64_t before = ids->count;
  pk_status status = pk_tokenizer_append(tokenizer, document->text, document->bytes, ids);
  if (!status) status = pk_ids_reserve(ids, 1);
  if (status) {
    ids->count = before;
    return pk_fail_within(status, "%s:%lld", document->path, (long long)document->line);
  }
  int32_t unknown = (int32_t)pk_tokenizer_unknown(tokenizer);
  for (int64_t i = before; i < ids->count; i++) batch->unknown += ids->data[i] == unknown;
  ids->data[ids->count++] = (int32_t)pk_tokenizer_eos(tokenizer);
  return PK_OK;
}

/* 32 bits to 16 in place: what is written never overtakes what is read. */
static void narrow(pk_ids *ids) {
  char *bytes = (char *)ids->data;
  for (int64_t i = 0; i < ids->count; i++) {
    int32_t id;
    memcpy(&id, bytes + 4 * i, 4);
    uint16_t token = (uint16_t)id;
    memcpy(bytes + 2 * i, &token, 2);
  }
}

pk_status pk_batch_encode(pk_batch *batch, const pk_tokenizer *tokenizer, int width,
                          bool skip_bad) {
  for (int64_t i = 0; i < batch->count; i++) {
    pk_status status = encode_document(batch, &batch->documents[i], tokenizer);
    if (status == PK_INVALID && skip_bad) {
      batch->refused++;
      status = pk_batch_note(batch, pk_error_message());
    }
    if (status) return status;
    batch->ends[i] = batch->ids.count;
    free(batch->documents[i].text);
    batch->documents[i].text = NULL;
  }
  if (width == 2) narrow(&batch->ids);
  return PK_OK;
}
