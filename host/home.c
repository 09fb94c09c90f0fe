/* Where the program finds its library, recipes and configs. */
#include "packlua.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether folder, written with its real path into home, holds the library. */
static int is_home(const char *folder, char home[PATH_MAX]) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%s/lua/pack/init.lua", folder);
  if (length < 0 || length >= PATH_MAX || access(path, R_OK) != 0) return 0;
  return realpath(folder, home) != NULL;
}

/* is_home of a folder given relative to the program's. */
static int is_home_beside(const char *program_folder, const char *folder, char home[PATH_MAX]) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%s/%s", program_folder, folder);
  return length > 0 && length < PATH_MAX && is_home(path, home);
}

/* A build folder outside the source tree says in packlua.home where the source is. */
static int is_home_noted(const char *program_folder, char home[PATH_MAX]) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%s/packlua.home", program_folder);
  FILE *file = length > 0 && length < PATH_MAX ? fopen(path, "r") : NULL;
  if (!file) return 0;
  char *line = fgets(path, sizeof path, file);
  fclose(file);
  if (!line) return 0;
  path[strcspn(path, "\n")] = 0;
  return is_home(path, home);
}

int pk_home_find(char home[PATH_MAX]) {
  home[0] = 0;
  const char *wanted = getenv("PACKLUA_HOME");
  if (wanted && *wanted) return is_home(wanted, home);
  char folder[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
  if (length <= 0) return 1;
  folder[length] = 0;
  *strrchr(folder, '/') = 0;
  if (!is_home_beside(folder, "..", home) && !is_home_beside(folder, PK_DATA_FOLDER, home) &&
      !is_home_noted(folder, home)) {
    home[0] = 0;
  }
  return 1;
}
