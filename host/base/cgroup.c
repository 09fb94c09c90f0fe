/* The walk over a process's cgroups (cgroup.h). */
#include "base/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

int64_t pk_cgroup_number(const char *folder, const char *file_name, const char *name) {
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

/* The least that the cgroup at path below root/mount and those above it allow. */
static int64_t least_above(const char *root, const char *mount, const char *path, bool v2,
                           pk_cgroup_limit limit) {
  char folder[PATH_MAX];
  int length = snprintf(folder, sizeof folder, "%s%s%s", root, mount, path);
  if (length < 0 || length >= PATH_MAX) return INT64_MAX;
  int64_t least = INT64_MAX;
  for (char *end = folder + length; end && end >= folder + strlen(root) + strlen(mount);
       end = strrchr(folder, '/')) {
    *end = 0;
    int64_t allowed = limit(folder, v2);
    if (allowed < least) least = allowed;
  }
  return least;
}

/* Whether a list "a,b,c" has this word. */
static bool lists(const char *list, const char *word) {
  size_t length = strlen(word);
  for (const char *found = strstr(list, word); found; found = strstr(found + 1, word)) {
    bool starts = found == list || found[-1] == ',';
    if (starts && (found[length] == ',' || found[length] == 0)) return true;
  }
  return false;
}

int64_t pk_cgroup_least(const char *groups, const char *root, const char *controller,
                        pk_cgroup_limit limit) {
  FILE *file = fopen(groups, "r");
  if (!file) return INT64_MAX;
  char line[PATH_MAX];
  int64_t least = INT64_MAX;
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *list = strchr(line, ':');
    char *path = list ? strchr(list + 1, ':') : NULL;
    if (!path) continue;
    *path++ = 0;
    list++;
    bool v2 = *list == 0;
    if (!v2 && !lists(list, controller)) continue;
    /* Version 1 is mounted under the controller's name, or under that of all that come with it. */
    const char *names[] = {v2 ? "" : controller, list};
    for (int n = 0; n < (v2 ? 1 : 2); n++) {
      char mount[256];
      snprintf(mount, sizeof mount, "%s%s", v2 ? "" : "/", names[n]);
      int64_t allowed = least_above(root, mount, path, v2, limit);
      if (allowed < least) least = allowed;
    }
  }
  fclose(file);
  return least;
}
