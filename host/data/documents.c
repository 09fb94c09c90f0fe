/* All documents of one file in memory, for training without a cache. */
#include <stdlib.h>

#include "data/reader.h"

enum { KEEP = 1 << 20 };

int pk_names_documents(const char *path) {
  return pk_reader_is_json(path) || pk_reader_is_compressed(path);
}

/* Adds a text, and where it ends. */
static pk_status add(pk_buffer *texts, pk_buffer *ends, const pk_buffer *text, int64_t limit,
                     const char *path) {
  if (text->bytes > limit - texts->bytes) {
    return pk_fail(PK_INVALID, "%s: its texts have more than the limit of %lld bytes", path,
                   (long long)limit);
  }
  pk_status status = pk_buffer_add(texts, text->data, text->bytes);
  int64_t end = texts->bytes;
  return status ? status : pk_buffer_add(ends, &end, sizeof end);
}

pk_status pk_documents_read(const char *path, int64_t limit, pk_documents *documents) {
  *documents = (pk_documents){0};
  const pk_reader_options options = {
      .paths = &path, .count = 1, .field = "text", .document_limit = PK_DOCUMENT_LIMIT};
  pk_reader *reader;
  pk_buffer texts = {0}, ends = {0}, text = {0};
  pk_status status = pk_reader_create(&options, &reader);
  if (status) return status;
  for (pk_read what = PK_READ_TEXT; !status && what != PK_READ_END;) {
    status = pk_reader_next(reader, &text, &what);
    if (!status && what == PK_READ_TEXT) status = add(&texts, &ends, &text, limit, path);
    if (!status) status = pk_interrupt_check();
    pk_buffer_clear(&text, KEEP);
  }
  pk_reader_free(reader);
  pk_buffer_free(&text);
  if (status) {
    pk_buffer_free(&texts);
    pk_buffer_free(&ends);
    return status;
  }
  *documents = (pk_documents){.text = texts.data,
                              .bytes = texts.bytes,
                              .ends = (int64_t *)ends.data,
                              .count = ends.bytes / (int64_t)sizeof(int64_t)};
  return PK_OK;
}

void pk_documents_free(pk_documents *documents) {
  free(documents->text);
  free(documents->ends);
  *documents = (pk_documents){0};
}
