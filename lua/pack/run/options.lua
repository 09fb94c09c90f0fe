--- The command line that all recipes share: --config, --set, --device, --output, --plan, --help and a
--- recipe's own options.
local algorithms = require "pack.algorithms"
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local numbers = require "pack.core.numbers"
local schema = require "pack.config.schema"

local options = {}

local default_config = "configs/tiny.lua"

local function configured(spec)
  return {
    {name = "config", value = "FILE", help = "configuration: Lua table, JSON or YAML",
      default = spec.default_config or default_config},
    {name = "set", value = "KEY=VALUE", repeated = true, help = "changes a key; may be repeated"},
    {name = "device", value = "DEVICE", help = "the same as --set runtime.device=DEVICE"},
    {name = "plan", help = "shows the memory of a training step, and ends"},
    {name = "num-models", value = "N", many = true, type = "integer", minimum = 1,
      help = "with --plan: numbers of workers to show, the micro-batch following"},
    {name = "memory", value = "MIB", type = "number", minimum = 1,
      help = "with --plan: also the most workers that fit in this"},
  }
end

-- Of recipes that train.
local resuming = {
  {name = "output", value = "DIR", help = "folder of the run (default runs/RECIPE-UTCTIME); with --resume a branch's"},
  {name = "resume", value = "RUN", help = "goes on from the newest state of a run, or from a state"},
  {name = "fallback", help = "with --resume: passes over damaged states, to the newest good one"},
  {name = "allow-recipe", help = "with --resume: takes a state that another recipe made"},
  {name = "allow-conversion", value = "average|tile", help = "with --resume: makes another number of workers of the state's"},
}

local help_row = {name = "help", help = "shows this text"}

