--- What the tabulator completes at the prompt: names, fields, methods, commands, and files inside quotes.
--
-- Tables are read without their __index functions, so that completing runs no code of the user's; tensors,
-- strings and the lazy modules of pack are known.
local show = require "pack.prompt.show"

local complete = {}

local INDENT = "  "
local LISTED = 200 -- possibilities that are listed

local keywords = {
  "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in", "local", "nil",
  "not", "or", "repeat", "return", "then", "true", "until", "while",
}

-- What there is --------------------------------------------------------------------------------------

local function add_keys(found, from, wanted)
  for key in next, from do
    if type(key) == "string" and wanted(key, rawget(from, key)) then found[key] = true end
  end
end

local function any() return true end

local function is_callable(_, value)
  return type(value) == "function"
end

-- The names that pack loads when they are first used.
local function add_pack(found)
  local pack = require "pack"
  for name in pairs(pack.modules) do found[name] = true end
  for name in pairs(require("pack.core.dispatch").operations) do found[name] = true end
  for name in pairs(pack.functions) do found[name] = true end
end

local function add_tensor(found, methods_only)
  for name in pairs(require("pack.core.tensor").methods) do found[name] = true end
  if methods_only then return end
  for _, name in ipairs {"context", "dtype", "numel", "offset", "rank", "shape", "storage", "stride"} do
    found[name] = true
  end
end

-- What can stand for the value's fields beyond its own: its __index table, if it is one.
local function next_table(value)
  local meta = debug.getmetatable(value)
  local index = type(meta) == "table" and rawget(meta, "__index")
  return type(index) == "table" and index or nil
end

-- The names after value "." or value ":", a set.
local function fields(value, methods_only)
  local found = {}
  if type(value) == "cdata" then
    local tensor = package.loaded["pack.core.tensor"]
    if tensor and tensor.is(value) then add_tensor(found, methods_only) end
    return found
  end
  if value == require "pack" and not methods_only then add_pack(found) end
  local wanted = methods_only and is_callable or any
  if type(value) == "string" then
    add_keys(found, string, wanted)
    return found
  end
  local seen = {}
  while type(value) == "table" and not seen[value] do
    seen[value] = true
    add_keys(found, value, wanted)
    value = next_table(value)
  end
  return found
end

-- The field of a value without calling anything of the user's; nil where it cannot be known so.
local function field_of(value, name)
  if value == require "pack" and type(name) == "string" then
    local good, found = pcall(function() return value[name] end)
    return good and found or nil
  end
  local seen = {}
  while type(value) == "table" and not seen[value] do
    seen[value] = true
    local found = rawget(value, name)
    if found ~= nil then return found end
    value = next_table(value)
  end
  if type(value) == "string" then return string[name] end
end

--- The value of a chain such as run.model.weight["norm.weight"] or list[2]; nil where there is none.
function complete.value_of(chain)
  local name, rest = chain:match("^([%a_][%w_]*)(.*)$")
  local value = name and rawget(_G, name)
  while value ~= nil and rest ~= "" do
    local key, after = rest:match("^[.:]([%a_][%w_]*)(.*)$")
    if not key then
      local _
      _, key, after = rest:match("^%[([\"'])(.-)%1%](.*)$")
    end
    if not key then
      key, after = rest:match("^%[(%d+)%](.*)$")
      key = tonumber(key)
    end
    if key == nil then return nil end
    value, rest = field_of(value, key), after
  end
  return value
end

-- The chain that a text ends with.
local function last_chain(text)
  local start = #text + 1
  while start > 1 do
    local before = text:sub(1, start - 1)
    local part = before:match("[%a_][%w_]*$") or before:match("[.:]$") or before:match("%[%d+%]$")
      or before:match("%[\"[^\"]*\"%]$") or before:match("%['[^']*'%]$")
    if not part then break end
    start = start - #part
    -- What begins with a name, and is not preceded by . or :, begins the chain.
    if part:find("^[%a_]") and not text:sub(1, start - 1):find("[.:]$") then break end
  end
  return text:sub(start)
end

-- Files --------------------------------------------------------------------------------------------

