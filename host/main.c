/* The packlua program: runs Lua scripts with the host library at hand, in the manner of lua.c. */
#include "packlua.h"

#include <errno.h>
#include <fcntl.h>
#include <luajit.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/handlers.h"
#include "pack.h"

/* The text of pack.h between its markers; the build writes it. */
extern const char *const pk_ffi_text;

static const char help_text[] =
    "usage: packlua [options] [script [arguments]]\n"
    "\n"
    "Runs a Lua script, looked for as given and then under packlua's own folder, so that\n"
    "'packlua recipes/train.lua' works anywhere. Without a script and on a terminal: a prompt.\n"
    "\n"
    "  -e CODE     run CODE\n"
    "  -l NAME     require the module NAME\n"
    "  -i          prompt after the script or code\n"
    "  -v          print the version\n"
    "  --version   print the version and those of the libraries in use\n"
    "  --devices   list the devices that can be used here\n"
    "  --jit       compile at the prompt too (^C cannot interrupt compiled loops)\n"
    "  --no-jit    do not compile at all\n"
    "  -h, --help  print this text\n"
    "  --          end of options\n"
    "  -           run standard input\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 usage, 75 interrupted with a state saved, 130 interrupted.\n"
    "PACKLUA_HOME names another folder with lua/, recipes/ and configs/; PACKLUA_HISTORY another\n"
    "file for the prompt's history, none if it is empty.\n";

typedef struct command_line {
  int script; /* index in argv, or argc */
  int code;   /* -e or -l was given */
  int prompt; /* -i */
  int jit;    /* 1 and 0 as asked for, -1 for the default */
  int version;
  int information; /* an option such as --help that leaves nothing else to do */
} command_line;

typedef struct invocation {
  int argc;
  char **argv;
  command_line options;
  char home[PATH_MAX];
  int opened; /* the state has its libraries, and can be closed */
  int exit;
} invocation;

static int usage_error(const char *format, const char *value) {
  char message[2 * PATH_MAX];
  snprintf(message, sizeof message, format, value);
  fputs("packlua: ", stderr);
  pk_show_text(stderr, message, strlen(message));
  fputs("\nTry 'packlua --help'.\n", stderr);
  return PK_EXIT_USAGE;
}

/* The value of -e or -l at argv[*i], joined (-eCODE) or as the next argument; NULL if missing. */
static const char *option_value(int argc, char **argv, int *i) {
  if (argv[*i][2]) return argv[*i] + 2;
  if (*i + 1 >= argc) return NULL;
  return argv[++*i];
}

static int read_long_option(const char *option, command_line *options) {
  if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0) {
    fputs(help_text, stdout);
    options->information = 1;
  } else if (strcmp(option, "--version") == 0) {
    printf("packlua %s\n%s%s", pk_version(), pk_build_info(), pk_editor_info());
    options->information = 1;
  } else if (strcmp(option, "--devices") == 0) {
    fputs(pk_devices(), stdout);
    options->information = 1;
  } else if (strcmp(option, "--jit") == 0) {
    options->jit = 1;
  } else if (strcmp(option, "--no-jit") == 0) {
    options->jit = 0;
  } else {
    return usage_error("unknown option '%s'", option);
  }
  return 0;
}

/* Reads options up to the script. Returns 0, or an exit code. */
static int read_options(int argc, char **argv, command_line *options) {
  options->jit = -1;
  int i = 1;
  for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
    const char *option = argv[i];
    if (strcmp(option, "--") == 0) {
      i++;
      break;
    }
    if (option[1] == 'e' || option[1] == 'l') {
      if (!option_value(argc, argv, &i)) return usage_error("option '%s' needs a value", option);
      options->code = 1;
    } else if (strcmp(option, "-i") == 0) {
      options->prompt = 1;
    } else if (strcmp(option, "-v") == 0) {
      options->version = 1;
    } else {
      int code = read_long_option(option, options);
      if (code != 0 || options->information) return code;
    }
  }
  options->script = i;
  return 0;
}

static int load_cdef(lua_State *state) {
  lua_pushstring(state, pk_ffi_text);
  return 1;
}

static int load_home(lua_State *state) {
  lua_pushvalue(state, lua_upvalueindex(1));
  return 1;
}

/* Loads a module of the library, "pack" or "pack.NAME", from its file; nothing if it has none.
 * Lua's own search takes a file that cannot be opened, be it for lack of memory, for one that is
 * not there. */
