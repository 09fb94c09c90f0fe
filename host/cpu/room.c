/* Whether the system would give this process more memory, for libraries that do not ask before they
 * write. */
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "cpu/products.h"

static bool limited;

static bool is_finite(int resource) {
  struct rlimit limit;
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/* Without limits of the process, Linux refuses memory only where it is told to never overcommit. */
static void look(void) {
  int mode = 0;
  FILE *file = fopen("/proc/sys/vm/overcommit_memory", "r");
  if (file && fscanf(file, "%d", &mode) != 1) mode = 0;
  if (file) fclose(file);
  limited = mode == 2 || is_finite(RLIMIT_AS) || is_finite(RLIMIT_DATA);
}

bool pk_cpu_has_room(int64_t mib) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, look);
  if (!limited) return true;
  size_t bytes = (size_t)mib << 20;
  void *trial = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (trial == MAP_FAILED) return false;
  munmap(trial, bytes);
  return true;
}
