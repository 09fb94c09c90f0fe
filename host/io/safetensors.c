/* Reads safetensors files: an 8-byte header size, a JSON header, and the tensors' bytes. Nothing
 * that the header says is believed before it is checked against the file. */
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/frames.h"
#include "io/value.h"

/* A header that is all commas would become a tree 100 times its size; a million tensors fit this.
 */
enum { MAX_COMMAS = 1 << 23, VERIFY_PIECE = 1 << 20 };

static const int64_t MAX_READ = 1 << 30; /* Linux reads at most 2 GiB at once */

struct pk_safetensors {
  char *path;
  int fd;
  pk_frames *frames; /* of a compressed file, else NULL */
  int64_t data_start;
  int64_t data_bytes;
  pk_value *header; /* owns all strings */
  pk_safetensors_entry *entries;
  int64_t count;
  const pk_value **metadata; /* sorted by key */
  int64_t metadata_count;
  const char *header_sha256; /* of a file that says what its own content is, else NULL */
  const char *tensors_sha256;
  int64_t *places; /* per tensor, of its digits among those */
  bool *verified;
};

/* --- reading bytes --- */

/* Reads bytes at offset; the file may have become shorter since it was opened. */
static pk_status read_at(const pk_safetensors *file, int64_t offset, void *data, int64_t bytes) {
  if (file->frames) return pk_frames_read(file->frames, offset, data, bytes);
  char *to = data;
  while (bytes > 0) {
    ssize_t got = pread(file->fd, to, (size_t)(bytes < MAX_READ ? bytes : MAX_READ), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return pk_fail_io(file->path, "be read");
    if (got == 0) {
      return pk_fail(PK_FORMAT, "%s: ends at byte %" PRId64 ", %" PRId64 " bytes too early",
                     file->path, offset, bytes);
    }
    to += got;
    offset += got;
    bytes -= got;
  }
  return PK_OK;
}

/* Opens the file, compressed or not. *size: the bytes of its content. */
static pk_status open_content(pk_safetensors *file, int64_t *size) {
  struct stat about;
  pk_status status = pk_file_open(file->path, O_RDONLY, &file->fd);
  if (status) return status;
  if (fstat(file->fd, &about) != 0) return pk_fail_io(file->path, "be read");
  *size = about.st_size;
  char head[4];
  if (*size < (int64_t)sizeof head) return PK_OK;
  status = read_at(file, 0, head, sizeof head);
  if (status || !pk_frames_begin(head, sizeof head)) return status;
  status = pk_frames_open(file->fd, file->path, about.st_size, &file->frames);
  if (!status) *size = pk_frames_bytes(file->frames);
  return status;
}

/* Opens the file and finds its parts. *header_bytes: the size of the header. */
static pk_status open_parts(pk_safetensors *file, int64_t *header_bytes) {
  int64_t size = 0;
  pk_status status = open_content(file, &size);
  if (status) return status;
  uint64_t stated = 0;
  if (size < (int64_t)sizeof stated) {
    return pk_fail(PK_FORMAT, "%s: %" PRId64 " bytes are too few for a safetensors file",
                   file->path, size);
  }
  status = read_at(file, 0, &stated, sizeof stated);
  if (status) return status;
  if (stated > PK_SAFETENSORS_HEADER) {
    return pk_fail(PK_FORMAT, "%s: a header of %" PRIu64 " bytes; the largest allowed has %d",
                   file->path, stated, PK_SAFETENSORS_HEADER);
  }
  if (stated > (uint64_t)size - sizeof stated) {
    return pk_fail(PK_FORMAT,
                   "%s: a header of %" PRIu64 " bytes in a file of %" PRId64 ": cut short, or not "
                   "a safetensors file",
                   file->path, stated, size);
  }
  *header_bytes = (int64_t)stated;
  file->data_start = (int64_t)sizeof stated + *header_bytes;
  file->data_bytes = size - file->data_start;
  return PK_OK;
}

/* --- the header --- */

/* Refuses what would make an enormous tree, before it is one. */
static pk_status check_header(const pk_safetensors *file, const char *text, int64_t bytes) {
  if (bytes == 0 || text[0] != '{') {
    return pk_fail(PK_FORMAT, "%s: the header does not begin with {", file->path);
  }
  int64_t commas = 0;
  bool in_string = false;
  for (int64_t i = 0; i < bytes; i++) {
    if (in_string && text[i] == '\\') {
      i++;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else {
      commas += !in_string && text[i] == ',';
    }
  }
  if (commas <= MAX_COMMAS) return PK_OK;
  return pk_fail(PK_FORMAT, "%s: the header lists %" PRId64 " values; the most allowed are %d",
                 file->path, commas, MAX_COMMAS);
}

static pk_status parse_header(pk_safetensors *file, int64_t bytes) {
  static const char suffix[] = " (header)";
  size_t length = strlen(file->path);
  char *text = malloc((size_t)bytes + 1), *name = malloc(length + sizeof suffix);
  pk_status status = PK_OK;
  if (!text || !name) {
    status =
        pk_fail(PK_NO_MEMORY, "%s: no memory for a header of %" PRId64 " bytes", file->path, bytes);
    goto done;
  }
  status = read_at(file, sizeof(uint64_t), text, bytes);
  if (status) goto done;
  text[bytes] = '\0';
  status = check_header(file, text, bytes);
  if (status) goto done;
  memcpy(name, file->path, length);
  memcpy(name + length, suffix, sizeof suffix);
  status = pk_value_from_json(text, bytes, name, &file->header);
done:
  free(text);
  free(name);
  return status;
}

static const pk_value *find(const pk_value *object, const char *key) {
  const pk_value *child = object->first;
  while (child && strcmp(child->key, key) != 0) child = child->next;
  return child;
}

/* A whole number from 0 to 2^53 - 1. */
static bool read_size(const pk_value *value, int64_t *size) {
  if (value->kind != PK_VALUE_NUMBER || !(value->number >= 0) ||
      value->number >= PK_VALUE_INTEGER_LIMIT || value->number != floor(value->number)) {
    return false;
  }
  *size = (int64_t)value->number;
  return true;
}

static pk_status read_shape(const pk_value *shape, pk_safetensors_entry *entry) {
  if (!shape || shape->kind != PK_VALUE_ARRAY) return pk_fail(PK_FORMAT, "has no list 'shape'");
  for (const pk_value *extent = shape->first; extent; extent = extent->next) {
    if (entry->rank == PK_SAFETENSORS_RANK) {
      return pk_fail(PK_FORMAT, "has more than %d dimensions", PK_SAFETENSORS_RANK);
    }
    if (!read_size(extent, &entry->shape[entry->rank])) {
      return pk_fail(PK_FORMAT, "extent %d of its shape, %.17g, is not a size", entry->rank,
                     extent->kind == PK_VALUE_NUMBER ? extent->number : (double)NAN);
    }
    entry->rank++;
  }
  return PK_OK;
}

static pk_status read_offsets(const pk_safetensors *file, const pk_value *offsets,
                              pk_safetensors_entry *entry) {
  const pk_value *first = offsets && offsets->kind == PK_VALUE_ARRAY ? offsets->first : NULL;
  int64_t begin, end;
  if (!first || !first->next || first->next->next || !read_size(first, &begin) ||
      !read_size(first->next, &end)) {
    return pk_fail(PK_FORMAT, "its 'data_offsets' are not two sizes");
  }
  if (end < begin) {
    return pk_fail(PK_FORMAT, "ends at byte %" PRId64 ", before its begin at %" PRId64, end, begin);
  }
  if (end > file->data_bytes) {
    return pk_fail(PK_FORMAT, "ends at byte %" PRId64 " of the data, of which there are %" PRId64,
                   end, file->data_bytes);
  }
  entry->offset = begin;
  entry->bytes = end - begin;
  return PK_OK;
}

/* Reads one tensor's description. Members that are not known are left to future versions. */
static pk_status read_entry(const pk_safetensors *file, const pk_value *node,
                            pk_safetensors_entry *entry) {
  entry->name = node->key;
  if (node->kind != PK_VALUE_OBJECT) return pk_fail(PK_FORMAT, "is not described by an object");
  const pk_value *dtype = find(node, "dtype");
  if (!dtype || dtype->kind != PK_VALUE_STRING) return pk_fail(PK_FORMAT, "has no 'dtype'");
  entry->dtype = dtype->string;
  int64_t element = pk_safetensors_dtype_size(entry->dtype);
  if (element == 0) return pk_fail(PK_FORMAT, "dtype '%.40s' is not known", entry->dtype);
  pk_status status = read_shape(find(node, "shape"), entry);
  if (!status) status = read_offsets(file, find(node, "data_offsets"), entry);
  if (status) return status;
  char shape[PK_SHAPE_TEXT];
  int64_t bytes;
  if (!pk_safetensors_bytes(element, entry->rank, entry->shape, &bytes)) {
    return pk_fail(PK_FORMAT, "shape %s has too many elements",
                   pk_shape_text(shape, entry->rank, entry->shape));
  }
  if (bytes != entry->bytes) {
    return pk_fail(PK_FORMAT,
                   "%s of shape %s takes %" PRId64 " bytes, its data_offsets [%" PRId64 ", %" PRId64
                   "] hold %" PRId64,
                   entry->dtype, pk_shape_text(shape, entry->rank, entry->shape), bytes,
                   entry->offset, entry->offset + entry->bytes, entry->bytes);
  }
  return PK_OK;
}

static int compare_metadata(const void *a, const void *b) {
  return strcmp((*(const pk_value *const *)a)->key, (*(const pk_value *const *)b)->key);
}

static pk_status read_metadata(pk_safetensors *file, const pk_value *metadata) {
  if (metadata->kind != PK_VALUE_OBJECT) {
    return pk_fail(PK_FORMAT, "%s: __metadata__ is not an object", file->path);
  }
  size_t count = 0;
  for (const pk_value *child = metadata->first; child; child = child->next) count++;
  file->metadata = malloc((count + 1) * sizeof(pk_value *));
  if (!file->metadata) {
    return pk_fail(PK_NO_MEMORY, "%s: no memory for its %zu metadata", file->path, count);
  }
  for (const pk_value *child = metadata->first; child; child = child->next) {
    if (child->kind != PK_VALUE_STRING) {
      return pk_fail(PK_FORMAT, "%s: the metadata '%.200s' is not a string", file->path,
                     child->key);
    }
    if (strcmp(child->key, PK_SAFETENSORS_SHA256) == 0) {
      file->header_sha256 = child->string;
    } else if (strcmp(child->key, PK_SAFETENSORS_TENSORS_SHA256) == 0) {
      file->tensors_sha256 = child->string;
    } else {
      file->metadata[file->metadata_count++] = child;
    }
  }
  qsort(file->metadata, (size_t)file->metadata_count, sizeof(pk_value *), compare_metadata);
  return PK_OK;
}

static pk_status read_entries(pk_safetensors *file) {
  size_t count = 0;
  for (const pk_value *node = file->header->first; node; node = node->next) count++;
  file->entries = calloc(count + 1, sizeof *file->entries);
  if (!file->entries) {
    return pk_fail(PK_NO_MEMORY, "%s: no memory for its %zu tensors", file->path, count);
  }
  for (const pk_value *node = file->header->first; node; node = node->next) {
    pk_status status;
    if (strcmp(node->key, "__metadata__") == 0) {
      status = read_metadata(file, node);
    } else {
      status = read_entry(file, node, &file->entries[file->count++]);
      if (status) pk_fail_within(status, "%s: tensor '%.200s'", file->path, node->key);
    }
    if (status) return status;
  }
  return PK_OK;
}

static int compare_places(const void *a, const void *b) {
  const pk_safetensors_entry *x = a, *y = b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* Puts the tensors in the order of their data, which must be the whole rest of the file. */
static pk_status check_places(pk_safetensors *file) {
  qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_places);
  int64_t end = 0;
  for (int64_t i = 0; i < file->count; i++) {
    const pk_safetensors_entry *entry = &file->entries[i];
    if (entry->offset != end) {
      return pk_fail(
          PK_FORMAT, "%s: tensor '%.200s' begins at byte %" PRId64 " of the data, %s at %" PRId64,
          file->path, entry->name, entry->offset,
          entry->offset < end ? "inside the one that ends" : "after a hole that begins", end);
    }
    end += entry->bytes;
  }
  if (end == file->data_bytes) return PK_OK;
  return pk_fail(PK_FORMAT, "%s: %" PRId64 " bytes after the last tensor belong to none",
                 file->path, file->data_bytes - end);
}

/* --- checksums --- */

/* The digits of the header's content. Finds the tensors' places among those of all tensors. */
static pk_status hash_header(pk_safetensors *file, char digits[PK_SHA256_TEXT]) {
  int64_t count = 0, metadata = file->metadata_count;
  pk_safetensors_part *parts = calloc((size_t)(metadata + file->count) + 1, sizeof *parts);
  if (!parts) return pk_fail(PK_NO_MEMORY, "%s: no memory to check its header", file->path);
  for (int64_t i = 0; i < metadata; i++) {
    parts[count++] =
        (pk_safetensors_part){.name = file->metadata[i]->key, .value = file->metadata[i]->string};
  }
  for (int64_t i = 0; i < file->count; i++) {
    const pk_safetensors_entry *entry = &file->entries[i];
    parts[count++] = (pk_safetensors_part){.name = entry->name,
                                           .dtype = entry->dtype,
                                           .rank = entry->rank,
                                           .shape = entry->shape,
                                           .index = i};
  }
  pk_safetensors_sort_parts(parts, count);
  for (int64_t i = metadata; i < count; i++) {
    file->places[parts[i].index] = (i - metadata) * PK_SHA256_TEXT;
  }
  pk_safetensors_header_sha256(parts, count, file->tensors_sha256, digits);
  free(parts);
  return PK_OK;
}

/* Compares the header with what it says of itself, if it does. */
static pk_status check_header_sha256(pk_safetensors *file) {
  if (!file->header_sha256 && !file->tensors_sha256) return PK_OK;
  size_t wanted = file->count > 0 ? (size_t)file->count * PK_SHA256_TEXT - 1 : 0;
  if (!file->header_sha256 || !file->tensors_sha256 || strlen(file->tensors_sha256) != wanted) {
    return pk_fail(PK_FORMAT, "%s: damaged: its checksums are not those of %" PRId64 " tensors",
                   file->path, file->count);
  }
  file->verified = calloc((size_t)file->count + 1, sizeof *file->verified);
  file->places = calloc((size_t)file->count + 1, sizeof *file->places);
  if (!file->verified || !file->places) {
    return pk_fail(PK_NO_MEMORY, "%s: no memory to check it", file->path);
  }
  char digits[PK_SHA256_TEXT];
  pk_status status = hash_header(file, digits);
  if (status) return status;
  if (strcmp(digits, file->header_sha256) != 0) {
    return pk_fail(PK_FORMAT,
                   "%s: damaged: its header has changed since it was written: the SHA-256 is %s, "
                   "not %.64s",
                   file->path, digits, file->header_sha256);
  }
  return PK_OK;
}

static pk_status compare_sha256(pk_safetensors *file, int64_t index, pk_sha256 *hash) {
  const char *wanted = file->tensors_sha256 + file->places[index];
  char digits[PK_SHA256_TEXT];
  pk_sha256_end(hash, digits);
  if (memcmp(digits, wanted, PK_SHA256_TEXT - 1) == 0) {
    file->verified[index] = true;
    return PK_OK;
  }
  return pk_fail(PK_FORMAT,
                 "%s: tensor '%.200s' is damaged: the SHA-256 of its data is %s, not %.64s",
                 file->path, file->entries[index].name, digits, wanted);
}

/* Reads a whole tensor once to compare it, before a part of it is believed. */
static pk_status verify(pk_safetensors *file, int64_t index) {
  if (!file->verified || file->verified[index]) return PK_OK;
  const pk_safetensors_entry *entry = &file->entries[index];
  char *piece = malloc(VERIFY_PIECE);
  if (!piece) return pk_fail(PK_NO_MEMORY, "%s: no memory to check it", file->path);
  pk_sha256 hash;
  pk_sha256_begin(&hash);
  pk_status status = PK_OK;
  for (int64_t at = 0; at < entry->bytes && !status; at += VERIFY_PIECE) {
    int64_t left = entry->bytes - at, count = left < VERIFY_PIECE ? left : VERIFY_PIECE;
    status = read_at(file, file->data_start + entry->offset + at, piece, count);
    if (!status) pk_sha256_add(&hash, piece, count);
  }
  free(piece);
  return status ? status : compare_sha256(file, index, &hash);
}

/* --- the public functions --- */

pk_status pk_safetensors_open(const char *path, pk_safetensors **file) {
  *file = NULL;
  pk_safetensors *opened = calloc(1, sizeof *opened);
  if (opened) {
    opened->fd = -1;
    opened->path = strdup(path);
  }
  if (!opened || !opened->path) {
    pk_safetensors_close(opened);
    return pk_fail(PK_NO_MEMORY, "no memory to open %s", path);
  }
  int64_t header_bytes = 0;
  pk_status status = open_parts(opened, &header_bytes);
  if (!status) status = parse_header(opened, header_bytes);
  if (!status) status = read_entries(opened);
  if (!status) status = check_places(opened);
  if (!status) status = check_header_sha256(opened);
  if (status) {
    pk_safetensors_close(opened);
    return status;
  }
  *file = opened;
  return PK_OK;
}

void pk_safetensors_close(pk_safetensors *file) {
  if (!file) return;
  pk_frames_free(file->frames);
  if (file->fd >= 0) close(file->fd);
  pk_value_free(file->header);
  free(file->entries);
  free(file->metadata);
  free(file->places);
  free(file->verified);
  free(file->path);
  free(file);
}

int64_t pk_safetensors_count(const pk_safetensors *file) {
  return file->count;
}

static pk_status check_index(const pk_safetensors *file, int64_t index) {
  if (index >= 0 && index < file->count) return PK_OK;
  return pk_fail(PK_INVALID, "%s: there is no tensor %" PRId64 " of %" PRId64, file->path, index,
                 file->count);
}

pk_status pk_safetensors_describe(const pk_safetensors *file, int64_t index,
                                  pk_safetensors_entry *entry) {
  pk_status status = check_index(file, index);
  if (!status) *entry = file->entries[index];
  return status;
}

const char *pk_safetensors_metadata(const pk_safetensors *file, const char *key) {
  int64_t low = 0, high = file->metadata_count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    int order = strcmp(key, file->metadata[middle]->key);
    if (order == 0) return file->metadata[middle]->string;
    if (order < 0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return NULL;
}

const char *pk_safetensors_metadata_key(const pk_safetensors *file, int64_t index) {
  return index >= 0 && index < file->metadata_count ? file->metadata[index]->key : NULL;
}

pk_status pk_safetensors_read_part(pk_safetensors *file, int64_t index, int64_t first, void *data,
                                   int64_t bytes) {
  pk_status status = check_index(file, index);
  if (status) return status;
  const pk_safetensors_entry *entry = &file->entries[index];
  if (first < 0 || bytes < 0 || first > entry->bytes || bytes > entry->bytes - first) {
    return pk_fail(PK_INVALID,
                   "%s: tensor '%.200s' has %" PRId64 " bytes, not %" PRId64 " from byte %" PRId64
                   " on",
                   file->path, entry->name, entry->bytes, bytes, first);
  }
  bool whole = bytes == entry->bytes;
  if (!whole) status = verify(file, index);
  if (status) return status;
  status = read_at(file, file->data_start + entry->offset + first, data, bytes);
  if (status) return pk_fail_within(status, "tensor '%.200s'", entry->name);
  if (!whole || !file->verified || file->verified[index]) return PK_OK;
  pk_sha256 hash;
  pk_sha256_begin(&hash);
  pk_sha256_add(&hash, data, bytes);
  return compare_sha256(file, index, &hash);
}

pk_status pk_safetensors_read(pk_safetensors *file, int64_t index, void *data, int64_t bytes) {
  pk_status status = check_index(file, index);
  if (status) return status;
  if (bytes != file->entries[index].bytes) {
    return pk_fail(PK_INVALID, "%s: tensor '%.200s' has %" PRId64 " bytes, not %" PRId64,
                   file->path, file->entries[index].name, file->entries[index].bytes, bytes);
  }
  return pk_safetensors_read_part(file, index, 0, data, bytes);
}
