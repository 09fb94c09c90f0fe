/* The C API of packlua, and verbatim the declarations that LuaJIT's FFI reads.
 *
 * Conventions. Functions that can fail return a pk_status (0 is success) and leave a message for
 * pk_error_message(); results come back through pointers, in the argument order context, inputs,
 * outputs, options. "Owned" results are freed with the matching pk_*_free, which accepts NULL.
 * Sizes, counts and offsets are 64-bit. Nothing here calls back into Lua.
 *
 * The text between the two marker lines holds no preprocessor lines: the build embeds it for
 * ffi.cdef. */
#ifndef PACK_H
#define PACK_H

#include <stdint.h>

/* ffi-begin */

typedef enum pk_status {
  PK_OK = 0,
  PK_INVALID = 1,     /* an argument or a shape that the operation does not accept */
  PK_NO_MEMORY = 2,   /* the memory limit, or the device's memory, is reached */
  PK_IO = 3,          /* the operating system refused a read, write or rename */
  PK_FORMAT = 4,      /* bytes from outside that are not what they claim to be */
  PK_UNSUPPORTED = 5, /* valid, but not on this device or in this build */
  PK_DEVICE = 6,      /* the device failed */
  PK_INTERRUPTED = 7  /* asked to stop, before anything was done (pk_interrupt_request) */
} pk_status;

typedef enum pk_dtype { PK_F64 = 0, PK_F32 = 1, PK_BF16 = 2, PK_I32 = 3 } pk_dtype;

/* What a piece of device memory is for; statistics and out-of-memory messages go by category. */
typedef enum pk_category {
  PK_PARAMETERS = 0,
  PK_GRADIENTS = 1,
  PK_MOMENTS = 2,
  PK_ACTIVATIONS = 3,
  PK_DATA = 4,
  PK_WORKSPACE = 5,
  PK_CATEGORIES = 6
} pk_category;

enum {
  PK_MAX_RANK = 6,
  PK_MAX_INPUTS = 12,
  PK_MAX_OUTPUTS = 5,
  PK_MAX_INTEGERS = 6,
  PK_MAX_NUMBERS = 4
};

enum {
  PK_ARENA_ALIGNMENT = 64, /* elements between the starts of an arena's columns */
  PK_IGNORED = -100        /* a target that does not count */
};

/* Places in the guard of a training step, i32 [PK_GUARD_SIZE], and in its scalars, f64
 * [PK_SCALARS_SIZE]; ops.def says what the operations do with them. */
enum {
  PK_GUARD_STOPPED = 0,
  PK_GUARD_WORKER = 1,
  PK_GUARD_STEP = 2,
  PK_GUARD_REASON = 3,
  PK_GUARD_UPDATES = 4,
  PK_GUARD_MIXINGS = 5,
  PK_GUARD_FOUND = 6,
  PK_GUARD_SIZE = 8
};
/* Reasons of a stop; the optimizer gives check_arena further ones. */
enum { PK_REASON_LOSS = 1, PK_REASON_NORM = 2, PK_REASON_LARGE_NORM = 3, PK_REASON_UPDATE = 4 };
enum {
  PK_SCALAR_LR = 0,
  PK_SCALAR_BETA1 = 1,
  PK_SCALAR_BETA2 = 2,
  PK_SCALAR_EPS = 3,
  PK_SCALAR_DECAY = 4,
  PK_SCALAR_CORRECTION1 = 5,
  PK_SCALAR_CORRECTION2 = 6,
  PK_SCALAR_CLIP = 7,
  PK_SCALAR_STEP = 8,
  PK_SCALAR_MIXES = 9,
  PK_SCALARS_SIZE = 12
};

/* --- errors and versions ------------------------------------------------------------------- */

/* The message of the last failed call on this thread: what, where, which values. Borrowed. */
const char *pk_error_message(void);

/* The version of the program, such as "0.1.0"; lua/pack refuses to load against another. */
const char *pk_version(void);

/* "NAME VERSION" of each library in use, the compiler and the git revision, one per line. Borrowed.
 */
const char *pk_build_info(void);

/* The cores that this process may use: those of its affinity mask, and no more than the CPU quotas
 * of its cgroups give time for (rounded, one at least). */
int64_t pk_cores(void);

/* --- contexts ------------------------------------------------------------------------------ */

/* A context owns a device, its memory and its threads. It is used from one thread at a time. */
typedef struct pk_context pk_context;

/* What computes attention: cuDNN where the device has it and it takes the operands, which must be
 * bf16, or the device's own kernels. PK_ATTENTION_CUDNN refuses to do without. */
typedef enum pk_attention {
  PK_ATTENTION_AUTO = 0,
  PK_ATTENTION_CUDNN = 1,
  PK_ATTENTION_FLASH = 2
} pk_attention;

typedef struct pk_context_options {
  const char *device;    /* "cpu" ("cuda:K" and "emu" with the CUDA device) */
  int64_t threads;       /* 0: one per core that this process may use */
  int64_t memory_limit;  /* bytes; 0: what the machine or the cgroup has left, less a margin */
  int64_t forecast;      /* 1: account for memory without taking it; operations compute nothing */
  int64_t deterministic; /* 1: choose nothing by its speed, so that every run has the same bits */
  int64_t attention;     /* a pk_attention */
  const char *without;   /* names of operations, separated by spaces, that are as if the device had
                            no kernel for them; NULL: none */
} pk_context_options;

pk_context_options pk_context_defaults(void);
pk_status pk_context_create(pk_context **context, const pk_context_options *options);

/* Frees device and threads. Tensors that are still alive keep the context until the last is freed.
 */
void pk_context_free(pk_context *context);

/* A line such as "cpu: AMD EPYC, 2 threads, avx2, limit 22.1 GiB". Borrowed. */
const char *pk_context_describe(const pk_context *context);
const char *pk_context_device(const pk_context *context);
const char *pk_context_isa(const pk_context *context);
int64_t pk_context_threads(const pk_context *context);

