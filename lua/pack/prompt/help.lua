--- What :help answers: the docstrings of lua/pack, the rows of operations and of configuration keys.
local complete = require "pack.prompt.complete"
local docstrings = require "pack.prompt.docstrings"
local show = require "pack.prompt.show"

local help = {}

local lines_of, comment_above, signature_at = docstrings.lines_of, docstrings.comment_above, docstrings.signature_at
local path_of = docstrings.path_of

local SUMMARY = 100 -- characters

local function first_sentence(text)
  local line = text:gsub("\n", " ")
  line = line:match("^(.-%.)%s") or line
  return #line > SUMMARY and line:sub(1, SUMMARY - 4):match("^(.*)%s") .. " ..." or line
end

local function rows(list)
  local width = 0
  for _, row in ipairs(list) do width = math.max(width, math.min(#row[1], 44)) end
  local lines = {}
  for i, row in ipairs(list) do lines[i] = ("  %-" .. width .. "s  %s"):format(row[1], row[2]) end
  return table.concat(lines, "\n")
end

local function summaries(entries)
  local list = {}
  for i, entry in ipairs(entries) do list[i] = {entry.signature, first_sentence(entry.text)} end
  return rows(list)
end

-- Kinds of things ------------------------------------------------------------------------------------

local function operation_of(value)
  local dispatch, ops = require "pack.core.dispatch", require "pack.core.ops"
  for _, operation in ipairs(dispatch.list) do
    if rawget(ops, operation.name) == value then return operation end
  end
end

local kinds = {i = "integer or boolean", d = "number", l = "list"}

local function input_text(input)
  local marks = (input.optional and ", may be absent" or "") .. (input.written and ", written to" or "")
  return input.name .. (marks ~= "" and " (" .. marks:sub(3) .. ")" or "")
end

local function default_text(default)
  if default == nil then return "required" end
  return "default " .. (type(default) == "table" and "none" or tostring(default))
end

local function operation_text(operation)
  local ops = require "pack.core.ops"
  local lines = {ops.help(operation.name)}
  local function add(what, list)
    if #list > 0 then lines[#lines + 1] = ("  %-11s %s"):format(what, table.concat(list, "; ")) end
  end
  local inputs, attributes, marks = {}, {}, {}
  for i, input in ipairs(operation.inputs) do inputs[i] = input_text(input) end
  for i, attribute in ipairs(operation.attributes) do
    attributes[i] = ("%s (%s, %s)"):format(attribute.name, kinds[attribute.kind], default_text(attribute.default))
  end
  for _, mark in ipairs {"differentiable", "accumulates", "in_place", "variadic"} do
    if operation[mark] then marks[#marks + 1] = (mark:gsub("_", " ")) end
  end
  add("inputs", inputs)
  add("attributes", attributes)
  add("outputs", operation.outputs)
  add("it is", marks)
  return table.concat(lines, "\n")
end

local function function_text(value)
  local operation = operation_of(value)
  if operation then return operation_text(operation) end
  local info = debug.getinfo(value, "S")
  local path = info.source:match("^@(.*)$")
  if not path then return show.value(value) end
  local lines = lines_of(path)
  local text = comment_above(lines, info.linedefined)
  if text == "" then text = "It has no docstring." end
  return ("%s\n%s\n(%s)"):format(signature_at(lines, info.linedefined), text, show.place(value))
end

local function module_text(name)
  local entries, head = docstrings.documented(path_of(name))
  local parts = {("pack.%s: %s"):format(name, head)}
  if #entries > 0 then parts[2] = summaries(entries) end
  if name == "ops" then
    local list = {}
    for i, operation in ipairs(require("pack.core.dispatch").list) do list[i] = {operation.name, operation.summary} end
    parts[#parts + 1] = rows(list)
  end
  return table.concat(parts, "\n")
end

local function library_text()
  local list = {}
  for i, name in ipairs(docstrings.modules()) do
    local _, head = docstrings.documented(path_of(name))
    list[i] = {"pack." .. name, first_sentence(head)}
  end
  return rows(list)
end

local function tensor_text(value)
  local methods = {}
  for _, entry in ipairs((docstrings.documented(path_of("tensor")))) do
    if entry.name:find(":", 1, true) then methods[#methods + 1] = entry end
  end
  return ("%s. Its methods, besides the operations of pack.ops:\n%s")
    :format(require("pack.core.tensor").heading(value), summaries(methods))
end

-- The methods of an object's class, with what their docstrings say first.
local function object_text(class)
  local list = {}
  for name, value in next, class do
    if type(value) == "function" and type(name) == "string" and not name:find("^__") then
      local info = debug.getinfo(value, "S")
      local path = info.source:match("^@(.*)$")
      local lines = path and lines_of(path) or {}
      local text, is_docstring = comment_above(lines, math.max(info.linedefined, 1))
      if is_docstring then list[#list + 1] = {signature_at(lines, info.linedefined), first_sentence(text)} end
    end
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return #list > 0 and "An object with methods:\n" .. rows(list)
end

local function value_text(value)
  if type(value) == "function" then return function_text(value) end
  if type(value) == "cdata" and require("pack.core.tensor").is(value) then return tensor_text(value) end
  if type(value) ~= "table" then return nil end
  if value == require "pack" then return library_text() end
  for _, name in ipairs(docstrings.modules()) do
    if package.loaded[require("pack").modules[name]] == value then return module_text(name) end
  end
  local meta = debug.getmetatable(value)
  local class = type(meta) == "table" and rawget(meta, "__index")
  if type(class) == "table" then return object_text(class) end
end

-- Topics ---------------------------------------------------------------------------------------------

local function overview(commands)
  local list = {}
  for _, command in pairs(commands) do list[#list + 1] = {command[1], command[2]} end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return [[
Type an expression to see its values (the first is then _), or statements; what is not complete goes on in the
next line. The tabulator completes names, methods and, inside quotes, files. ^C stops what runs, ^D leaves.
]] .. rows(list) .. [[

:help pack lists the library's modules, :help MODULE their functions; :help ops.matmul, :help tensor.zeros,
:help optimizer.lr describe an operation, a function, a key. A run in a line: run = pack.trainer.open()]]
end

local function key_text(topic)
  local schema = require "pack.config.schema"
  local row = schema.find(topic)
  if not row then return nil end
  return ("%s: %s\n  %s; default %s"):format(topic, row.help or "", schema.expected(row), schema.show(row.default))
end

local function section_text(topic)
  local schema = require "pack.config.schema"
  local list = {}
  for _, row in ipairs(schema.rows) do
    if row.section == topic then list[#list + 1] = {topic .. "." .. row.name, row.help or ""} end
  end
  return #list > 0 and rows(list) or nil
end

-- Documented functions whose whole name, or last part, is the topic: Trainer:step, step.
local function found_by_name(topic)
  local found, all = {}, {}
  local last = topic:match("([%w_]+)$") or topic
  local owner = topic:match("^([%w_.]+)[.:]")
  for _, module in ipairs(docstrings.modules()) do
    for _, entry in ipairs((docstrings.documented(path_of(module)))) do
      local before, name = entry.name:match("^(.-)[.:]?([%w_]+)$")
      all[#all + 1] = module .. "." .. name
      if name == last and (not owner or owner == before or owner == module or owner == "pack." .. module) then
        found[#found + 1] = {module = module, entry = entry}
      end
    end
  end
  return found, all
end

local function found_text(found)
  if #found == 1 then
    local entry = found[1].entry
    return ("%s\n%s\n(%s:%d)"):format(entry.signature, entry.text, docstrings.source_of(found[1].module), entry.line)
  end
  local list = {}
  for i, one in ipairs(found) do
    list[i] = {("%s (pack.%s)"):format(one.entry.signature, one.module), first_sentence(one.entry.text)}
  end
  return rows(list)
end

local function unknown_text(topic, all, commands)
  local names = all
  for name in pairs(commands) do names[#names + 1] = ":" .. name end
  for _, name in ipairs(docstrings.modules()) do names[#names + 1] = name end
  for _, operation in ipairs(require("pack.core.dispatch").list) do names[#names + 1] = "ops." .. operation.name end
  for _, row in ipairs(require("pack.config.schema").rows) do names[#names + 1] = row.key end
  local near = require("pack.config").nearest(topic, names)
  return ("There is nothing about %s%s"):format(topic, near and ("; did you mean %s?"):format(near) or "; see :help")
end

local function is_module(name)
  return require("pack").modules[name] ~= nil
end

--- Text about a topic: "" (what can be typed), a command, a name of the library with or without "pack.", an
-- operation, a method such as Trainer:step, a key such as optimizer.lr, or anything that a global holds.
-- commands: those of the prompt, by name {usage, what it does}.
function help.text(topic, commands)
  commands = commands or {}
  if topic == "" then return overview(commands) end
  local command = commands[(topic:gsub("^:", ""))]
  if command then return ("%s\n  %s"):format(command[1], command[2]) end
  local value = complete.value_of(topic)
  local text = value ~= nil and value_text(value) or key_text(topic)
  if text then return text end
  local module = topic:gsub("^pack%.", "")
  if is_module(module) then return module_text(module) end
  local found_value = complete.value_of("pack." .. topic)
  text = found_value ~= nil and value_text(found_value)
  if text then return text end
  local found, all = found_by_name(topic)
  if #found > 0 then return found_text(found) end
  text = section_text(topic)
  if text then return text end
  return value ~= nil and show.value(value) or unknown_text(topic, all, commands)
end

return help
