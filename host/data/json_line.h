/* The text field of a JSON object. */
#ifndef PK_DATA_JSON_LINE_H
#define PK_DATA_JSON_LINE_H

#include "base/buffer.h"

/* Appends the string that the object line has under the key field; where a key is there twice the
 * last one counts, as in Python. Surrogates alone become U+FFFD and are counted in *replaced. Where
 * the line is not JSON, not an object, or lacks the field, PK_FORMAT with a message that says where
 * in the line, without file and line number. */
pk_status pk_json_field(const char *line, int64_t bytes, const char *field, pk_buffer *text,
                        int64_t *replaced);

#endif
