/* Files that appear whole or not at all. */
#ifndef PK_IO_OUTPUT_H
#define PK_IO_OUTPUT_H

#include "base/base.h"

/* A file being written under a temporary name in the folder of its path. Zeroed: none. */
typedef struct pk_output {
  char *path;
  char *temporary;
  int fd;
} pk_output;

/* Starts a file. Refuses a path where something other than a regular file is. */
pk_status pk_output_open(pk_output *output, const char *path);

/* Appends bytes. */
pk_status pk_output_write(pk_output *output, const void *data, int64_t bytes);

/* Brings the file, as far as it is written, to disk. */
pk_status pk_output_sync(pk_output *output);

/* Brings the file to disk and gives it its name. Ends the output: on failure nothing is left. */
pk_status pk_output_publish(pk_output *output);

/* Removes the unfinished file; harmless on an output that has ended. */
void pk_output_discard(pk_output *output);

/* write(2) until all is written. */
pk_status pk_write_all(int fd, const char *path, const void *data, int64_t bytes);

/* Opens a file with the flags of open(2), permissions 0666 where it is created, and never waits: a
 * pipe, device, socket or directory is refused, and with O_NOFOLLOW a link. Whatever comes from
 * outside is opened by this. */
pk_status pk_file_open(const char *path, int flags, int *fd);

/* Fails with PK_IO, the path, what could not be done, and the reason in errno. */
pk_status pk_fail_io(const char *path, const char *what);

/* --- what a file system may lack (filesystem.c) --- */

/* Whether an errno says that the file system does not have an operation, not that it failed. */
bool pk_lacks(int reason);

/* Brings an open file or folder to disk, or what is in a folder. Where the file system cannot do
 * that, they leave a remark (pk_file_remark) and succeed. */
pk_status pk_descriptor_sync(int fd, const char *path);
pk_status pk_folder_sync(const char *folder);

/* Makes a file read-only; where that is refused, a remark. */
pk_status pk_file_protect(const char *path);

/* Leaves a remark that path could not be locked. */
void pk_remark_unlocked(const char *path);

/* The folder that holds path, whatever slashes it ends with; the caller frees it. NULL: no memory.
 */
char *pk_folder_of(const char *path);

#endif
