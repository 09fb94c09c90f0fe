/* Child processes: started with their output in a file, waited for, signalled, and never left
 * behind. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/handlers.h"
#include "base/output.h"

extern char **environ;

enum { EXIT_NOT_STARTED = 127, SHORTEST_PAUSE_NS = 500000, LONGEST_PAUSE_NS = 16000000 };

struct pk_process {
  pid_t pid;
  bool group; /* pid leads a process group of its own */
  bool finished;
  double began;
  pk_process_state state; /* of the end, once finished */
};

/* --- starting --- */

static int64_t count_of(const char *const *list) {
  int64_t count = 0;
  while (list && list[count]) count++;
  return count;
}

/* Whether two entries "NAME=VALUE" have the same name. */
static bool same_name(const char *a, const char *b) {
  size_t length = strcspn(a, "=");
  return length == strcspn(b, "=") && memcmp(a, b, length) == 0;
}

/* This process's environment with additions, which win; the strings are borrowed. NULL: no memory.
 */
static const char **merged_environment(const char *const *additions) {
  const char *const *own = (const char *const *)environ;
  int64_t n_own = count_of(own), n_added = count_of(additions), n = 0;
  const char **merged = calloc((size_t)(n_own + n_added + 1), sizeof *merged);
  for (int64_t i = 0; merged && i < n_own; i++) {
    bool replaced = false;
    for (int64_t k = 0; k < n_added; k++) replaced |= same_name(own[i], additions[k]);
    if (!replaced) merged[n++] = own[i];
  }
  for (int64_t k = 0; merged && k < n_added; k++) merged[n++] = additions[k];
  return merged;
}

typedef struct child_plan {
  const pk_process_options *options;
  const char **environment;
  pid_t parent;
  int input;  /* /dev/null */
  int output; /* the log, or -1 */
  int report; /* where the child writes the errno of a program that cannot be started */
} child_plan;

/* The child's way from fork to exec; calls only what is safe in the copy of a threaded process. */
static void become_program(const child_plan *plan) {
  const pk_process_options *options = plan->options;
  if (options->own_group) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan->parent)
    _exit(EXIT_NOT_STARTED); /* the parent died before the line above */
  pk_handlers_leave();
  int output = plan->output;
  if (dup2(plan->input, STDIN_FILENO) >= 0 && (output < 0 || dup2(output, STDOUT_FILENO) >= 0) &&
      (output < 0 || dup2(output, STDERR_FILENO) >= 0)) {
#ifdef SYS_close_range
    syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 4U); /* 4: close when the program starts */
#endif
    execvpe(options->command[0], (char *const *)options->command, (char *const *)plan->environment);
  }
  int problem = errno;
  ssize_t written = write(plan->report, &problem, sizeof problem);
  (void)written;
  _exit(EXIT_NOT_STARTED);
}

static pk_status open_output(const char *path, int *output) {
  *output = -1;
  if (!path) return PK_OK;
  return pk_file_open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, output);
}

/* Forks, and waits until the program runs or could not be started. */
static pk_status launch(child_plan *plan, int listen, pid_t *started) {
  const char *program = plan->options->command[0];
  sigset_t all, before; /* no handler of this program may run in the child */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_t pid = fork();
  if (pid == 0) become_program(plan);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (pid < 0) return pk_fail(PK_IO, "%s: no new process: %s", program, strerror(errno));
  if (plan->options->own_group) setpgid(pid, pid); /* whoever of the two comes first */
  close(plan->report);
  plan->report = -1;
  int problem = 0;
  ssize_t count;
  do {
    count = read(listen, &problem, sizeof problem);
  } while (count < 0 && errno == EINTR);
  if (count == 0) {
    *started = pid;
    return PK_OK;
  }
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
  return pk_fail(PK_INVALID, "%s: the program cannot be started: %s", program, strerror(problem));
}

static void close_if_open(int descriptor) {
  if (descriptor >= 0) close(descriptor);
}

pk_process_options pk_process_defaults(void) {
  return (pk_process_options){.own_group = 1};
}

