/* Fails one allocation, or one call on a file, of packlua: a library to preload.
 *
 *   PACKLUA_FAULT=memory     calls of malloc and its kin, mmap and pthread_create that come from
 *                            packlua, from LuaJIT, or from the C library on their behalf
 *   PACKLUA_FAULT=libraries  the same, from other libraries that answer with an error: zstd, zlib,
 *                            YAML, libedit
 *   PACKLUA_FAULT=lua        calls of the interpreter's allocator: from this one on it has no more
 *                            memory than before
 *   PACKLUA_FAULT=EIO        open, read, write, fsync, rename, close, ftruncate, mkdir and kin
 *   PACKLUA_FAULT=ENOSPC     those of them that need room on the disk: this one and all after it
 *   PACKLUA_FAULT=EINTR      read and write
 *   PACKLUA_FAULT=short      read and write, which do a part of what was asked
 *   PACKLUA_FAULT_AT=N       which call fails, from 1; 0 fails none
 *   PACKLUA_FAULT_REPORT=F   a file of a page or more, for how many such calls there were, and
 *                            which one failed
 *
 * Calls are counted over all threads. The report is a shared mapping, so that it survives a crash.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct report {
  atomic_long seen;
  atomic_long failed; /* how many calls were failed */
  char what[240];     /* the call, and where it came from */
} report;

enum { NONE, MEMORY, LIBRARIES, LUA, FILES };

static int subject;  /* which calls count */
static int error;    /* what file calls fail with; 0 is a short count */
static bool lasting; /* all calls after the first fail too */
static long target;
static report unread; /* where there is no report */
static report *counts = &unread;
static _Thread_local bool inside;      /* a call of this library's own */
static _Thread_local bool refuse_next; /* the next malloc fails, counted or not */

/* --- who calls --- */

typedef struct range {
  uintptr_t start, end;
} range;

enum { MAX_RANGES = 64 };

static range own_ranges[MAX_RANGES];     /* packlua, LuaJIT and the C library */
static range skipped_ranges[MAX_RANGES]; /* whose own failures are not ours to judge */
static uintptr_t program_start;

static void add_range(range *ranges, uintptr_t start, uintptr_t end) {
  for (int i = 0; i < MAX_RANGES; i++) {
    if (ranges[i].end) continue;
    ranges[i] = (range){start, end};
    return;
  }
}

static bool names_any(const char *path, const char *const *names) {
  for (; *names; names++)
    if (strstr(path, *names)) return true;
  return false;
}

static int note_image(struct dl_phdr_info *image, size_t size, void *count) {
  (void)size;
  static const char *const own[] = {"libluajit", "/libc.so", "/libc-", NULL};
  /* The loader, this library and sanitizers; libraries of arithmetic, which end the process; and
   * C++, whose exceptions SentencePiece's protobuf does not survive. */
  static const char *const skipped[] = {"/ld-",     "packfaults",       "libasan",   "libubsan",
                                        "openblas", "libgomp",          "libdnnl",   "libgfortran",
                                        "libgcc",   "libsentencepiece", "libstdc++", NULL};
  bool program = (*(int *)count)++ == 0;
  range *ranges = program || names_any(image->dlpi_name, own) ? own_ranges
                  : names_any(image->dlpi_name, skipped)      ? skipped_ranges
                                                              : NULL;
  if (program) program_start = image->dlpi_addr;
  for (int i = 0; ranges && i < image->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &image->dlpi_phdr[i];
    uintptr_t start = image->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_LOAD && (part->p_flags & PF_X))
      add_range(ranges, start, start + part->p_memsz);
  }
  return 0;
}

static bool within(const range *ranges, const void *address) {
  uintptr_t at = (uintptr_t)address;
  for (int i = 0; i < MAX_RANGES && ranges[i].end; i++)
    if (at >= ranges[i].start && at < ranges[i].end) return true;
  return false;
}

/* --- whether this call fails --- */

static void describe(const char *call, const char *detail, const void *from) {
  Dl_info place;
  inside = true;
  bool known = dladdr(from, &place) && place.dli_fname;
  const char *slash = known ? strrchr(place.dli_fname, '/') : NULL;
  snprintf(counts->what, sizeof counts->what, "%s(%s) from %s+0x%lx", call, detail,
           !known  ? "?"
           : slash ? slash + 1
                   : place.dli_fname,
           (unsigned long)((uintptr_t)from - (known ? (uintptr_t)place.dli_fbase : 0)));
  inside = false;
}

/* Counts a call; true if it is one to fail. */
static bool count(const char *call, const char *detail, const void *from) {
  long number = atomic_fetch_add(&counts->seen, 1) + 1;
  if (target == 0 || number < target || (number > target && !lasting)) return false;
  if (number == target) describe(call, detail, from);
  atomic_fetch_add(&counts->failed, 1);
  return true;
}

