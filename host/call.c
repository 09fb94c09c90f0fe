/* Protected calls into Lua: tracebacks, ^C, and the exit codes that errors carry. */
#include "program.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "pack.h"

/* A signal handler can reach the running state only through a global. */
static lua_State *interruptible;

static void stop_hook(lua_State *state, lua_Debug *record) {
  (void)record;
  lua_sethook(state, NULL, 0, 0);
  lua_createtable(state, 0, 2);
  luaL_where(state, 0);
  lua_pushliteral(state, "interrupted");
  lua_concat(state, 2);
  lua_setfield(state, -2, "message");
  lua_pushinteger(state, PK_EXIT_INTERRUPTED);
  lua_setfield(state, -2, "exit");
  lua_error(state);
}

/* The first ^C raises an error at the next instruction that the interpreter runs; a second one,
 * when that did not help, ends the process. */
static void on_interrupt(int number) {
  signal(number, SIG_DFL);
  /* Lua lets signal handlers call lua_sethook. NOLINTNEXTLINE(bugprone-signal-handler) */
  lua_sethook(interruptible, stop_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
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
  luaL_traceback(state, state, lua_tostring(state, 1), 1);
  return 1;
}

int pk_call_protected(lua_State *state, int arguments, int results) {
  int base = lua_gettop(state) - arguments;
  lua_pushcfunction(state, add_traceback);
  lua_insert(state, base);
  interruptible = state;
  void (*before)(int) = signal(SIGINT, on_interrupt);
  int status = lua_pcall(state, arguments, results, base);
  pk_signals_release(); /* an error may have left a training loop with them held */
  signal(SIGINT, before);
  lua_sethook(state, NULL, 0, 0); /* a ^C that came as the call ended */
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
  /* The outermost frame is this program's own; its address tells nobody anything. */
  const char *outermost = message ? strstr(message, "\n\t[C]: at 0x") : NULL;
  if (outermost && !strchr(outermost + 1, '\n')) length = (size_t)(outermost - message);
  if (length > 0) {
    fflush(stdout);
    fprintf(stderr, "packlua: %.*s\n", (int)length, message);
  }
  lua_pop(state, 1);
  return code;
}
