/* Protected calls into Lua: tracebacks, ^C, and the exit codes that errors carry. */
#include "packlua.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/handlers.h"
#include "pack.h"

/* A signal handler can reach the running state, and say what came, only through globals. */
static lua_State *interruptible;
static volatile sig_atomic_t interrupts; /* ^C during the call */
static volatile sig_atomic_t stopped;    /* the last one has stopped library code */
static volatile sig_atomic_t met;        /* the hook was called since the last one */

/* Where the library's sources are, if work goes on after ^C; else "". */
static char library[PATH_MAX + sizeof "@/lua/pack/"];

void pk_call_stay(const char *home) {
  snprintf(library, sizeof library, "@%s/lua/pack/", home);
  pk_signals_stay();
  if (isatty(STDIN_FILENO)) pk_handler_insist(SIGINT); /* somebody is there to press it */
}

static int is_library(lua_State *state, lua_Debug *record) {
  return *library && lua_getinfo(state, "S", record) &&
         strncmp(record->source, library, strlen(library)) == 0;
}

/* Where work goes on, the first ^C raises once, outside of the library: inside, where something may
 * be half done, operations notice it (pk_interrupt_check). Further ones also stop library code that
 * runs no operations, and all other code until the call ends, whatever catches errors there. */
static void stop_hook(lua_State *state, lua_Debug *record) {
  int inside = is_library(state, record);
  met = 1;
  int answered = interrupts < 2 && !pk_interrupt_requested(); /* by an operation */
  if (!answered && inside && (interrupts < 2 || stopped || pk_interrupt_held())) return;
  if (interrupts < 2) lua_sethook(state, NULL, 0, 0);
  if (answered) return;
  stopped = inside;
  pk_interrupt_forget();
  lua_createtable(state, 0, 2);
  luaL_where(state, 0);
  lua_pushliteral(state, "interrupted");
  lua_concat(state, 2);
  lua_setfield(state, -2, "message");
  lua_pushinteger(state, PK_EXIT_INTERRUPTED);
  lua_setfield(state, -2, "exit");
  lua_getfield(state, LUA_REGISTRYINDEX, "pack.failure"); /* there once anything is loaded */
  if (lua_istable(state, -1)) {
    lua_setmetatable(state, -2);
  } else {
    lua_pop(state, 1);
  }
  pk_hooks_allow(); /* in what handles the error */
  lua_error(state);
}

static void say_how_to_end(void) {
  static const char text[] =
      "\npacklua: ^C was not met yet: an operation meets it at its end, a compiled loop never; "
      "^\\ ends the program\n";
  ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  (void)written;
}

/* The first ^C raises an error at the next instruction that the interpreter runs; in a script a
 * second one, when that did not help, ends the process. Where work goes on, it reaches code that
 * hooks do not, and a third says what is left. */
static void on_interrupt(int number) {
  if (!*library) pk_handler_reset(number);
  if (*library && interrupts > 0 && !met) pk_hooks_allow();
  if (*library && interrupts > 1 && !met) say_how_to_end();
  interrupts = interrupts + 1;
  stopped = met = 0;
  pk_interrupt_request();
  /* Lua lets signal handlers call lua_sethook. NOLINTNEXTLINE(bugprone-signal-handler) */
  lua_sethook(interruptible, stop_hook, LUA_MASKCOUNT, 1);
}

/* Whether the value at index is an error that asks for an exit code, put into *code. */
static int asks_for_exit(lua_State *state, int index, int *code) {
  if (!lua_istable(state, index)) return 0;
  lua_pushvalue(state, index);
  lua_pushliteral(state, "exit");
  lua_rawget(state, -2);
  int asks = lua_type(state, -1) == LUA_TNUMBER;
  if (asks) *code = (int)lua_tointeger(state, -1);
  lua_pop(state, 2);
  return asks;
}

/* Pushes the text with the traceback of an error that lua/pack/core/finally.lua has passed on, kept
 * from where it was raised. Returns 0, nothing pushed, if it is not such an error. */
