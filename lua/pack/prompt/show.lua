--- Values as text that people read: tensors with their statistics, tables with limits, functions with their place.
--
-- Nothing here calls what a value brings along, except its __tostring, and no table is followed without bound.
local show = {}

local WIDTH = 100 -- a table that fits in a line of so many characters is one
local DEPTH = 2 -- tables in tables
local ENTRIES = 24 -- of each kind, list entries and named ones, in a table
local LINES = 60 -- of a table
local STRING = 160 -- bytes of a string
local SHORT = 24 -- characters of entries that stand beside each other

-- Words ------------------------------------------------------------------------------------------

local escapes = {["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\", ['"'] = '\\"'}

-- A string in quotes, on one line, with what a terminal could take for an order escaped.
local function quoted(text)
  local cut = #text > STRING and STRING
  if cut then
    while cut > 1 and text:byte(cut + 1) >= 0x80 and text:byte(cut + 1) < 0xC0 do cut = cut - 1 end
  end
  local shown = (cut and text:sub(1, cut) or text):gsub('[%c\\"\127]', function(c)
    return escapes[c] or ("\\%03d"):format(c:byte())
  end)
  return '"' .. shown .. '"' .. (cut and ("... (%d bytes)"):format(#text) or "")
end

local keywords = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat return
  then true until while]]):gmatch("%a+") do
  keywords[word] = true
end

--- Whether a text can be a name in Lua.
function show.is_name(text)
  return text:find("^[%a_][%w_]*$") ~= nil and not keywords[text]
end

--- Where a function is from: "lua/pack/train/adamw.lua:40", below packlua's own folder or as given, or "builtin".
function show.place(fn)
  local info = debug.getinfo(fn, "S")
  if info.what == "C" then return "builtin" end
  local home = require("pack.native").home()
  local source = info.source:gsub("^[@=]", "")
  if info.source:sub(1, 1) ~= "@" and info.source:sub(1, 1) ~= "=" then source = "a string" end
  if home ~= "" and source:sub(1, #home + 1) == home .. "/" then source = source:sub(#home + 2) end
  return ("%s:%d"):format(source, info.linedefined)
end

-- The operation that a function of pack.ops runs, or nil.
local function operation_of(fn)
  local dispatch = package.loaded["pack.core.dispatch"]
  local ops = package.loaded["pack.core.ops"]
  if not dispatch or not ops then return nil end
  for _, operation in ipairs(dispatch.list) do
    if rawget(ops, operation.name) == fn then return operation.name end
  end
end

local function function_text(fn)
  local name = operation_of(fn)
  return name and ("operation ops.%s"):format(name) or ("function (%s)"):format(show.place(fn))
end

-- tostring of a value, or what goes wrong in it. ^C is not a matter of the value's.
local function own_text(value)
  local good, text = pcall(tostring, value)
  if not good and type(text) == "table" and text.exit then error(text, 0) end
  if good and type(text) ~= "string" then good, text = false, "it returned a " .. type(text) end
  return good and text or "<error in __tostring: " .. tostring(text) .. ">"
end

-- Tensors ----------------------------------------------------------------------------------------

local function is_tensor(value)
  if type(value) ~= "cdata" then return false end
  local tensor = package.loaded["pack.core.tensor"]
  return tensor ~= nil and tensor.is(value)
end

local function statistics_text(statistics)
  local parts = {}
  for _, pair in ipairs {{"min", "minimum"}, {"max", "maximum"}, {"mean", "mean"}, {"std", "deviation"}} do
    local number = statistics[pair[2]]
    if number then parts[#parts + 1] = ("%s %.6g"):format(pair[1], number) end
  end
  parts[#parts + 1] = ("non-finite %d"):format(statistics.count - statistics.finite)
  return table.concat(parts, ", ")
end

--- Text of a tensor: dtype, shape, device; statistics; its first entries.
function show.tensor(value)
  local tensor = require "pack.core.tensor"
  local head = tensor.heading(value)
  if value.storage == nil then return head end
  local good, statistics = require("pack.core.failure").pcall(value.statistics, value)
  if not good then -- such as a result of a program that has not run
    return ("%s, no values: %s"):format(head, (tostring(statistics):gsub("^[^ ]*:%d+: ", "")))
  end
  if value.numel == 0 then return head .. ", no elements" end
  return ("%s: %s\n%s"):format(head, statistics_text(statistics), tensor.corner(value))
end

-- Tables -----------------------------------------------------------------------------------------

local kinds = {number = 1, string = 2}

local function by_kind_and_name(a, b)
  local kind_a, kind_b = kinds[type(a)] or 3, kinds[type(b)] or 3
  if kind_a ~= kind_b then return kind_a < kind_b end
  if kind_a == 3 then return tostring(type(a)) < tostring(type(b)) end
  return a < b
end

-- The keys of a table that are not entries 1 .. count of its list, sorted, at most so many, and how many there are.
local function named_keys(value, count)
  local keys, total = {}, 0
  for key in next, value do
    local listed = type(key) == "number" and key >= 1 and key <= count and key % 1 == 0
    if not listed then
      total = total + 1
      keys[total] = key
    end
  end
  table.sort(keys, by_kind_and_name)
  for i = total, ENTRIES + 1, -1 do keys[i] = nil end
  return keys, total
end

-- One entry after the other up to the first that is nil; # may call what the table brings along.
local function list_length(value)
  local count = 0
  while rawget(value, count + 1) ~= nil do count = count + 1 end
  return count
end

local text_of

local function has_own_text(value)
  local meta = debug.getmetatable(value)
  return type(meta) == "table" and rawget(meta, "__tostring") ~= nil
end

local function key_text(key, path)
  if type(key) == "string" then return show.is_name(key) and key or "[" .. quoted(key) .. "]" end
  return "[" .. text_of(key, DEPTH, path) .. "]"
end

-- The entries of a table as texts, and how many of them are of its list.
local function entries_of(value, depth, path)
  local parts, count = {}, list_length(value)
  for i = 1, math.min(count, ENTRIES) do parts[i] = text_of(value[i], depth + 1, path) end
  if count > ENTRIES then parts[#parts + 1] = ("... %d more"):format(count - ENTRIES) end
  local listed = #parts
  local keys, total = named_keys(value, count)
  for _, key in ipairs(keys) do
    parts[#parts + 1] = key_text(key, path) .. " = " .. text_of(rawget(value, key), depth + 1, path)
  end
  if total > #keys then parts[#parts + 1] = ("... %d more keys"):format(total - #keys) end
  return parts, listed
end

-- Whether texts are short enough to stand beside each other.
local function are_short(parts, count)
  for i = 1, count do
    if #parts[i] > SHORT or parts[i]:find("\n", 1, true) then return false end
  end
  return true
end

-- Entries in a line, or else below each other, short ones of the list in rows.
local function braces(parts, listed)
  local line = table.concat(parts, ", ")
  if #line + 2 <= WIDTH and not line:find("\n", 1, true) then return "{" .. line .. "}" end
  local lines, beside = {}, are_short(parts, listed)
  for i, part in ipairs(parts) do
    if beside and i > 1 and i <= listed and #lines[#lines] + 2 + #part <= WIDTH then
      lines[#lines] = lines[#lines] .. ", " .. part
    else
      lines[#lines + 1] = "  " .. part:gsub("\n", "\n  ")
    end
  end
  return "{\n" .. table.concat(lines, ",\n") .. "\n}"
end

-- path holds the tables that this one is in.
local function table_text(value, depth, path)
  if path[value] then return "<cycle>" end
  if next(value) == nil then return "{}" end
  if depth >= DEPTH then return "{...}" end
  path[value] = true
  local text = braces(entries_of(value, depth, path))
  path[value] = nil
  return text
end

-- What a value is inside of a table.
function text_of(value, depth, path)
  local kind = type(value)
  if kind == "string" then return quoted(value) end
  if kind == "function" then return function_text(value) end
  if is_tensor(value) then return require("pack.core.tensor").heading(value) end
  if kind == "table" and not has_own_text(value) then return table_text(value, depth, path) end
  local text = own_text(value)
  if kind == "table" and text:find("\n", 1, true) then text = text:match("^[^\n]*") .. " ..." end
  return text
end

local function cut_lines(text)
  local place, lines = 0, 0
  while lines < LINES do
    place = text:find("\n", place + 1, true)
    if not place then return text end
    lines = lines + 1
  end
  local _, more = text:sub(place):gsub("\n", "")
  return text:sub(1, place) .. ("... %d more lines"):format(more)
end

--- Text of any value. Tensors come with statistics and a corner; tables with at most 24 entries of each kind,
-- two deep and 60 lines long; text of several lines as it is.
function show.value(value)
  local kind = type(value)
  if kind == "string" then return value:find("\n", 1, true) and value or quoted(value) end
  if is_tensor(value) then return show.tensor(value) end
  if kind == "table" and not has_own_text(value) then return cut_lines(table_text(value, 0, {})) end
  if kind == "table" then return own_text(value) end
  return text_of(value, 0, {})
end

--- Text of several values: in a line where each is one, else below each other.
function show.values(...)
  local parts, separator = {}, "\t"
  for i = 1, select("#", ...) do
    parts[i] = show.value((select(i, ...)))
    if parts[i]:find("\n", 1, true) then separator = "\n" end
  end
  return table.concat(parts, separator)
end

-- Memory -----------------------------------------------------------------------------------------

local function mib(bytes)
  return ("%.1f MiB"):format(bytes / 2 ^ 20)
end

-- Resident bytes of this process, or nil where the system does not say.
local function resident_bytes()
  local file = io.open("/proc/self/status")
  if not file then return nil end
  local kilobytes = file:read("*a"):match("VmRSS:%s*(%d+)")
  file:close()
  return kilobytes and tonumber(kilobytes) * 1024
end

--- Text about memory: of the default device by category, now and at the peak, and of this process.
function show.memory()
  local lines = {}
  local device = package.loaded["pack.core.context"] and require("pack.core.context").opened()
  if device then
    local memory, categories = device:memory(), {}
    for name in pairs(memory.used) do categories[#categories + 1] = name end
    table.sort(categories, function(a, b)
      if memory.used[a] ~= memory.used[b] then return memory.used[a] > memory.used[b] end
      return a < b
    end)
    lines[1] = ("%-14s %14s %14s"):format(device:device(), "now", "at the peak")
    for _, name in ipairs(categories) do
      lines[#lines + 1] = ("  %-12s %14s %14s"):format(name, mib(memory.used[name]), mib(memory.peak[name]))
    end
    lines[#lines + 1] = ("  %-12s %14s %14s"):format("total", mib(memory.total), mib(memory.total_peak))
    lines[#lines + 1] = ("  %d tensors; %s held from the system; limit %s"):format(memory.live, mib(memory.reserved),
      mib(memory.limit))
  else
    lines[1] = "no device is open"
  end
  local resident = resident_bytes()
  lines[#lines + 1] = ("Lua %s%s"):format(mib(collectgarbage("count") * 1024),
    resident and "; the process " .. mib(resident) or "")
  return table.concat(lines, "\n")
end

return show