/* 1 if the device multiplies bf16 matrices faster than f32 ones: what amp=auto goes by. */
int pk_context_has_bf16(const pk_context *context);

/* "cudnn" or "flash": what computes attention of bf16 operands. */
const char *pk_context_attention(const pk_context *context);

/* Waits until everything launched so far has run; reports a device failure. */
pk_status pk_context_synchronize(pk_context *context);

/* Lines for --devices, one per device this binary can use here. Borrowed. */
const char *pk_devices(void);

/* Whether a context on the device of that name could be opened, as far as can be told without
 * opening it; the message says why not. */
pk_status pk_device_check(const char *name);

/* --- memory -------------------------------------------------------------------------------- */

typedef struct pk_memory {
  int64_t used[PK_CATEGORIES]; /* bytes held by live tensors and workspaces, by pk_category */
  int64_t peak[PK_CATEGORIES]; /* what each category held when the total peaked */
  int64_t total;               /* sum of used */
  int64_t total_peak;          /* high-water mark of total since the last reset */
  int64_t reserved;            /* bytes held from the system, cached blocks included */
  int64_t limit;       /* on total; blocks that wait are given back before reserved passes it */
  int64_t allocations; /* tensor buffers handed out so far */
  int64_t live;        /* tensor buffers alive now */
} pk_memory;

void pk_memory_read(const pk_context *context, pk_memory *memory);
void pk_memory_reset_peak(pk_context *context);
const char *pk_category_name(int category);

/* Gives cached blocks back to the system. */
void pk_memory_trim(pk_context *context);

/* 1 if Lua's collector should run: more was allocated since it last did than half of what was alive
 * then, and than 64 MiB. */
int pk_memory_presses(const pk_context *context);
/* Notes that it ran. */
void pk_memory_collected(pk_context *context);

/* --- tensors ------------------------------------------------------------------------------- */

typedef struct pk_storage pk_storage;

/* A tensor is dense and row-major, except that dimension 0 (the worker) has a stride of its own.
 * The fields are for reading only; lua/pack/native.lua gives the 64-bit ones other names, which
 * Lua code reads as numbers (pack.tensor). A tensor holds a share of its storage: a view keeps its
 * arena. */
typedef struct pk_tensor {
  pk_context *context;
  pk_storage *storage;
  int64_t offset; /* elements from the start of the storage */
  int64_t shape[PK_MAX_RANK];
  int64_t stride; /* elements from one entry of dimension 0 to the next */
  int64_t numel;
  int32_t rank; /* 0 for a scalar */
  int32_t dtype;
} pk_tensor;

/* A new tensor, zeroed. Owned. Errors: a negative or overflowing shape, no memory. */
pk_status pk_tensor_create(pk_context *context, pk_tensor **tensor, int dtype, int rank,
                           const int64_t *shape, int category);
void pk_tensor_free(pk_tensor *tensor);

/* A tensor may also live in a struct of the caller's (a binding's object): move takes over what
 * tensor owns into *into, whose content is overwritten, and frees the rest of tensor. Such a struct
 * is given up with pk_tensor_release, which also makes any tensor unusable: storage becomes NULL,
 * and everything but release and free refuses it. Releasing twice is harmless. */
void pk_tensor_move(pk_tensor *tensor, pk_tensor *into);
void pk_tensor_release(pk_tensor *tensor);

/* A view of base's storage: shape, stride of dimension 0 and first element (from base's first), in
 * elements. Edits are seen by both. Owned. Errors: a view that would leave base's storage. */
pk_status pk_tensor_view(const pk_tensor *base, pk_tensor **view, int rank, const int64_t *shape,
                         int64_t stride, int64_t offset);

/* Copies numel elements of the tensor's dtype between host memory (dense) and the tensor; bytes
 * must be numel * pk_dtype_size. Reading waits for the device. */
pk_status pk_tensor_write(pk_tensor *tensor, const void *data, int64_t bytes);
pk_status pk_tensor_read(const pk_tensor *tensor, void *data, int64_t bytes);

/* How often the memory that the tensor shares was written to: from the host, by operations and by
 * runs of programs. Tells whether a copy is up to date. 0 for a freed tensor. */
int64_t pk_tensor_writes(const pk_tensor *tensor);

/* The same with writes that were only recorded, by operations of a program: differs from what it
 * was if the tensor does not hold, or will not when the program runs, what it did. */
int64_t pk_tensor_version(const pk_tensor *tensor);

/* One element by its flat index, as a double; for printing and small results. */
pk_status pk_tensor_get(const pk_tensor *tensor, int64_t index, double *value);

/* All numel elements as doubles, and from doubles, rounded once to nearest even. A NaN is read as
 * the plain one. Errors: a value that is no i32 written to an i32 tensor. */
pk_status pk_tensor_read_numbers(const pk_tensor *tensor, double *values);
/* The same of several tensors of one context, those of tensor t to values[t], with one wait for the
 * device. */
pk_status pk_tensors_read_numbers(const pk_tensor *const *tensors, int64_t count,
                                  double *const *values);
pk_status pk_tensor_write_numbers(pk_tensor *tensor, const double *values);

typedef struct pk_statistics {
  int64_t count, finite;   /* elements, and how many of them are neither infinite nor NaN */
  double minimum, maximum; /* these and the next are of the finite ones; 0 if there are none */
  double mean, deviation;  /* the deviation divides by their number */
} pk_statistics;

pk_status pk_tensor_statistics(const pk_tensor *tensor, pk_statistics *statistics);

/* Makes every NaN among the values the plain one, as an interpreter needs it that keeps its types
 * in the bits of NaNs: for doubles from outside, such as a file's. */
void pk_numbers_plain(double *values, int64_t count);

/* Fills every entry of dimension 0 with the same values: elements 0, 1, ... of the stream of
 * normals named by (seed, name) (see pk_random_normal), made on the host by as many threads as the
 * device has. */
pk_status pk_tensor_seed_normal(pk_tensor *tensor, uint64_t seed, const char *name, double mean,
                                double deviation);

