/* The prompt: reads lines, from a terminal or not, and runs what lua/pack/prompt/init.lua makes of
 * them.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/handlers.h"
#include "pack.h"
#include "packlua.h"

typedef struct session {
  lua_State *state;
  pk_editor *editor; /* NULL: lines are read as they come */
  int terminal;      /* there is somebody to show a prompt to */
  char *line;        /* the one to run; NULL at the end of input */
  int more, end;     /* the statement is not complete; it was :quit */
  int failed;        /* input could not be read */
  /* Functions of lua/pack/prompt/init.lua in the registry. */
  int feed, show, complete;
} session;

/* --- reading --- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
  (void)number;
  interrupted = 1;
}

/* As pk_editor_read, without editing. */
static int read_plain(session *prompt, const char *text, char **line) {
  pk_handler_before before;
  if (prompt->terminal) fputs(text, stdout);
  fflush(stdout);
  interrupted = 0;
  pk_handler_set(SIGINT, on_interrupt, 0, &before); /* no SA_RESTART: reading returns */
  size_t size = 0;
  ssize_t length = getline(line, &size, stdin);
  int reason = errno;
  pk_handler_restore(&before);
  if (length >= 0 && strlen(*line) == (size_t)length) {
    (*line)[strcspn(*line, "\n")] = 0;
    return PK_LINE;
  }
  if (length >= 0) { /* half of a line may mean something else */
    fputs("packlua: a line with a NUL byte is left out\n", stderr);
    return PK_LINE_ABANDONED;
  }
  free(*line);
  *line = NULL;
  if (!feof(stdin) && !interrupted) {
    fprintf(stderr, "packlua: standard input cannot be read: %s\n", strerror(reason));
    prompt->failed = 1;
  }
  clearerr(stdin);
  if (interrupted && prompt->terminal) putchar('\n');
  return interrupted ? PK_LINE_ABANDONED : PK_LINE_END;
}

/* --- running: all that touches the interpreter is protected, as it may run out of memory --- */

/* Whether the value on top is what require puts in the place of a module while it loads: a light
 * userdata, or in later releases of LuaJIT a number that nothing computes. */
static int is_loading(lua_State *state) {
  return lua_islightuserdata(state, -1) || (lua_type(state, -1) == LUA_TNUMBER &&
                                            fpclassify(lua_tonumber(state, -1)) == FP_SUBNORMAL);
}

/* Forgets the modules whose loading failed half-way, so that they can be loaded again: require
 * takes them for loops. */
static int forget_half_loaded(lua_State *state) {
  lua_getfield(state, LUA_REGISTRYINDEX, "_LOADED");
  for (lua_pushnil(state); lua_next(state, -2); lua_pop(state, 1)) {
    if (!is_loading(state)) continue;
    lua_pushvalue(state, -2);
    lua_pushnil(state);
    lua_rawset(state, -5);
  }
  return 0;
}

static void report(lua_State *state, int status) {
  pk_call_report(state);
  if (status == LUA_ERRMEM) lua_gc(state, LUA_GCCOLLECT, 0);
  if (lua_cpcall(state, forget_half_loaded, NULL) != 0) lua_pop(state, 1);
}

/* Calls the function of the prompt's module below its arguments. */
static int call(lua_State *state, int function, int arguments, int results) {
  lua_rawgeti(state, LUA_REGISTRYINDEX, function);
  lua_insert(state, -arguments - 1);
  int status = pk_call_protected(state, arguments, results);
  if (status != 0) report(state, status);
  return status;
}

/* Runs the function on top and shows its results. */
static void run(session *prompt, lua_State *state) {
  int base = lua_gettop(state) - 1;
  int status = pk_call_protected(state, 0, LUA_MULTRET);
  if (status != 0) {
    report(state, status);
    return;
  }
  luaL_checkstack(state, LUA_MINSTACK, "too many results");
  call(state, prompt->show, lua_gettop(state) - base, 0);
}

