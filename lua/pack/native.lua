--- The host library: its functions through the FFI, checked to be of this library's version.
local ffi = require "ffi"

-- In Lua a tensor's fields cannot be written. Its 64-bit ones, which the FFI does not give as numbers, and the number
-- of its dtype are for pack.tensor, which gives numbers and the dtype's name.
local function for_lua(declarations)
  return (declarations:gsub("typedef struct pk_tensor (%b{}) pk_tensor;", function(fields)
    fields = fields:gsub("int64_t (%l+)", "const int64_t raw_%1"):gsub("int32_t", "const int32_t")
    fields = fields:gsub("int32_t dtype", "int32_t raw_dtype"):gsub("%*(%l+;)", "*const %1")
    return "typedef struct pk_tensor " .. fields .. " pk_tensor;"
  end))
end

ffi.cdef(for_lua(require "pack.cdef"))

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

local MOST_BYTES = 2 ^ 31 - 1 -- the FFI's; compiled code does not look, and takes too little

--- A C array of count elements of a type such as "double[?]". Errors: a count that is no whole number, or 2 GiB and more.
function native.array(type, count)
  local bytes = ffi.sizeof(type, 1)
  if not (count >= 0 and count % 1 == 0 and count * bytes <= MOST_BYTES) then
    error(("an array of %.17g elements of %d bytes: 2 GiB is the most; take the values in parts"):format(count, bytes), 2)
  end
  return ffi.new(type, count)
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