int64_t pk_dtype_size(int dtype);
const char *pk_dtype_name(int dtype);

/* --- operations ---------------------------------------------------------------------------- */

typedef enum pk_op_flags {
  PK_OP_DIFFERENTIABLE = 1, /* lua/pack/grad/init.lua has a rule for it */
  PK_OP_ACCUMULATES = 2,    /* outputs may be added to, by pk_attributes.accumulate */
  PK_OP_IN_PLACE = 4,       /* writes to some of its inputs (marked ! in their names) */
  PK_OP_VIEW = 8,           /* the output shares its input's storage */
  PK_OP_VARIADIC = 16,      /* takes 1 .. PK_MAX_INPUTS inputs */
  PK_OP_REUSES = 32         /* an output may be in the memory of an input of its shape and dtype */
} pk_op_flags;

typedef struct pk_op_info {
  const char *name;
  const char *inputs;     /* names; "b?" may be absent (NULL), "x!" is written to */
  const char *outputs;    /* names */
  const char *attributes; /* "axis:i eps:d shape:l": i integer or boolean, d number, l list, in the
                             order of pk_attributes.integers and .numbers; at most one list */
  const char *summary;
  int32_t flags;
  int32_t n_inputs;
  int32_t n_outputs;
} pk_op_info;

typedef struct pk_attributes {
  int64_t integers[PK_MAX_INTEGERS];
  double numbers[PK_MAX_NUMBERS];
  int64_t list[PK_MAX_RANK];
  int32_t list_count;
  int32_t accumulate; /* bit o set: output o, given by the caller, is added to, not overwritten */
} pk_attributes;

int pk_op_count(void);
const pk_op_info *pk_op_describe(int op); /* NULL if there is no such number */

/* Runs one operation. inputs[i] may be NULL where the row says so. outputs[o] that is NULL on entry
 * becomes a new tensor (owned, category activations); one that is given must have the shape and
 * dtype that the row's rule says, and is written. On failure no new tensor is left behind. */
pk_status pk_op_run(pk_context *context, int op, const pk_tensor *const *inputs, int n_inputs,
                    pk_tensor **outputs, int n_outputs, const pk_attributes *attributes);

/* --- recorded programs --------------------------------------------------------------------- */

/* A list of operations that was recorded once and is run again and again, with the memory of its
 * intermediate tensors planned beforehand. */
typedef struct pk_program pk_program;

/* From now on the context's operations are checked and recorded, not run, until pk_program_end or
 * pk_program_free. Tensors made meanwhile belong to the program. Owned. */
pk_status pk_program_begin(pk_context *context, pk_program **program);

/* Which results a program makes again instead of keeping them while they wait for a later use. */
typedef enum pk_recompute {
  PK_RECOMPUTE_NONE = 0,
  PK_RECOMPUTE_CHEAP = 1,   /* those that take no product: norms, activations, casts */
  PK_RECOMPUTE_AUTO = 2,    /* and products that save most, up to a twentieth more operations */
  PK_RECOMPUTE_PRODUCTS = 3 /* all products that can be */
} pk_recompute;

/* Ends the recording: drops operations that nothing reads, rewrites the list and plans memory.
 * results are the tensors whose values stay readable after a run, until the next one, and the only
 * ones made while recording that can be used at all; recompute is a pk_recompute. */
pk_status pk_program_end(pk_program *program, const pk_tensor *const *results, int64_t n_results,
                         int recompute);

/* Takes the planned memory, once. After PK_NO_MEMORY it may be tried again. */
pk_status pk_program_prepare(pk_program *program);

/* The same for programs of one context that run one after the other: they share one piece of
 * memory, as large as the largest of them needs. The results of one are readable until another
 * runs. */
pk_status pk_programs_prepare(pk_program *const *programs, int64_t count);

/* Runs the operations in order, after pk_program_prepare. From the second run on a device that has
 * graphs launches all of them as one. */
pk_status pk_program_run(pk_program *program);

/* Why a device that has graphs made none of the program, which is then run operation by operation;
 * "" if there is nothing to say. Borrowed. */
const char *pk_program_remark(const pk_program *program);

/* Frees the program; results that are alive keep its memory. */
void pk_program_free(pk_program *program);

typedef struct pk_program_plan {
  int64_t recorded;    /* operations recorded */
  int64_t dropped;     /* of these, dropped as nothing reads their results */
  int64_t merged;      /* pairs of an operation and its gradient that became one operation */
  int64_t fused;       /* casts and additions that their neighbours took over */
  int64_t recomputed;  /* operations that run again instead of keeping their results */
  int64_t operations;  /* operations that run */
  int64_t buffers;     /* tensors that belong to the program */
  int64_t activations; /* bytes of these, at the time when most are in use */
  int64_t workspace;   /* bytes of the largest workspace */
  int64_t slab;        /* bytes that the program takes in all */
} pk_program_plan;

void pk_program_read_plan(const pk_program *program, pk_program_plan *plan);

/* One line about operation index: name, and dtype, shape and place (bytes in the slab, or
 * "outside") of its inputs and outputs, cut off at size bytes. */
pk_status pk_program_describe(const pk_program *program, int64_t index, char *text, int64_t size);

/* --- traces -------------------------------------------------------------------------------- */

/* What a context's operations were and when they ran, eager and recorded. Events beyond the
 * capacity are counted, not kept. In a context that is a forecast, operations are noted too, though
 * they take no time. */
typedef struct pk_trace pk_trace;

typedef struct pk_trace_tensor {
  int32_t dtype; /* -1: absent */
  int32_t rank;
  int64_t shape[PK_MAX_RANK];
} pk_trace_tensor;

/* What calls of one operation with the same shapes, dtypes and attributes have in common. */
typedef struct pk_trace_form {
  pk_attributes attributes;
  pk_trace_tensor inputs[PK_MAX_INPUTS];
  pk_trace_tensor outputs[PK_MAX_OUTPUTS];
  int32_t op;
  int32_t n_inputs;
  int32_t n_outputs;
  int32_t again; /* 1 if a program computes it again to save memory */
} pk_trace_form;