static int load_module(lua_State *state) {
  static const char *const forms[] = {"%s/lua/%s.lua", "%s/lua/%s/init.lua"};
  const char *name = luaL_checkstring(state, 1);
  if (strcmp(name, "pack") != 0 && strncmp(name, "pack.", strlen("pack.")) != 0) return 0;
  const char *home = lua_tostring(state, lua_upvalueindex(1));
  const char *place = luaL_gsub(state, name, ".", "/");
  for (int i = 0; i < 2; i++) {
    const char *path = lua_pushfstring(state, forms[i], home, place);
    if (access(path, F_OK) != 0) continue;
    if (luaL_loadfile(state, path) == 0) return 1;
    return luaL_error(state, "cannot load module '%s': %s", name, lua_tostring(state, -1));
  }
  return 0;
}

/* Puts load_module before Lua's own search; package is on top. */
static void add_loader(lua_State *state, const char *home) {
  lua_getfield(state, -1, "loaders");
  for (int i = (int)lua_objlen(state, -1); i >= 2; i--) { /* what is preloaded comes first */
    lua_rawgeti(state, -1, i);
    lua_rawseti(state, -2, i + 1);
  }
  lua_pushstring(state, home);
  lua_pushcclosure(state, load_module, 1);
  lua_rawseti(state, -2, 2);
  lua_pop(state, 1);
}

/* jit.profile's start, which installs a handler of its own. */
static int start_profiler(lua_State *state) {
  int arguments = lua_gettop(state);
  lua_pushvalue(state, lua_upvalueindex(1));
  lua_insert(state, 1);
  lua_call(state, arguments, 0);
  pk_handler_adopt(SIGPROF);
  return 0;
}

/* Opens jit.profile. */
static int load_profiler(lua_State *state) {
  lua_pushvalue(state, lua_upvalueindex(1));
  lua_call(state, 0, 1);
  lua_getfield(state, -1, "start");
  lua_pushcclosure(state, start_profiler, 1);
  lua_setfield(state, -2, "start");
  return 1;
}

/* What lua/pack gets from the program: the FFI declarations, its home, and the way to itself. */
static void add_library(lua_State *state, const char *home) {
  lua_getglobal(state, "package");
  lua_getfield(state, -1, "preload");
  lua_pushcfunction(state, load_cdef);
  lua_setfield(state, -2, "pack.cdef");
  lua_pushstring(state, home);
  lua_pushcclosure(state, load_home, 1);
  lua_setfield(state, -2, "pack.home");
  lua_getfield(state, -1, "jit.profile");
  if (lua_isfunction(state, -1)) {
    lua_pushcclosure(state, load_profiler, 1);
    lua_setfield(state, -2, "jit.profile");
  } else {
    lua_pop(state, 1);
  }
  lua_pop(state, 1);
  if (*home) {
    lua_getfield(state, -1, "path");
    lua_pushfstring(state, "%s/lua/?.lua;%s/lua/?/init.lua;%s", home, home,
                    lua_tostring(state, -1));
    lua_setfield(state, -3, "path");
    lua_pop(state, 1);
    add_loader(state, home);
  }
  lua_pop(state, 1);
}

/* The global arg: the script at 0, its arguments after it, the program and options before it. */
static void set_arg(lua_State *state, int argc, char **argv, int script) {
  if (script >= argc) script = 0;
  lua_createtable(state, argc - script, script + 1);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(state, argv[i]);
    lua_rawseti(state, -2, i - script);
  }
  lua_setglobal(state, "arg");
}

/* Runs the -e and -l options in order. Returns 0, or an exit code. */
static int run_code(lua_State *state, int argc, char **argv) {
  for (int i = 1; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
    char kind = argv[i][1];
    if (strcmp(argv[i], "--") == 0) break;
    if (kind != 'e' && kind != 'l') continue;
    const char *value = option_value(argc, argv, &i);
    int status;
    if (kind == 'e') {
      status = luaL_loadbuffer(state, value, strlen(value), "=(command line)");
      if (status == 0) status = pk_call_protected(state, 0, 0);
    } else {
      lua_getglobal(state, "require");
      lua_pushstring(state, value);
      status = pk_call_protected(state, 1, 0);
    }
    if (status != 0) return pk_call_report(state);
  }
  return 0;
}

