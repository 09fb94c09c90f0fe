/* Fuzzes the reader of documents: any bytes, as any kind of file, give texts or a message. The
 * first byte of the input says which kind of file the rest is, and what happens to bad documents.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"
#include "data/reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { LIMIT = 2000 };

/* Stops the fuzzer where the reader does not do what reader.h promises. */
static void require(int condition) {
  if (!condition) abort();
}

static void check(const char *path, int choice) {
  const pk_reader_options options = {.paths = &path,
                                     .count = 1,
                                     .field = "text",
                                     .text_unit = choice >> 1 & 3,
                                     .skip_bad = choice & 1,
                                     .document_limit = LIMIT};
  pk_reader *reader;
  require(pk_reader_create(&options, &reader) == PK_OK);
  pk_buffer text = {0};
  pk_read what;
  int64_t documents = 0, skipped = 0;
  pk_status status;
  while ((status = pk_reader_next(reader, &text, &what)) == PK_OK && what != PK_READ_END) {
    if (what == PK_READ_SKIPPED) {
      require(strstr(pk_reader_note(reader), "packlua-fuzz") != NULL);
      skipped++;
      continue;
    }
    require(text.bytes > 0 && text.bytes <= LIMIT);
    require(pk_utf8_defect(text.data, text.bytes) < 0);
    require(pk_reader_path(reader) == path && pk_reader_line(reader) >= 1);
    documents++;
  }
  /* The message names the file. */
  require(status == PK_OK || strstr(pk_error_message(), "packlua-fuzz"));
  pk_reader_counts counts = pk_reader_get_counts(reader);
  require(counts.documents == documents);
  require(options.skip_bad || counts.skipped == 0);
  require(counts.skipped == skipped);
  pk_buffer_free(&text);
  pk_reader_free(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  if (bytes < 1) return 0;
  int choice = data[0];
  char path[128];
  const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  snprintf(path, sizeof path, "%s/packlua-fuzz-%ld.%s", folder, (long)getpid(),
           choice >> 3 & 1 ? "txt" : "json");
  FILE *file = fopen(path, "wb");
  require(file != NULL);
  require(fwrite(data + 1, 1, bytes - 1, file) == bytes - 1);
  require(fclose(file) == 0);
  /* Text units beyond the three that there are fall back to files. */
  check(path, choice >> 1 & 2 && choice >> 1 & 1 ? choice & ~6 : choice);
  unlink(path);
  return 0;
}