static bool memory_fails(const char *call, size_t bytes, const void *from) {
  if ((subject != MEMORY && subject != LIBRARIES) || inside) return false;
  bool own = within(own_ranges, from);
  if (subject == MEMORY ? !own : own || within(skipped_ranges, from)) return false;
  char detail[32] = "";
  if (target != 0) {
    inside = true;
    snprintf(detail, sizeof detail, "%zu", bytes);
    inside = false;
  }
  if (!count(call, detail, from)) return false;
  errno = ENOMEM;
  return true;
}

/* What a file call does: needs room on the disk, moves bytes, or neither. */
enum { ROOM = 1, BYTES = 2 };

static bool file_fails(const char *call, const char *detail, int nature, const void *from) {
  if (subject != FILES || inside) return false;
  if (!within(own_ranges, from)) return false;
  if (error == ENOSPC && !(nature & ROOM)) return false;
  if ((error == EINTR || error == 0) && !(nature & BYTES)) return false;
  if (!count(call, detail, from)) return false;
  if (error) errno = error;
  return true;
}

static const char *name_of(int fd, char text[PATH_MAX]) {
  if (target == 0) return "";
  char link[64];
  inside = true;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  inside = false;
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, text, PATH_MAX - 1);
  text[length > 0 ? length : 0] = '\0';
  return text;
}

#define FROM __builtin_return_address(0)

/* --- memory --- */

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
/* AddressSanitizer's, where it is there. */
extern void *__interceptor_malloc(size_t) __attribute__((weak));
extern void *__interceptor_calloc(size_t, size_t) __attribute__((weak));
extern void *__interceptor_realloc(void *, size_t) __attribute__((weak));
extern void *__interceptor_memalign(size_t, size_t) __attribute__((weak));

void *malloc(size_t bytes) {
  bool refused = refuse_next;
  refuse_next = false;
  if (refused || memory_fails("malloc", bytes, FROM)) return NULL;
  return __interceptor_malloc ? __interceptor_malloc(bytes) : __libc_malloc(bytes);
}

void *calloc(size_t number, size_t bytes) {
  if (memory_fails("calloc", number * bytes, FROM)) return NULL;
  return __interceptor_calloc ? __interceptor_calloc(number, bytes) : __libc_calloc(number, bytes);
}

void *realloc(void *memory, size_t bytes) {
  if (bytes > 0 && memory_fails("realloc", bytes, FROM)) return NULL;
  return __interceptor_realloc ? __interceptor_realloc(memory, bytes)
                               : __libc_realloc(memory, bytes);
}

static void *aligned(size_t alignment, size_t bytes) {
  return __interceptor_memalign ? __interceptor_memalign(alignment, bytes)
                                : __libc_memalign(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes) {
  if (memory_fails("memalign", bytes, FROM)) return NULL;
  return aligned(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  if (memory_fails("aligned_alloc", bytes, FROM)) return NULL;
  return aligned(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  if (memory_fails("posix_memalign", bytes, FROM)) return ENOMEM;
  void *got = aligned(alignment, bytes);
  if (!got) return ENOMEM;
  *memory = got;
  return 0;
}

static void *map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset,
                 const void *from) {
  if (memory_fails("mmap", bytes, from)) return MAP_FAILED;
  return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return map(at, bytes, protection, flags, fd, offset, FROM);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return map(at, bytes, protection, flags, fd, offset, FROM);
}

/* What C++ asks for, its library gets by malloc, and throws if there is none: the call is counted
 * here, where it can be seen who asks, and fails there. */
typedef void *new_function(size_t);

static void *new_for(const char *name, size_t bytes, const void *from) {
  new_function *real = (new_function *)dlsym(RTLD_NEXT, name);
  refuse_next = memory_fails("new", bytes, from);
  bool before = inside;
  inside = true; /* counted already */
  void *got = real(bytes);
  inside = before;
  return got;
}

void *_Znwm(size_t bytes) {
  return new_for("_Znwm", bytes, FROM);
}

void *_Znam(size_t bytes) {
  return new_for("_Znam", bytes, FROM);
}

typedef int thread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *argument) {
  if (memory_fails("pthread_create", 0, FROM)) return EAGAIN;
  return ((thread_create *)dlsym(RTLD_NEXT, "pthread_create"))(thread, attributes, start, argument);
}

typedef int thread_attributes(pthread_t, pthread_attr_t *);

/* A sanitizer asks for these as a thread starts, and ends the process without them. */
int pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes) {
  bool before = inside;
  inside = inside || !within(own_ranges, FROM);
  int result = ((thread_attributes *)dlsym(RTLD_NEXT, "pthread_getattr_np"))(thread, attributes);
  inside = before;
  return result;
}

