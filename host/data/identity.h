/* Canonical JSON, as Python's json.dumps(value, sort_keys=True) writes it, and its SHA-256. */
#ifndef PK_DATA_IDENTITY_H
#define PK_DATA_IDENTITY_H

#include "base/buffer.h"
#include "base/sha256.h"

/* Appends what Python makes of a JSON text: keys sorted by code point, ", " and ": ", ASCII with
 * \uXXXX, integers digit by digit whatever their size, other numbers as repr() writes the double.
 * without, if not NULL, is a key of the outermost object that is left out. name is what messages
 * call the text. Errors: not JSON, a key twice in an object, nesting beyond 64 levels. */
pk_status pk_json_canonical(const char *text, int64_t bytes, const char *name, const char *without,
                            pk_buffer *into);

#endif
