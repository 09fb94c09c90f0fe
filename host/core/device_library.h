/* Devices that live in shared libraries beside the program, opened when one is asked for. */
#ifndef PK_DEVICE_LIBRARY_H
#define PK_DEVICE_LIBRARY_H

#include "core/core.h"

/* What such a library shows to the program; everything else in it stays hidden:
 *   const char pk_device_version[]   the version of the program that it belongs to
 *   pk_device_open                   opens the device that the options name
 *   pk_device_list                   lines about the library's devices, for --devices
 *   pk_device_usable                 whether there is such a device, without opening it */
#define PK_DEVICE_EXPORT __attribute__((visibility("default")))

extern const char pk_device_version[];
pk_status pk_device_usable(const char *name);
pk_status pk_device_open(const pk_context_options *options, pk_device **device);
void pk_device_list(const char *prefix, char *text, int64_t size);

/* From core/device_library.c. Opens a device of the library "packcuda" or "packemu". Errors: there
 * is no such library in this build, it cannot be loaded, it is of another version, and what opening
 * the device says. */
pk_status pk_device_library_open(const char *library, const pk_context_options *options,
                                 pk_device **device);

/* Whether the library has a usable device of that name. */
pk_status pk_device_library_check(const char *library, const char *name);

/* Lines about its devices, or nothing if this build has no such library. */
void pk_device_library_list(const char *library, const char *prefix, char *text, int64_t size);

#endif
