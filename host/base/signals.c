/* Signals that ask a run to stop: noted here, acted upon by the loop that polls them. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/handlers.h"

enum { EXIT_INTERRUPTED = 130 };

/* What ends a program that has no handler and leaves it time: people, batch systems before a limit
 * is reached (USR1, USR2, XCPU), a terminal or a reader of the output that is gone. */
static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGXCPU, SIGPIPE};
enum { COUNT = sizeof numbers / sizeof *numbers };

/* Signals belong to the process, so their note cannot hang off a context. */
static volatile sig_atomic_t pending, interrupts, asks;
static pk_handler_before before[COUNT];
static bool held, stays;

static void note_signal(int number) {
  if (number == SIGINT && interrupts++ > 0) {
    if (!stays) _exit(EXIT_INTERRUPTED);
    pk_interrupt_request();
    return;
  }
  if (!pending) pending = number;
  if (asks) pk_interrupt_request();
  if (number != SIGINT) return;
  static const char text[] = "\npacklua: stopping after this step; ^C again stops at once\n";
  ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  (void)written;
}

void pk_signals_stay(void) {
  stays = true;
}

void pk_signals_hold(void) {
  pending = interrupts = asks = 0;
  if (held) return;
  for (int i = 0; i < COUNT; i++) pk_handler_set(numbers[i], note_signal, SA_RESTART, &before[i]);
  held = true;
}

int pk_signals_pending(void) {
  return pending;
}

void pk_signals_ask(int wanted) {
  asks = wanted;
  if (!pending) return;
  if (wanted) {
    pk_interrupt_request();
  } else {
    pk_interrupt_forget();
  }
}

void pk_signals_release(void) {
  for (int i = 0; held && i < COUNT; i++) pk_handler_restore(&before[i]);
  held = false;
  asks = 0;
}
