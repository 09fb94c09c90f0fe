/* Lua tables from outside: runs a chunk in a state that holds no library, only text, within limits
 * of memory, instructions and time, and copies the table that it returns. */
#include <lauxlib.h>
#include <lua.h>
#include <luajit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/value.h"

enum {
  MEMORY_MIB = 64,             /* of the Lua state, and again of the copied tree */
  INSTRUCTIONS = 10000000,     /* in total */
  INSTRUCTIONS_PER_LOOK = 100, /* so few because one of them may copy tens of megabytes */
  SECONDS = 5,                 /* of this thread's time: what such copying is bounded by */
  PATH_BYTES = 256,
  OPENING_BYTES = 64 << 10, /* a new state takes about 10 KiB */
  ALIGNMENT = 16
};

#define MEMORY_LIMIT ((size_t)MEMORY_MIB << 20)

/* What a new state is made of: LuaJIT does not survive it if it gets a part of that and no more. */
typedef struct opening {
  char *memory;
  size_t used;
  bool over; /* the state is there: what it asks for now may be refused */
} opening;

typedef struct sandbox {
  opening opening;
  const char *text;
  size_t bytes;
  const char *name;
  size_t memory; /* bytes the state holds */
  bool memory_refused;
  size_t copied; /* bytes of the tree */
  int64_t instructions;
  double deadline;
  int line;              /* last line entered: errors of memory come without one */
  char path[PATH_BYTES]; /* of the value being copied, such as model.width */
  pk_status status;      /* with the message set, if copying failed */
  pk_value *root;
} sandbox;

static double thread_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool is_of_opening(const opening *from, const void *block) {
  const char *at = block;
  return at >= from->memory && at < from->memory + OPENING_BYTES;
}

/* realloc, from what is kept for a state that opens, as long as there is some. */
static void *move_block(opening *from, void *block, size_t old_bytes, size_t bytes) {
  bool kept = is_of_opening(from, block);
  if (from->over && !kept) return realloc(block, bytes);
  bool fits = !from->over && bytes <= OPENING_BYTES - from->used;
  char *moved = fits ? from->memory + from->used : malloc(bytes);
  if (fits) from->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (!moved || !block) return moved;
  memcpy(moved, block, old_bytes < bytes ? old_bytes : bytes);
  if (!kept) free(block);
  return moved;
}

static void *allocate(void *user, void *block, size_t old_bytes, size_t bytes) {
  sandbox *box = user;
  if (!block) old_bytes = 0;
  if (bytes == 0) {
    if (!is_of_opening(&box->opening, block)) free(block);
    box->memory -= old_bytes;
    return NULL;
  }
  if (bytes > old_bytes && bytes - old_bytes > MEMORY_LIMIT - box->memory) {
    box->memory_refused = true;
    return NULL;
  }
  void *moved = move_block(&box->opening, block, old_bytes, bytes);
  if (moved) box->memory += bytes - old_bytes;
  return moved;
}

static sandbox *sandbox_of(lua_State *state) {
  void *user;
  lua_getallocf(state, &user);
  return user;
}

static void hook(lua_State *state, lua_Debug *event) {
  sandbox *box = sandbox_of(state);
  if (event->event == LUA_HOOKLINE) {
    box->line = event->currentline;
    return;
  }
  box->instructions += INSTRUCTIONS_PER_LOOK;
  if (box->instructions > INSTRUCTIONS) {
    luaL_error(state, "%s:%d: runs for more than %d instructions", box->name, box->line,
               INSTRUCTIONS);
  }
  if (thread_seconds() > box->deadline) {
    luaL_error(state, "%s:%d: runs for more than %d seconds", box->name, box->line, SECONDS);
  }
}

/* Fails with "name: path what"; false, for the caller to pass on. */
static bool refuse(sandbox *box, const char *what) {
  box->status =
      pk_fail(PK_FORMAT, "%s: %s %s", box->name, *box->path ? box->path : "the table", what);
  return false;
}

static bool charge(sandbox *box, size_t bytes) {
  box->copied += bytes;
  if (box->copied <= MEMORY_LIMIT) return true;
  box->path[0] = '\0';
  return refuse(box, "is larger than 64 MiB when written out");
}