/* An operation (form >= 0), on lane 0, or what one of the device's lanes did (form -1): a thread of
 * the CPU for an operation (lanes 1 .. threads), or something that has a name, such as a GPU's
 * kernel on a lane that has one too. */
typedef struct pk_trace_event {
  int64_t start, end; /* nanoseconds since the trace began */
  int64_t operation;  /* the operation's number in the trace; of a lane: -1 where it is for none */
  int64_t form;
  int64_t memory; /* of an operation: bytes in use as it ended, its workspace included; of a copy or
                   * a fill: its bytes */
  int64_t busy;   /* of a lane: nanoseconds of these at work */
  int64_t pieces; /* of a thread: how many pieces of the operation it did */
  int32_t lane;
  int32_t phase; /* of an operation: what pk_phase_enter said when it was made or recorded */
  int32_t step;  /* of an operation: how often pk_trace_step was called before */
  int32_t name;  /* of a lane: what it did, as pk_trace_name knows; -1: a thread's pieces */
} pk_trace_event;

/* Owned. Errors: PK_INVALID if the context is traced already. */
pk_status pk_trace_begin(pk_context *context, int64_t capacity, pk_trace **trace);

/* Ends the trace; what it holds stays until it is freed. Twice is harmless. */
void pk_trace_end(pk_trace *trace);
void pk_trace_free(pk_trace *trace);

/* Operations from here on belong to the next step. */
void pk_trace_step(pk_trace *trace);

/* Borrowed; events of lanes follow that of their operation. */
const pk_trace_event *pk_trace_events(const pk_trace *trace, int64_t *count);
const pk_trace_form *pk_trace_forms(const pk_trace *trace, int64_t *count);
int64_t pk_trace_dropped(const pk_trace *trace);

/* The name of a lane, and of what lanes did (pk_trace_event.name). Borrowed; NULL for a number
 * without one. */
const char *pk_trace_lane(const pk_trace *trace, int lane);
const char *pk_trace_name(const pk_trace *trace, int name);

/* What the trace lacks, and why: sentences, or nothing. Borrowed. */
const char *pk_trace_note(const pk_trace *trace);

/* From now on the context's operations are for this phase, a number of the caller's (0: none),
 * which traces show; recorded operations keep theirs. Returns the phase before. */
int pk_phase_enter(pk_context *context, int phase);

/* --- ranges for tools --- */

/* A name for what the host does until pk_range_leave, for a tool that is attached to the process,
 * such as Nsight Systems; they nest. Operations have theirs by themselves. Nothing happens where no
 * tool is. */
void pk_range_enter(pk_context *context, const char *name);
void pk_range_leave(pk_context *context);

/* From now on it is step number `step`, until the next one begins. */
void pk_range_step(pk_context *context, int64_t step);

/* --- random numbers ------------------------------------------------------------------------ */

/* Philox4x32-10 (Salmon et al. 2011): four 32-bit words from a 128-bit counter and a 64-bit key. */
void pk_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]);

/* FNV-1a, 64 bits. */
uint64_t pk_fnv1a(const void *data, int64_t bytes);

/* count values of N(mean, deviation) for elements first, first+1, ... of the stream named by (seed,
 * name); f64 arithmetic without contraction, so the same bits on every machine. */
void pk_random_normal(uint64_t seed, const char *name, int64_t first, int64_t count, double mean,
                      double deviation, double *values);
/* The same, uniform in [0, 1). */
void pk_random_uniform(uint64_t seed, const char *name, int64_t first, int64_t count,
                       double *values);

/* A permutation of 0 .. count-1 by Fisher-Yates from the stream (seed, name). */
void pk_random_permutation(uint64_t seed, const char *name, int64_t count, int64_t *permutation);

/* --- files --------------------------------------------------------------------------------- */

/* Reads a whole file of at most limit bytes. *data ends with a NUL that *bytes does not count. Free
 * it with pk_bytes_free. Errors: missing, not a regular file, larger than limit, unreadable. */
pk_status pk_file_read(const char *path, char **data, int64_t *bytes, int64_t limit);
void pk_bytes_free(char *data);

/* Writes path through a temporary file, fsync, rename and fsync of the folder: either the old
 * content or the whole new one is there, whatever happens. */
pk_status pk_file_write(const char *path, const void *data, int64_t bytes);

/* Appends to path, creating it. */
pk_status pk_file_append(const char *path, const void *data, int64_t bytes);

/* A file that grows, created if there is none; a link is not followed. *file is what to append to,
 * and to close; closing none, -1, is harmless. path is for messages. */
pk_status pk_append_open(const char *path, int *file);
pk_status pk_append(int file, const char *path, const void *data, int64_t bytes);
pk_status pk_append_close(int file, const char *path);

/* How many whole lines there are at the beginning of a file, at most `lines`, and how many bytes
 * those have; reads no further. */
pk_status pk_file_lines(const char *path, int64_t lines, int64_t *found, int64_t *bytes);

/* Cuts a file to its first bytes; a link is not followed. */
pk_status pk_file_cut(const char *path, int64_t bytes);

/* Writes the first bytes of path as a new file, whole or not at all. */
pk_status pk_file_copy(const char *path, int64_t bytes, const char *to);

/* Whether there is a symbolic link at path, wherever it leads. */
int pk_path_is_link(const char *path);

/* 'f' file, 'd' directory, 'o' another kind, 0 nothing there. */
int pk_path_kind(const char *path);
/* The path from the root, without links, into text, of at least 4096 bytes. Returns 0, or -1 if
 * there is no such file. */
int pk_path_real(const char *path, char *text);

/* Size in bytes, or -1. */
int64_t pk_file_size(const char *path);

/* mkdir -p. */
pk_status pk_directory_create(const char *path);

/* Makes a directory that is not there yet, and those above it; *made is 0 if there is something of
 * this name. Of several processes one alone makes it. */
