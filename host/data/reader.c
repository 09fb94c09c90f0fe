/* Documents from text files: .txt, .json and .jsonl, plain or compressed, one after the other. */
#include "data/reader.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/utf8.h"
#include "data/json_line.h"
#include "data/lines.h"

enum { KEEP = 1 << 20 }; /* bytes that a buffer may keep for the next line */

typedef enum layout {
  LAYOUT_TEXT,
  LAYOUT_JSON_LINES,
  LAYOUT_JSON_ARRAY /* a .json file that begins with [ */
} layout;

struct pk_reader {
  pk_reader_options options;
  int64_t file; /* the one that is open, or the next one to open */
  bool is_open;
  layout layout;
  bool array_started;
  pk_lines lines;
  pk_buffer line;
  pk_reader_counts counts;
  int64_t closed_bytes; /* stored bytes of the files that are done */
  int64_t total_bytes;
  const char *document_path; /* where the last document begins */
  int64_t document_line;
  bool skipped; /* the document that was read last */
  char *note;
};

/* The length of a name without an ending that says how it is compressed. */
static size_t bare_length(const char *path) {
  static const char *const coded[] = {".gz", ".gzip", ".zst", ".zstd"};
  size_t length = strlen(path);
  for (size_t i = 0; i < sizeof coded / sizeof *coded; i++) {
    size_t ending = strlen(coded[i]);
    if (length > ending && strcasecmp(path + length - ending, coded[i]) == 0)
      return length - ending;
  }
  return length;
}

bool pk_reader_is_compressed(const char *path) {
  return bare_length(path) < strlen(path);
}

/* The kind that the format or else the name says, or -1. */
static int layout_of(const char *path, int format) {
  if (format == PK_FORMAT_TEXT) return LAYOUT_TEXT;
  if (format == PK_FORMAT_JSON) return LAYOUT_JSON_LINES;
  size_t length = bare_length(path);
  static const struct {
    const char *ending;
    layout layout;
  } kinds[] = {{".txt", LAYOUT_TEXT},
               {".json", LAYOUT_JSON_LINES},
               {".jsonl", LAYOUT_JSON_LINES},
               {".ndjson", LAYOUT_JSON_LINES}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    size_t ending = strlen(kinds[i].ending);
    if (length >= ending && strncasecmp(path + length - ending, kinds[i].ending, ending) == 0) {
      return (int)kinds[i].layout;
    }
  }
  return -1;
}

bool pk_reader_is_json(const char *path) {
  return layout_of(path, PK_FORMAT_BY_NAME) == LAYOUT_JSON_LINES;
}

pk_status pk_reader_create(const pk_reader_options *options, pk_reader **result) {
  *result = NULL;
  int64_t total = 0;
  for (int64_t i = 0; i < options->count; i++) {
    const char *path = options->paths[i];
    int kind = pk_path_kind(path);
    if (kind == 0) return pk_fail(PK_IO, "%s: there is no such file", path);
    if (kind != 'f') {
      return pk_fail(PK_INVALID, "%s: is not a regular file%s", path,
                     kind == 'd' ? "" : ": write what a pipe or device gives to a file first");
    }
    if (layout_of(path, options->format) < 0) {
      return pk_fail(
          PK_INVALID,
          "%s: its name does not say what it holds: .txt, .json or .jsonl, and .gz or .zst "
          "after that where it is compressed; --format text or --format json says it",
          path);
    }
    int64_t bytes = pk_file_size(path);
    total += bytes > 0 ? bytes : 0;
  }
  pk_reader *reader = calloc(1, sizeof *reader);
  if (!reader) return pk_fail(PK_NO_MEMORY, "no memory for a reader");
  reader->options = *options;
  reader->total_bytes = total;
  *result = reader;
  return PK_OK;
}

static void close_file(pk_reader *reader) {
  if (!reader->is_open) return;
  reader->closed_bytes += pk_stream_stored(reader->lines.stream);
  pk_lines_close(&reader->lines);
  reader->is_open = false;
  reader->file++;
}

