/* Evaluation blocks: a sequence of tokens in order, or a fixed part of its blocks. */
#include <stdlib.h>
#include <string.h>

#include "data/tokens.h"

struct pk_blocks {
  pk_blocks_options options;
  const pk_tokens *tokens;
  pk_token_reader *reader;
  int64_t total, count;
  int64_t *chosen; /* [count], rising; NULL: all */
  int64_t next;    /* of count */
  int64_t end;     /* the place after the last id that was read, 0 for none */
  void *last;      /* that id */
  void *ids;       /* T + 1 */
};

int64_t pk_blocks_count(const pk_blocks *blocks) {
  return blocks->count;
}

int64_t pk_blocks_total(const pk_blocks *blocks) {
  return blocks->total;
}

int64_t pk_blocks_targets(const pk_blocks *blocks) {
  int64_t length = blocks->options.context_length, last = blocks->total - 1;
  int64_t padding = blocks->total * length - (blocks->tokens->count - 1);
  bool has_last = !blocks->chosen || blocks->chosen[blocks->count - 1] == last;
  return blocks->count * length - (has_last ? padding : 0);
}

void pk_blocks_rewind(pk_blocks *blocks) {
  blocks->next = 0;
}

static int compare(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* The first of a permutation, in order. */
static pk_status choose(pk_blocks *blocks) {
  int64_t *order = malloc((size_t)blocks->total * sizeof *order);
  if (!order) {
    return pk_fail(PK_NO_MEMORY, "no memory to choose from %lld blocks", (long long)blocks->total);
  }
  pk_random_permutation(blocks->options.seed, "evaluation", blocks->total, order);
  qsort(order, (size_t)blocks->count, sizeof *order, compare);
  blocks->chosen = order;
  return PK_OK;
}

pk_status pk_blocks_create(const pk_tokens *tokens, pk_blocks **blocks,
                           const pk_blocks_options *options) {
  *blocks = NULL;
  int64_t length = options->context_length, most = INT64_C(1) << 40;
  if (length < 1 || length > most || options->batch_size < 1 || options->batch_size > most ||
      options->subset < 0) {
    return pk_fail(PK_INVALID, "blocks: context_length %lld, batch_size %lld, subset %lld",
                   (long long)length, (long long)options->batch_size, (long long)options->subset);
  }
  if (tokens->count < 2) {
    return pk_fail(PK_INVALID, "%lld held-out tokens are too few to predict one",
                   (long long)tokens->count);
  }
  pk_blocks *made = calloc(1, sizeof *made);
  if (!made) return pk_fail(PK_NO_MEMORY, "no memory for blocks");
  made->options = *options;
  made->tokens = pk_tokens_hold(tokens);
  made->total = (tokens->count - 2) / length + 1;
  bool all = options->subset == 0 || options->subset >= made->total;
  made->count = all ? made->total : options->subset;
  made->ids = malloc((size_t)((length + 1) * tokens->width));
  made->last = malloc((size_t)tokens->width);
  pk_status status = PK_OK;
  if (!made->ids || !made->last) status = pk_fail(PK_NO_MEMORY, "no memory for a block");
  if (!status && !all) status = choose(made);
  if (!status) status = pk_token_reader_create(tokens, &made->reader);
  if (status) {
    pk_blocks_free(made);
    return status;
  }
  *blocks = made;
  return PK_OK;
}

void pk_blocks_free(pk_blocks *blocks) {
  if (!blocks) return;
  pk_token_reader_free(blocks->reader);
  free(blocks->chosen);
  free(blocks->last);
  free(blocks->ids);
  pk_tokens_free(blocks->tokens);
  free(blocks);
}

/* Reads a block's ids and returns how many targets it has. The id that it shares with the block
 * before is not read again, so that compressed shards are read from front to back. */
static pk_status read_block(pk_blocks *blocks, int64_t number, int64_t *targets) {
  int64_t length = blocks->options.context_length, first = number * length;
  int64_t left = blocks->tokens->count - first, count = left < length + 1 ? left : length + 1;
  int32_t width = blocks->tokens->width;
  int64_t known = blocks->end > 0 && blocks->end == first + 1 ? 1 : 0;
  if (known) memcpy(blocks->ids, blocks->last, (size_t)width);
  blocks->end = 0;
  char *ids = blocks->ids;
  pk_status status =
      pk_token_reader_read(blocks->reader, first + known, count - known, ids + known * width);
  if (status) return status;
  memcpy(blocks->last, ids + (count - 1) * width, (size_t)width);
  blocks->end = first + count;
  *targets = count - 1;
  return PK_OK;
}

pk_status pk_blocks_next(pk_blocks *blocks, int32_t *tokens, int32_t *targets, int64_t *rows) {
  int64_t length = blocks->options.context_length, size = blocks->options.batch_size;
  int64_t left = blocks->count - blocks->next;
  *rows = left < size ? left : size;
  for (int64_t r = 0; r < size; r++) {
    int64_t valid = 0;
    int32_t *inputs = tokens + r * length, *outputs = targets + r * length;
    if (r < *rows) {
      int64_t number = blocks->chosen ? blocks->chosen[blocks->next] : blocks->next;
      pk_status status = read_block(blocks, number, &valid);
      if (status) return status;
      blocks->next++;
      const char *ids = blocks->ids;
      pk_ids_widen(ids, blocks->tokens->width, valid, inputs);
      pk_ids_widen(ids + blocks->tokens->width, blocks->tokens->width, valid, outputs);
    }
    for (int64_t i = valid; i < length; i++) {
      inputs[i] = 0;
      outputs[i] = PK_IGNORED;
    }
  }
  return PK_OK;
}
