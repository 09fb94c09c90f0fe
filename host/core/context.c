/* Contexts: a device with its memory accounts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/device_library.h"

pk_context_options pk_context_defaults(void) {
  return (pk_context_options){.device = "cpu", .threads = 0, .memory_limit = 0};
}

/* Whether a device's name is of a kind, such as "cuda" or "cuda:1" of "cuda". */
static bool is_of_kind(const char *name, const char *kind) {
  size_t length = strlen(kind);
  return strncmp(name, kind, length) == 0 && (name[length] == 0 || name[length] == ':');
}

/* The library that a device is in; NULL for the CPU and for what is no device. */
static const char *library_of(const char *name) {
  if (is_of_kind(name, "cuda")) return "packcuda";
  return is_of_kind(name, "emu") ? "packemu" : NULL;
}

static pk_status refuse_name(const char *name) {
  return pk_fail(PK_INVALID, "device '%s' is not known; known: cpu, cuda, cuda:K, emu", name);
}

pk_status pk_device_check(const char *name) {
  const char *library = library_of(name);
  if (library) return pk_device_library_check(library, name);
  return strcmp(name, pk_builtin.name) == 0 ? PK_OK : refuse_name(name);
}

static pk_status open_device(const pk_context_options *options, pk_device **device) {
  if (options->threads < 0 || options->threads > 4096) {
    return pk_fail(PK_INVALID, "threads %lld is not between 1 and 4096 (0: one per core)",
                   (long long)options->threads);
  }
  if (strcmp(options->device, pk_builtin.name) == 0)
    return pk_builtin.create(device, options->threads);
  const char *library = library_of(options->device);
  return library ? pk_device_library_open(library, options, device) : refuse_name(options->device);
}

/* A device without cuDNN cannot do what was asked for. */
static pk_status check_attention(const pk_context_options *options, const pk_device *device) {
  if (options->attention != PK_ATTENTION_CUDNN || strcmp(device->attention, "cudnn") == 0)
    return PK_OK;
  return pk_fail(PK_UNSUPPORTED, "attention by cuDNN is not available on device '%s'",
                 options->device);
}

/* Notes the operations that the context is to do without. */
static pk_status leave_out(pk_context *context, const char *names) {
  for (names += strspn(names, " "); *names; names += strspn(names, " ")) {
    int length = (int)strcspn(names, " "), op = 0;
    while (op < PK_OP_COUNT && (strncmp(pk_op_describe(op)->name, names, (size_t)length) != 0 ||
                                pk_op_describe(op)->name[length]))
      op++;
    if (op == PK_OP_COUNT)
      return pk_fail(PK_INVALID, "there is no operation '%.*s' to do without", length, names);
    context->without[op] = true;
    names += length;
  }
  return PK_OK;
}

pk_status pk_context_create(pk_context **context, const pk_context_options *options) {
  if (options->memory_limit < 0) {
    return pk_fail(PK_INVALID, "memory limit %lld bytes is negative",
                   (long long)options->memory_limit);
  }
  pk_context *created = calloc(1, sizeof *created);
  if (!created) return pk_fail(PK_NO_MEMORY, "no host memory for a context");
  pk_status status = options->without ? leave_out(created, options->without) : PK_OK;
  if (status == PK_OK) status = open_device(options, &created->device);
  if (status == PK_OK) {
    status = check_attention(options, created->device);
    if (status != PK_OK) created->device->destroy(created->device);
  }
  if (status != PK_OK) {
    free(created);
    return status;
  }
  created->references = 1;
  created->watched = created->device->range_push != NULL;
  created->forecast = options->forecast != 0;
  created->memory.limit =
      options->memory_limit ? options->memory_limit : created->device->memory_available;
  if (created->forecast && !options->memory_limit) created->memory.limit = INT64_MAX / 2;
  double mebibytes = (double)created->memory.limit / 1048576;
  bool small = mebibytes < 1024;
  snprintf(created->description, sizeof created->description, "%s: %s, limit %.1f %s",
           created->device->name, created->device->description,
           small ? mebibytes : mebibytes / 1024, small ? "MiB" : "GiB");
  *context = created;
  return PK_OK;
}

void pk_context_retain(pk_context *context) {
  context->references++;
}

void pk_context_release(pk_context *context) {
  if (--context->references > 0) return;
  pk_memory_trim(context);
  context->device->destroy(context->device);
  free(context);
}

void pk_context_free(pk_context *context) {
  if (context) pk_context_release(context);
}

const char *pk_context_describe(const pk_context *context) {
  return context->description;
}
const char *pk_context_device(const pk_context *context) {
  return context->device->name;
}
const char *pk_context_isa(const pk_context *context) {
  return context->device->isa;
}
int64_t pk_context_threads(const pk_context *context) {
  return context->device->threads;
}
int pk_context_has_bf16(const pk_context *context) {
  return context->device->has_bf16;
}
const char *pk_context_attention(const pk_context *context) {
  return context->device->attention;
}
pk_device *pk_context_get_device(const pk_context *context) {
  return context->device;
}

pk_status pk_context_synchronize(pk_context *context) {
  return context->device->synchronize(context->device);
}

const char *pk_devices(void) {
  static _Thread_local char text[4096];
  pk_context_options options = pk_context_defaults();
  pk_context *context = NULL;
  int used;
  if (pk_context_create(&context, &options) == PK_OK) {
    used = snprintf(text, sizeof text, "%s\n", pk_context_describe(context));
    pk_context_free(context);
  } else {
    used = snprintf(text, sizeof text, "cpu: not usable: %s\n", pk_error_message());
  }
  pk_device_library_list("packcuda", "cuda", text + used, (int64_t)sizeof text - used);
  used = (int)strlen(text);
  pk_device_library_list("packemu", "emu", text + used, (int64_t)sizeof text - used);
  return text;
}
