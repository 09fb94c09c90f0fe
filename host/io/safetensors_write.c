/* Writes safetensors files: the header when all tensors are declared, then their bytes as they
 * come. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/frames.h"
#include "io/safetensors.h"
#include "io/value.h"

enum { HEADER_ALIGNMENT = 8, DTYPE_BYTES = 16 };

typedef struct declaration {
  char *name;
  char dtype[DTYPE_BYTES];
  int rank;
  int64_t shape[PK_SAFETENSORS_RANK];
  int64_t bytes;
  char sha256[PK_SHA256_TEXT];
} declaration;

typedef struct pair {
  char *key;
  char *value;
} pair;

/* Text that grows. One that got no memory stays as it is and says so at its end. */
typedef struct text_buffer {
  char *text;
  size_t bytes, room;
  bool no_memory;
} text_buffer;

struct pk_safetensors_writer {
  pk_output output;
  pk_frame_writer *frames; /* of a compressed file, else NULL */
  bool begun;              /* the header is written */
  bool complete;
  pair *pairs; /* the metadata */
  int64_t pair_count;
  declaration *tensors;
  int64_t count;
  int64_t bytes;   /* of all declared data */
  int64_t current; /* the tensor whose data comes next, */
  int64_t written; /* how much of it is there, */
  pk_sha256 hash;  /* and the hash of that */
  int64_t digits;  /* the place in the file of the tensors' digits, */
  int64_t digest;  /* and of the header's */
};

/* --- text --- */

static void put_bytes(text_buffer *buffer, const char *text, size_t bytes) {
  if (buffer->room - buffer->bytes < bytes && !buffer->no_memory) {
    size_t room = 2 * buffer->room + bytes + 1024;
    char *larger = realloc(buffer->text, room);
    if (larger) {
      buffer->text = larger;
      buffer->room = room;
    }
    buffer->no_memory = !larger;
  }
  if (buffer->no_memory) return;
  memcpy(buffer->text + buffer->bytes, text, bytes);
  buffer->bytes += bytes;
}

static void put(text_buffer *buffer, const char *text) {
  put_bytes(buffer, text, strlen(text));
}

static void put_integer(text_buffer *buffer, int64_t number) {
  char digits[24];
  snprintf(digits, sizeof digits, "%" PRId64, number);
  put(buffer, digits);
}

/* Puts text as a JSON string. */
static void put_string(text_buffer *buffer, const char *text) {
  put(buffer, "\"");
  for (const char *c = text; *c; c++) {
    char escaped[8];
    if (*c == '"' || *c == '\\') {
      put(buffer, "\\");
      put_bytes(buffer, c, 1);
    } else if ((unsigned char)*c < 0x20) {
      snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)*c);
      put(buffer, escaped);
    } else {
      put_bytes(buffer, c, 1);
    }
  }
  put(buffer, "\"");
}

/* --- making one --- */

pk_status pk_safetensors_writer_create(const char *path, pk_safetensors_writer **writer) {
  *writer = NULL;
  pk_safetensors_writer *created = calloc(1, sizeof *created);
  if (!created) return pk_fail(PK_NO_MEMORY, "%s: no memory for a writer", path);
  pk_status status = pk_output_open(&created->output, path);
  if (status) {
    free(created);
    return status;
  }
  pk_sha256_begin(&created->hash);
  *writer = created;
  return PK_OK;
}

void pk_safetensors_writer_free(pk_safetensors_writer *writer) {
  if (!writer) return;
  pk_frame_writer_free(writer->frames);
  pk_output_discard(&writer->output);
  for (int64_t i = 0; i < writer->pair_count; i++) {
    free(writer->pairs[i].key);
    free(writer->pairs[i].value);
  }
  for (int64_t i = 0; i < writer->count; i++) free(writer->tensors[i].name);
  free(writer->pairs);
  free(writer->tensors);
  free(writer);
}