void pk_reader_free(pk_reader *reader) {
  if (!reader) return;
  close_file(reader);
  pk_buffer_free(&reader->line);
  free(reader->note);
  free(reader);
}

const char *pk_reader_path(const pk_reader *reader) {
  return reader->document_path;
}

int64_t pk_reader_line(const pk_reader *reader) {
  return reader->document_line;
}

pk_reader_counts pk_reader_get_counts(const pk_reader *reader) {
  return reader->counts;
}

int64_t pk_reader_done_bytes(const pk_reader *reader) {
  return reader->closed_bytes + (reader->is_open ? pk_stream_stored(reader->lines.stream) : 0);
}

int64_t pk_reader_total_bytes(const pk_reader *reader) {
  return reader->total_bytes;
}

const char *pk_reader_note(const pk_reader *reader) {
  return reader->note;
}

/* After a bad document whose message is set and begins after "FILE:LINE: ": ends the reading, or
 * counts it. */
static pk_status skip_or_fail(pk_reader *reader, pk_status status, int64_t line) {
  pk_fail_within(status, "%s:%lld", reader->options.paths[reader->file], (long long)line);
  if (!reader->options.skip_bad) return status;
  reader->counts.skipped++;
  reader->skipped = true;
  free(reader->note);
  reader->note = strdup(pk_error_message());
  return PK_OK;
}

static pk_status too_long(const pk_reader *reader, const char *advice) {
  return pk_fail(PK_FORMAT, "a document of more than %lld bytes%s",
                 (long long)reader->options.document_limit, advice);
}

/* Decides about a document, beginning at line, that was read without a defect. */
static bool accept(pk_reader *reader, const pk_buffer *text, int64_t line) {
  if (text->bytes == 0) {
    reader->counts.empty++;
    return false;
  }
  reader->counts.documents++;
  reader->document_path = reader->options.paths[reader->file];
  reader->document_line = line;
  return true;
}

static bool is_blank(const pk_buffer *line) {
  for (int64_t i = 0; i < line->bytes; i++) {
    if (!strchr(" \t\r\n\v\f", line->data[i]) || line->data[i] == '\0') return false;
  }
  return true;
}

static void drop_carriage_return(pk_buffer *line) {
  if (line->bytes > 0 && line->data[line->bytes - 1] == '\r') line->bytes--;
}

/* Text from a .txt file: UTF-8, and no NUL, which tells a binary file. */
static pk_status check_text(const pk_buffer *text, int64_t *line) {
  int64_t bad = pk_utf8_defect(text->data, text->bytes);
  const char *nul = text->bytes ? memchr(text->data, 0, (size_t)text->bytes) : NULL;
  if (bad < 0 && !nul) return PK_OK;
  int64_t at = bad < 0 || (nul && nul - text->data < bad) ? nul - text->data : bad;
  for (int64_t i = 0; i < at; i++) *line += text->data[i] == '\n';
  if (at != bad) return pk_fail(PK_FORMAT, "a NUL byte: not a text file");
  return pk_fail(PK_FORMAT, "invalid UTF-8 (byte 0x%02x)", (unsigned char)text->data[at]);
}

/* "\r\n" becomes "\n". */
static void join_line_ends(pk_buffer *text) {
  int64_t kept = 0;
  for (int64_t i = 0; i < text->bytes; i++) {
    if (text->data[i] == '\r' && i + 1 < text->bytes && text->data[i + 1] == '\n') continue;
    text->data[kept++] = text->data[i];
  }
  text->bytes = kept;
}

/* Each next_... function reads one document, or skips one: *found says whether there is a document
 * in text, *more whether the file may have another. */
