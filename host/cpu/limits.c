/* What machine and cgroups leave this process of memory. */
#include "base/cgroup.h"
#include "cpu/cpu.h"

/* What is left to the rest of the machine when no limit is set. */
static const int64_t margin_bytes = (int64_t)256 << 20;

/* Bytes that one cgroup has left, or INT64_MAX without a limit. The kernel counts cached files too;
 * those that nobody uses make room. */
static int64_t left_in(const char *folder, bool v2) {
  int64_t limit = pk_cgroup_number(folder, v2 ? "memory.max" : "memory.limit_in_bytes", "");
  int64_t used = pk_cgroup_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes", "");
  if (limit < 0 || used < 0) return INT64_MAX;
  int64_t cached =
      pk_cgroup_number(folder, "memory.stat", v2 ? "inactive_file " : "total_inactive_file ");
  if (cached > 0) used -= cached;
  return limit > used ? limit - used : 0;
}

int64_t pk_cpu_cgroup_left(const char *groups, const char *root) {
  return pk_cgroup_least(groups, root, "memory", left_in);
}

int64_t pk_cpu_memory_left(void) {
  int64_t kilobytes = pk_cgroup_number("/proc", "meminfo", "MemAvailable:");
  int64_t bytes = kilobytes >= 0 ? kilobytes * 1024 : (int64_t)4 << 30;
  int64_t group = pk_cpu_cgroup_left("/proc/self/cgroup", "/sys/fs/cgroup");
  if (group < bytes) bytes = group;
  return bytes > 2 * margin_bytes ? bytes - margin_bytes : bytes / 2;
}
