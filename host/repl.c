/* The prompt: reads a statement, which may take several lines, runs it and prints its results. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef PK_HAVE_LIBEDIT
#include <editline/readline.h>
#endif

#include "pack.h"
#include "program.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
  (void)number;
  interrupted = 1;
}

/* A line without its end, to be freed; NULL at the end of input and after ^C. */
static char *read_plain_line(const char *prompt) {
  fputs(prompt, stdout);
  fflush(stdout);
  char *line = NULL;
  size_t size = 0;
  ssize_t length = getline(&line, &size, stdin);
  if (length < 0) {
    clearerr(stdin);
    free(line);
    return NULL;
  }
  line[strcspn(line, "\n")] = 0;
  return line;
}

static char *read_line(const char *prompt) {
#ifdef PK_HAVE_LIBEDIT
  if (isatty(STDIN_FILENO)) {
    char *line = readline(prompt);
    if (line && *line) add_history(line);
    return line;
  }
#endif
  return read_plain_line(prompt);
}

/* Reads a line while ^C abandons it instead of ending the program; *abandoned says that it did. */
static char *read_interruptible(const char *prompt, int *abandoned) {
  struct sigaction before,
      action = {.sa_handler = on_interrupt}; /* no SA_RESTART: reading returns */
  interrupted = 0;
  sigaction(SIGINT, &action, &before);
  char *line = read_line(prompt);
  sigaction(SIGINT, &before, NULL);
  *abandoned = interrupted;
  if (interrupted) {
    free(line);
    line = NULL;
    putchar('\n');
  }
  return line;
}

/* Compiles before .. text .. after. The function or the error is on top. */
static int load(lua_State *state, const char *before, const char *text, const char *after) {
  lua_pushfstring(state, "%s%s%s", before, text, after);
  size_t length;
  const char *chunk = lua_tolstring(state, -1, &length);
  int status = luaL_loadbuffer(state, chunk, length, "=prompt");
  lua_remove(state, -2);
  return status;
}

/* Whether the syntax error on top says that more input is needed. */
static int is_incomplete(lua_State *state) {
  static const char end[] = "'<eof>'";
  size_t length;
  const char *message = lua_tolstring(state, -1, &length);
  return message && length >= strlen(end) && strcmp(message + length - strlen(end), end) == 0;
}

enum { COMPLETE, INCOMPLETE, WRONG };

/* Compiles text as an expression, else as statements. The function or the error is on top. */
static int compile(lua_State *state, const char *text) {
  if (load(state, "return ", text, "") == 0) {
    /* A tail call would lose the place of the expression's errors, so hand its values through. */
    if (load(state, "return (function(...) return ... end)(", text, "\n)") == 0) {
      lua_remove(state, -2);
    } else {
      lua_pop(state, 1);
    }
    return COMPLETE;
  }
  int incomplete = is_incomplete(state);
  lua_pop(state, 1);
  if (load(state, "", text, "") == 0) return COMPLETE;
  return incomplete || is_incomplete(state) ? INCOMPLETE : WRONG;
}

enum { STATEMENT, ABANDONED, END };

/* Reads lines until they make a statement or an error, whose function or message is left on top
 * with *result saying which. Leaves nothing when ^C abandoned it or the input ended. */
static int read_statement(lua_State *state, int *result) {
  const char *prompt = "> ";
  lua_pushliteral(state, "");
  for (;;) {
    int abandoned;
    char *line = read_interruptible(prompt, &abandoned);
    if (!line) {
      lua_pop(state, 1);
      return abandoned ? ABANDONED : END;
    }
    lua_pushstring(state, line);
    free(line);
    lua_concat(state, 2);
    *result = compile(state, lua_tostring(state, -1));
    if (*result != INCOMPLETE) {
      lua_remove(state, -2);
      return STATEMENT;
    }
    lua_pop(state, 1);
    lua_pushliteral(state, "\n");
    lua_concat(state, 2);
    prompt = ">> ";
  }
}

/* Prints what lies on the stack, by Lua's own print. */
static int print_results(lua_State *state) {
  int count = lua_gettop(state);
  if (count == 0) return 0;
  lua_getglobal(state, "print");
  lua_insert(state, 1);
  return pk_call_protected(state, count, 0);
}

int pk_repl_run(lua_State *state) {
  printf("packlua %s. End of input (^D) leaves the prompt.\n", pk_version());
  lua_settop(state, 0);
  lua_getglobal(state, "require");
  lua_pushliteral(state, "pack");
  if (pk_call_protected(state, 1, 1) == 0) {
    lua_setglobal(state, "pack"); /* a local would not outlive its line */
  } else {
    pk_call_report(state);
  }
  int result, reading;
  while ((reading = read_statement(state, &result)) != END) {
    if (reading == ABANDONED) continue;
    int failed = result != COMPLETE || pk_call_protected(state, 0, LUA_MULTRET) != 0 ||
                 print_results(state) != 0;
    if (failed) pk_call_report(state);
    lua_settop(state, 0);
  }
  if (isatty(STDIN_FILENO)) putchar('\n');
  return 0;
}
