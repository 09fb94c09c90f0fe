/* Clocks and terminals. */
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"

static double seconds_of(clockid_t clock) {
  struct timespec now = {0, 0};
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double pk_clock(void) {
  return seconds_of(CLOCK_MONOTONIC);
}

double pk_time(void) {
  return seconds_of(CLOCK_REALTIME);
}

int pk_is_terminal(int fd) {
  return isatty(fd);
}

int pk_terminal_width(int fd) {
  struct winsize size = {0, 0, 0, 0};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}
