/* Documents from text files: .txt, .json and .jsonl, plain or compressed, one after the other. */
#ifndef PK_DATA_READER_H
#define PK_DATA_READER_H

#include "base/buffer.h"

/* What counts as a document of a .txt file. */
typedef enum pk_text_unit {
  PK_TEXT_FILE = 0,
  PK_TEXT_LINE = 1,
  PK_TEXT_PARAGRAPH = 2
} pk_text_unit;

/* What files hold. */
typedef enum pk_text_format {
  PK_FORMAT_BY_NAME = 0,
  PK_FORMAT_TEXT = 1,
  PK_FORMAT_JSON = 2 /* JSON lines, or an array */
} pk_text_format;

typedef struct pk_reader_options {
  const char *const *paths;
  int64_t count;
  const char *field;      /* of a JSON object: the key of the text */
  int format;             /* a pk_text_format, of all files */
  int text_unit;          /* a pk_text_unit */
  bool skip_bad;          /* a bad document is skipped and counted; otherwise it ends the reading */
  int64_t document_limit; /* bytes of the longest line or document */
} pk_reader_options;

/* The longest line, and the longest document, that a reader takes unless it is told otherwise. */
#define PK_DOCUMENT_LIMIT ((int64_t)1 << 28)

/* What the name of a file says. */
bool pk_reader_is_json(const char *path);
bool pk_reader_is_compressed(const char *path);

typedef struct pk_reader_counts {
  int64_t documents; /* handed out */
  int64_t skipped;   /* bad ones */
  int64_t empty;     /* skipped because there is no text in them */
  int64_t replaced;  /* surrogates alone that became U+FFFD */
} pk_reader_counts;

typedef enum pk_read {
  PK_READ_END,    /* of the last file */
  PK_READ_TEXT,   /* a document */
  PK_READ_SKIPPED /* a bad document, of which pk_reader_note tells */
} pk_read;

typedef struct pk_reader pk_reader;

/* The options' strings must live as long as the reader. Owned. Errors: a file that is not there, or
 * is a pipe or the like, or whose name does not say what it holds where no format does. */
pk_status pk_reader_create(const pk_reader_options *options, pk_reader **reader);
void pk_reader_free(pk_reader *reader);

/* Goes on to the next document, whose text is read, or which is skipped. text is emptied first. A
 * message begins with "FILE:LINE: ". After a failure the reader must not be used further. */
pk_status pk_reader_next(pk_reader *reader, pk_buffer *text, pk_read *what);

/* Where the document that was read last begins. The path is one of the options'. */
const char *pk_reader_path(const pk_reader *reader);
int64_t pk_reader_line(const pk_reader *reader);

pk_reader_counts pk_reader_get_counts(const pk_reader *reader);

/* Stored bytes read so far, and of all files together. */
int64_t pk_reader_done_bytes(const pk_reader *reader);
int64_t pk_reader_total_bytes(const pk_reader *reader);

/* Why the latest skipped document was skipped, with its place; NULL without memory. Borrowed. */
const char *pk_reader_note(const pk_reader *reader);

#endif