/* A file ends when it is finished, and when it could not be written. */
static pk_status check_open(const pk_safetensors_writer *writer) {
  if (writer->output.fd >= 0 && !writer->complete) return PK_OK;
  return pk_fail(PK_INVALID, "a safetensors file is written to after its end");
}

/* Writes bytes, or ends the file. */
static pk_status write_bytes(pk_safetensors_writer *writer, const void *data, int64_t bytes) {
  pk_status status = writer->frames ? pk_frame_writer_add(writer->frames, data, bytes)
                                    : pk_output_write(&writer->output, data, bytes);
  if (status) pk_output_discard(&writer->output);
  return status;
}

/* --- the header --- */

static pk_status check_text(const pk_safetensors_writer *writer, const char *text) {
  int64_t offset;
  const char *defect = pk_text_defect(text, (int64_t)strlen(text), &offset);
  if (!defect) return PK_OK;
  return pk_fail(PK_INVALID, "%s: '%.200s' has %s at byte %" PRId64, writer->output.path, text,
                 defect, offset);
}

/* Makes room for one more of count items. */
static pk_status grow(void **items, int64_t count, size_t size) {
  if ((count & (count - 1)) != 0) return PK_OK; /* the room doubles at powers of two */
  void *larger = realloc(*items, (size_t)(count ? 2 * count : 1) * size);
  if (!larger) return pk_fail(PK_NO_MEMORY, "no memory for %" PRId64 " tensors", count + 1);
  *items = larger;
  return PK_OK;
}

static pk_status copy_text(const char *text, char **copy) {
  *copy = strdup(text);
  return *copy ? PK_OK : pk_fail(PK_NO_MEMORY, "no memory for the name %.200s", text);
}

pk_status pk_safetensors_writer_metadata(pk_safetensors_writer *writer, const char *key,
                                         const char *value) {
  pk_status status = check_open(writer);
  if (status) return status;
  if (writer->begun || writer->count > 0) {
    return pk_fail(PK_INVALID, "%s: the metadata '%.200s' comes after a tensor",
                   writer->output.path, key);
  }
  if (strcmp(key, PK_SAFETENSORS_SHA256) == 0 || strcmp(key, PK_SAFETENSORS_TENSORS_SHA256) == 0) {
    return pk_fail(PK_INVALID, "%s: the metadata '%.200s' is the writer's own", writer->output.path,
                   key);
  }
  status = check_text(writer, key);
  if (!status) status = check_text(writer, value);
  if (!status) status = grow((void **)&writer->pairs, writer->pair_count, sizeof *writer->pairs);
  if (status) return status;
  pair *added = &writer->pairs[writer->pair_count];
  status = copy_text(key, &added->key);
  if (status) return status;
  status = copy_text(value, &added->value);
  if (status) {
    free(added->key);
    return status;
  }
  writer->pair_count++;
  return PK_OK;
}

static pk_status check_declaration(const pk_safetensors_writer *writer, const char *name,
                                   const char *dtype, int rank, const int64_t *shape,
                                   int64_t *bytes) {
  if (writer->begun) return pk_fail(PK_INVALID, "is declared after data");
  if (strcmp(name, "__metadata__") == 0) return pk_fail(PK_INVALID, "is not a name for a tensor");
  int64_t element = pk_safetensors_dtype_size(dtype);
  if (element == 0) return pk_fail(PK_INVALID, "dtype '%.40s' is not known", dtype);
  if (rank < 0 || rank > PK_SAFETENSORS_RANK) {
    return pk_fail(PK_INVALID, "%d dimensions; the most are %d", rank, PK_SAFETENSORS_RANK);
  }
  char text[PK_SHAPE_TEXT];
  for (int d = 0; d < rank; d++) {
    if (shape[d] < 0 || shape[d] >= (int64_t)PK_VALUE_INTEGER_LIMIT) {
      return pk_fail(PK_INVALID, "shape %s is not possible", pk_shape_text(text, rank, shape));
    }
  }
  int64_t end;
  if (!pk_safetensors_bytes(element, rank, shape, bytes) ||
      __builtin_add_overflow(writer->bytes, *bytes, &end) ||
      end >= (int64_t)PK_VALUE_INTEGER_LIMIT) {
    return pk_fail(PK_INVALID, "shape %s has too many elements", pk_shape_text(text, rank, shape));
  }
  return check_text(writer, name);
}

