# cmake -DHEADER=pack.h -DOUTPUT=ffi_text.c -P embed_ffi.cmake
# Writes the text between pack.h's marker lines as the C array pk_ffi_text, one literal per line.

file(READ "${HEADER}" text)
string(FIND "${text}" "/* ffi-begin */" begin)
string(FIND "${text}" "/* ffi-end */" end)
if(begin LESS 0 OR end LESS begin)
  message(FATAL_ERROR "${HEADER} has no text between its ffi-begin and ffi-end lines")
endif()
math(EXPR length "${end} - ${begin}")
string(SUBSTRING "${text}" ${begin} ${length} text)
string(FIND "${text}" "\n#" directive)
if(directive GREATER -1)
  message(FATAL_ERROR "${HEADER} has a preprocessor line between its ffi markers")
endif()
string(REPLACE "\\" "\\\\" text "${text}")
string(REPLACE "\"" "\\\"" text "${text}")
string(REPLACE "\n" "\\n\"\n  \"" text "${text}")
file(WRITE "${OUTPUT}" "/* Generated from pack.h. */\nextern const char *const pk_ffi_text;\n"
  "const char *const pk_ffi_text =\n  \"${text}\";\n")
