/* Sequences of token ids, in memory or in shards, plain or compressed with zstd. */
#include "data/tokens.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

struct pk_token_reader {
  struct pk_token_reader *inner; /* of a joined sequence: of the part that it read last */
  int64_t inner_part;            /* -1: none */
  const pk_tokens *tokens;
  int64_t shard; /* the open one, -1 for none */
  pk_shard_file file;
  /* Of a compressed shard: */
  ZSTD_DStream *stream;
  int64_t stored;   /* bytes of the file read so far */
  int64_t position; /* bytes of ids decompressed so far */
  bool frame_ended; /* between two frames: the file may end here */
  uint8_t *input;
  ZSTD_inBuffer unread;
  uint8_t *skipped; /* where ids go that nobody asked for */
};

const pk_tokens *pk_tokens_hold(const pk_tokens *tokens) {
  ((pk_tokens *)tokens)->holders++;
  return tokens;
}

void pk_tokens_free(const pk_tokens *tokens) {
  pk_tokens *held = (pk_tokens *)tokens;
  if (!held || --held->holders > 0) return;
  for (int64_t i = 0; i < held->shard_count; i++) {
    free(held->shards[i].path);
    free(held->shards[i].sums);
  }
  free(held->shards);
  for (int64_t i = 0; i < held->part_count; i++) pk_tokens_free(held->parts[i].tokens);
  free(held->parts);
  free(held);
}

int64_t pk_tokens_count(const pk_tokens *tokens) {
  return tokens->count;
}

pk_status pk_tokens_from_memory(const void *ids, int64_t count, int width, int64_t vocabulary,
                                pk_tokens **tokens) {
  *tokens = NULL;
  if (width != 2 && width != 4) return pk_fail(PK_INVALID, "ids of %d bytes, not 2 or 4", width);
  if (count < 0 || count > INT64_MAX / width || (count > 0 && !ids)) {
    return pk_fail(PK_INVALID, "a sequence of %lld ids", (long long)count);
  }
  if (vocabulary < 1 || vocabulary > INT32_MAX) {
    return pk_fail(PK_INVALID, "a vocabulary of %lld ids, not 1 .. %d", (long long)vocabulary,
                   INT32_MAX);
  }
  pk_tokens *made = calloc(1, sizeof *made);
  if (!made) return pk_fail(PK_NO_MEMORY, "no memory for a sequence of tokens");
  made->holders = 1;
  made->memory = ids;
  made->count = count;
  made->width = width;
  made->vocabulary = vocabulary;
  *tokens = made;
  return PK_OK;
}

static pk_status check_part(const pk_tokens *source, const pk_tokens *first, int64_t i,
                            int64_t start, int64_t count) {
  if (start < 0 || count < 0 || count > source->count - start)
    return pk_fail(PK_INVALID, "part %lld: %lld tokens from %lld on of a sequence of %lld",
                   (long long)i + 1, (long long)count, (long long)start, (long long)source->count);
  if (source->width != first->width)
    return pk_fail(PK_INVALID, "part %lld has ids of %d bytes, and the first one has %d",
                   (long long)i + 1, source->width, first->width);
  return PK_OK;
}

pk_status pk_tokens_join(const pk_tokens *const *sources, const int64_t *firsts,
                         const int64_t *counts, int64_t parts, pk_tokens **tokens) {
  *tokens = NULL;
  if (parts < 1) return pk_fail(PK_INVALID, "nothing to join");
  for (int64_t i = 0; i < parts; i++) {
    pk_status status = check_part(sources[i], sources[0], i, firsts[i], counts[i]);
    if (status) return status;
  }
  pk_token_part *list = calloc((size_t)parts, sizeof *list);
  pk_tokens *made = calloc(1, sizeof *made);
  if (!made || !list) {
    free(list);
    free(made);
    return pk_fail(PK_NO_MEMORY, "no memory to join %lld sequences of tokens", (long long)parts);
  }
  made->holders = 1;
  made->width = sources[0]->width;
  made->parts = list;
  made->part_count = parts;
  for (int64_t i = 0; i < parts; i++) {
    list[i] = (pk_token_part){pk_tokens_hold(sources[i]), firsts[i], counts[i], made->count};
    made->count += counts[i];
    if (sources[i]->vocabulary > made->vocabulary) made->vocabulary = sources[i]->vocabulary;
  }
  *tokens = made;
  return PK_OK;
}

