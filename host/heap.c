/* The interpreter's memory: LuaJIT's own allocator and a reserve behind it.
 *
 * LuaJIT's compiler, and its reader of C declarations, crash where a request of theirs fails. Small
 * requests that would fail therefore get the reserve, and at the next instruction that is
 * interpreted, where nothing is half done, garbage is collected and the reserve filled again; if
 * that cannot be, "not enough memory" is raised there. */
#include "packlua.h"

enum {
  RESERVE = 120 << 10, /* LuaJIT maps blocks from 128 KiB on each by itself */
  SMALL = RESERVE / 2
};

static void *plain(const pk_heap *heap, void *block, size_t before, size_t bytes) {
  return heap->allocate(heap->user, block, before, bytes);
}

static int fill(pk_heap *heap) {
  if (!heap->reserve) heap->reserve = plain(heap, NULL, 0, RESERVE);
  return heap->reserve != NULL;
}

static pk_heap *heap_of(lua_State *state) {
  void *heap;
  lua_getallocf(state, &heap);
  return heap;
}

static void recover(lua_State *state, lua_Debug *record) {
  (void)record;
  lua_sethook(state, NULL, 0, 0);
  lua_gc(state, LUA_GCCOLLECT, 0);
  if (fill(heap_of(state))) return;
  lua_pushliteral(state, "not enough memory");
  lua_error(state);
}

static void *allocate(void *target, void *block, size_t before, size_t bytes) {
  pk_heap *heap = target;
  void *got = plain(heap, block, before, bytes);
  if (got || bytes == 0 || !heap->reserve || bytes > SMALL) return got;
  plain(heap, heap->reserve, RESERVE, 0);
  heap->reserve = NULL;
  /* As signal handlers may, an allocator may set a hook. */
  lua_sethook(heap->state, recover, LUA_MASKCOUNT, 1);
  return plain(heap, block, before, bytes);
}

lua_State *pk_heap_open(pk_heap *heap) {
  lua_State *state = luaL_newstate();
  if (!state) return NULL;
  *heap = (pk_heap){.state = state};
  heap->allocate = lua_getallocf(state, &heap->user);
  fill(heap);
  lua_setallocf(state, allocate, heap);
  return state;
}

void pk_heap_refill(lua_State *state) {
  fill(heap_of(state));
}
