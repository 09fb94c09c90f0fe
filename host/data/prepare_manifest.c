/* manifest.json of a cache: version 1 of the layout that docs/data.md describes. */
#include <inttypes.h>
#include <string.h>

#include "base/utf8.h"
#include "data/prepare.h"
#include "data/reader.h"

static const char *const text_units[] = {"file", "line", "paragraph"};

/* Appends text as a JSON string. Bytes that JSON cannot hold as they are, are escaped; a name that
 * is not UTF-8 is kept readable by taking each such byte for a Latin-1 character. */
static pk_status add_string(pk_buffer *into, const char *text) {
  pk_status status = pk_buffer_add_text(into, "\"");
  bool is_utf8 = pk_utf8_defect(text, (int64_t)strlen(text)) < 0;
  for (const unsigned char *c = (const unsigned char *)text; *c && !status; c++) {
    if (*c < 0x20 || *c == '"' || *c == '\\' || (*c >= 0x80 && !is_utf8)) {
      status = pk_buffer_format(into, "\\u%04x", *c);
    } else {
      status = pk_buffer_add(into, c, 1);
    }
  }
  return status ? status : pk_buffer_add_text(into, "\"");
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* Names and sizes, not paths: the same files elsewhere are the same data. */
static pk_status add_sources(pk_buffer *text, const char *const *paths, int64_t count) {
  pk_status status = pk_buffer_add_text(text, "[");
  for (int64_t i = 0; i < count && !status; i++) {
    status = pk_buffer_add_text(text, i ? ",\n      {\"bytes\": " : "\n      {\"bytes\": ");
    if (!status) status = pk_buffer_format(text, "%" PRId64 ", \"file\": ", pk_file_size(paths[i]));
    if (!status) status = add_string(text, base_name(paths[i]));
    if (!status) status = pk_buffer_add_text(text, "}");
  }
  return status ? status : pk_buffer_add_text(text, count ? "\n    ]" : "]");
}

static pk_status add_preprocessing(pk_buffer *text, const pk_prepare_options *options) {
  pk_status status = pk_buffer_add_text(text, "  \"preprocessing\": {\n    \"add_bos\": false,\n   "
                                              " \"append_eos\": true,\n    \"field\": ");
  if (!status) status = add_string(text, options->field);
  if (!status && options->format != PK_FORMAT_BY_NAME) {
    status = pk_buffer_format(text, ",\n    \"format\": \"%s\"",
                              options->format == PK_FORMAT_TEXT ? "text" : "json");
  }
  if (!status) {
    status =
        pk_buffer_format(text,
                         ",\n    \"on_error\": \"%s\",\n    \"program\": \"packlua %s\",\n"
                         "    \"shard_tokens\": %" PRId64 ",\n    \"shuffle_buffer\": %" PRId64
                         ",\n    \"shuffle_bytes\": %" PRId64 ",\n    \"shuffle_seed\": %" PRId64
                         ",\n    \"txt_documents\": \"%s\",\n    \"train_files\": ",
                         options->skip_bad ? "skip" : "stop", pk_version(), options->shard_tokens,
                         options->shuffle_buffer, options->shuffle_bytes, options->shuffle_seed,
                         text_units[options->text_unit]);
  }
  if (!status) status = add_sources(text, options->train, options->train_count);
  if (!status) status = pk_buffer_add_text(text, ",\n    \"validation_files\": ");
  if (!status) status = add_sources(text, options->validation, options->validation_count);
  return status ? status : pk_buffer_add_text(text, "\n  },\n");
}

static pk_status add_split(pk_buffer *text, const pk_prepare_progress *progress, int split,
                           const pk_shards *shards) {
  pk_status status = pk_buffer_format(
      text,
      "    \"%s\": {\n      \"complete\": %s,\n      \"documents\": %" PRId64
      ",\n      \"empty_documents\": %" PRId64 ",\n      \"replaced_surrogates\": %" PRId64
      ",\n      \"shards\": [",
      shards->split, progress->complete[split] ? "true" : "false", progress->documents[split],
      progress->empty[split], progress->replaced[split]);
  for (int64_t i = 0; i < shards->count && !status; i++) {
    char name[64];
    pk_shard *shard = &shards->list[i];
    pk_shards_name(shards, i, name, sizeof name);
    status = pk_buffer_format(text,
                              "%s\n        {\"blocks_sha256\": \"%s\", \"bytes\": %" PRId64
                              ", \"file\": \"%s\", \"sha256\": \"%s\", \"tokens\": %" PRId64 "}",
                              i ? "," : "", pk_buffer_text(&shard->sums), shard->bytes, name,
                              shard->sha256, shard->tokens);
  }
  if (status) return status;
  return pk_buffer_format(text,
                          "\n      ],\n      \"skipped_documents\": %" PRId64
                          ",\n      \"text_bytes\": %" PRId64 ",\n      \"tokens\": %" PRId64
                          ",\n      \"tokens_sha256\": \"%s\",\n      \"unknown_tokens\": %" PRId64
                          "\n    }",
                          progress->skipped[split], progress->text_bytes[split], shards->tokens,
                          shards->tokens_sha256, progress->unknown[split]);
}

static pk_status add_tokenizer(pk_buffer *text, const pk_prepare_options *options,
                               const pk_tokenizer *tokenizer) {
  pk_status status = pk_buffer_format(
      text, "  \"tokenizer\": {\"kind\": \"%s\", \"name\": ", pk_tokenizer_kind(tokenizer));
  if (!status) status = add_string(text, base_name(options->tokenizer));
  const char *digits = pk_tokenizer_sha256(tokenizer);
  if (!status && *digits) status = pk_buffer_format(text, ", \"sha256\": \"%s\"", digits);
  return status ? status : pk_buffer_add_text(text, "},\n");
}

/* Everything but the identity: its line goes between the two parts. */
static pk_status make_text(pk_buffer *head, pk_buffer *tail, const pk_prepare_options *options,
                           const pk_tokenizer *tokenizer, const pk_prepare_progress *progress,
                           const pk_shards shards[2]) {
  pk_status status =
      pk_buffer_format(head, "{\n  \"dtype\": \"%s\",\n  \"eos_token_id\": %" PRId64 ",\n",
                       shards[0].width == 2 ? "<u2" : "<u4", pk_tokenizer_eos(tokenizer));
  if (!status) status = add_preprocessing(tail, options);
  if (!status) status = pk_buffer_add_text(tail, "  \"splits\": {\n");
  if (!status) status = add_split(tail, progress, 0, &shards[0]);
  if (!status && options->validation_count > 0) {
    status = pk_buffer_add_text(tail, ",\n");
    if (!status) status = add_split(tail, progress, 1, &shards[1]);
  }
  if (!status) status = pk_buffer_add_text(tail, "\n  },\n");
  if (!status) status = add_tokenizer(tail, options, tokenizer);
  if (status) return status;
  bool whole = options->validation_count > 0 && progress->complete[1];
  return pk_buffer_format(
      tail, "  \"validation_complete\": %s,\n  \"version\": 1,\n  \"vocab_size\": %" PRId64 "\n}\n",
      whole ? "true" : "false", pk_tokenizer_vocab_size(tokenizer));
}

pk_status pk_manifest_write(const char *folder, const pk_prepare_options *options,
                            const pk_tokenizer *tokenizer, const pk_prepare_progress *progress,
                            const pk_shards shards[2]) {
  pk_buffer text = {0}, tail = {0}, path = {0};
  char identity[PK_SHA256_TEXT];
  pk_status status = make_text(&text, &tail, options, tokenizer, progress, shards);
  int64_t head = text.bytes;
  if (!status) status = pk_buffer_add(&text, tail.data, tail.bytes);
  if (!status) status = pk_json_identity(text.data, text.bytes, "manifest.json", identity);
  if (status) goto done;
  text.bytes = head;
  status = pk_buffer_format(&text, "  \"identity\": \"%s\",\n", identity);
  if (!status) status = pk_buffer_add(&text, tail.data, tail.bytes);
  if (!status) status = pk_buffer_format(&path, "%s/manifest.json", folder);
  if (!status) status = pk_file_write(pk_buffer_text(&path), text.data, text.bytes);
done:
  pk_buffer_free(&text);
  pk_buffer_free(&tail);
  pk_buffer_free(&path);
  return status;
}