/* Feeds the session's line: nil asks for more, a function is to be run, false ends the session. */
static int take_line(lua_State *state) {
  session *prompt = lua_touserdata(state, 1);
  prompt->more = 0;
  if (prompt->line) {
    lua_pushstring(state, prompt->line);
  } else {
    lua_pushnil(state);
  }
  if (call(state, prompt->feed, 1, 1) != 0) return 0;
  prompt->more = lua_isnil(state, -1);
  prompt->end = lua_isboolean(state, -1);
  if (lua_isfunction(state, -1)) run(prompt, state);
  return 0;
}

/* What was typed of a statement so far is given up. */
static int forget_lines(lua_State *state) {
  session *prompt = lua_touserdata(state, 1);
  lua_pushboolean(state, 0);
  call(state, prompt->feed, 1, 1);
  return 0;
}

/* --- completing --- */

typedef struct request {
  session *prompt;
  const char *text;
  size_t length;
  int columns;
  pk_completion found;
} request;

static int find_completion(lua_State *state) {
  request *asked = lua_touserdata(state, 1);
  lua_rawgeti(state, LUA_REGISTRYINDEX, asked->prompt->complete);
  lua_pushlstring(state, asked->text, asked->length);
  lua_pushinteger(state, asked->columns);
  if (pk_call_protected(state, 2, 2) != 0) return 0; /* then there is nothing to offer */
  const char *insert = lua_tostring(state, -2), *listing = lua_tostring(state, -1);
  if (insert) asked->found.insert = strdup(insert);
  if (listing) asked->found.listing = strdup(listing);
  return 0;
}

static pk_completion complete(void *target, const char *text, size_t length, int columns) {
  session *prompt = target;
  request asked = {.prompt = prompt, .text = text, .length = length, .columns = columns};
  if (lua_cpcall(prompt->state, find_completion, &asked) != 0) lua_pop(prompt->state, 1);
  return asked.found;
}

/* --- the session --- */

static void do_nothing(int number) {
  (void)number;
}

static int reference(lua_State *state, const char *name) {
  lua_getfield(state, -1, name);
  return luaL_ref(state, LUA_REGISTRYINDEX);
}

/* Loads the prompt's module. Returns 0, or an exit code. */
static int open_module(session *prompt) {
  lua_State *state = prompt->state;
  lua_getglobal(state, "require");
  lua_pushliteral(state, "pack.prompt");
  if (pk_call_protected(state, 1, 1) != 0) return pk_call_report(state);
  prompt->feed = reference(state, "feed");
  prompt->show = reference(state, "show");
  prompt->complete = reference(state, "complete");
  lua_pop(state, 1);
  return 0;
}

static void run_session(session *prompt) {
  while (!prompt->end) {
    const char *text = prompt->more ? ">> " : "> ";
    int outcome = prompt->editor ? pk_editor_read(prompt->editor, text, &prompt->line)
                                 : read_plain(prompt, text, &prompt->line);
    int abandoned = outcome == PK_LINE_ABANDONED;
    if (lua_cpcall(prompt->state, abandoned ? forget_lines : take_line, prompt) != 0)
      report(prompt->state, LUA_ERRMEM);
    if (abandoned) prompt->more = 0;
    if (prompt->terminal) clearerr(stdout); /* what ^C cut off is no lasting failure */
    free(prompt->line);
    prompt->line = NULL;
    if (outcome == PK_LINE_END) break;
  }
}

int pk_repl_run(lua_State *state, const char *home) {
  session prompt = {.state = state, .terminal = isatty(STDIN_FILENO)};
  int code = open_module(&prompt);
  if (code != 0) return code;
  pk_call_stay(home);
  prompt.editor = pk_editor_open(complete, &prompt);
  if (prompt.terminal) printf("packlua %s   :help  shows what can be typed\n", pk_version());
  /* Between reading and running there is nothing that ^C could stop. */
  pk_handler_before before;
  pk_handler_set(SIGINT, do_nothing, SA_RESTART, &before);
  run_session(&prompt);
  pk_handler_restore(&before);
  if (prompt.terminal && !prompt.end) putchar('\n');
  pk_editor_close(prompt.editor);
  return prompt.failed ? PK_EXIT_FAILED : 0;
}
