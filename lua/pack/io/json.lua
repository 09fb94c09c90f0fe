--- JSON: written with sorted keys and numbers that read back to the same bits; read by the host.
local caller = require "pack.core.caller"
local ffi = require "ffi"
local utf8 = require "pack.io.utf8"
local value = require "pack.io.value"

caller.register()

local json = {}

--- JSON's null.
json.null = value.null

--- Marks a table as an array, so that an empty one is written as [].
json.array = value.array

local escapes = {
  ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f",
  ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
}

local function escape(character)
  return escapes[character] or ("\\u%04x"):format(character:byte())
end

local function encode_string(text)
  if not text:find("[^%w_ ./-]") then return '"' .. text .. '"' end -- nearly all names
  return '"' .. utf8.clean(text):gsub('[%c"\\]', escape) .. '"'
end

local number_formats = {"%.15g", "%.16g", "%.17g"} -- the last is enough for every double

local function encode_number(x)
  if x == math.floor(x) and math.abs(x) < 2 ^ 53 then return ("%.0f"):format(x) end
  local text
  for i = 1, 3 do
    text = number_formats[i]:format(x)
    if tonumber(text) == x then break end
  end
  -- Written like an integer, a value from 2^53 on would be refused when it is read.
  return text:find("[.e]") and text or text .. ".0"
end

local function sorted_keys(t, path)
  local keys = {}
  for key in pairs(t) do
    if type(key) ~= "string" then
      caller.raise("json.encode: %s has a key that is a %s among its names", path, type(key))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys)
  return keys
end

local function non_finite_name(x)
  return x ~= x and "nan" or x > 0 and "inf" or "-inf"
end

local encode_value

local function join(state, open, pieces, close, depth, on_one_line)
  if #pieces == 0 then return open .. close end
  if not state.pretty then return open .. table.concat(pieces, ",") .. close end
  if on_one_line then return open .. table.concat(pieces, ", ") .. close end
  local indent = ("  "):rep(depth)
  return open .. "\n" .. indent .. "  " .. table.concat(pieces, ",\n" .. indent .. "  ")
    .. "\n" .. indent .. close
end

local function encode_array(state, t, path, depth)
  local count, flat, pieces = 0, true, {}
  for _ in pairs(t) do count = count + 1 end
  if count ~= #t then
    caller.raise("json.encode: %s is neither an array without holes nor a table of names",
      path == "" and "the value" or path)
  end
  for i = 1, count do
    flat = flat and type(t[i]) ~= "table"
    pieces[i] = encode_value(state, t[i], ("%s[%d]"):format(path, i), depth + 1)
  end
  return join(state, "[", pieces, "]", depth, flat)
end

local function encode_object(state, t, path, depth)
  local pieces = {}
  local separator = state.pretty and ": " or ":"
  for i, key in ipairs(sorted_keys(t, path == "" and "the value" or path)) do
    local inner = path == "" and key or path .. "." .. key
    pieces[i] = encode_string(key) .. separator .. encode_value(state, t[key], inner, depth + 1)
  end
  return join(state, "{", pieces, "}", depth)
end

function encode_value(state, x, path, depth)
  local kind = type(x)
  if x == value.null then return "null" end
  if kind == "string" then return encode_string(x) end
  if kind == "boolean" then return tostring(x) end
  if kind == "number" then
    if x - x == 0 then return encode_number(x) end
    state.non_finite = state.non_finite or {}
    state.non_finite[path] = non_finite_name(x)
    return "null"
  end
  if kind ~= "table" then
    caller.raise("json.encode: %s is a %s", path == "" and "the value" or path, kind)
  end
  if depth == 64 then
    caller.raise("json.encode: %s is nested deeper than 64 levels (or contains itself)", path)
  end
  if #x > 0 or value.is_array(x) then return encode_array(state, x, path, depth) end
  return encode_object(state, x, path, depth)
end

