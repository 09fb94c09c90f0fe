/* The one place that installs signal handlers (handlers.h). */
#define _GNU_SOURCE
#include "base/handlers.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LEAST_STACK = 1 << 16 };

/* Signals belong to the process, and so does who handles them. */
static pk_handler volatile handlers[NSIG];
static bool ignored[NSIG];
static pthread_t main_thread;

/* What the kernel calls. A thread of a library's may not block a signal: it hands it on. */
static void deliver(int number) {
  int before = errno;
  if (pthread_equal(pthread_self(), main_thread)) {
    handlers[number](number);
  } else {
    pthread_kill(main_thread, number);
  }
  errno = before;
}

static void do_nothing(int number) {
  (void)number;
}

/* Gives the calling thread a stack for handlers, with a page below it that nothing may touch. */
static int open_stack(void) {
  long page = sysconf(_SC_PAGESIZE), wanted = 0;
#ifdef _SC_SIGSTKSZ
  wanted = sysconf(_SC_SIGSTKSZ); /* grows with the processor's registers */
#endif
  if (wanted < LEAST_STACK) wanted = LEAST_STACK;
  size_t size = (size_t)((wanted + page - 1) / page * page);
  char *memory = mmap(NULL, size + (size_t)page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return errno;
  stack_t stack = {.ss_sp = memory + page, .ss_size = size};
  if (mprotect(memory, (size_t)page, PROT_NONE) != 0 || sigaltstack(&stack, NULL) != 0)
    return errno;
  return 0;
}

int pk_handlers_open(void) {
  main_thread = pthread_self();
  for (int number = 1; number < NSIG; number++) {
    struct sigaction action;
    ignored[number] = sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
  }
  int problem = open_stack();
  if (problem == 0) pk_handler_set(SIGXFSZ, do_nothing, SA_RESTART, NULL);
  return problem;
}

void pk_handler_set(int number, pk_handler handler, int flags, pk_handler_before *before) {
  if (before) before->number = 0;
  if (ignored[number]) return;
  struct sigaction action = {.sa_handler = deliver, .sa_flags = flags | SA_ONSTACK}, old;
  sigemptyset(&action.sa_mask);
  pk_handler old_handler = handlers[number];
  handlers[number] = handler;
  if (sigaction(number, &action, &old) != 0) return;
  if (before) *before = (pk_handler_before){number, old, old_handler};
}

void pk_handler_restore(const pk_handler_before *before) {
  if (before->number == 0) return;
  sigaction(before->number, &before->action, NULL);
  /* Without an old one the last stays, for a signal that is being delivered just now. */
  if (before->handler) handlers[before->number] = before->handler;
}

void pk_handler_reset(int number) {
  struct sigaction action = {.sa_handler = SIG_DFL};
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, NULL);
}

void pk_handler_insist(int number) {
  ignored[number] = false;
}

void pk_handler_adopt(int number) {
  struct sigaction action;
  if (sigaction(number, NULL, &action) != 0) return;
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return;
  action.sa_flags |= SA_ONSTACK;
  sigaction(number, &action, NULL);
}

void pk_handlers_leave(void) {
  for (int number = 1; number < NSIG; number++) {
    struct sigaction action;
    if (sigaction(number, NULL, &action) != 0) continue;
    if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) pk_handler_reset(number);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}
