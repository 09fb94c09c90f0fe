/* The parts of the packlua program: where it lives, protected calls into Lua, the prompt. */
#ifndef PK_PACKLUA_H
#define PK_PACKLUA_H

#include <lauxlib.h>
#include <limits.h>
#include <lua.h>
#include <stdio.h>

/* What the program exits with. */
enum { PK_EXIT_FAILED = 1, PK_EXIT_USAGE = 2, PK_EXIT_INTERRUPTED = 130 };

/* --- show.c --- */

/* Writes text with "?" for control characters, but for tabs and ends of lines: in names of files
 * and in text from outside they could set a terminal's modes. */
void pk_show_text(FILE *file, const char *text, size_t length);

/* --- home.c --- */

/* The folder that holds lua/, recipes/ and configs/, into home; "" if there is none. Returns 0 if
 * PACKLUA_HOME names a folder that is not one. */
int pk_home_find(char home[PATH_MAX]);

/* --- heap.c: what the interpreter allocates --- */

typedef struct pk_heap {
  lua_Alloc allocate; /* LuaJIT's, and what it works on */
  void *user;
  lua_State *state;
  void *reserve; /* NULL once it was needed */
} pk_heap;

/* A new state with a reserve of memory, or NULL; heap must stay as long as the state. */
lua_State *pk_heap_open(pk_heap *heap);

/* Fills the reserve of such a state again, if there is memory. */
void pk_heap_refill(lua_State *state);

/* --- call.c: every call from C into Lua goes through here --- */

/* Calls the function below its arguments as lua_pcall does, with a traceback added to errors and ^C
 * interrupting it. Returns 0, or what lua_pcall returns with the error on top. */
int pk_call_protected(lua_State *state, int arguments, int results);

/* Takes the error from the top, prints it to standard error unless it is empty, and returns the
 * exit code it asks for: its field exit (see lua/pack/core/failure.lua), else PK_EXIT_FAILED. */
int pk_call_report(lua_State *state);

/* From now on ^C never ends the process, and work goes on after it; home as of pk_home_find. */
void pk_call_stay(const char *home);

/* --- hooks.c: hooks where LuaJIT calls none --- */

/* To be called once, with the first state of the program. */
void pk_hooks_find(lua_State *state);

/* From now on the Lua code that runs meets hooks, also inside a hook, a finaliser, and a handler of
 * an error that a hook has raised; nothing happens with a LuaJIT of another kind. May be called in
 * a signal handler. */
void pk_hooks_allow(void);

/* --- history.c: the lines typed at prompts, in a file that several of them may share --- */

enum { PK_HISTORY_LINES = 2000 }; /* kept in the file when a prompt opens */

/* The file: PACKLUA_HISTORY, else packlua/history in XDG_STATE_HOME, else in ~/.local/state.
 * Returns 0 if there is to be none. */
int pk_history_path(char path[PATH_MAX]);

/* Hands the file's lines to add, oldest first, after cutting the file to the newest. */
void pk_history_read(const char *path, void (*add)(void *target, const char *line), void *target);

/* Appends a line. Returns 0, or an errno. */
int pk_history_append(const char *path, const char *line);

/* --- edit.c: a line from a terminal, edited --- */

/* Completes the text before the cursor, on a terminal of so many columns. Both results are to be
 * freed; NULL means none. */
typedef struct pk_completion {
  char *insert;  /* put at the cursor */
  char *listing; /* shown below */
} pk_completion;
typedef pk_completion (*pk_complete)(void *target, const char *text, size_t length, int columns);

typedef struct pk_editor pk_editor;

/* NULL if there is no terminal to edit on, or no libedit in this build. */
pk_editor *pk_editor_open(pk_complete complete, void *target);
void pk_editor_close(pk_editor *editor);

/* "NAME VERSION" of the library in use, as a line, or "". */
const char *pk_editor_info(void);

enum { PK_LINE, PK_LINE_ABANDONED, PK_LINE_END };

/* Reads a line, to be freed, into *line and keeps it in the history; ^C abandons it. */
int pk_editor_read(pk_editor *editor, const char *prompt, char **line);

/* --- repl.c --- */

/* Reads lines, runs them and prints results until the end of input; home as of pk_home_find.
 * Returns an exit code. */
int pk_repl_run(lua_State *state, const char *home);

#endif