static pk_status next_file_text(pk_reader *reader, pk_buffer *text, bool *found, bool *more) {
  bool huge;
  int64_t line = 1;
  *more = false;
  pk_status status = pk_lines_rest(&reader->lines, text, reader->options.document_limit, &huge);
  if (status) return status;
  status = huge ? too_long(reader, ": --txt-documents line or paragraph splits a file")
                : check_text(text, &line);
  if (status) return skip_or_fail(reader, status, line);
  if (text->bytes > 0 && memchr(text->data, '\r', (size_t)text->bytes)) join_line_ends(text);
  *found = accept(reader, text, 1);
  return PK_OK;
}

static pk_status next_line_text(pk_reader *reader, pk_buffer *text, bool *found, bool *more) {
  bool huge;
  pk_status status =
      pk_lines_next(&reader->lines, text, reader->options.document_limit, more, &huge);
  if (status || !*more) return status;
  int64_t line = reader->lines.number;
  status = huge ? too_long(reader, " in one line") : check_text(text, &line);
  if (status) return skip_or_fail(reader, status, line);
  drop_carriage_return(text);
  *found = accept(reader, text, line);
  return PK_OK;
}

static pk_status next_paragraph(pk_reader *reader, pk_buffer *text, bool *found, bool *more) {
  pk_buffer *line = &reader->line;
  int64_t limit = reader->options.document_limit, first = 0;
  bool huge = false;
  for (;;) {
    bool line_is_huge;
    pk_buffer_clear(line, KEEP);
    pk_status status = pk_lines_next(&reader->lines, line, limit, more, &line_is_huge);
    if (status) return status;
    drop_carriage_return(line);
    if (!*more || (!line_is_huge && is_blank(line))) {
      if (first == 0 && *more) continue;
      break;
    }
    if (first == 0) first = reader->lines.number;
    huge |= line_is_huge || text->bytes + line->bytes + 1 > limit;
    if (huge) continue;
    if (text->bytes > 0) status = pk_buffer_add_text(text, "\n");
    if (!status) status = pk_buffer_add(text, line->data, line->bytes);
    if (status) return status;
  }
  if (first == 0) return PK_OK;
  pk_status status = huge ? too_long(reader, " in one paragraph") : check_text(text, &first);
  if (status) return skip_or_fail(reader, status, first);
  *found = accept(reader, text, first);
  return PK_OK;
}

static pk_status next_json_line(pk_reader *reader, pk_buffer *text, bool *found, bool *more) {
  bool huge;
  pk_buffer *line = &reader->line;
  pk_buffer_clear(line, KEEP);
  pk_status status =
      pk_lines_next(&reader->lines, line, reader->options.document_limit, more, &huge);
  if (status || !*more || (!huge && is_blank(line))) return status;
  status = huge ? too_long(reader, " in one line")
                : pk_json_field(line->data, line->bytes, reader->options.field, text,
                                &reader->counts.replaced);
  if (status == PK_FORMAT) return skip_or_fail(reader, status, reader->lines.number);
  if (status) return status;
  *found = accept(reader, text, reader->lines.number);
  return PK_OK;
}

/* Collects one element of an array, from where it begins to the comma or bracket after it, which is
 * left. Strings are respected; whether it is JSON is found out later. */
static pk_status collect_element(pk_reader *reader, bool *huge) {
  pk_buffer *element = &reader->line;
  int depth = 0;
  bool in_string = false, escaped = false;
  pk_buffer_clear(element, KEEP);
  *huge = false;
  for (;;) {
    int byte;
    pk_status status = pk_lines_peek(&reader->lines, &byte);
    if (status) return status;
    if (byte < 0 || (depth == 0 && !in_string && (byte == ',' || byte == ']'))) return PK_OK;
    pk_lines_take(&reader->lines);
    if (in_string) {
      in_string = escaped || byte != '"';
      escaped = !escaped && byte == '\\';
    } else {
      in_string = byte == '"';
      depth += (byte == '{' || byte == '[') - (byte == '}' || byte == ']');
    }
    char character = (char)byte;
    *huge |= element->bytes == reader->options.document_limit;
    if (!*huge) status = pk_buffer_add(element, &character, 1);
    if (status) return status;
  }
}

