/* Opening token caches: a manifest and the files that it names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buffer.h"
#include "data/manifest.h"

enum { MOST_MANIFEST_BYTES = 1 << 26 };

struct pk_cache {
  char *folder;
  char *text; /* of the manifest */
  int64_t bytes;
  pk_manifest manifest;
};

void pk_cache_free(pk_cache *cache) {
  if (!cache) return;
  free(cache->folder);
  pk_bytes_free(cache->text);
  pk_manifest_clear(&cache->manifest);
  free(cache);
}

const char *pk_cache_manifest(const pk_cache *cache, int64_t *bytes) {
  *bytes = cache->bytes;
  return cache->text;
}

const pk_tokens *pk_cache_split(const pk_cache *cache, const char *split) {
  for (int64_t i = 0; i < cache->manifest.split_count; i++) {
    if (strcmp(cache->manifest.splits[i].name, split) == 0) return cache->manifest.splits[i].tokens;
  }
  return NULL;
}

pk_status pk_cache_verify(const pk_cache *cache) {
  pk_status status = PK_OK;
  for (int64_t i = 0; i < cache->manifest.split_count && !status; i++) {
    status = pk_manifest_verify_split(&cache->manifest.splits[i], cache->folder);
  }
  return status;
}

/* Refuses a folder below the cache's that is a link: its files are not the cache's. */
static pk_status check_folders(const char *folder, const char *path) {
  for (const char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')); slash++) {
    struct stat about;
    char *part = strndup(path, (size_t)(slash - path));
    if (!part) return pk_fail(PK_NO_MEMORY, "%s: no memory for a file name", folder);
    pk_status status = PK_OK;
    if (lstat(part, &about) == 0 && S_ISLNK(about.st_mode)) {
      status = pk_fail(PK_INVALID, "%s: is a link, and leads out of the cache", part);
    }
    free(part);
    if (status) return status;
  }
  return PK_OK;
}

/* Puts the folder before a shard's file name, and checks the file. */
static pk_status locate(const char *folder, pk_token_file *shard, int32_t width) {
  size_t bytes = strlen(folder) + strlen(shard->path) + 2;
  char *path = malloc(bytes);
  if (!path) return pk_fail(PK_NO_MEMORY, "%s: no memory for a file name", folder);
  snprintf(path, bytes, "%s/%s", folder, shard->path);
  free(shard->path);
  shard->path = path;
  pk_status status = check_folders(folder, path);
  return status ? status : pk_token_file_check(shard, width);
}

pk_status pk_cache_open(const char *folder, pk_cache **cache) {
  *cache = NULL;
  pk_buffer path = {0};
  pk_cache *made = calloc(1, sizeof *made);
  pk_status status = made ? PK_OK : pk_fail(PK_NO_MEMORY, "%s: no memory to open it", folder);
  if (!status) made->folder = strdup(folder);
  if (!status && !made->folder) status = pk_fail(PK_NO_MEMORY, "%s: no memory to open it", folder);
  if (!status) status = pk_buffer_format(&path, "%s/manifest.json", folder);
  if (status) goto done;
  const char *name = pk_buffer_text(&path);
  if (pk_path_kind(name) == 0) {
    status = pk_fail(PK_IO, "%s: not a token cache: there is no manifest.json", folder);
    goto done;
  }
  status = pk_file_read(name, &made->text, &made->bytes, MOST_MANIFEST_BYTES);
  if (!status) status = pk_manifest_read(made->text, made->bytes, name, &made->manifest);
  for (int64_t s = 0; s < made->manifest.split_count && !status; s++) {
    pk_tokens *tokens = made->manifest.splits[s].tokens;
    for (int64_t i = 0; i < tokens->shard_count && !status; i++) {
      status = locate(folder, &tokens->shards[i], tokens->width);
    }
  }
  if (status) goto done;
  *cache = made;
  made = NULL;
done:
  pk_buffer_free(&path);
  pk_cache_free(made);
  return status;
}