/* The length of an array, 0 for an empty table, -1 for a table with string keys, -2 for another. */
static int64_t array_length(lua_State *state, int table) {
  int64_t numbers = 0, strings = 0;
  double highest = 0;
  for (lua_pushnil(state); lua_next(state, table); lua_pop(state, 1)) {
    if (lua_type(state, -2) == LUA_TNUMBER) {
      double key = lua_tonumber(state, -2);
      if (key < 1 || key != floor(key)) {
        lua_pop(state, 2);
        return -2;
      }
      if (key > highest) highest = key;
      numbers++;
    } else if (lua_type(state, -2) == LUA_TSTRING) {
      strings++;
    } else {
      lua_pop(state, 2);
      return -2;
    }
  }
  if (strings > 0) return numbers > 0 ? -2 : -1;
  return highest == (double)numbers ? numbers : -2;
}

static pk_value *copy(lua_State *state, sandbox *box, int depth);

/* Appends the value on top of the stack, which stays, under "path.key" or "path[index]". */
static bool copy_child(lua_State *state, sandbox *box, pk_value *parent, const char *key,
                       int64_t index, int depth) {
  size_t length = strlen(box->path);
  if (key) {
    snprintf(box->path + length, PATH_BYTES - length, "%s%s", length ? "." : "", key);
  } else {
    snprintf(box->path + length, PATH_BYTES - length, "[%lld]", (long long)index);
  }
  pk_value *child = copy(state, box, depth);
  if (!child) return false;
  pk_value_append(parent, child);
  box->path[length] = '\0';
  return true;
}

static int compare_children(const void *a, const void *b) {
  return strcmp((*(pk_value *const *)a)->key, (*(pk_value *const *)b)->key);
}

/* Puts children in the order of their keys: Lua's own order differs from run to run. */
static pk_status sort_children(pk_value *object) {
  size_t count = 0;
  for (pk_value *child = object->first; child; child = child->next) count++;
  if (count < 2) return PK_OK;
  pk_value **children = malloc(count * sizeof *children);
  if (!children) return pk_fail(PK_NO_MEMORY, "no memory to sort %zu keys", count);
  count = 0;
  for (pk_value *child = object->first; child; child = child->next) children[count++] = child;
  qsort(children, count, sizeof *children, compare_children);
  object->first = object->last = NULL;
  for (size_t i = 0; i < count; i++) {
    children[i]->next = NULL;
    pk_value_append(object, children[i]);
  }
  free(children);
  return PK_OK;
}

static bool copy_object(lua_State *state, sandbox *box, pk_value *object, int depth) {
  int table = lua_gettop(state);
  for (lua_pushnil(state); lua_next(state, table); lua_pop(state, 1)) {
    size_t bytes;
    int64_t bad;
    const char *key = lua_tolstring(state, -2, &bytes);
    const char *defect = pk_text_defect(key, (int64_t)bytes, &bad);
    if (defect) return refuse(box, "has a key that is not UTF-8 text");
    if (!charge(box, bytes) || !copy_child(state, box, object, key, 0, depth)) return false;
    box->status = pk_value_set_key(object->last, key, (int64_t)bytes);
    if (box->status) return false;
  }
  box->status = sort_children(object);
  return box->status == PK_OK;
}

static bool copy_table(lua_State *state, sandbox *box, pk_value *value, int depth) {
  if (depth == PK_VALUE_DEPTH)
    return refuse(box, "is nested deeper than 64 levels (or contains itself)");
  int table = lua_gettop(state);
  int64_t length = array_length(state, table);
  if (length == -2) {
    return refuse(box, "mixes keys: a table has either names or 1, 2, 3, ... without holes");
  }
  value->kind = length > 0 ? PK_VALUE_ARRAY : PK_VALUE_OBJECT;
  if (length <= 0) return copy_object(state, box, value, depth + 1);
  for (int64_t i = 1; i <= length; i++) {
    lua_rawgeti(state, table, (int)i);
    if (!copy_child(state, box, value, NULL, i, depth + 1)) return false;
    lua_pop(state, 1);
  }
  return true;
}

static bool copy_string(lua_State *state, sandbox *box, pk_value *value) {
  size_t bytes;
  int64_t bad;
  const char *text = lua_tolstring(state, -1, &bytes);
  if (pk_text_defect(text, (int64_t)bytes, &bad))
    return refuse(box, "is a string that is not UTF-8 text");
  if (!charge(box, bytes)) return false;
  value->kind = PK_VALUE_STRING;
  box->status = pk_value_set_string(value, text, (int64_t)bytes);
  return box->status == PK_OK;
}

static bool copy_number(lua_State *state, sandbox *box, pk_value *value) {
  value->kind = PK_VALUE_NUMBER;
  value->number = lua_tonumber(state, -1);
  if (!isfinite(value->number)) return refuse(box, "is not a finite number");
  /* Every double from 2^53 on is whole. */
  if (fabs(value->number) >= PK_VALUE_INTEGER_LIMIT)
    return refuse(box, "is not below 2^53 in magnitude");
  return true;
}