static pk_status skip_space(pk_reader *reader, int *byte) {
  for (;;) {
    pk_status status = pk_lines_peek(&reader->lines, byte);
    if (status || *byte < 0 || !*byte || !strchr(" \t\r\n", *byte)) return status;
    pk_lines_take(&reader->lines);
  }
}

/* A defect of the array itself ends the reading whatever the policy: what follows is not known. */
static pk_status broken_array(const pk_reader *reader, const char *problem) {
  return pk_fail(PK_FORMAT, "%s:%lld: %s", reader->options.paths[reader->file],
                 (long long)reader->lines.number + 1, problem);
}

static pk_status next_array_element(pk_reader *reader, pk_buffer *text, bool *found, bool *more) {
  int byte;
  pk_status status = skip_space(reader, &byte);
  if (status) return status;
  if (!reader->array_started) {
    pk_lines_take(&reader->lines); /* the [ by which the file was known */
    reader->array_started = true;
    status = skip_space(reader, &byte);
    if (status) return status;
    *more = byte != ']';
  } else if (byte == ',') {
    pk_lines_take(&reader->lines);
    *more = true;
  } else if (byte == ']') {
    *more = false;
  } else {
    return broken_array(reader, "the array does not end, or lacks a comma");
  }
  if (!*more) {
    pk_lines_take(&reader->lines);
    status = skip_space(reader, &byte);
    if (status || byte < 0) return status;
    return broken_array(reader, "more text after the end of the array");
  }
  status = skip_space(reader, &byte);
  if (status) return status;
  int64_t line = reader->lines.number + 1;
  bool huge;
  status = collect_element(reader, &huge);
  if (status) return status;
  status = huge ? too_long(reader, "")
                : pk_json_field(reader->line.data, reader->line.bytes, reader->options.field, text,
                                &reader->counts.replaced);
  if (status == PK_FORMAT) return skip_or_fail(reader, status, line);
  if (status) return status;
  *found = accept(reader, text, line);
  return PK_OK;
}

static pk_status open_next_file(pk_reader *reader) {
  const char *path = reader->options.paths[reader->file];
  pk_stream *stream;
  pk_status status = pk_stream_open(path, PK_STREAM_BY_CONTENT, &stream);
  if (status) return status;
  reader->is_open = true;
  reader->layout = (layout)layout_of(path, reader->options.format);
  reader->array_started = false;
  status = pk_lines_open(&reader->lines, stream);
  if (status || reader->layout != LAYOUT_JSON_LINES) return status;
  int byte;
  status = skip_space(reader, &byte);
  if (!status && byte == '[') reader->layout = LAYOUT_JSON_ARRAY;
  return status;
}

pk_status pk_reader_next(pk_reader *reader, pk_buffer *text, pk_read *what) {
  bool found = false;
  *what = PK_READ_END;
  reader->skipped = false;
  while (!found && !reader->skipped) {
    pk_status status = PK_OK;
    if (!reader->is_open) {
      if (reader->file == reader->options.count) return PK_OK;
      status = open_next_file(reader);
      if (status) return status;
    }
    bool more = false;
    pk_buffer_clear(text, KEEP);
    if (reader->layout == LAYOUT_JSON_ARRAY) {
      status = next_array_element(reader, text, &found, &more);
    } else if (reader->layout == LAYOUT_JSON_LINES) {
      status = next_json_line(reader, text, &found, &more);
    } else if (reader->options.text_unit == PK_TEXT_LINE) {
      status = next_line_text(reader, text, &found, &more);
    } else if (reader->options.text_unit == PK_TEXT_PARAGRAPH) {
      status = next_paragraph(reader, text, &found, &more);
    } else {
      status = next_file_text(reader, text, &found, &more);
    }
    if (status) return status;
    if (!more) close_file(reader);
  }
  *what = found ? PK_READ_TEXT : PK_READ_SKIPPED;
  return PK_OK;
}
