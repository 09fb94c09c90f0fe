/* Documents on their way from the reader through a tokenizer to the writer. */
#ifndef PK_DATA_PREPARE_BATCH_H
#define PK_DATA_PREPARE_BATCH_H

#include "data/prepare.h"
#include "data/reader.h"
#include "data/tokenizer.h"

enum { PK_BATCH_DOCUMENTS = 512, PK_BATCH_BYTES = 1 << 18 };

typedef enum pk_batch_state { PK_BATCH_FREE, PK_BATCH_FILLED, PK_BATCH_ENCODED } pk_batch_state;

typedef struct pk_batch {
  pk_batch_state state;
  int split;
  bool last; /* of its split */
  pk_document documents[PK_BATCH_DOCUMENTS];
  int64_t ends[PK_BATCH_DOCUMENTS]; /* of each document's tokens, in tokens */
  int64_t count;
  int64_t bytes;           /* of text */
  pk_reader_counts counts; /* the reader's when this batch left it */
  pk_buffer notes;         /* a line for each document that was skipped */
  /* The tokenizer's: */
  pk_ids ids; /* after packing, tokens of width bytes in the same memory */
  int64_t unknown;
  int64_t refused; /* documents that it could not encode */
} pk_batch;

/* Frees the documents and empties the batch; the memory of its tokens is kept for the next ones. */
void pk_batch_clear(pk_batch *batch);
void pk_batch_free(pk_batch *batch);

/* The tokens of all documents, each with the one that ends it, width bytes each. A document that
 * cannot be encoded is left out and counted where skip_bad is set, with its message in the notes.
 */
pk_status pk_batch_encode(pk_batch *batch, const pk_tokenizer *tokenizer, int width, bool skip_bad);

/* Adds a line to the notes. */
pk_status pk_batch_note(pk_batch *batch, const char *note);

#endif
