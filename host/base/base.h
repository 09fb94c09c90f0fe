/* What every part of the host uses: statuses with their messages, threads, the count of cores. It
 * knows no tensor. */
#ifndef PK_BASE_H
#define PK_BASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "pack.h"

/* Sets this thread's message, printf style, and returns status. */
pk_status pk_fail(pk_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "format: " before the message that is there, and returns status. */
pk_status pk_fail_within(pk_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Starts a thread that takes no signals: all that start one go through here, as the main thread
 * alone runs handlers (base/handlers.h). Returns 0, or an errno. */
int pk_thread_start(pthread_t *thread, void *(*run)(void *), void *argument);

/* pk_cores by the cgroups listed in the file groups, as found under root. */
int64_t pk_cores_of(const char *groups, const char *root);

#endif
