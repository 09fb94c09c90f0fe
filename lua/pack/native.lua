--- The host library: its functions through the FFI, checked to be of this library's version.
local ffi = require "ffi"

ffi.cdef(require "pack.cdef")

local native = {
  --- The functions and constants of pack.h.
  C = ffi.C,
}

local own_version = require "pack.version"
local host_version = ffi.string(ffi.C.pk_version())
if host_version ~= own_version then
  error(("the Lua library is packlua %s, the program %s: they do not fit together")
    :format(own_version, host_version), 0)
end

--- The message of the last failed call.
function native.message()
  return ffi.string(ffi.C.pk_error_message())
end

--- Raises the message of a failed call at the caller's line, or `level` levels further up.
function native.check(status, level)
  if status ~= 0 then error(native.message(), 2 + (level or 0)) end
end

--- The folder that holds lua/, recipes/ and configs/; "" if the program does not know.
function native.home()
  return require "pack.home"
end

return native
