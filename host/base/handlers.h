/* Signal handlers: installed in one place, so that each of them keeps to the same rules.
 *
 * A handler never runs on the stack of what it interrupts: oneDNN's products point the stack
 * register into their memory on the heap, where the frame of a signal would overwrite what they
 * compute. It runs on the main thread alone, keeps errno, and what the caller of the program has
 * ignored, as nohup does, stays ignored. Threads that compute take no signals (pk_thread_start). */
#ifndef PK_HANDLERS_H
#define PK_HANDLERS_H

#include <signal.h>
#include <stdbool.h>

typedef void (*pk_handler)(int number);

/* What pk_handler_restore puts back. */
typedef struct pk_handler_before {
  int number; /* 0: nothing was changed */
  struct sigaction action;
  pk_handler handler;
} pk_handler_before;

/* To be called first, on the main thread: gives it the stack for handlers, notes what is ignored,
 * and makes writes past the limit for files fail instead of ending the program. Returns 0, or an
 * errno. */
int pk_handlers_open(void);

/* Installs a handler, with SA_RESTART or without, unless the signal is ignored. before may be NULL.
 */
void pk_handler_set(int number, pk_handler handler, int flags, pk_handler_before *before);
void pk_handler_restore(const pk_handler_before *before);

/* Gives the signal back its default; for handlers. */
void pk_handler_reset(int number);

/* Takes a signal although the caller ignores it. */
void pk_handler_insist(int number);

/* A handler that a library has installed gets the stack for handlers too. */
void pk_handler_adopt(int number);

/* In a child process, between fork and exec with all signals blocked: what has a handler gets its
 * default, and none is blocked any more. */
void pk_handlers_leave(void);

#endif