/* --- shards --- */

pk_status pk_token_file_check(const pk_token_file *shard, int32_t width) {
  pk_shard_file file = {.fd = -1};
  pk_status status = pk_shard_open(shard, width, &file);
  pk_shard_free(&file);
  return status;
}

/* Reads more of a compressed file; *ended at its end. */
static pk_status refill(pk_token_reader *reader, bool *ended) {
  int64_t left = reader->file.bytes - reader->stored;
  int64_t bytes = left < PK_BLOCK_BYTES ? left : PK_BLOCK_BYTES;
  pk_status status = pk_shard_read(&reader->file, reader->stored, reader->input, bytes);
  if (status) return status;
  reader->stored += bytes;
  reader->unread = (ZSTD_inBuffer){reader->input, (size_t)bytes, 0};
  *ended = bytes == 0;
  return PK_OK;
}

/* Decompresses up to bytes into into; *done says how many, fewer only at the end of the file. */
static pk_status decompress(pk_token_reader *reader, const pk_token_file *shard, void *into,
                            int64_t bytes, int64_t *done) {
  ZSTD_outBuffer output = {into, (size_t)bytes, 0};
  bool ended = false;
  while (output.pos < output.size) {
    if (reader->unread.pos == reader->unread.size) {
      pk_status status = refill(reader, &ended);
      if (status) return status;
      if (ended) break;
    }
    size_t hint = ZSTD_decompressStream(reader->stream, &output, &reader->unread);
    if (ZSTD_isError(hint)) {
      return pk_fail(PK_FORMAT, "%s: damaged: %s, after %lld bytes of ids", shard->path,
                     ZSTD_getErrorName(hint), (long long)reader->position + (long long)output.pos);
    }
    reader->frame_ended = hint == 0;
  }
  reader->position += (int64_t)output.pos;
  *done = (int64_t)output.pos;
  if (ended && !reader->frame_ended) {
    return pk_fail(PK_FORMAT, "%s: ends within a zstd frame, after %lld bytes of ids", shard->path,
                   (long long)reader->position);
  }
  return PK_OK;
}

/* At the shard's last id the file must end: it also brings the last frame's checksum. */
static pk_status check_end(pk_token_reader *reader, const pk_token_file *shard) {
  char more;
  int64_t got = 0;
  pk_status status = decompress(reader, shard, &more, 1, &got);
  if (!status && got > 0) {
    status = pk_fail(PK_FORMAT, "%s: holds more than the %lld tokens of the manifest", shard->path,
                     (long long)shard->tokens);
  }
  return status;
}

static pk_status decompress_all(pk_token_reader *reader, const pk_token_file *shard, void *into,
                                int64_t bytes) {
  int64_t got = 0;
  pk_status status = decompress(reader, shard, into, bytes, &got);
  if (status || got == bytes) return status;
  return pk_fail(PK_FORMAT, "%s: ends after %lld bytes of ids, but the manifest says %lld tokens",
                 shard->path, (long long)reader->position, (long long)shard->tokens);
}

static void rewind_compressed(pk_token_reader *reader) {
  ZSTD_initDStream(reader->stream);
  reader->unread = (ZSTD_inBuffer){reader->input, 0, 0};
  reader->stored = reader->position = 0;
  reader->frame_ended = true;
}

