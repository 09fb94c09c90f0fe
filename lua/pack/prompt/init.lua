--- The prompt: what typed lines mean. host/repl.c reads them, calls feed, runs what it returns, and show.
--
-- A line is an expression, whose values are shown, or statements, which may take several lines; "= EXPR" is
-- an expression too, and ":NAME ..." a command. The first value of the last expression is the global _. A
-- "local" that begins a statement is dropped: lines of scripts can be pasted, and the names are there later.
local failure = require "pack.core.failure"

_G.pack = require "pack"

local prompt = {}

local CHUNK = "=prompt"
local pending -- lines of a statement that is not complete

-- Compiling --------------------------------------------------------------------------------------

-- Whether a syntax error says that more input would help.
local function is_incomplete(message)
  return message:sub(-#"'<eof>'") == "'<eof>'"
end

-- The function of an expression. A tail call would lose the place of its errors, so its values are handed through.
local function compile_expression(text)
  local plain, message = loadstring("return " .. text, CHUNK)
  if not plain then return nil, message end
  return loadstring("return (function(...) return ... end)(" .. text .. "\n)", CHUNK) or plain
end

-- The function of a text; or nil, the message, and whether the text is only not complete.
local function compile(text)
  local forced = text:match("^%s*=(.*)$")
  local compiled, message = compile_expression(forced or text)
  if compiled then return compiled end
  local incomplete = is_incomplete(message)
  if forced then return nil, message, incomplete end
  compiled, message = loadstring(text, CHUNK)
  if compiled then return compiled end
  return nil, message, incomplete or is_incomplete(message)
end

-- The function of a whole text.
local function compile_or_fail(text)
  local compiled, message = compile(text)
  if not compiled then failure.raise(1, message) end
  return compiled
end

local function drop_local(text)
  return (text:gsub("^(%s*)local%s+", "%1", 1))
end

-- Commands ---------------------------------------------------------------------------------------

-- By name: {usage, what it does, run = function(argument) -> the function to run, or false to end the session}.
local commands = {}

local function required(argument, usage)
  if argument == "" then failure.raise(1, "usage: " .. usage) end
  return argument
end

commands.help = {":help [NAME]", "says what a module, function, method, operation, key or command is",
  run = function(argument)
    return function() io.write(require("pack.prompt.help").text(argument, commands), "\n") end
  end}

commands.mem = {":mem", "shows the memory of the device, by what it is for, and of this process",
  run = function()
    return function() io.write(require("pack.prompt.show").memory(), "\n") end
  end}

commands.devices = {":devices", "lists the devices that can be used here",
  run = function()
    return function()
      local native = require "pack.native"
      io.write(require("ffi").string(native.C.pk_devices()))
    end
  end}

commands.time = {":time EXPR", "runs an expression or statements, shows the values and how long it took",
  run = function(argument)
    local compiled = compile_or_fail(required(argument, commands.time[1]))
    return function()
      local clock = require("pack.native").C.pk_clock
      local device = require("pack.core.context").opened()
      local began = clock()
      local results = {n = 0}
      local function take(...) results = {n = select("#", ...), ...} end
      take(compiled())
      if device then device:synchronize() end
      io.write(("%.6g s\n"):format(clock() - began))
      return unpack(results, 1, results.n)
    end
  end}

-- The path of a script: as given, else among packlua's own files.
local function find_script(path)
  local files, home = require "pack.io.files", require("pack.native").home()
  if files.kind(path) == nil and files.kind(home .. "/" .. path) == "file" then return home .. "/" .. path end
  return path
end

commands.load = {":load FILE", "runs a Lua file; its globals stay",
  run = function(argument)
    local path = required(argument:match("^[\"'](.*)[\"']$") or argument, commands.load[1])
    local compiled, message = loadfile(find_script(path))
    if not compiled then failure.raise(1, message) end
    return compiled
  end}

commands.quit = {":quit", "leaves; so does ^D", run = function() return false end}

--- The names of the commands, sorted.
function prompt.command_names()
  local names = {}
  for name in pairs(commands) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function run_command(name, argument)
  local command = commands[name]
  if command then return command.run(argument) end
  local names = prompt.command_names()
  local near = require("pack.config").nearest(name, names)
  failure.raise(1, ("there is no command :%s; %s"):format(name,
    near and ("did you mean :%s?"):format(near) or "there are :" .. table.concat(names, ", :")))
end

-- What the host calls -------------------------------------------------------------------------------

--- Takes a line. Returns nil when the statement goes on, the function to run, or false to end the session.
-- For nil, the end of input, what is there of a statement is all of it; false forgets what there is. Raises
-- an error for what cannot be understood.
function prompt.feed(line)
  local before = pending
  pending = nil
  if not line then
    return line == nil and before and compile_or_fail(before) or function() end
  end
  if not before then
    local name, argument = line:match("^%s*:(%a[%w_]*)%s*(.-)%s*$")
    if name then return run_command(name, argument) end
    line = drop_local(line)
  end
  local text = before and before .. "\n" .. line or line
  local compiled, message, incomplete = compile(text)
  if compiled then return compiled end
  if not incomplete then failure.raise(1, message) end
  pending = text
  return nil
end

--- Shows the values of an expression, and keeps the first as _.
function prompt.show(...)
  if select("#", ...) == 0 then return end
  _G._ = (...)
  io.write(require("pack.prompt.show").values(...), "\n")
end

--- What the tabulator does after this text: what to insert, and a listing of the possibilities, or nil.
function prompt.complete(text, columns)
  return require("pack.prompt.complete").line(text, columns, not pending and prompt.command_names() or nil)
end

return prompt