/* The value on top of the stack, owned, or NULL with box->status set. */
static pk_value *copy(lua_State *state, sandbox *box, int depth) {
  if (!charge(box, sizeof(pk_value))) return NULL;
  pk_value *value = pk_value_create(PK_VALUE_BOOLEAN);
  if (!value) {
    box->status = PK_NO_MEMORY;
    return NULL;
  }
  bool good = true;
  char what[64];
  switch (lua_type(state, -1)) {
  case LUA_TBOOLEAN:
    value->number = lua_toboolean(state, -1);
    break;
  case LUA_TNUMBER:
    good = copy_number(state, box, value);
    break;
  case LUA_TSTRING:
    good = copy_string(state, box, value);
    break;
  case LUA_TTABLE:
    good = copy_table(state, box, value, depth);
    break;
  default:
    snprintf(what, sizeof what, "is a %s; only tables, strings, numbers and booleans are read",
             lua_typename(state, lua_type(state, -1)));
    good = refuse(box, what);
  }
  if (good) return value;
  pk_value_free(value);
  return NULL;
}

/* Reading a variable that nobody has set. Without it a misspelt one would be nil, and so its key at
 * its default. */
static int refuse_undefined(lua_State *state) {
  const char *name = lua_type(state, 2) == LUA_TSTRING ? lua_tostring(state, 2) : "?";
  return luaL_error(state, "there is no variable '%s' (a configuration has no libraries)", name);
}

static void refuse_undefined_globals(lua_State *state) {
  lua_createtable(state, 0, 1);
  lua_pushcfunction(state, refuse_undefined);
  lua_setfield(state, -2, "__index");
  lua_setmetatable(state, LUA_GLOBALSINDEX);
}

/* Runs protected, so that whatever Lua throws comes back as a status. */
static int run(lua_State *state) {
  sandbox *box = lua_touserdata(state, 1);
  luaL_checkstack(state, 4 * PK_VALUE_DEPTH, "nesting");
  refuse_undefined_globals(state);
  lua_pushfstring(state, "@%s", box->name);
  int status = luaL_loadbufferx(state, box->text, box->bytes, lua_tostring(state, -1), "t");
  if (status) return lua_error(state);
  lua_sethook(state, hook, LUA_MASKCOUNT | LUA_MASKLINE, INSTRUCTIONS_PER_LOOK);
  lua_call(state, 0, 1);
  lua_sethook(state, NULL, 0, 0);
  if (lua_type(state, -1) != LUA_TTABLE) {
    box->status = pk_fail(PK_FORMAT, "%s: returns a %s, not a table", box->name,
                          lua_typename(state, lua_type(state, -1)));
    return 0;
  }
  box->root = copy(state, box, 0);
  return 0;
}

static pk_status explain(const sandbox *box, lua_State *state, int error) {
  if (error == LUA_ERRMEM && box->memory_refused) {
    return pk_fail(PK_FORMAT, "%s:%d: builds more than %d MiB", box->name, box->line, MEMORY_MIB);
  }
  if (error == LUA_ERRMEM) return pk_fail(PK_NO_MEMORY, "%s: no memory to run it", box->name);
  const char *message = lua_tostring(state, -1);
  return pk_fail(PK_FORMAT, "%s", message ? message : "an error without a message");
}

pk_status pk_value_from_lua(const char *text, int64_t bytes, const char *name, pk_value **root) {
  *root = NULL;
  int64_t mark = pk_text_mark(text, bytes);
  text += mark;
  bytes -= mark;
  if (bytes > 0 && text[0] == '\x1b')
    return pk_fail(PK_FORMAT, "%s: is bytecode; only Lua text is read", name);
  sandbox box = {.text = text, .bytes = (size_t)bytes, .name = name, .line = 1};
  box.deadline = thread_seconds() + SECONDS;
  box.opening.memory = malloc(OPENING_BYTES);
  lua_State *state = box.opening.memory ? lua_newstate(allocate, &box) : NULL;
  if (!state) {
    free(box.opening.memory);
    return pk_fail(PK_NO_MEMORY, "%s: no memory for a Lua state", name);
  }
  box.opening.over = true;
  luaJIT_setmode(state, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
  int error = lua_cpcall(state, run, &box);
  pk_status status = error ? explain(&box, state, error) : box.status;
  lua_close(state);
  free(box.opening.memory);
  if (status) {
    pk_value_free(box.root);
  } else {
    *root = box.root;
  }
  return status;
}
