/* Signals that ask a run to stop: noted here, acted upon by the loop that polls them. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"

enum { EXIT_INTERRUPTED = 130 };

static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
enum { COUNT = sizeof numbers / sizeof *numbers };

/* Signals belong to the process, so their note cannot hang off a context. */
static volatile sig_atomic_t pending, interrupts;
static struct sigaction before[COUNT];
static bool held, stays;

static void note_signal(int number) {
  if (number == SIGINT && interrupts++ > 0) {
    if (!stays) _exit(EXIT_INTERRUPTED);
    pk_interrupt_request();
    return;
  }
  if (!pending) pending = number;
  if (number != SIGINT) return;
  static const char text[] = "\npacklua: stopping after this step; ^C again stops at once\n";
  ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  (void)written;
}

void pk_signals_stay(void) {
  stays = true;
}

void pk_signals_hold(void) {
  pending = interrupts = 0;
  if (held) return;
  struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < COUNT; i++) sigaction(numbers[i], &action, &before[i]);
  held = true;
}

int pk_signals_pending(void) {
  return pending;
}

void pk_signals_release(void) {
  for (int i = 0; held && i < COUNT; i++) sigaction(numbers[i], &before[i], NULL);
  held = false;
}