pk_status pk_directory_claim(const char *path, int *made);

/* Makes a new directory for files that are soon removed, in TMPDIR, /tmp or /var/tmp: its path, to
 * be freed by pk_bytes_free. */
pk_status pk_directory_temporary(char **path);

/* Removes an empty directory. */
pk_status pk_directory_remove(const char *path);

/* Names in a directory (without . and ..), sorted, each followed by a newline; free with
 * pk_bytes_free. */
pk_status pk_directory_list(const char *path, char **names);

/* Seconds: of a clock that never goes back, and since 1970 UTC. */
double pk_clock(void);
double pk_time(void);

/* 1 if the file descriptor is a terminal. */
int pk_is_terminal(int fd);

/* Columns of the terminal behind a file descriptor; 0 if there is none or it does not say. */
int pk_terminal_width(int fd);

/* Locks path, a file for this purpose alone, against every other process until pk_file_unlock or
 * the end of this one; never waits. *lock is what to unlock. Errors: PK_INVALID if it is locked
 * (the message names the process), PK_UNSUPPORTED on a file system without locks, PK_IO. */
pk_status pk_file_lock(const char *path, int *lock);
void pk_file_unlock(int lock);

/* Bytes that may be written to the disk of a folder; infinite, with a remark, where the file system
 * does not say. Errors: PK_IO, no such folder. */
pk_status pk_disk_room(const char *folder, double *bytes);

/* What the file systems that were written to could not do so far and the library did without, such
 * as bringing a folder to disk: a sentence, one each of few, from index 0 on; NULL after the last.
 * Lives as long as the process. */
const char *pk_file_remark(int index);

/* --- values: JSON, YAML and Lua tables from outside ------------------------------------------ */

typedef enum pk_value_kind {
  PK_VALUE_NULL = 0,
  PK_VALUE_BOOLEAN = 1,
  PK_VALUE_NUMBER = 2,
  PK_VALUE_STRING = 3,
  PK_VALUE_ARRAY = 4,
  PK_VALUE_OBJECT = 5
} pk_value_kind;

/* A parsed value; children are borrowed from the root. */
typedef struct pk_value pk_value;

/* The number that a text is in decimal, such as "-1.5e3". Returns NULL, or what is wrong with the
 * text: it is no number, or one that a double cannot hold as it is meant. Borrowed. */
const char *pk_number_read(const char *text, double *number);

/* name is what error messages call the text, such as its path. Integers of magnitude 2^53 and
 * above, duplicate keys and nesting beyond 64 levels are refused in all three. */
pk_status pk_value_from_json(const char *text, int64_t bytes, const char *name, pk_value **root);
pk_status pk_value_from_yaml(const char *text, int64_t bytes, const char *name, pk_value **root);

/* Runs text, a Lua chunk that returns a table, in a state of its own: no globals, no string
 * methods, no bytecode, compiler off, at most 10 million instructions, 64 MiB and 5 seconds. */
pk_status pk_value_from_lua(const char *text, int64_t bytes, const char *name, pk_value **root);
void pk_value_free(pk_value *root);

int pk_value_get_kind(const pk_value *value);
double pk_value_get_number(const pk_value *value); /* booleans: 0 or 1 */
const char *pk_value_get_string(const pk_value *value, int64_t *bytes);
const pk_value *pk_value_first(const pk_value *value); /* first child, or NULL */
const pk_value *pk_value_next(const pk_value *value);  /* next sibling, or NULL */
const char *pk_value_key(const pk_value *value);       /* key of an object's child, or NULL */

/* The byte that stands for a number in the text that pk_json_fill takes. */
enum { PK_JSON_NUMBER = 1 };

/* Writes JSON text with numbers in the places that form has for them; text has room for so many
 * bytes: form's, and 32 more for each number and at the end. Returns the bytes written, without a
 * NUL, or -1 if there is no room or a number is not finite, below 1e-15 and not 0, or 2^53 or more:
 * this is for the many that are not. */
int64_t pk_json_fill(const char *form, const double *numbers, char *text, int64_t room);

/* --- safetensors --------------------------------------------------------------------------- */

typedef struct pk_safetensors pk_safetensors;

typedef struct pk_safetensors_entry {
  const char *name;
  const char *dtype; /* as in the file: "F64", "F32", "BF16", "I32", "U16", ... */
  int64_t shape[8];
  int32_t rank;
  int64_t offset; /* bytes from the start of the data part */
  int64_t bytes;
} pk_safetensors_entry;

/* Opens and checks a file: header size and JSON, offsets inside the file, in order, without holes
 * or overlap, sizes equal to shape times dtype, names unique. Owned. */
pk_status pk_safetensors_open(const char *path, pk_safetensors **file);
void pk_safetensors_close(pk_safetensors *file);
int64_t pk_safetensors_count(const pk_safetensors *file);
pk_status pk_safetensors_describe(const pk_safetensors *file, int64_t index,
                                  pk_safetensors_entry *entry);
/* Value of a __metadata__ key, or NULL; and the key at an index, or NULL. Borrowed. */
const char *pk_safetensors_metadata(const pk_safetensors *file, const char *key);
const char *pk_safetensors_metadata_key(const pk_safetensors *file, int64_t index);
pk_status pk_safetensors_read(pk_safetensors *file, int64_t index, void *data, int64_t bytes);

/* The same for a part of the tensor: bytes of it from byte first on. */
pk_status pk_safetensors_read_part(pk_safetensors *file, int64_t index, int64_t first, void *data,
                                   int64_t bytes);

/* Converts count elements of a file's dtype (F64, F32, F16, BF16, BOOL and the integers) to those
 * of a pk_dtype, rounded once to nearest even. Errors: a dtype without conversion; PK_I32 of a
 * value that is no i32; an integer of magnitude 2^53 or above. */
pk_status pk_convert(int dtype, void *into, const char *file_dtype, const void *values,
                     int64_t count);

typedef struct pk_safetensors_writer pk_safetensors_writer;

