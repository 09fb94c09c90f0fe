/* Hooks in Lua code that LuaJIT runs without any: hooks themselves, finalisers, and the handlers of
 * errors that a hook has raised. A loop there could not be stopped by ^C. */
#include <stddef.h>

#include "packlua.h"

/* LuaJIT does not call a hook while this flag is set in the byte that also holds the mask of hooks.
 * No function of its API clears it, so the byte is looked for. */
enum { ACTIVE = 0x10 };

/* A state's globals lie behind the first lua_State, together some kilobytes; the byte is near their
 * start. */
enum { SEARCHED = 1024, MASKS = 16 };

static volatile unsigned char *flags; /* NULL if it was not found */

static void do_nothing(lua_State *state, lua_Debug *record) {
  (void)state, (void)record;
}

static unsigned char seen;

static void look(lua_State *state, lua_Debug *record) {
  (void)record;
  seen = *flags;
  lua_sethook(state, NULL, 0, 0);
}

void pk_hooks_find(lua_State *state) {
  volatile unsigned char *memory = (volatile unsigned char *)state, *found = NULL;
  unsigned short alike[SEARCHED] = {0}; /* bit M: was M while that was the mask */
  for (int mask = MASKS - 1; mask >= 0; mask--) {
    lua_sethook(state, mask ? do_nothing : NULL, mask, mask ? 1 << 30 : 0);
    for (int i = 0; i < SEARCHED; i++)
      if (memory[i] == mask) alike[i] |= (unsigned short)(1 << mask);
  }
  int count = 0;
  for (int i = 0; i < SEARCHED; i++) {
    if (alike[i] != (1 << MASKS) - 1) continue;
    found = memory + i;
    count++;
  }
  if (count != 1) return;
  flags = found;
  lua_sethook(state, look, LUA_MASKCOUNT, 1);
  if (luaL_dostring(state, "local none")) lua_pop(state, 1);
  lua_sethook(state, NULL, 0, 0);
  if (seen != (LUA_MASKCOUNT | ACTIVE)) flags = NULL;
}

void pk_hooks_allow(void) {
  if (flags) *flags &= (unsigned char)~ACTIVE;
}
