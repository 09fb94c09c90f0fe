/* Fuzzes the reader of SentencePiece models: any bytes are refused with a message, or give a model
 * that encodes and decodes texts without a crash, to ids of its vocabulary. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/sentencepiece.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Stops the fuzzer where the model does not do what sentencepiece.h promises. */
static void require(int condition) {
  if (!condition) abort();
}

static int64_t size;

static int check_ids(void *target, const int *ids, int64_t count) {
  for (int64_t i = 0; i < count; i++) require(ids[i] >= 0 && ids[i] < size);
  if (count > 0) {
    char *text;
    int64_t bytes;
    char *problem = pk_spm_decode(target, ids, count, &text, &bytes);
    if (!problem) free(text);
    free(problem);
  }
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static const char *const texts[] = {"", "Abe  lost\tthe fine \xef\xac\x81g.\n",
                                      "\xc3\xa9\xe2\x96\x81 \xe2\x96\x81\xf0\x9f\x99\x82@@ab  ",
                                      "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"};
  pk_spm *spm = NULL;
  char *problem = pk_spm_open((const char *)data, (int64_t)bytes, &spm);
  require((problem != NULL) == (spm == NULL));
  free(problem);
  if (!spm) return 0;
  size = pk_spm_size(spm);
  require(size > 0 && pk_spm_eos(spm) < size && pk_spm_unknown(spm) < size);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    problem = pk_spm_encode(spm, texts[i], (int64_t)strlen(texts[i]), check_ids, spm);
    free(problem);
  }
  char every[256];
  for (int i = 0; i < 256; i++) every[i] = (char)i;
  free(pk_spm_encode(spm, every, sizeof every, check_ids, spm));
  free(pk_spm_piece(spm, size - 1));
  pk_spm_close(spm);
  return 0;
}