/* Where the script is, into path: as given, else under home. Returns 0, or an exit code. */
static int find_script(const char *name, const char *home, char path[PATH_MAX]) {
  int length = snprintf(path, PATH_MAX, "%s", name);
  if (access(name, F_OK) != 0 && name[0] != '/' && *home) {
    length = snprintf(path, PATH_MAX, "%s/%s", home, name);
  }
  struct stat status;
  if (length >= PATH_MAX || stat(path, &status) != 0) {
    return usage_error("no script '%s' here or in packlua's own folder", name);
  }
  if (S_ISDIR(status.st_mode)) return usage_error("'%s' is a folder, not a script", name);
  if (access(path, R_OK) != 0) {
    char problem[2 * PATH_MAX];
    snprintf(problem, sizeof problem, "cannot read script '%s': %s", name, strerror(errno));
    return usage_error("%s", problem);
  }
  return 0;
}

/* Runs a script, or standard input for NULL, with its arguments. Returns 0, or an exit code. */
static int run_script(lua_State *state, const char *path, char **arguments, int count) {
  int status = luaL_loadfile(state, path);
  if (status == 0) {
    if (!lua_checkstack(state, count + LUA_MINSTACK)) {
      return usage_error("too many arguments for '%s'", path ? path : "-");
    }
    for (int i = 0; i < count; i++) lua_pushstring(state, arguments[i]);
    status = pk_call_protected(state, count, 0);
  }
  return status == 0 ? 0 : pk_call_report(state);
}

static int run(lua_State *state, invocation *program) {
  const command_line *options = &program->options;
  int argc = program->argc, script = options->script;
  char **argv = program->argv;
  int named = script < argc && strcmp(argv[script], "-") != 0;
  int idle = script >= argc && !options->code && !options->version; /* nothing to run is named */
  int prompt = options->prompt || (idle && isatty(STDIN_FILENO));
  char path[PATH_MAX];
  if (named) {
    int code = find_script(argv[script], program->home, path);
    if (code != 0) return code;
  }
  if (options->version) printf("packlua %s\n", pk_version());
  if (options->jit == 0 || (prompt && options->jit != 1)) {
    luaJIT_setmode(state, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
  }
  int code = run_code(state, argc < script ? argc : script, argv);
  if (code == 0 && script < argc) {
    code = run_script(state, named ? path : NULL, argv + script + 1, argc - script - 1);
  } else if (code == 0 && idle && !prompt) {
    code = run_script(state, NULL, NULL, 0);
  }
  return prompt ? pk_repl_run(state, program->home) : code;
}

/* The whole life of the state, in protected mode, as even opening libraries can run out of memory.
 */
static int protected_main(lua_State *state) {
  invocation *program = lua_touserdata(state, 1);
  lua_gc(state, LUA_GCSTOP, 0); /* nothing to collect while libraries open */
  luaL_openlibs(state);
  lua_getglobal(state, "require"); /* ffi too: where it got half of its memory, closing crashes */
  lua_pushliteral(state, "ffi");
  lua_call(state, 1, 0);
  program->opened = 1;
  lua_gc(state, LUA_GCRESTART, -1);
  add_library(state, program->home);
  set_arg(state, program->argc, program->argv, program->options.script);
  program->exit = run(state, program);
  return 0;
}

/* A file opened later must not get the number of a closed standard one: prints would go there. */
static void fill_standard_files(void) {
  int descriptor = open("/dev/null", O_RDWR);
  while (descriptor >= 0 && descriptor < STDERR_FILENO) descriptor = open("/dev/null", O_RDWR);
  if (descriptor > STDERR_FILENO) close(descriptor);
}

/* The exit code, which says so if what was printed has not all arrived. */
static int finish(int code) {
  int failed = ferror(stdout);
  if (fflush(stdout) == 0 && !failed) return code;
  fputs("packlua: standard output could not be written\n", stderr);
  return code ? code : PK_EXIT_FAILED;
}

int main(int argc, char **argv) {
  fill_standard_files();
  int problem = pk_handlers_open();
  if (problem != 0) {
    fprintf(stderr, "packlua: no stack for signals: %s\n", strerror(problem));
    return PK_EXIT_FAILED;
  }
  invocation program = {.argc = argc, .argv = argv};
  int code = read_options(argc, argv, &program.options);
  if (code != 0 || program.options.information) return finish(code);
  if (!pk_home_find(program.home)) {
    return usage_error("PACKLUA_HOME=%s has no lua/pack/init.lua", getenv("PACKLUA_HOME"));
  }
  pk_heap heap;
  lua_State *state = pk_heap_open(&heap);
  if (!state) {
    fputs("packlua: no memory for a Lua state\n", stderr);
    return PK_EXIT_FAILED;
  }
  pk_hooks_find(state);
  if (lua_cpcall(state, protected_main, &program) != 0) program.exit = pk_call_report(state);
  if (program.opened) lua_close(state);
  return finish(program.exit);
}