static pk_status read_compressed(pk_token_reader *reader, const pk_token_file *shard,
                                 int64_t offset, char *into, int64_t bytes) {
  pk_status status = PK_OK;
  if (offset < reader->position) rewind_compressed(reader);
  int64_t piece = (int64_t)ZSTD_DStreamOutSize();
  while (!status && reader->position < offset) {
    int64_t left = offset - reader->position;
    status = decompress_all(reader, shard, reader->skipped, left < piece ? left : piece);
  }
  if (!status) status = decompress_all(reader, shard, into, bytes);
  int64_t whole = shard->tokens * reader->tokens->width;
  if (!status && reader->position == whole) status = check_end(reader, shard);
  return status;
}

/* --- readers --- */

static void close_shard(pk_token_reader *reader) {
  pk_shard_close(&reader->file);
  reader->shard = -1;
}

pk_status pk_token_reader_create(const pk_tokens *tokens, pk_token_reader **reader) {
  *reader = NULL;
  bool compressed = false;
  for (int64_t i = 0; i < tokens->shard_count; i++) compressed |= tokens->shards[i].compressed;
  pk_token_reader *made = calloc(1, sizeof *made);
  if (!made) return pk_fail(PK_NO_MEMORY, "no memory for a reader of tokens");
  made->tokens = tokens;
  made->file.fd = -1;
  made->inner_part = -1;
  made->shard = -1;
  if (compressed) {
    made->stream = ZSTD_createDStream();
    made->input = malloc(PK_BLOCK_BYTES);
    made->skipped = malloc(ZSTD_DStreamOutSize());
    if (!made->stream || !made->input || !made->skipped) {
      pk_token_reader_free(made);
      return pk_fail(PK_NO_MEMORY, "no memory to decompress shards");
    }
  }
  *reader = made;
  return PK_OK;
}

void pk_token_reader_free(pk_token_reader *reader) {
  if (!reader) return;
  close_shard(reader);
  pk_token_reader_free(reader->inner);
  pk_shard_free(&reader->file);
  ZSTD_freeDStream(reader->stream);
  free(reader->input);
  free(reader->skipped);
  free(reader);
}

