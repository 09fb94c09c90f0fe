/* Inside of tokenizers: encoding into a buffer that is used again. */
#ifndef PK_DATA_TOKENIZER_H
#define PK_DATA_TOKENIZER_H

#include "base/base.h"

/* Ids that grow. */
typedef struct pk_ids {
  int32_t *data;
  int64_t count;
  int64_t capacity;
} pk_ids;

pk_status pk_ids_reserve(pk_ids *ids, int64_t more);

/* Appends the ids of text. */
pk_status pk_tokenizer_append(const pk_tokenizer *tokenizer, const char *text, int64_t bytes,
                              pk_ids *ids);

#endif
