/* Limits that cgroups of versions 1 and 2 set to a process. */
#ifndef PK_CGROUP_H
#define PK_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

/* The number after name in a file of "name value" lines (or the first number, for ""); -1 if there
 * is none. */
int64_t pk_cgroup_number(const char *folder, const char *file_name, const char *name);

/* What the cgroup of this folder allows; INT64_MAX without a limit. */
typedef int64_t (*pk_cgroup_limit)(const char *folder, bool v2);

/* The least that a controller's cgroups allow: those listed in the file groups (/proc/self/cgroup)
 * and those above them, as found under root (/sys/fs/cgroup). A batch system limits the job, some
 * levels above the process. INT64_MAX without a limit. */
int64_t pk_cgroup_least(const char *groups, const char *root, const char *controller,
                        pk_cgroup_limit limit);

#endif