--- `x` as JSON text. A table with entries 1 .. n is an array, an empty one an object unless
--- json.array marked it. NaN and infinities become null, and the outermost object then says where
--- they were: `"nonfinite": {"loss_worker[2]": "nan"}`; the second result is that table or nil.
--- options: pretty = true indents by two spaces. Errors: functions, cdata, mixed keys, cycles.
function json.encode(x, options)
  local state = {pretty = options and options.pretty}
  local text = encode_value(state, x, "", 0)
  local non_finite = state.non_finite
  if non_finite and type(x) == "table" and #x == 0 then
    local copy = {nonfinite = non_finite}
    for key, entry in pairs(x) do copy[key] = entry end
    text = encode_value(state, copy, "", 0)
  end
  return text, non_finite
end

-- Rows -------------------------------------------------------------------------------------------

local NUMBER, NUMBER_BYTES = "\1", 32 -- pk_json_fill's

-- What rows like this one have in common: names, the lengths of lists, and the text but for the numbers. false where
-- a value is neither a number nor a list that has entries.
local function form_of(row)
  if #row > 0 then return false end
  local names = sorted_keys(row, "the value")
  local lengths, parts, count = {}, {}, 0
  for i, name in ipairs(names) do
    local x = row[name]
    lengths[i] = type(x) == "table" and #x > 0 and #x
    if not lengths[i] and type(x) ~= "number" then return false end
    local place = lengths[i] and "[" .. (NUMBER .. ","):rep(#x):sub(1, -2) .. "]" or NUMBER
    parts[i] = encode_string(name) .. ":" .. place
    count = count + (lengths[i] or 1)
  end
  local text = "{" .. table.concat(parts, ",") .. "}"
  local room = #text + (count + 1) * NUMBER_BYTES
  return {names = names, lengths = lengths, text = text, room = room, numbers = ffi.new("double[?]", count + 1),
    buffer = ffi.new("char[?]", room)}
end

-- Puts a row's numbers in their order. Returns nothing if it is not of the form.
local function gather(form, row)
  local numbers, at = form.numbers, 0
  for i, name in ipairs(form.names) do
    local x, length = row[name], form.lengths[i]
    if not length then
      if type(x) ~= "number" then return end
      numbers[at] = x
    elseif type(x) ~= "table" or #x ~= length or next(x, length) ~= nil then
      return
    end
    for k = 1, length or 0 do
      if type(x[k]) ~= "number" then return end
      numbers[at + k - 1] = x[k]
    end
    at = at + (length or 1)
  end
  return true
end

local Rows = {}
Rows.__index = Rows

--- An encoder of rows, most of which have the same names and nothing but numbers and lists of numbers: for these the
-- text around the numbers is made once.
function json.rows()
  return setmetatable({forms = {}, C = require("pack.native").C}, Rows) -- forms by the number of names
end

--- A row as json.encode writes it.
function Rows:encode(row)
  local count = 0
  for _ in pairs(row) do count = count + 1 end
  local form = self.forms[count]
  if form and gather(form, row) then
    local bytes = self.C.pk_json_fill(form.text, form.numbers, form.buffer, form.room)
    if bytes >= 0 then return ffi.string(form.buffer, bytes) end
  end
  local text = json.encode(row)
  if form == nil then self.forms[count] = form_of(row) end
  return text
end

--- The value of a JSON text (null is json.null), or nil and a message with line and column.
--- `name` is what the message calls the text.
function json.decode(text, name)
  return value.parse("json", text, name or "JSON")
end

--- The value in a JSON file, or nil and the message, which names the file.
function json.read(path)
  local text, message = require("pack.io.files").read(path)
  if not text then return nil, message end
  return json.decode(text, path)
end

--- Writes a value into a file, indented, atomically (see files.write).
function json.write(path, x)
  require("pack.io.files").write(path, json.encode(x, {pretty = true}) .. "\n")
end

return json
