/* Where exceptions of C++ libraries end. */
#ifndef PK_CPU_GUARD_H
#define PK_CPU_GUARD_H

#include <stdbool.h>

enum { PK_GUARD_TEXT = 256 };

#ifdef __cplusplus
extern "C" {
#endif

/* Calls a function that calls a library of C++. Returns false, with what it was in problem, if an
 * exception came out of it, as from an allocation that was refused. */
bool pk_cpu_guard(void (*function)(void *argument), void *argument, char problem[PK_GUARD_TEXT]);

/* Has what exceptions need at hand, as they must pass when there is no memory. */
void pk_cpu_guard_prepare(void);

#ifdef __cplusplus
}
#endif

#endif