-- The paths that begin with a text; those of folders end with a slash.
local function paths(text)
  local files = require "pack.io.files"
  local folder, name = text:match("^(.*/)([^/]*)$")
  if not folder then folder, name = "", text end
  local real = folder:gsub("^~/", (os.getenv("HOME") or "~") .. "/")
  local found = {}
  for _, entry in ipairs(files.list(real == "" and "." or real) or {}) do
    local hidden = entry:sub(1, 1) == "." and name:sub(1, 1) ~= "."
    if not hidden and entry:sub(1, #name) == name then
      local kind = files.kind(real .. entry)
      found[#found + 1] = folder .. entry .. (kind == "directory" and "/" or "")
    end
  end
  return found
end

-- The quote that is open at the end of a text, and where its content begins; nil if none is.
local function open_quote(text)
  local quote, start
  local i = 1
  while i <= #text do
    local c = text:sub(i, i)
    if quote and c == "\\" then
      i = i + 1
    elseif c == quote then
      quote = nil
    elseif not quote and (c == '"' or c == "'") then
      quote, start = c, i + 1
    elseif not quote and text:find("^%-%-", i) then
      return nil
    end
    i = i + 1
  end
  return quote, start
end

-- Possibilities --------------------------------------------------------------------------------------

local function beginning_with(names, start)
  local list = {}
  for name in pairs(names) do
    local shown = name:sub(1, 1) ~= "_" or start:sub(1, 1) == "_"
    if shown and name:sub(1, #start) == start then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

local function set_of(list)
  local set = {}
  for _, name in ipairs(list) do set[name] = true end
  return set
end

-- What may follow a text that ends with a name, or nothing after . or ":". Returns the names, and the part of
-- the name that is there.
local function names_after(text)
  local chain = last_chain(text)
  local owner, mark, start = chain:match("^(.+)([.:])([%w_]*)$")
  if owner then
    local value = complete.value_of(owner)
    if value == nil then return {}, start end
    local list = {}
    for _, name in ipairs(beginning_with(fields(value, mark == ":"), start)) do
      if show.is_name(name) then list[#list + 1] = name end
    end
    return list, start
  end
  start = text:match("[%a_][%w_]*$") or ""
  if chain ~= start then return {}, start end
  local names = set_of(keywords)
  for name in next, _G do
    if type(name) == "string" and show.is_name(name) then names[name] = true end
  end
  return beginning_with(names, start), start
end

-- Keys of the table that a quote in brackets is to index, else files.
local function inside_quotes(before, content, quote)
  local owner = before:match("^(.*)%[$")
  local value = owner and owner ~= "" and complete.value_of(last_chain(owner))
  if type(value) == "table" then return beginning_with(fields(value, false), content), content, quote .. "]" end
  return paths(content), content, quote
end

-- All that may follow a text: the possibilities, the part that is there, and what ends one.
local function possibilities(text, commands)
  local name = commands and text:match("^%s*:([%w_]*)$")
  if name then return beginning_with(set_of(commands), name), name, " " end
  local argument = commands and text:match("^%s*:load%s+[\"']?([^\"']*)$")
  if argument then return paths(argument), argument, "" end
  local quote, start = open_quote(text)
  if quote then return inside_quotes(text:sub(1, start - 2), text:sub(start), quote) end
  local topic = commands and text:match("^%s*:help%s+(.*)$")
  if topic then
    local list, part = names_after(topic)
    if list[1] == nil then list, part = names_after("pack." .. topic) end
    return list, part, ""
  end
  local list, part = names_after(text)
  return list, part, ""
end

-- What all of a list begin with.
local function common_start(list)
  local start = list[1]
  for _, name in ipairs(list) do
    while name:sub(1, #start) ~= start do start = start:sub(1, -2) end
  end
  return start
end

-- A list in columns, read downwards. Of paths only the last part.
local function in_columns(list, columns)
  local shown, width = {}, 0
  for i = 1, math.min(#list, LISTED) do
    shown[i] = list[i]:match("[^/]+/?$") or list[i]
    width = math.max(width, #shown[i] + 2)
  end
  local across = math.max(1, math.floor(columns / width))
  local down = math.ceil(#shown / across)
  local lines = {}
  for row = 1, down do
    local line = ""
    for i = row, #shown, down do line = line .. shown[i] .. (" "):rep(width - #shown[i]) end
    lines[row] = line:gsub(" +$", "") .. "\n"
  end
  if #list > LISTED then lines[#lines + 1] = ("... %d more\n"):format(#list - LISTED) end
  return table.concat(lines)
end

--- Completes a line up to the cursor on a terminal of so many columns: returns what to insert ("" for
-- nothing) and, where several names fit and none of them can be preferred, their listing. commands: the names
-- of commands, where the line may be one.
function complete.line(text, columns, commands)
  if not text:find("%S") then return INDENT end
  local list, part, ending = possibilities(text, commands)
  if #list == 0 then return "" end
  local insert = common_start(list):sub(#part + 1)
  if #list == 1 then return insert .. (list[1]:sub(-1) == "/" and "" or ending) end
  if insert ~= "" then return insert end
  return "", in_columns(list, columns)
end

return complete