/* --- Lua's allocator --- */

typedef void *lua_allocator(void *, void *, size_t, size_t);

static lua_allocator *lua_real;
static size_t lua_bytes, lua_limit; /* in use; 0 for no limit */

static void *lua_counted(void *data, void *memory, size_t before, size_t bytes) {
  if (!memory) before = 0;
  if (bytes > before) { /* Lua takes it for granted that blocks can shrink */
    char detail[32];
    snprintf(detail, sizeof detail, "%zu", bytes);
    if (count("Lua's allocator", detail, FROM)) lua_limit = lua_bytes;
    if (lua_limit && lua_bytes - before + bytes > lua_limit) return NULL;
  }
  void *got = lua_real(data, memory, before, bytes);
  if (got || bytes == 0) lua_bytes += bytes - before;
  return got;
}

void *luaL_newstate(void) {
  void *state = ((void *(*)(void))dlsym(RTLD_NEXT, "luaL_newstate"))();
  if (!state || subject != LUA) return state;
  void *data;
  lua_real =
      ((lua_allocator * (*)(void *, void **)) dlsym(RTLD_NEXT, "lua_getallocf"))(state, &data);
  ((void (*)(void *, lua_allocator *, void *))dlsym(RTLD_NEXT, "lua_setallocf"))(state, lua_counted,
                                                                                 data);
  return state;
}

/* --- files --- */

static int open_file(int folder, const char *path, int flags, unsigned mode, const void *from) {
  int nature = (flags & O_ACCMODE) != O_RDONLY && (flags & O_CREAT) ? ROOM : 0;
  if (file_fails("open", path, nature, from)) return -1;
  return (int)syscall(SYS_openat, folder, path, flags, mode);
}

static unsigned mode_of(int flags, va_list rest) {
  return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, unsigned) : 0;
}

int open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned mode = mode_of(flags, rest);
  va_end(rest);
  return open_file(AT_FDCWD, path, flags, mode, FROM);
}

int open64(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned mode = mode_of(flags, rest);
  va_end(rest);
  return open_file(AT_FDCWD, path, flags, mode, FROM);
}

int openat(int folder, const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned mode = mode_of(flags, rest);
  va_end(rest);
  return open_file(folder, path, flags, mode, FROM);
}

int openat64(int folder, const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned mode = mode_of(flags, rest);
  va_end(rest);
  return open_file(folder, path, flags, mode, FROM);
}

/* A call that moves bytes; at < 0: where the file stands. */
static ssize_t transfer(const char *call, long number, int fd, void *data, size_t bytes, off_t at,
                        const void *from) {
  char name[PATH_MAX];
  bool writes = number == SYS_write || number == SYS_pwrite64;
  int nature = BYTES | (writes ? ROOM : 0);
  if (bytes > 0 && (error != 0 || bytes > 1) &&
      file_fails(call, subject == FILES ? name_of(fd, name) : "", nature, from)) {
    if (error == ENOSPC && bytes > 1 && atomic_load(&counts->failed) == 1)
      bytes /= 2; /* a disk takes what it has room for */
    else if (error != 0)
      return -1;
    else
      bytes = (bytes + 1) / 2;
  }
  return at < 0 ? syscall(number, fd, data, bytes) : syscall(number, fd, data, bytes, at);
}

ssize_t read(int fd, void *data, size_t bytes) {
  return transfer("read", SYS_read, fd, data, bytes, -1, FROM);
}

ssize_t pread(int fd, void *data, size_t bytes, off_t at) {
  return transfer("pread", SYS_pread64, fd, data, bytes, at, FROM);
}

ssize_t pread64(int fd, void *data, size_t bytes, off_t at) {
  return transfer("pread", SYS_pread64, fd, data, bytes, at, FROM);
}

ssize_t write(int fd, const void *data, size_t bytes) {
  return transfer("write", SYS_write, fd, (void *)data, bytes, -1, FROM);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
  return transfer("pwrite", SYS_pwrite64, fd, (void *)data, bytes, at, FROM);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t at) {
  return transfer("pwrite", SYS_pwrite64, fd, (void *)data, bytes, at, FROM);
}

static bool descriptor_fails(const char *call, int fd, int nature, const void *from) {
  char name[PATH_MAX];
  return file_fails(call, subject == FILES ? name_of(fd, name) : "", nature, from);
}

