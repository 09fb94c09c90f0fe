/* How many threads of this process can run at once. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "base/base.h"
#include "base/cgroup.h"

enum { MOST_CPUS = 1 << 20 }; /* more than any kernel knows */

/* The processors in the affinity mask, as taskset and batch systems set it. */
static int64_t allowed_processors(void) {
  for (size_t cpus = CPU_SETSIZE; cpus <= MOST_CPUS; cpus *= 2) {
    cpu_set_t *mask = CPU_ALLOC(cpus);
    if (!mask) break;
    size_t size = CPU_ALLOC_SIZE(cpus);
    /* It fails where the kernel's own mask is longer. */
    int64_t count = sched_getaffinity(0, size, mask) == 0 ? CPU_COUNT_S(size, mask) : 0;
    CPU_FREE(mask);
    if (count > 0) return count;
  }
  int64_t online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? online : 1;
}

/* Thousandths of a processor's time that one cgroup gives to its processes. */
static int64_t quota_of(const char *folder, bool v2) {
  int64_t quota, period;
  if (v2) {
    char path[4096];
    long long of[2] = {-1, -1};
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    FILE *file = fopen(path, "r");
    if (!file) return INT64_MAX;
    if (fscanf(file, "%lld %lld", &of[0], &of[1]) != 2) of[0] = -1; /* "max 100000" */
    fclose(file);
    quota = of[0];
    period = of[1];
  } else {
    quota = pk_cgroup_number(folder, "cpu.cfs_quota_us", "");
    period = pk_cgroup_number(folder, "cpu.cfs_period_us", "");
  }
  if (quota <= 0 || period <= 0 || quota > INT64_MAX / 1000) return INT64_MAX;
  return quota * 1000 / period;
}

int64_t pk_cores_of(const char *groups, const char *root) {
  int64_t cores = allowed_processors();
  int64_t quota = pk_cgroup_least(groups, root, "cpu", quota_of);
  if (quota == INT64_MAX) return cores;
  int64_t whole = quota / 1000 + (quota % 1000 >= 500);
  if (whole < 1) whole = 1;
  return whole < cores ? whole : cores;
}

int64_t pk_cores(void) {
  return pk_cores_of("/proc/self/cgroup", "/sys/fs/cgroup");
}
