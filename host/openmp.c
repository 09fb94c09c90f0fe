/* Keeps OpenMP's runtime, which libraries bring along, from binding threads to cores.
 *
 * Job scripts set OMP_PROC_BIND and its like for other programs. By them the runtime binds the main
 * thread to one core as it is loaded, before main, and any thread that calls a library after that;
 * packlua's own threads would then all share that core. Packlua uses no team of OpenMP's, so these
 * variables are taken out of the environment before any library sees it. */
#include <string.h>

#include "packlua.h"

static int binds_threads(const char *variable) {
  static const char *const names[] = {
      "OMP_PROC_BIND=", "OMP_PLACES=", "GOMP_CPU_AFFINITY=", "KMP_AFFINITY="};
  for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
    if (strncmp(variable, names[n], strlen(names[n])) == 0) return 1;
  }
  return 0;
}

static void drop_bindings(int argc, char **argv, char **environment) {
  (void)argc, (void)argv;
  char **kept = environment;
  for (char **variable = environment; *variable; variable++) {
    if (!binds_threads(*variable)) *kept++ = *variable;
  }
  *kept = NULL;
}

/* What is listed here runs before the initializers of libraries. */
__attribute__((section(".preinit_array"),
               used)) static void (*const first)(int, char **, char **) = drop_bindings;