/* The shard that holds the id at place, which is inside the sequence. */
static int64_t find_shard(const pk_tokens *tokens, int64_t place) {
  int64_t low = 0, high = tokens->shard_count - 1;
  while (low < high) {
    int64_t middle = low + (high - low + 1) / 2;
    if (tokens->shards[middle].first <= place) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/* Ids from one shard: first counts from the shard's beginning. */
static pk_status read_shard(pk_token_reader *reader, int64_t number, int64_t first, int64_t count,
                            void *into) {
  const pk_tokens *tokens = reader->tokens;
  const pk_token_file *shard = &tokens->shards[number];
  pk_status status = PK_OK;
  if (reader->shard != number) {
    close_shard(reader);
    status = pk_shard_open(shard, tokens->width, &reader->file);
    if (!status && shard->compressed) rewind_compressed(reader);
    if (!status) reader->shard = number;
  }
  if (!status) {
    int64_t offset = first * tokens->width, bytes = count * tokens->width;
    status = shard->compressed ? read_compressed(reader, shard, offset, into, bytes)
                               : pk_shard_read(&reader->file, offset, into, bytes);
  }
  if (status) close_shard(reader); /* the place in a broken stream is not known */
  return status;
}

static uint32_t id_at(const void *ids, int32_t width, int64_t place) {
  return width == 2 ? ((const uint16_t *)ids)[place] : ((const uint32_t *)ids)[place];
}

static uint32_t largest_id(const void *ids, int32_t width, int64_t count) {
  uint32_t largest = 0;
  if (width == 2) {
    const uint16_t *p = ids;
    uint16_t narrow = 0;
    for (int64_t i = 0; i < count; i++) narrow = p[i] > narrow ? p[i] : narrow;
    largest = narrow;
  } else {
    const uint32_t *p = ids;
    for (int64_t i = 0; i < count; i++) largest = p[i] > largest ? p[i] : largest;
  }
  return largest;
}

pk_status pk_tokens_check(const pk_tokens *tokens, const char *path, int64_t first, int64_t count,
                          const void *ids) {
  if (largest_id(ids, tokens->width, count) < tokens->vocabulary) return PK_OK;
  int64_t place = 0;
  while (id_at(ids, tokens->width, place) < tokens->vocabulary) place++;
  return pk_fail(PK_FORMAT, "%s: token %lld is %u, not below the vocabulary of %lld", path,
                 (long long)(first + place), id_at(ids, tokens->width, place),
                 (long long)tokens->vocabulary);
}

/* Ids of a joined sequence; a reader is kept for the part that was read last. */
static pk_status read_parts(pk_token_reader *reader, int64_t first, int64_t count, char *ids) {
  const pk_tokens *tokens = reader->tokens;
  int64_t done = 0;
  for (int64_t i = 0; i < tokens->part_count && done < count; i++) {
    const pk_token_part *part = &tokens->parts[i];
    int64_t inside = first + done - part->start;
    if (inside >= part->count) continue;
    int64_t left = part->count - inside, take = count - done < left ? count - done : left;
    if (reader->inner_part != i) {
      pk_token_reader_free(reader->inner);
      reader->inner = NULL;
      reader->inner_part = -1;
      pk_status status = pk_token_reader_create(part->tokens, &reader->inner);
      if (status) return status;
      reader->inner_part = i;
    }
    pk_status status =
        pk_token_reader_read(reader->inner, part->first + inside, take, ids + done * tokens->width);
    if (status) return status;
    done += take;
  }
  return PK_OK;
}

pk_status pk_token_reader_read(pk_token_reader *reader, int64_t first, int64_t count, void *ids) {
  const pk_tokens *tokens = reader->tokens;
  if (first < 0 || count < 0 || count > tokens->count - first) {
    return pk_fail(PK_INVALID, "tokens %lld .. %lld of a sequence of %lld", (long long)first,
                   (long long)(first + count - 1), (long long)tokens->count);
  }
  if (count == 0) return PK_OK;
  if (tokens->parts) return read_parts(reader, first, count, ids);
  if (tokens->memory) {
    memcpy(ids, (const char *)tokens->memory + first * tokens->width,
           (size_t)(count * tokens->width));
    return pk_tokens_check(tokens, "the tokens", first, count, ids);
  }
  int64_t number = find_shard(tokens, first);
  for (int64_t done = 0; done < count; number++) {
    const pk_token_file *shard = &tokens->shards[number];
    int64_t start = first + done - shard->first, left = shard->tokens - start;
    int64_t take = count - done < left ? count - done : left;
    if (take == 0) continue; /* an empty shard */
    char *into = (char *)ids + done * tokens->width;
    pk_status status = read_shard(reader, number, start, take, into);
    if (!status) status = pk_tokens_check(tokens, shard->path, start, take, into);
    if (status) return status;
    done += take;
  }
  return PK_OK;
}

void pk_ids_widen(const void *ids, int32_t width, int64_t count, int32_t *into) {
  if (width == 2) {
    const uint16_t *p = ids;
    for (int64_t i = 0; i < count; i++) into[i] = p[i];
  } else {
    memcpy(into, ids, (size_t)count * sizeof *into);
  }
}

pk_status pk_tokens_read(const pk_tokens *tokens, int64_t first, int64_t count, int32_t *ids) {
  pk_token_reader *reader = NULL;
  pk_status status = pk_token_reader_create(tokens, &reader);
  if (!status) status = pk_token_reader_read(reader, first, count, ids);
  /* Stored ids fill the first half at most: widen from the back, so that none is overwritten. */
  if (!status && tokens->width == 2) {
    for (int64_t i = count - 1; i >= 0; i--) {
      uint16_t id;
      memcpy(&id, (const char *)ids + i * 2, sizeof id);
      ids[i] = id;
    }
  }
  pk_token_reader_free(reader);
  return status;
}