pk_status pk_process_start(const pk_process_options *options, pk_process **process) {
  if (!options->command || !options->command[0] || !*options->command[0]) {
    return pk_fail(PK_INVALID, "a process needs a command");
  }
  child_plan plan = {
      .options = options, .parent = getpid(), .input = -1, .output = -1, .report = -1};
  int channel[2] = {-1, -1};
  pk_process *made = calloc(1, sizeof *made);
  plan.environment = merged_environment(options->environment);
  pk_status status = PK_OK;
  if (!made || !plan.environment) status = pk_fail(PK_NO_MEMORY, "no memory for a process");
  if (status == PK_OK) status = open_output(options->log, &plan.output);
  if (status == PK_OK && ((plan.input = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0 ||
                          pipe2(channel, O_CLOEXEC) != 0)) {
    status = pk_fail(PK_IO, "%s: no new process: %s", options->command[0], strerror(errno));
  }
  if (status == PK_OK) {
    plan.report = channel[1];
    made->began = pk_clock();
    made->group = options->own_group != 0;
    status = launch(&plan, channel[0], &made->pid);
    channel[1] = plan.report;
  }
  close_if_open(channel[0]);
  close_if_open(channel[1]);
  close_if_open(plan.input);
  close_if_open(plan.output);
  free(plan.environment);
  if (status != PK_OK) {
    free(made);
    return status;
  }
  *process = made;
  return PK_OK;
}

/* --- waiting --- */

static double seconds_of(struct timeval time) {
  return (double)time.tv_sec + 1e-6 * (double)time.tv_usec;
}

/* Takes the end of a process that has ended. While it is not reaped its number belongs to it, so
 * that what is left of its group can be ended without hitting anybody else's. */
static pk_status reap(pk_process *process) {
  if (process->group) kill(-process->pid, SIGKILL);
  int status = 0;
  struct rusage usage = {0};
  pid_t reaped;
  do {
    reaped = wait4(process->pid, &status, 0, &usage);
  } while (reaped < 0 && errno == EINTR);
  if (reaped < 0) return pk_fail(PK_IO, "process %d: %s", (int)process->pid, strerror(errno));
  process->finished = true;
  process->state = (pk_process_state){
      .finished = 1,
      .code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
      .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
      .peak_rss = (int64_t)usage.ru_maxrss * 1024,
      .user_seconds = seconds_of(usage.ru_utime),
      .system_seconds = seconds_of(usage.ru_stime),
      .seconds = pk_clock() - process->began,
  };
  return PK_OK;
}

/* Whether the process has ended, without reaping it. */
static pk_status look(const pk_process *process, bool *ended) {
  siginfo_t info = {0};
  int status;
  do {
    status = waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT);
  } while (status < 0 && errno == EINTR);
  if (status < 0) return pk_fail(PK_IO, "process %d: %s", (int)process->pid, strerror(errno));
  *ended = info.si_pid != 0;
  return PK_OK;
}

pk_status pk_process_poll(pk_process *process, double seconds, pk_process_state *state) {
  double end = pk_clock() + seconds;
  long pause = SHORTEST_PAUSE_NS;
  bool interrupted = false;
  while (!process->finished) {
    bool ended = false;
    pk_status status = look(process, &ended);
    if (status == PK_OK && ended) status = reap(process);
    if (status != PK_OK) return status;
    double left = end - pk_clock();
    if (ended || interrupted || !(left > 0)) break;
    long wait = left < 1e-9 * (double)pause ? (long)(1e9 * left) : pause;
    interrupted = nanosleep(&(struct timespec){0, wait}, NULL) != 0;
    pause = pause * 2 < LONGEST_PAUSE_NS ? pause * 2 : LONGEST_PAUSE_NS;
  }
  *state = process->state;
  if (!process->finished) state->seconds = pk_clock() - process->began;
  return PK_OK;
}

int64_t pk_process_id(const pk_process *process) {
  return process->pid;
}

pk_status pk_process_signal(pk_process *process, int number) {
  if (process->finished) return PK_OK;
  if (kill(process->group ? -process->pid : process->pid, number) == 0 || errno == ESRCH)
    return PK_OK;
  return pk_fail(PK_IO, "process %d: signal %d: %s", (int)process->pid, number, strerror(errno));
}

void pk_process_free(pk_process *process) {
  if (process && !process->finished) {
    pk_process_signal(process, SIGKILL);
    reap(process);
  }
  free(process);
}

/* --- this program --- */

pk_status pk_program_path(char *path, int64_t size) {
  ssize_t length = readlink("/proc/self/exe", path, (size_t)size - 1);
  if (length <= 0)
    return pk_fail(PK_IO, "/proc/self/exe does not name this program: %s", strerror(errno));
  path[length] = 0;
  return PK_OK;
}