-- All options of a recipe; its own ones win over the shared ones.
local function rows_of(spec)
  local rows, taken = {}, {}
  local function add(list)
    for _, row in ipairs(list) do
      if not taken[row.name] then
        taken[row.name] = true
        rows[#rows + 1] = row
      end
    end
  end
  add(spec.extra or {})
  if spec.resume then add(resuming) end
  if spec.config ~= false then add(configured(spec)) end
  add({help_row})
  return rows
end

local function flag(row)
  return "--" .. row.name .. (row.value and " " .. row.value or "") .. (row.many and "..." or "")
end

local function option_lines(rows)
  local lines, width = {}, 0
  for _, row in ipairs(rows) do width = math.max(width, #flag(row)) end
  for _, row in ipairs(rows) do
    local default = row.default ~= nil and (" (default %s)"):format(schema.show(row.default)) or ""
    lines[#lines + 1] = ("  %-" .. width .. "s  %s%s"):format(flag(row), row.help or "", default)
  end
  return lines
end

-- Words as lines of at most `width` characters.
local function wrap(text, width)
  local lines = {""}
  for word in text:gmatch("%S+") do
    local line = lines[#lines]
    if #line + #word >= width then
      lines[#lines + 1] = word
    else
      lines[#lines] = line == "" and word or line .. " " .. word
    end
  end
  return lines
end

-- Lines for each algorithm and its options.
local function add_algorithms(lines)
  for _, name in ipairs(algorithms.list()) do
    local algorithm = algorithms.find(name)
    for i, line in ipairs(wrap(algorithm.summary or "", 60)) do
      lines[#lines + 1] = ("    %-51s %s"):format(i == 1 and name or "", line)
    end
    for _, option in ipairs(algorithm.options) do
      local head = ("      .%-33s %-14s"):format(option.name, schema.show(option.default))
      for i, line in ipairs(wrap(option.help or "", 60)) do
        lines[#lines + 1] = ("%-55s %s"):format(i == 1 and head or "", line)
      end
    end
  end
end

--- The configuration keys as lines of text: key, default, help and what is allowed.
function options.key_lines()
  local lines = {}
  for _, row in ipairs(schema.rows) do
    lines[#lines + 1] = ("  %-38s %-14s %s"):format(row.key, schema.show(row.default), row.help)
    for _, field in ipairs(row.fields or {}) do
      lines[#lines + 1] = ("  %-38s %-14s %s"):format("  ." .. field.name, schema.show(field.default), field.help)
    end
    if row.type == "algorithm" then add_algorithms(lines) end
    if row.type == "choice" then
      for _, line in ipairs(wrap(schema.expected(row), 60)) do lines[#lines + 1] = (" "):rep(56) .. line end
    end
  end
  return lines
end

local function usage_line(spec)
  local positional = spec.positional
  local rest = ""
  if positional then
    local dots = positional.max == 1 and "" or "..."
    rest = " " .. positional.name .. dots
    if (positional.min or 0) == 0 then rest = " [" .. positional.name .. dots .. "]" end
  end
  local script = spec.arg and spec.arg[0] or ("recipes/%s.lua"):format(spec.recipe)
  return ("usage: packlua %s [options]%s"):format(script, rest)
end

--- The text that --help shows.
function options.help(spec)
  local lines = {usage_line(spec), "", spec.summary, "", "options:"}
  for _, line in ipairs(option_lines(rows_of(spec))) do lines[#lines + 1] = line end
  if spec.positional then
    lines[#lines + 1] = ("\n%s: %s"):format(spec.positional.name, spec.positional.help)
  end
  if spec.config ~= false then
    lines[#lines + 1] = "\nconfiguration keys, their defaults and meaning:"
    for _, line in ipairs(options.key_lines()) do lines[#lines + 1] = line end
  end
  return table.concat(lines, "\n") .. "\n"
end

local function refuse(spec, format, ...)
  failure.usage("%s\n%s (--help says more)", format:format(...), usage_line(spec))
end

-- The value of an option in its row's type: one of "a|b|c", a number, or text.
local function read_value(spec, row, text)
  if row.value:find("|", 1, true) then
    for choice in row.value:gmatch("[^|]+") do
      if text == choice then return text end
    end
    refuse(spec, "--%s %s: expected one of %s", row.name, text, (row.value:gsub("|", ", ")))
  end
  if row.value == "DIR" or row.value == "FILE" then
    local path, message = files.expand(text)
    return path or refuse(spec, "--%s %s", row.name, message)
  end
  if row.type ~= "integer" and row.type ~= "number" then return text end
  local number, whole = numbers.read(text), row.type == "integer"
  if not number or (whole and not numbers.is_integer(number)) or math.abs(number) >= 2 ^ 53 then
    refuse(spec, "--%s %s: expected a %s", row.name, text, whole and "whole number below 2^53" or "number")
  end
  if (row.minimum and number < row.minimum) or (row.maximum and number > row.maximum) then
    refuse(spec, "--%s %s: expected a %s", row.name, text, schema.expected(row):gsub("^a ", ""))
  end
  return number
end

local function unknown_option(spec, rows, argument)
  local names = {}
  for i, row in ipairs(rows) do names[i] = row.name end
  local name = argument:match("^%-*([^=]*)")
  local near = require("pack.config").nearest(name, names)
  if not near and schema.find(name) then
    refuse(spec, "there is no option %s; did you mean --set %s=VALUE?", argument, name)
  end
  refuse(spec, "there is no option %s%s", argument, near and ("; did you mean --%s?"):format(near) or "")
end

-- Reads the values of one option from position i on; returns the position of the last one.
local function take_values(spec, row, result, arguments, i, inline)
  local key = row.name:gsub("-", "_")
  if not row.value then
    if inline then refuse(spec, "--%s takes no value", row.name) end
    result[key] = true
    return i
  end
  local function keep(text)
    local x = read_value(spec, row, text)
    if not row.repeated and not row.many then
      result[key] = x
    else
      result[key] = result[key] or {}
      table.insert(result[key], x)
    end
  end
  if inline then
    keep(inline)
    return i
  end
  if arguments[i + 1] == nil then refuse(spec, "--%s needs a value: --%s %s", row.name, row.name, row.value) end
  repeat
    i = i + 1
    keep(arguments[i])
  until not row.many or arguments[i + 1] == nil or arguments[i + 1]:find("^%-")
  return i
end

local function scan(spec, rows, arguments)
  local result, by_name = {positional = {}}, {}
  for _, row in ipairs(rows) do by_name[row.name] = row end
  local i, only_files = 1, false
  while arguments[i] do
    local argument = arguments[i]
    local name, inline = argument:match("^%-%-([^=]+)=?(.*)$")
    if argument == "--" and not only_files then
      only_files = true
    elseif argument == "-h" and not only_files then
      result.help = true
    elseif name and not only_files then
      if not by_name[name] then unknown_option(spec, rows, argument) end
      i = take_values(spec, by_name[name], result, arguments, i, argument:find("=", 1, true) and inline)
    elseif argument:find("^%-.") and not only_files then
      unknown_option(spec, rows, argument)
    else
      table.insert(result.positional, argument)
    end
    i = i + 1
  end
  return result
end

local function check_positional(spec, result)
  local positional, count = spec.positional, #result.positional
  local most = positional and (positional.max or count) or 0
  if count > most then refuse(spec, "unexpected argument %s", result.positional[most + 1]) end
  if positional and count < (positional.min or 0) then
    refuse(spec, "at least %d %s expected, %d given", positional.min, positional.name, count)
  end
end

-- The settings of --set and of the options that stand for one.
local function settings_of(result)
  local settings = {unpack(result.set or {})}
  if result.device then settings[#settings + 1] = "runtime.device=" .. result.device end
  if result.output then settings[#settings + 1] = "runtime.output_dir=" .. result.output end
  return settings
end

-- Prints the forecast that --plan asks for and ends the program; refuses what belongs to it without it.
local function plan_or_refuse(spec, result)
  local own = {}
  for _, row in ipairs(spec.extra or {}) do own[row.name] = true end
  if result.plan then
    require("pack.train.plan").print(result.config, settings_of(result),
      {num_models = result.num_models, limit = result.memory and result.memory * 2 ^ 20})
    failure.raise(0, "")
  end
  for _, name in ipairs {"num-models", "memory"} do
    if result[(name:gsub("-", "_"))] and not own[name] then refuse(spec, "--%s needs --plan", name) end
  end
end

-- What goes with --resume, and what does not.
local function check_resuming(spec, result)
  if not spec.resume then return end
  if result.resume and (result.config or result.plan) then
    refuse(spec, "--%s does not go with --resume, which takes the configuration of the state; --set changes a key",
      result.config and "config" or "plan")
  end
  for _, name in ipairs {"fallback", "allow-recipe", "allow-conversion"} do
    if result[(name:gsub("-", "_"))] and not result.resume then refuse(spec, "--%s needs --resume", name) end
  end
end

--- Reads a recipe's command line. spec: recipe (its name), summary, arg (the global arg), extra (a list of
--- {name, value, help, default, type = "integer" | "number", minimum, maximum, repeated, many}; no value: a
--- flag; "a|b": one of these; many: several values after one flag), positional ({name, help, min, max}) or nil,
--- config = false for a recipe without a configuration, default_config, resume = true for a recipe that trains by
--- pack.study, which then has --output and --resume.
--- Returns a table: config (resolved), config_file and settings (what it was made of), one field per option (- becomes
--- _) and positional, a list.
--- --help prints and ends the program before anything is loaded. Errors: usage errors.
function options.parse(spec)
  local rows = rows_of(spec)
  local result = scan(spec, rows, spec.arg or {})
  if result.help then
    io.stdout:write(options.help(spec))
    failure.raise(0, "")
  end
  check_positional(spec, result)
  result.recipe = spec.recipe
  check_resuming(spec, result)
  if result.output == "" then refuse(spec, "--output needs a name") end
  for _, row in ipairs(rows) do
    local key = row.name:gsub("-", "_")
    if result[key] == nil then result[key] = row.default end
  end
  if result.resume and spec.resume then
    result.config, result.settings = nil, settings_of {set = result.set, device = result.device}
  elseif spec.config ~= false then
    plan_or_refuse(spec, result)
    result.config_file, result.settings = result.config, settings_of(result)
    result.config = require("pack.config").load(result.config_file, result.settings)
    result.output = result.output or result.config.runtime.output_dir or nil
  end
  return result
end

return options