static int push_kept_traceback(lua_State *state) {
  lua_Debug record;
  int top = lua_gettop(state);
  lua_getfield(state, LUA_REGISTRYINDEX, "pack.finally");
  /* Above this handler is error, and above that what called it. */
  if (lua_istable(state, -1) && lua_getstack(state, 2, &record)) {
    lua_getinfo(state, "f", &record);
    lua_getfield(state, -2, "rethrow");
    if (lua_rawequal(state, -1, -2)) {
      lua_getfield(state, top + 1, "traceback");
      if (lua_isstring(state, -1)) return 1;
    }
  }
  lua_settop(state, top);
  return 0;
}

/* Makes text of any error object, with the traceback. Errors that ask for an exit code stay, and so
 * does nil, which, as in lua.c, fails without a word. */
static int add_traceback(lua_State *state) {
  int code, type = lua_type(state, 1);
  if (type == LUA_TNIL || asks_for_exit(state, 1, &code)) return 1;
  if (!lua_isstring(state, 1)) {
    if (!luaL_callmeta(state, 1, "__tostring") || !lua_isstring(state, -1)) {
      lua_pushfstring(state, "the error is a %s value", lua_typename(state, type));
    }
    lua_replace(state, 1);
    lua_settop(state, 1);
  }
  if (!push_kept_traceback(state)) luaL_traceback(state, state, lua_tostring(state, 1), 1);
  return 1;
}

/* Tells a study that is taking steps (lua/pack/run/study.lua) of the error on top, once. */
static void tell_study(lua_State *state) {
  static const char name[] = "pack.failed";
  lua_getfield(state, LUA_REGISTRYINDEX, name);
  if (lua_isfunction(state, -1)) {
    lua_pushnil(state);
    lua_setfield(state, LUA_REGISTRYINDEX, name);
    lua_pushvalue(state, -2);
    if (lua_pcall(state, 1, 0, 0) == 0) return;
  }
  lua_pop(state, 1);
}

int pk_call_protected(lua_State *state, int arguments, int results) {
  int base = lua_gettop(state) - arguments;
  lua_pushcfunction(state, add_traceback);
  lua_insert(state, base);
  interruptible = state;
  interrupts = 0;
  pk_heap_refill(state);
  pk_interrupt_forget();
  /* Where work goes on, ^C also ends waiting for input. */
  pk_handler_before before;
  pk_handler_set(SIGINT, on_interrupt, *library ? 0 : SA_RESTART, &before);
  int status = lua_pcall(state, arguments, results, base);
  if (status != 0) tell_study(state);
  /* An error may have left a training loop with them held. Where it ends the program, the next
   * signal must not change what it ends with. */
  if (status == 0 || *library) pk_signals_release();
  pk_handler_restore(&before);
  lua_sethook(state, NULL, 0, 0); /* a ^C that came as the call ended */
  pk_interrupt_forget();
  pk_interrupt_hold(PK_HOLD_NOTHING);
  lua_remove(state, base);
  return status;
}

int pk_call_report(lua_State *state) {
  int code = PK_EXIT_FAILED;
  if (asks_for_exit(state, -1, &code)) {
    lua_pushliteral(state, "message");
    lua_rawget(state, -2);
    lua_remove(state, -2);
  }
  size_t length = 0;
  const char *message = lua_tolstring(state, -1, &length);
  /* The outermost frames are this program's own; their addresses tell nobody anything. */
  static const char own[] = "\n\t[C]: at 0x";
  const char *last = length > 0 ? memrchr(message, '\n', length) : NULL;
  while (last && strncmp(last, own, strlen(own)) == 0) {
    length = (size_t)(last - message);
    last = memrchr(message, '\n', length);
  }
  if (length > 0) {
    fflush(stdout);
    /* The terminal has shown ^C in the middle of a line. */
    if (code == PK_EXIT_INTERRUPTED && *library && isatty(STDERR_FILENO)) fputc('\n', stderr);
    fputs("packlua: ", stderr);
    pk_show_text(stderr, message, length);
    fputc('\n', stderr);
  }
  lua_pop(state, 1);
  return code;
}