/* Writing: create, declare metadata and every tensor, then their data in the declared order, each
 * in one piece or several, then finish, which publishes the file atomically. Freeing an unfinished
 * writer removes its temporary. */
pk_status pk_safetensors_writer_create(const char *path, pk_safetensors_writer **writer);
pk_status pk_safetensors_writer_metadata(pk_safetensors_writer *writer, const char *key,
                                         const char *value);
pk_status pk_safetensors_writer_declare(pk_safetensors_writer *writer, const char *name,
                                        const char *dtype, int rank, const int64_t *shape);
pk_status pk_safetensors_writer_data(pk_safetensors_writer *writer, const void *data,
                                     int64_t bytes);
pk_status pk_safetensors_writer_finish(pk_safetensors_writer *writer);
void pk_safetensors_writer_free(pk_safetensors_writer *writer);

/* --- writing in the background --------------------------------------------------------------- */

/* Copies of tensors and metadata that become a safetensors file. */
typedef struct pk_snapshot pk_snapshot;

/* level 0: a plain file. Otherwise zstd's level, and in how many threads it compresses: the file
 * is then safetensors inside zstd frames with checksums, which pk_safetensors_open reads too. */
pk_status pk_snapshot_create(const char *path, int level, int threads, pk_snapshot **snapshot);
void pk_snapshot_free(pk_snapshot *snapshot);
pk_status pk_snapshot_metadata(pk_snapshot *snapshot, const char *key, const char *value);

/* Copies a tensor now, under a shape of as many elements. Largest dtypes first. */
pk_status pk_snapshot_tensor(pk_snapshot *snapshot, const char *name, const pk_tensor *tensor,
                             int rank, const int64_t *shape);

/* One thread of low priority that writes snapshots in order. Each file is written under a temporary
 * name, brought to disk, read back and compared with the snapshot, and only then gets its name. */
typedef struct pk_saver pk_saver;

typedef struct pk_saver_progress {
  int64_t submitted; /* snapshots so far */
  int64_t finished;  /* of these written, read back and published */
  double seconds;    /* that the last one took */
  int64_t bytes;     /* of its file */
} pk_saver_progress;

pk_status pk_saver_create(pk_saver **saver);

/* Waits until everything is written, or has failed. */
void pk_saver_free(pk_saver *saver);

/* Hands a snapshot over, which belongs to the saver afterwards, also on failure. Errors: the disk
 * has less room than all unfinished snapshots need; the saver has failed before. */
pk_status pk_saver_submit(pk_saver *saver, pk_snapshot *snapshot);

/* Waits at most so many seconds for all snapshots, and reads the counts. Returns the failure of a
 * snapshot, now and at every later call; those after it are given up. */
pk_status pk_saver_poll(pk_saver *saver, double seconds, pk_saver_progress *progress);

/* --- signals --------------------------------------------------------------------------------- */

/* From now on SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGXCPU and SIGPIPE leave only a note,
 * which pk_signals_pending returns: the number of the first that came, or 0. What the program's
 * caller has ignored stays ignored. A second SIGINT ends the process at once with 130, or is a
 * pk_interrupt_request where the process stays (pk_signals_stay). Holding again forgets the note.
 * Whatever way a script ends, the program releases. */
void pk_signals_hold(void);
int pk_signals_pending(void);
void pk_signals_release(void);
void pk_signals_stay(void);

/* While wanted, what is noted is a pk_interrupt_request too, what was noted before included: for
 * long work that need not be finished. */
void pk_signals_ask(int wanted);

/* Asks what runs to stop: the next operation, or the next one of a recorded program, returns
 * PK_INTERRUPTED instead of running, once. A program's run is whole or nothing: it stops only
 * before its first write to memory from outside that is not of category gradients. May be called
 * in a signal handler; forget takes the request back. */
void pk_interrupt_request(void);
int pk_interrupt_requested(void);
void pk_interrupt_forget(void);

/* What a request must wait for, as parts of a change belong together: nothing; the end of Lua code,
 * though operations may still be refused; also operations. hold returns the level before. */
enum { PK_HOLD_NOTHING = 0, PK_HOLD_CODE = 1, PK_HOLD_ALL = 2 };
int pk_interrupt_hold(int level);
int pk_interrupt_held(void);

/* PK_INTERRUPTED if there is a request that is not held, which is thereby answered. For loops
 * without operations. */
pk_status pk_interrupt_check(void);

/* --- processes -------------------------------------------------------------------------------- */

/* A child process. It never outlives this one, nor does what it started, where it leads a group. */
typedef struct pk_process pk_process;

typedef struct pk_process_options {
  const char *const *command; /* program (looked for in PATH if it has no slash) and arguments; NULL
                                 ends them */
  const char *const *environment; /* "NAME=VALUE" to add to this one's; NULL ends them; or NULL */
  const char *log;   /* file to which output and errors are appended; NULL: where this one's go */
  int32_t own_group; /* 1: a process group of its own, which a terminal's ^C does not reach */
} pk_process_options;

typedef struct pk_process_state {
  int32_t finished;
  int32_t code;     /* exit code; -1 if a signal ended it */
  int32_t signal;   /* that signal, else 0 */
  int64_t peak_rss; /* bytes; at least what this process held when the child was started */
  double user_seconds;
  double system_seconds;
  double seconds; /* since the start, until the end if finished */
} pk_process_state;

pk_process_options pk_process_defaults(void);

/* Starts a program, with standard input empty. Owned. Errors: PK_INVALID if there is no such
 * program, PK_IO. */
pk_status pk_process_start(const pk_process_options *options, pk_process **process);

/* Waits at most so many seconds for the end, and less if a signal comes to this process. Once the
 * program has ended, what is left of its own group is killed. */
pk_status pk_process_poll(pk_process *process, double seconds, pk_process_state *state);
int64_t pk_process_id(const pk_process *process);

/* Sends a signal to the process, and to all of its group if that is its own; nothing if it has
 * ended. */
