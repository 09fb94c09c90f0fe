/* The parts of the packlua program: where it lives, protected calls into Lua, the prompt. */
#ifndef PK_PROGRAM_H
#define PK_PROGRAM_H

#include <lauxlib.h>
#include <limits.h>
#include <lua.h>

/* What the program exits with. */
enum { PK_EXIT_FAILED = 1, PK_EXIT_USAGE = 2, PK_EXIT_INTERRUPTED = 130 };

/* --- home.c --- */

/* The folder that holds lua/, recipes/ and configs/, into home; "" if there is none. Returns 0 if
 * PACKLUA_HOME names a folder that is not one. */
int pk_home_find(char home[PATH_MAX]);

/* --- call.c: every call from C into Lua goes through here --- */

/* Calls the function below its arguments as lua_pcall does, with a traceback added to errors and ^C
 * interrupting it. Returns 0, or what lua_pcall returns with the error on top. */
int pk_call_protected(lua_State *state, int arguments, int results);

/* Takes the error from the top, prints it to standard error unless it is empty, and returns the
 * exit code it asks for: its field exit (see lua/pack/failure.lua), else PK_EXIT_FAILED. */
int pk_call_report(lua_State *state);

/* --- repl.c --- */

/* Reads lines, runs them and prints results until the end of input. Returns an exit code. */
int pk_repl_run(lua_State *state);

#endif
