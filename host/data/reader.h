/* Documents from text files: .txt, .json and .jsonl, plain or compressed, one after the other. */
#ifndef PK_DATA_READER_H
#define PK_DATA_READER_H

#include "data/buffer.h"

/* What counts as a document of a .txt file. */
typedef enum pk_text_unit {
  PK_TEXT_FILE = 0,
  PK_TEXT_LINE = 1,
  PK_TEXT_PARAGRAPH = 2
} pk_text_unit;

typedef struct pk_reader_options {
  const char *const *paths;
  int64_t count;
  const char *field;      /* of a JSON object: the key of the text */
  int text_unit;          /* a pk_text_unit */
  bool skip_bad;          /* a bad document is skipped and counted; otherwise it ends the reading */
  int64_t document_limit; /* bytes of the longest line or document */
} pk_reader_options;

/* The longest line, and the longest document, that a reader takes unless it is told otherwise. */
#define PK_DOCUMENT_LIMIT ((int64_t)1 << 28)

typedef struct pk_reader_counts {
  int64_t documents; /* handed out */
  int64_t skipped;   /* bad ones */
  int64_t empty;     /* skipped because there is no text in them */
  int64_t replaced;  /* surrogates alone that became U+FFFD */
} pk_reader_counts;

typedef struct pk_reader pk_reader;

/* The options' strings must live as long as the reader. Owned. Errors: a file that is not there, or
 * whose name does not say what it holds. */
pk_status pk_reader_create(const pk_reader_options *options, pk_reader **reader);
void pk_reader_free(pk_reader *reader);

/* The next document's text, or *found false at the end of the last file. text is emptied first. A
 * message begins with "FILE:LINE: ". After a failure the reader must not be used further. */
pk_status pk_reader_next(pk_reader *reader, pk_buffer *text, bool *found);

/* Where the document that was read last begins. The path is one of the options'. */
const char *pk_reader_path(const pk_reader *reader);
int64_t pk_reader_line(const pk_reader *reader);

pk_reader_counts pk_reader_get_counts(const pk_reader *reader);

/* Stored bytes read so far, and of all files together. */
int64_t pk_reader_done_bytes(const pk_reader *reader);
int64_t pk_reader_total_bytes(const pk_reader *reader);

/* The message of the latest skipped document, or NULL; the caller frees it. */
char *pk_reader_take_note(pk_reader *reader);

#endif
