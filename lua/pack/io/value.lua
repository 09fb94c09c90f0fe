--- Values from outside (JSON, YAML, Lua tables) as Lua tables.
local ffi = require "ffi"

local value = {}

local C -- the host, loaded when something is read

local function load_host()
  C = C or require("pack.native").C
end

--- What JSON's null and YAML's ~ become, as a table cannot hold nil.
value.null = setmetatable({}, {__tostring = function() return "null" end})

local array = {}

--- Marks a table as an array, which only matters when it is empty: json.encode writes [] then.
function value.array(t)
  return setmetatable(t or {}, array)
end

--- Whether a table is marked as an array.
function value.is_array(t)
  return getmetatable(t) == array
end

local readers = {
  json = "pk_value_from_json",
  yaml = "pk_value_from_yaml",
  lua = "pk_value_from_lua",
}

local convert

local function convert_object(node)
  local result = {}
  local child = C.pk_value_first(node)
  while child ~= nil do
    result[ffi.string(C.pk_value_key(child))] = convert(child)
    child = C.pk_value_next(child)
  end
  return result
end

local function convert_array(node)
  local result, count = {}, 0
  local child = C.pk_value_first(node)
  while child ~= nil do
    count = count + 1
    result[count] = convert(child)
    child = C.pk_value_next(child)
  end
  return count == 0 and value.array(result) or result
end

local length = ffi.new("int64_t[1]")

function convert(node)
  local kind = C.pk_value_get_kind(node)
  if kind == C.PK_VALUE_OBJECT then return convert_object(node) end
  if kind == C.PK_VALUE_ARRAY then return convert_array(node) end
  if kind == C.PK_VALUE_NUMBER then return C.pk_value_get_number(node) end
  if kind == C.PK_VALUE_BOOLEAN then return C.pk_value_get_number(node) ~= 0 end
  if kind == C.PK_VALUE_STRING then
    local text = C.pk_value_get_string(node, length)
    return ffi.string(text, length[0])
  end
  return value.null
end

--- Reads `text` as "json", "yaml" or "lua" (a chunk that returns a table, run without libraries and
--- within limits). `name` is what messages call it. Returns the value, or nil and the message.
function value.parse(language, text, name)
  load_host()
  local root = ffi.new("pk_value *[1]")
  if C[readers[language]](text, #text, name or language, root) ~= C.PK_OK then
    return nil, ffi.string(C.pk_error_message())
  end
  local owned = ffi.gc(root[0], C.pk_value_free)
  local result = convert(owned)
  C.pk_value_free(ffi.gc(owned, nil))
  return result
end

--- The bytes of a file of at most `limit` bytes (1 MiB), or nil and the message.
function value.read_file(path, limit)
  load_host()
  local data, bytes = ffi.new("char *[1]"), ffi.new("int64_t[1]")
  if C.pk_file_read(path, data, bytes, limit or 2 ^ 20) ~= C.PK_OK then
    return nil, ffi.string(C.pk_error_message())
  end
  local owned = ffi.gc(data[0], C.pk_bytes_free)
  local text = ffi.string(owned, bytes[0])
  C.pk_bytes_free(ffi.gc(owned, nil))
  return text
end

return value
