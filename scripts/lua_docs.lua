-- Writes docs/lua.md, the Lua API, from the docstrings of lua/pack and the rows of host/ops.def:
--   packlua scripts/lua_docs.lua           prints the document as it should be
--   packlua scripts/lua_docs.lua --write   writes it
--   packlua scripts/lua_docs.lua --check   fails where it is out of date, or a public function has no docstring
local dispatch = require "pack.core.dispatch"
local docstrings = require "pack.prompt.docstrings"
local files = require "pack.io.files"
local native = require "pack.native"

local path = native.home() .. "/docs/lua.md"

-- Public functions -------------------------------------------------------------------------------

-- The name that the file has for the table which it returns.
local function table_name(list)
  for i = #list, 1, -1 do
    local name = list[i]:match("^return ([%a_][%w_]*)$") or list[i]:match("^return setmetatable%(([%w_]+),")
    if name then return name end
  end
end

-- Functions that the file defines in its table or in a class, by line. Metamethods have their meaning from Lua. A
-- method with an ordinary comment (two dashes) is for the module's own use and no part of the interface.
local function defined_in(path)
  local list, found, classes = docstrings.lines_of(path), {}, {methods = true}
  local own = table_name(list)
  if own then classes[own] = true end
  for _, line in ipairs(list) do
    local class = line:match("^([%w_]+)%.__index = ")
    if class then classes[class] = true end
  end
  for number, line in ipairs(list) do
    local name = line:match("^function%s+([%w_]+[.:][%w_.:]+)%(") or line:match("^([%w_]+%.[%w_]+)%s*=%s*function")
    local owner = (name or ""):match("^[%w_]+")
    local own_use = owner ~= own and (list[number - 1] or ""):find("^%-%- ")
    if classes[owner] and not own_use and not name:find("[.:]__%w+$") then
      found[#found + 1] = {name = name, line = number}
    end
  end
  return found
end

-- What the module's table holds besides: functions of a table constructor or of a loop.
local function reachable_from(module, path)
  local list, value = {}, require(module)
  local own = "@" .. path
  for name, member in pairs(type(value) == "table" and value or {}) do
    local info = type(member) == "function" and debug.getinfo(member, "S")
    if info and info.source == own then
      list[#list + 1] = {name = module .. "." .. tostring(name), line = info.linedefined}
    end
  end
  return list
end

-- Public functions of a module without a docstring, as "file:line: name".
local function undocumented(module, path)
  local documented, known, found = docstrings.documented(path), {}, {}
  for _, entry in ipairs(documented) do known[entry.line], known[entry.name] = true, true end
  local function look_at(list)
    for _, one in ipairs(list) do
      if not known[one.line] and not known[one.name] then
        known[one.line] = true
        found[#found + 1] = ("%s:%d: %s has no docstring"):format(path:sub(#native.home() + 2), one.line, one.name)
      end
    end
  end
  look_at(defined_in(path))
  look_at(reachable_from(module, path))
  return found
end

-- The document -----------------------------------------------------------------------------------

local lines = {}

local function add(text, ...)
  lines[#lines + 1] = select("#", ...) > 0 and text:format(...) or text
end

-- Plain text as Markdown.
local function escape(text)
  return (text:gsub("[*<>\\]", "\\%0"):gsub("^([-+#])", "\\%1"))
end

-- A docstring's paragraphs; indented lines and aligned columns stay as they are written.
local function add_text(text)
  local verbatim = false
  for line in (text .. "\n"):gmatch("(.-)\n") do
    local aligned = line:find("^%s%s+%S") ~= nil or line:find("%S   +%S") ~= nil
    if aligned ~= verbatim and line ~= "" then
      add(aligned and "\n```" or "```\n")
      verbatim = aligned
    end
    add("%s", verbatim and line or escape(line))
  end
  if verbatim then add("```") end
end

local function anchor(module)
  return "pack" .. module
end

-- A class is a local table of its module: Trainer:step. The methods of tensors have no name of their own there.
local function signature_of(module, entry)
  local owner, rest = entry.signature:match("^([%w_]+)([.:].*)$")
  if not owner then return entry.signature end
  if owner == "methods" then return module .. rest end
  return owner:find("^%u") and entry.signature or "pack." .. module .. rest
end

local function add_module(module, documented, head)
  add("## pack.%s\n", module)
  add_text(head)
  add("")
  for _, entry in ipairs(documented) do
    add("**`%s`**\n", signature_of(module, entry))
    add_text(entry.text)
    add("")
  end
end

local kinds = {i = "integer", d = "number", l = "list"}

local function attribute_text(attribute)
  local kind = attribute.name == "dtype" and "dtype" or kinds[attribute.kind]
  local default = attribute.default
  if default == nil then return ("%s (%s)"):format(attribute.name, kind) end
  if type(default) == "table" then default = "none" end
  if kind == "dtype" then default = require("pack.core.tensor").dtype_names[default] end
  return ("%s (%s, default %s)"):format(attribute.name, kind, tostring(default))
end

local function input_text(input)
  return input.name .. (input.optional and "?" or "") .. (input.written and "!" or "")
end

local function joined(list, text_of)
  local parts = {}
  for i, one in ipairs(list) do parts[i] = text_of and text_of(one) or one end
  return table.concat(parts, ", ")
end

local marks = {{"differentiable", "D"}, {"accumulates", "A"}, {"in_place", "I"}, {"variadic", "V"}}

local function add_operations()
  add([[
## Operations

`ops.NAME(inputs..., {attributes})` gives the outputs; most are methods of tensors too. An input with ? may be absent,
one with ! is written to; `true` and `false` do for 1 and 0. D: has a gradient rule; A: `accumulate` adds to `out`;
I: works in place; V: takes any number of inputs. N workers, R rows (tokens) per worker, B sequences, T positions,
H heads, K width of a head, d width, V vocabulary, D columns of the arena.

| operation | inputs | attributes | outputs | | computes |
|---|---|---|---|---|---|]])
  for _, operation in ipairs(dispatch.list) do
    local flags = ""
    for _, mark in ipairs(marks) do
      if operation[mark[1]] then flags = flags .. mark[2] end
    end
    local summary = escape(operation.summary):gsub("|", "\\|")
    add("| `%s` | %s | %s | %s | %s | %s |", operation.name, joined(operation.inputs, input_text),
      joined(operation.attributes, attribute_text), joined(operation.outputs), flags, summary)
  end
end

local function first_sentence(text)
  local line = text:match("^(.-)\n\n") or text
  line = line:gsub("\n", " ")
  return line:match("^(.-[^.])%.%s") or line:match("^(.-)%.?$")
end

-- The modules for the library's own use have docstrings as well; the document leaves them out.
local missing, modules = {}, {}
for _, one in ipairs(docstrings.files()) do
  for _, text in ipairs(undocumented(one.module, one.path)) do missing[#missing + 1] = text end
end
for _, name in ipairs(docstrings.modules()) do
  local documented, head = docstrings.documented(docstrings.path_of(name))
  if #documented > 0 then modules[#modules + 1] = {name = name, documented = documented, head = head} end
end

add([[
# The Lua library

Made by `packlua scripts/lua_docs.lua --write` from the comments in lua/pack and the rows of host/ops.def; the same
texts are at the prompt, by `:help NAME`. `require "pack"` gives everything below by name: `pack.topology` is the module,
loaded when it is first used. `pack.zeros`, `pack.ones`, `pack.full`, `pack.from`, `pack.arange`, `pack.normal` and
`pack.uniform` are short for those of `pack.tensor`, `pack.compile` for that of `pack.program`, `pack.hvp` for that of
`pack.grad`, `pack.gradgradcheck` for that of `pack.gradcheck`, and an operation such as `pack.matmul` for that of `pack.ops`. A name with a capital, such as `Trainer:step`, is a method of what its module makes.

| module | |
|---|---|]])
for _, module in ipairs(modules) do
  add("| [%s](#%s) | %s |", module.name, anchor(module.name), (escape(first_sentence(module.head)):gsub("|", "\\|")))
end
add("| [operations](#operations) | what pack.ops and the methods of tensors compute |\n")
for _, module in ipairs(modules) do add_module(module.name, module.documented, module.head) end
add_operations()

local document = table.concat(lines, "\n"):gsub("\n\n\n+", "\n\n") .. "\n"
if arg[1] == "--write" then
  files.write(path, document)
elseif arg[1] == "--check" then
  if files.read(path) ~= document then
    missing[#missing + 1] = "docs/lua.md is out of date; packlua scripts/lua_docs.lua --write brings it up to date"
  end
  for _, text in ipairs(missing) do print(text) end
  if #missing > 0 then os.exit(1) end
else
  io.write(document)
end
