/* A request to stop what runs: noted by a signal handler, found by the core between operations. */
#include <signal.h>

#include "base/base.h"

/* Signals belong to the process, so their note cannot hang off a context. */
static volatile sig_atomic_t requested;
static int level;

void pk_interrupt_request(void) {
  requested = 1;
}

int pk_interrupt_requested(void) {
  return requested;
}

void pk_interrupt_forget(void) {
  requested = 0;
}

int pk_interrupt_hold(int wanted) {
  int before = level;
  level = wanted;
  return before;
}

int pk_interrupt_held(void) {
  return level;
}

pk_status pk_interrupt_check(void) {
  if (!requested || level >= PK_HOLD_ALL) return PK_OK;
  requested = 0;
  return pk_fail(PK_INTERRUPTED, "interrupted");
}