int fsync(int fd) {
  return descriptor_fails("fsync", fd, ROOM, FROM) ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
  return descriptor_fails("fdatasync", fd, ROOM, FROM) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int ftruncate(int fd, off_t bytes) {
  return descriptor_fails("ftruncate", fd, ROOM, FROM) ? -1
                                                       : (int)syscall(SYS_ftruncate, fd, bytes);
}

int ftruncate64(int fd, off_t bytes) {
  return descriptor_fails("ftruncate", fd, ROOM, FROM) ? -1
                                                       : (int)syscall(SYS_ftruncate, fd, bytes);
}

/* The descriptor is closed even if close fails, as on Linux. */
int close(int fd) {
  bool fails = descriptor_fails("close", fd, 0, FROM);
  int reason = errno, result = (int)syscall(SYS_close, fd);
  if (!fails) return result;
  errno = reason;
  return -1;
}

int rename(const char *from, const char *to) {
  if (file_fails("rename", to, ROOM, FROM)) return -1;
  return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  if (file_fails("renameat", to, ROOM, FROM)) return -1;
  return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, 0);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  if (file_fails("renameat2", to, ROOM, FROM)) return -1;
  return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

int mkdir(const char *path, mode_t mode) {
  if (file_fails("mkdir", path, ROOM, FROM)) return -1;
  return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
  if (file_fails("mkdirat", path, ROOM, FROM)) return -1;
  return (int)syscall(SYS_mkdirat, folder, path, mode);
}

/* The C library's streams call the kernel themselves, so that streams are made of the calls above.
 */

static ssize_t stream_read(void *cookie, char *data, size_t bytes) {
  return transfer("fread", SYS_read, (int)(intptr_t)cookie, (void *)data, bytes, -1,
                  (void *)own_ranges[0].start);
}

static ssize_t stream_write(void *cookie, const char *data, size_t bytes) {
  return transfer("fwrite", SYS_write, (int)(intptr_t)cookie, (void *)data, bytes, -1,
                  (void *)own_ranges[0].start);
}

static int stream_seek(void *cookie, off64_t *offset, int whence) {
  off64_t at = lseek64((int)(intptr_t)cookie, *offset, whence);
  if (at < 0) return -1;
  *offset = at;
  return 0;
}

static int stream_close(void *cookie) {
  bool fails = descriptor_fails("fclose", (int)(intptr_t)cookie, 0, (void *)(own_ranges[0].start));
  int reason = errno, result = (int)syscall(SYS_close, (int)(intptr_t)cookie);
  if (fails) errno = reason;
  return fails ? -1 : result;
}

typedef FILE *open_stream(const char *, const char *);

static FILE *stream(const char *path, const char *mode, const char *name, const void *from) {
  if (subject != FILES || !within(own_ranges, from))
    return ((open_stream *)dlsym(RTLD_NEXT, name))(path, mode);
  int flags = strchr(mode, '+') ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
  if (mode[0] == 'w') flags |= O_CREAT | O_TRUNC;
  if (mode[0] == 'a') flags |= O_CREAT | O_APPEND;
  int fd = open_file(AT_FDCWD, path, flags, 0666, from);
  if (fd < 0) return NULL;
  cookie_io_functions_t calls = {stream_read, stream_write, stream_seek, stream_close};
  return fopencookie((void *)(intptr_t)fd, mode, calls);
}

FILE *fopen(const char *path, const char *mode) {
  return stream(path, mode, "fopen", FROM);
}

FILE *fopen64(const char *path, const char *mode) {
  return stream(path, mode, "fopen64", FROM);
}

/* --- the start --- */

static bool is_packlua(void) {
  char path[PATH_MAX];
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", path, sizeof path - 1);
  path[length > 0 ? length : 0] = '\0';
  const char *slash = strrchr(path, '/');
  return slash && strcmp(slash, "/packlua") == 0;
}

static void choose(const char *name) {
  static const struct {
    const char *name;
    int subject, error;
  } kinds[] = {{"memory", MEMORY, ENOMEM}, {"libraries", LIBRARIES, ENOMEM},
               {"lua", LUA, ENOMEM},       {"EIO", FILES, EIO},
               {"ENOSPC", FILES, ENOSPC},  {"EINTR", FILES, EINTR},
               {"short", FILES, 0}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (strcmp(kinds[i].name, name) != 0) continue;
    error = kinds[i].error;
    lasting = error == ENOSPC;
    subject = kinds[i].subject;
  }
}

__attribute__((constructor)) static void start(void) {
  const char *kind = getenv("PACKLUA_FAULT"), *at = getenv("PACKLUA_FAULT_AT"),
             *file = getenv("PACKLUA_FAULT_REPORT");
  if (!kind || !is_packlua()) return;
  int images = 0;
  dl_iterate_phdr(note_image, &images);
  long fd = file ? syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0) : -1;
  if (fd >= 0) {
    void *shared =
        (void *)syscall(SYS_mmap, NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED) counts = shared;
    syscall(SYS_close, fd);
  }
  target = at ? strtol(at, NULL, 10) : 0;
  unsetenv("PACKLUA_FAULT"); /* programs that packlua starts do not fail */
  choose(kind);
}