pk_status pk_process_signal(pk_process *process, int number);

/* Kills what still runs. */
void pk_process_free(pk_process *process);

/* The path of this program's file. */
pk_status pk_program_path(char *path, int64_t size);

/* --- token caches and loaders -------------------------------------------------------------- */

/* A sequence of token ids, in memory or in the files of a cache. Not changed by being read, so that
 * several readers and threads may share it. */
typedef struct pk_tokens pk_tokens;

/* count ids of width bytes (2: u16, 4: u32) that the caller keeps for as long as the result is
 * used; ids must be below vocabulary, which is checked where they are read. Owned. */
pk_status pk_tokens_from_memory(const void *ids, int64_t count, int width, int64_t vocabulary,
                                pk_tokens **tokens);
/* Parts of sequences one after the other as one sequence: of sources[i] the counts[i] ids from
 * firsts[i] on. It takes a share of them. Owned. Errors: a part outside its sequence, ids of
 * different widths, no part. */
pk_status pk_tokens_join(const pk_tokens *const *sources, const int64_t *firsts,
                         const int64_t *counts, int64_t parts, pk_tokens **tokens);
void pk_tokens_free(const pk_tokens *tokens);
int64_t pk_tokens_count(const pk_tokens *tokens);

/* Ids first .. first+count-1. Errors: a range outside the sequence; of a cache: a file that is
 * missing, shorter or longer than the manifest says, damaged, or holds an id outside the
 * vocabulary. */
pk_status pk_tokens_read(const pk_tokens *tokens, int64_t first, int64_t count, int32_t *ids);

/* A token cache: a folder with a manifest.json of version 1 and shards of ids. */
typedef struct pk_cache pk_cache;

/* Opens a cache: checks the manifest, its identity, and that every shard is there with its size.
 * Owned. Errors name the file or key and both values. */
pk_status pk_cache_open(const char *folder, pk_cache **cache);
void pk_cache_free(pk_cache *cache);

/* The text of the manifest, and the tokens of a split (NULL: there is no such split). Borrowed. */
const char *pk_cache_manifest(const pk_cache *cache, int64_t *bytes);
const pk_tokens *pk_cache_split(const pk_cache *cache, const char *split);

/* Reads every byte of a cache and compares it with the manifest: checksums of files and of tokens,
 * and that ids are below the vocabulary. Errors name the file; PK_INTERRUPTED at a request. */
pk_status pk_cache_verify(const pk_cache *cache);

/* Training batches without end: sample k is the ids kT .. kT+T, T inputs and T targets. See
 * docs/data.md for their order, which depends on these options alone. */
typedef struct pk_loader pk_loader;

typedef struct pk_loader_options {
  int64_t context_length;   /* T */
  int64_t num_models;       /* workers, N */
  int64_t micro_batch_size; /* sequences per worker and micro-step, B */
  int64_t accumulation;     /* micro-steps per batch, M */
  int64_t limit_tokens;     /* only this many first tokens are used; 0: all */
  int64_t buffer_bytes; /* ids that are shuffled together and held in memory; prefetch holds twice
                           that */
  int64_t cursor;       /* samples of the endless stream that were taken before */
  uint64_t seed;
  int32_t prefetch; /* 1: a thread reads ahead */
} pk_loader_options;

pk_loader_options pk_loader_defaults(void);

/* Owned; it takes a share of tokens. Errors: no whole sample, options out of range, no memory. */
pk_status pk_loader_create(const pk_tokens *tokens, pk_loader **loader,
                           const pk_loader_options *options);

/* Stops and joins the thread. */
void pk_loader_free(pk_loader *loader);

/* The next M*N*B samples as arrays [M][N, B, T]: sample r of a batch goes to worker r mod N, row r
 * div N. After an error every later call returns it again. */
pk_status pk_loader_next(pk_loader *loader, int32_t *tokens, int32_t *targets);

/* Samples taken so far: the cursor with which a new loader goes on from here. */
int64_t pk_loader_cursor(const pk_loader *loader);

/* Samples of one pass, and the ranges in which they are shuffled. */
int64_t pk_loader_samples(const pk_loader *loader);
int64_t pk_loader_ranges(const pk_loader *loader);

/* Evaluation blocks: all ids in order, once; block k has the inputs kT .. kT+T-1, and the last one
 * is padded with inputs 0 and targets -100. */
typedef struct pk_blocks pk_blocks;

typedef struct pk_blocks_options {
  int64_t context_length;
  int64_t batch_size; /* blocks handed out at once */
  int64_t subset;     /* this many blocks, chosen by seed; 0, or as many as there are: all */
  uint64_t seed;
} pk_blocks_options;

/* Owned; it takes a share of tokens. Errors: fewer than two tokens, options out of range, no
 * memory. */
pk_status pk_blocks_create(const pk_tokens *tokens, pk_blocks **blocks,
                           const pk_blocks_options *options);
void pk_blocks_free(pk_blocks *blocks);

/* The next blocks as arrays [batch_size, T]; *rows says how many are real (the others are padding),
 * 0 at the end. Rewinding begins again. */
pk_status pk_blocks_next(pk_blocks *blocks, int32_t *tokens, int32_t *targets, int64_t *rows);
void pk_blocks_rewind(pk_blocks *blocks);

/* How many blocks the stream hands out, how many there are, and the targets of the former. */
int64_t pk_blocks_count(const pk_blocks *blocks);
int64_t pk_blocks_total(const pk_blocks *blocks);
int64_t pk_blocks_targets(const pk_blocks *blocks);

/* --- tokenizers ---------------------------------------------------------------------------- */

typedef struct pk_tokenizer pk_tokenizer;

/* spec is "bytes" (ids 0 .. 255 and 256 for the end of a document) or the path of a SentencePiece
 * model, which must have a piece for the end of a text. Owned; may be used by many threads at once.
 */
pk_status pk_tokenizer_open(const char *spec, pk_tokenizer **tokenizer);
void pk_tokenizer_free(pk_tokenizer *tokenizer);

