/* What this process may use of the machine: its cores, and what machine and cgroups leave of
 * memory. */
#define _GNU_SOURCE
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "cpu/cpu.h"

/* What is left to the rest of the machine when no limit is set. */
static const int64_t margin_bytes = (int64_t)256 << 20;

int64_t pk_cpu_cores(void) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  int64_t online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? online : 1;
}

/* The number after name in a file of "name value" lines (or the first number, for ""); -1 if there
 * is none. */
static int64_t number_in_file(const char *folder, const char *file_name, const char *name) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%s/%s", folder, file_name);
  FILE *file = length < PATH_MAX ? fopen(path, "r") : NULL;
  if (!file) return -1;
  char line[256];
  long long number = -1;
  while (fgets(line, sizeof line, file)) {
    if (strncmp(line, name, strlen(name)) != 0) continue;
    if (sscanf(line + strlen(name), "%lld", &number) != 1) number = -1;
    break;
  }
  fclose(file);
  return number;
}

/* Bytes that one cgroup has left, or INT64_MAX without a limit. The kernel counts cached files too;
 * those that nobody uses make room. */
static int64_t left_in(const char *folder, bool v2) {
  int64_t limit = number_in_file(folder, v2 ? "memory.max" : "memory.limit_in_bytes", "");
  int64_t used = number_in_file(folder, v2 ? "memory.current" : "memory.usage_in_bytes", "");
  if (limit < 0 || used < 0) return INT64_MAX;
  int64_t cached =
      number_in_file(folder, "memory.stat", v2 ? "inactive_file " : "total_inactive_file ");
  if (cached > 0) used -= cached;
  return limit > used ? limit - used : 0;
}

/* The least that a cgroup at path below root and those above it have left. A batch system limits
 * the job, some levels above the process. */
static int64_t left_above(const char *root, const char *path, bool v2) {
  char folder[PATH_MAX];
  int length = snprintf(folder, sizeof folder, "%s%s", root, path);
  if (length < 0 || length >= PATH_MAX) return INT64_MAX;
  int64_t least = INT64_MAX;
  for (char *end = folder + length; end && end >= folder + strlen(root);
       end = strrchr(folder, '/')) {
    *end = 0;
    int64_t left = left_in(folder, v2);
    if (left < least) least = left;
  }
  return least;
}

/* Whether a list "a,b,c" has the word memory. */
static bool lists_memory(const char *list) {
  const char *word = strstr(list, "memory");
  return word && (word == list || word[-1] == ',') && (word[6] == ',' || word[6] == 0);
}

int64_t pk_cpu_cgroup_left(const char *groups, const char *root) {
  FILE *file = fopen(groups, "r");
  if (!file) return INT64_MAX;
  char line[PATH_MAX], v1_root[PATH_MAX];
  snprintf(v1_root, sizeof v1_root, "%s/memory", root);
  int64_t least = INT64_MAX;
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) continue;
    *path++ = 0;
    bool v2 = controllers[1] == 0;
    if (!v2 && !lists_memory(controllers + 1)) continue;
    int64_t left = left_above(v2 ? root : v1_root, path, v2);
    if (left < least) least = left;
  }
  fclose(file);
  return least;
}

int64_t pk_cpu_memory_left(void) {
  int64_t kilobytes = number_in_file("/proc", "meminfo", "MemAvailable:");
  int64_t bytes = kilobytes >= 0 ? kilobytes * 1024 : (int64_t)4 << 30;
  int64_t group = pk_cpu_cgroup_left("/proc/self/cgroup", "/sys/fs/cgroup");
  if (group < bytes) bytes = group;
  return bytes > 2 * margin_bytes ? bytes - margin_bytes : bytes / 2;
}