pk_status pk_safetensors_writer_declare(pk_safetensors_writer *writer, const char *name,
                                        const char *dtype, int rank, const int64_t *shape) {
  int64_t bytes = 0;
  pk_status status = check_open(writer);
  if (status) return status;
  status = check_declaration(writer, name, dtype, rank, shape, &bytes);
  if (status) {
    return pk_fail_within(status, "%s: tensor '%.200s'", writer->output.path, name);
  }
  status = grow((void **)&writer->tensors, writer->count, sizeof *writer->tensors);
  if (status) return status;
  declaration *added = &writer->tensors[writer->count];
  *added = (declaration){.rank = rank, .bytes = bytes};
  status = copy_text(name, &added->name);
  if (status) return status;
  snprintf(added->dtype, sizeof added->dtype, "%s", dtype);
  if (rank > 0) memcpy(added->shape, shape, (size_t)rank * sizeof *shape);
  pk_sha256_of(NULL, 0, added->sha256); /* of a tensor without elements */
  writer->count++;
  writer->bytes += bytes;
  return PK_OK;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The first name, in byte order, that is there twice; or NULL. Reorders names. */
static const char *find_duplicate(const char **names, int64_t count) {
  qsort(names, (size_t)count, sizeof *names, compare_names);
  for (int64_t i = 1; i < count; i++) {
    if (strcmp(names[i - 1], names[i]) == 0) return names[i];
  }
  return NULL;
}

/* Refuses two metadata or two tensors of one name. */
static pk_status check_names(const pk_safetensors_writer *writer) {
  int64_t most = writer->count > writer->pair_count ? writer->count : writer->pair_count;
  const char **names = malloc((size_t)(most + 1) * sizeof *names);
  if (!names) return pk_fail(PK_NO_MEMORY, "no memory to compare %" PRId64 " names", most);
  for (int64_t i = 0; i < writer->count; i++) names[i] = writer->tensors[i].name;
  const char *twice = find_duplicate(names, writer->count);
  if (!twice) {
    for (int64_t i = 0; i < writer->pair_count; i++) names[i] = writer->pairs[i].key;
    twice = find_duplicate(names, writer->pair_count);
  }
  free(names);
  if (!twice) return PK_OK;
  return pk_fail(PK_INVALID, "%s: the name '%.200s' is declared twice", writer->output.path, twice);
}

static void put_pair(text_buffer *header, const char *key, const char *value) {
  put_string(header, key);
  put(header, ":");
  put_string(header, value);
}

/* Puts so many zeros as a string, in the place of digits that are known at the end. Returns the
 * place of the first in the header. */
static int64_t put_zeros(text_buffer *header, const char *key, int64_t count) {
  put_string(header, key);
  put(header, ":\"");
  int64_t place = (int64_t)header->bytes;
  for (int64_t i = 0; i < count; i++) put(header, "0");
  put(header, "\"");
  return place;
}

/* The digits of all tensors, between which there is one byte. */
static int64_t digits_bytes(const pk_safetensors_writer *writer) {
  return writer->count > 0 ? writer->count * PK_SHA256_TEXT - 1 : 0;
}

/* Puts the metadata, to which files that are not compressed add their checksums. */
static void put_metadata(pk_safetensors_writer *writer, text_buffer *header) {
  if (writer->pair_count == 0 && writer->frames) return;
  put(header, "\"__metadata__\":{");
  for (int64_t i = 0; i < writer->pair_count; i++) {
    if (i > 0) put(header, ",");
    put_pair(header, writer->pairs[i].key, writer->pairs[i].value);
  }
  if (!writer->frames) {
    if (writer->pair_count > 0) put(header, ",");
    writer->digest = put_zeros(header, PK_SAFETENSORS_SHA256, PK_SHA256_TEXT - 1);
    put(header, ",");
    writer->digits = put_zeros(header, PK_SAFETENSORS_TENSORS_SHA256, digits_bytes(writer));
  }
  put(header, writer->count > 0 ? "}," : "}");
}

static void put_tensor(text_buffer *header, const declaration *tensor, int64_t begin) {
  put_string(header, tensor->name);
  put(header, ":{\"dtype\":\"");
  put(header, tensor->dtype);
  put(header, "\",\"shape\":[");
  for (int d = 0; d < tensor->rank; d++) {
    if (d > 0) put(header, ",");
    put_integer(header, tensor->shape[d]);
  }
  put(header, "],\"data_offsets\":[");
  put_integer(header, begin);
  put(header, ",");
  put_integer(header, begin + tensor->bytes);
  put(header, "]}");
}

/* The header, padded with spaces so that the data begins aligned. The caller frees its text. */
static pk_status make_header(pk_safetensors_writer *writer, text_buffer *header) {
  int64_t begin = 0;
  put(header, "{");
  put_metadata(writer, header);
  for (int64_t i = 0; i < writer->count; i++) {
    if (i > 0) put(header, ",");
    put_tensor(header, &writer->tensors[i], begin);
    begin += writer->tensors[i].bytes;
  }
  put(header, "}");
  while (header->bytes % HEADER_ALIGNMENT != 0 && !header->no_memory) put(header, " ");
  if (header->no_memory) {
    return pk_fail(PK_NO_MEMORY, "%s: no memory for the header", writer->output.path);
  }
  if (header->bytes <= PK_SAFETENSORS_HEADER) return PK_OK;
  return pk_fail(PK_INVALID, "%s: a header of %zu bytes; the largest allowed has %d",
                 writer->output.path, header->bytes, PK_SAFETENSORS_HEADER);
}

static pk_status write_header(pk_safetensors_writer *writer) {
  pk_status status = check_names(writer);
  if (status) return status;
  writer->begun = true;
  text_buffer header = {0};
  status = make_header(writer, &header);
  uint64_t stated = header.bytes;
  if (status) {
    pk_output_discard(&writer->output);
  } else {
    status = write_bytes(writer, &stated, sizeof stated);
    if (!status) status = write_bytes(writer, header.text, (int64_t)header.bytes);
  }
  free(header.text);
  return status;
}

/* --- checksums --- */

/* Puts digits that are known now where zeros were written. */
static pk_status overwrite(const pk_safetensors_writer *writer, const char *text, int64_t bytes,
                           int64_t place) {
  place += (int64_t)sizeof(uint64_t);
  while (bytes > 0) {
    ssize_t written = pwrite(writer->output.fd, text, (size_t)bytes, place);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return pk_fail_io(writer->output.path, "be written");
    text += written;
    bytes -= written;
    place += written;
  }
  return PK_OK;
}

static pk_status write_digests(const pk_safetensors_writer *writer) {
  int64_t bytes = digits_bytes(writer), count = 0;
  char digest[PK_SHA256_TEXT], *digits = malloc((size_t)bytes + 2);
  pk_safetensors_part *parts =
      calloc((size_t)(writer->pair_count + writer->count) + 1, sizeof *parts);
  pk_status status = PK_OK;
  if (!digits || !parts) {
    status = pk_fail(PK_NO_MEMORY, "%s: no memory for its checksums", writer->output.path);
    goto done;
  }
  for (int64_t i = 0; i < writer->pair_count; i++) {
    parts[count++] =
        (pk_safetensors_part){.name = writer->pairs[i].key, .value = writer->pairs[i].value};
  }
  for (int64_t i = 0; i < writer->count; i++) {
    const declaration *tensor = &writer->tensors[i];
    parts[count++] = (pk_safetensors_part){.name = tensor->name,
                                           .dtype = tensor->dtype,
                                           .rank = tensor->rank,
                                           .shape = tensor->shape,
                                           .index = i};
  }
  pk_safetensors_sort_parts(parts, count);
  for (int64_t i = 0; i < writer->count; i++) {
    char *place = digits + i * PK_SHA256_TEXT;
    int64_t index = parts[writer->pair_count + i].index;
    memcpy(place, writer->tensors[index].sha256, PK_SHA256_TEXT - 1);
    place[PK_SHA256_TEXT - 1] = ' ';
  }
  digits[bytes] = '\0';
  pk_safetensors_header_sha256(parts, count, digits, digest);
  status = overwrite(writer, digits, bytes, writer->digits);
  if (!status) status = overwrite(writer, digest, PK_SHA256_TEXT - 1, writer->digest);
done:
  free(digits);
  free(parts);
  return status;
}

/* --- data --- */

/* Moves past tensors that are complete, which those without elements always are. */
static void skip_complete(pk_safetensors_writer *writer) {
  while (writer->current < writer->count &&
         writer->written == writer->tensors[writer->current].bytes) {
    writer->current++;
    writer->written = 0;
  }
}

pk_status pk_safetensors_writer_data(pk_safetensors_writer *writer, const void *data,
                                     int64_t bytes) {
  pk_status status = check_open(writer);
  if (!status && !writer->begun) status = write_header(writer);
  if (status || bytes == 0) return status;
  skip_complete(writer);
  if (writer->current == writer->count) {
    return pk_fail(PK_INVALID, "%s: %" PRId64 " bytes of data after the last tensor",
                   writer->output.path, bytes);
  }
  declaration *tensor = &writer->tensors[writer->current];
  int64_t missing = tensor->bytes - writer->written;
  if (bytes < 0 || bytes > missing) {
    return pk_fail(PK_INVALID, "%s: %" PRId64 " bytes for tensor '%.200s', which lacks %" PRId64,
                   writer->output.path, bytes, tensor->name, missing);
  }
  status = write_bytes(writer, data, bytes);
  if (status) return status;
  writer->written += bytes;
  if (writer->frames) return PK_OK;
  pk_sha256_add(&writer->hash, data, bytes);
  if (writer->written == tensor->bytes) pk_sha256_end(&writer->hash, tensor->sha256);
  return PK_OK;
}

pk_status pk_safetensors_writer_compress(pk_safetensors_writer *writer, int level, int threads) {
  return pk_frame_writer_create(&writer->output, level, threads, &writer->frames);
}

static pk_status check_data(pk_safetensors_writer *writer) {
  skip_complete(writer);
  if (writer->current == writer->count) return PK_OK;
  const declaration *tensor = &writer->tensors[writer->current];
  return pk_fail(PK_INVALID, "%s: tensor '%.200s' has %" PRId64 " of its %" PRId64 " bytes",
                 writer->output.path, tensor->name, writer->written, tensor->bytes);
}

pk_status pk_safetensors_writer_complete(pk_safetensors_writer *writer, const char **temporary) {
  pk_status status = check_open(writer);
  if (!status && !writer->begun) status = write_header(writer);
  if (!status) status = check_data(writer);
  if (status) return status;
  status = writer->frames ? pk_frame_writer_end(writer->frames) : write_digests(writer);
  if (!status) status = pk_output_sync(&writer->output);
  if (status) pk_output_discard(&writer->output);
  writer->complete = true;
  *temporary = writer->output.temporary;
  return status;
}

pk_status pk_safetensors_writer_finish(pk_safetensors_writer *writer) {
  const char *temporary;
  pk_status status = writer->complete && writer->output.fd >= 0
                         ? PK_OK
                         : pk_safetensors_writer_complete(writer, &temporary);
  return status ? status : pk_output_publish(&writer->output);
}