int64_t pk_tokenizer_vocab_size(const pk_tokenizer *tokenizer);
int64_t pk_tokenizer_eos(const pk_tokenizer *tokenizer);
int64_t pk_tokenizer_unknown(const pk_tokenizer *tokenizer);  /* -1 if there is none */
const char *pk_tokenizer_kind(const pk_tokenizer *tokenizer); /* "bytes" or "sentencepiece" */
/* SHA-256 of the model file, or "" for bytes. Borrowed. */
const char *pk_tokenizer_sha256(const pk_tokenizer *tokenizer);

/* The ids of UTF-8 text, without begin or end. Free them with pk_ids_free. */
pk_status pk_tokenizer_encode(const pk_tokenizer *tokenizer, const char *text, int64_t bytes,
                              int32_t **ids, int64_t *count);
void pk_ids_free(int32_t *ids);

/* The text of ids; those of control pieces give nothing. *text ends with a NUL that *bytes does not
 * count; free it with pk_bytes_free. Errors: an id outside the vocabulary. */
pk_status pk_tokenizer_decode(const pk_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                              char **text, int64_t *bytes);

/* How a piece is written, such as "\xe2\x96\x81the", or NULL outside the vocabulary; free it with
 * pk_bytes_free. */
char *pk_tokenizer_piece(const pk_tokenizer *tokenizer, int64_t id);

/* --- preparing a token cache ---------------------------------------------------------------- */

typedef struct pk_prepare_options {
  const char *tokenizer;    /* as in pk_tokenizer_open */
  const char *output;       /* the folder that will be there when all is done */
  const char *const *train; /* files of documents, in order */
  const char *const *validation;
  int64_t train_count;
  int64_t validation_count;
  const char *field; /* key of the text in JSON objects */
  int64_t workers;   /* threads that tokenize; 0: one per core. Any number gives the same tokens */
  int64_t shuffle_seed;
  int64_t shuffle_buffer; /* documents shuffled together; 1 keeps their order */
  int64_t shuffle_bytes;  /* and at most this much text */
  int64_t shard_tokens;
  int64_t max_train_tokens; /* 0: all */
  int64_t max_validation_tokens;
  int32_t zstd_level; /* 0: shards are not compressed */
  int32_t text_unit;  /* a document of a .txt file is 0 the file, 1 a line, 2 a paragraph */
  int32_t format;     /* files hold 0 what their names say, 1 text, 2 JSON lines or an array */
  int32_t skip_bad;   /* 1: bad documents are skipped and counted; 0: they end it all */
} pk_prepare_options;

typedef struct pk_prepare_progress {
  int32_t finished;   /* 1 when the threads are done, well or not */
  int32_t validation; /* 1 while it is the validation split's turn */
  int64_t done_bytes; /* stored bytes read so far, of both splits */
  int64_t total_bytes;
  int64_t documents[2]; /* written, of train and validation */
  int64_t tokens[2];    /* with the one that ends each document */
  int64_t unknown[2];   /* tokens that stand for text the tokenizer has no piece for */
  int64_t skipped[2];   /* bad documents */
  int64_t empty[2];     /* documents without text */
  int64_t replaced[2];  /* surrogates alone that became U+FFFD */
  int64_t text_bytes[2];
  int32_t complete[2]; /* 0 if a limit of tokens cut the split off; final when finished */
} pk_prepare_progress;

/* A running preparation. */
typedef struct pk_prepare pk_prepare;

pk_prepare_options pk_prepare_defaults(void);

/* Checks everything that can be checked beforehand, locks the output and starts the threads. Owned.
 * Errors: files missing or of unknown kind, a bad tokenizer, an output that exists or that another
 * preparation is writing. */
pk_status pk_prepare_start(const pk_prepare_options *options, pk_prepare **prepare);

/* Waits at most so many seconds for the end and reads the counts. */
void pk_prepare_poll(pk_prepare *prepare, double seconds, pk_prepare_progress *progress);

/* A message about a skipped document that was not read yet (the first 20 are kept), or NULL; free
 * it with pk_bytes_free. */
char *pk_prepare_note(pk_prepare *prepare);

/* Waits for the threads and publishes the cache: the folder appears whole, its files read-only. On
 * failure, its own or a thread's, nothing is left. */
pk_status pk_prepare_finish(pk_prepare *prepare);

/* Stops what has not finished, and removes what it wrote. */
void pk_prepare_free(pk_prepare *prepare);

/* Texts of one file, one after the other; ends[i] is the byte after text i. */
typedef struct pk_documents {
  char *text;
  int64_t bytes;
  int64_t *ends;
  int64_t count;
} pk_documents;

/* 1 if the name of a file says that it holds JSON documents, or that it is compressed. */
int pk_names_documents(const char *path);

/* Reads the documents of such a file as a preparation would, by the field "text"; a .txt file is
 * one. Owned: pk_documents_free. Errors name file and line; more than limit bytes of text. */
pk_status pk_documents_read(const char *path, int64_t limit, pk_documents *documents);
void pk_documents_free(pk_documents *documents);

/* The paths that match a shell pattern, sorted, each followed by a newline; free with
 * pk_bytes_free. A path without wildcards is taken as it is, and so is one that is there, or the
 * folders at its beginning that are, whatever characters their names have. Errors: nothing matches
 * a pattern. */
pk_status pk_glob(const char *pattern, char **paths);

/* SHA-256, as 64 digits and a NUL, of files' contents one after the other, and their bytes;
 * decompress = 1 takes gzip and zstd files for what is in them. */
pk_status pk_files_sha256(const char *const *paths, int64_t count, int decompress, char *digits,
                          int64_t *bytes);

/* The identity of a manifest: SHA-256 (64 digits and a NUL) of what Python's json.dumps(value,
 * sort_keys=True) makes of the JSON text without its key "identity". name is for messages. */
pk_status pk_json_identity(const char *text, int64_t bytes, const char *name, char *digits);

/* ffi-end */

#endif
