/* Starting threads, all in one way (base.h). */
#include <pthread.h>
#include <signal.h>

#include "base/base.h"

int pk_thread_start(pthread_t *thread, void *(*run)(void *), void *argument) {
  /* Those that a thread's own fault raises it must take. */
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
  pthread_sigmask(SIG_SETMASK, &blocked, &before); /* which the thread inherits */
  int failure = pthread_create(thread, NULL, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return failure;
}
