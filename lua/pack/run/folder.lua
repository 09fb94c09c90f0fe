--- A run's folder: what was asked for, where it ran, what was printed, every step's numbers, the result.
--
-- resolved.json     the configuration           metrics.jsonl   a line per step and evaluation
-- environment.json  machine, versions, command  best.json       the evaluation with the smallest loss
-- run.log           what was printed, with time result.json     the result
-- run.lock          held by the process that writes here
--
-- Weights and training states are there too; see saver.lua and docs/runs.md.
local caller = require "pack.core.caller"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local files = require "pack.io.files"
local json = require "pack.io.json"
local native = require "pack.native"
local plain_recipes = require "pack.run.plain_recipes"
local utf8 = require "pack.io.utf8"

caller.register()

local C = native.C
local run = {}

local Run = {}
Run.__index = Run

local LOCK_NAME = "run.lock"

local function utc(format)
  return os.date(format or "!%Y-%m-%dT%H:%M:%SZ")
end

-- The folder -------------------------------------------------------------------------------------

local function lock(folder)
  return files.lock(files.join(folder, LOCK_NAME))
end

--- Whether a process writes to a run's folder.
function run.is_locked(folder)
  return files.is_locked(files.join(folder, LOCK_NAME))
end

local function is_empty(folder)
  local names, message = files.list(folder)
  if not names then caller.raise("%s", message) end
  return #names == 0 or (#names == 1 and names[1] == LOCK_NAME)
end

local function resume_hint(folder)
  if not files.exists(native.home() .. "/recipes/resume.lua") then return "" end
  return ("; packlua recipes/resume.lua %s continues what is there"):format(folder)
end

-- Takes a folder for this run, or returns nil and why not. Usage error: it cannot be made.
local function claim(folder)
  if files.kind(folder) and files.kind(folder) ~= "directory" then
    return nil, folder .. ": is not a directory"
  end
  -- Not even a lock file is put into a folder of somebody else's.
  if files.exists(folder) and not files.exists(files.join(folder, LOCK_NAME)) and not is_empty(folder) then
    return nil, ("%s: the folder is not empty%s"):format(folder, resume_hint(folder))
  end
  if C.pk_directory_create(folder) ~= 0 then
    failure.usage("%s\n--output DIR chooses another folder", native.message())
  end
  local held, message = lock(folder)
  if held == nil then return nil, message end
  if is_empty(folder) then return {held} end
  files.unlock(held)
  return nil, ("%s: the folder holds another run%s"):format(folder, resume_hint(folder))
end

local function claim_new(recipe)
  local folder, message = files.claim(("runs/%s-%s"):format(recipe, utc("!%Y%m%dT%H%M%SZ")))
  if not folder then failure.usage("%s\n--output DIR chooses another folder", message) end
  local claimed
  claimed, message = claim(folder)
  if not claimed then failure.usage("%s", message) end
  return claimed, folder
end

local function claim_given(folder)
  local claimed, message = claim(folder)
  if not claimed then failure.usage("%s\n--output DIR chooses another folder", message) end
  return claimed, folder
end

-- The environment --------------------------------------------------------------------------------

-- {name = version} of the libraries in use.
local function versions()
  local list = {}
  for line in ffi.string(C.pk_build_info()):gmatch("[^\n]+") do
    local name, version = line:match("^(%S+) (.*)$")
    if name then list[name] = version end
  end
  return list
end

local slurm_names = {
  job = "SLURM_JOB_ID", job_name = "SLURM_JOB_NAME", node = "SLURMD_NODENAME",
  nodes = "SLURM_JOB_NODELIST", partition = "SLURM_JOB_PARTITION", cluster = "SLURM_CLUSTER_NAME",
  task = "SLURM_PROCID", restarts = "SLURM_RESTART_COUNT",
}

local function slurm()
  local found
  for key, variable in pairs(slurm_names) do
    local text = os.getenv(variable)
    if text then
      found = found or {}
      found[key] = text
    end
  end
  return found or json.null
end

local function command_line(arguments)
  local first, words = 0, json.array()
  while arguments[first - 1] do first = first - 1 end
  for i = first, #arguments do words[#words + 1] = arguments[i] end
  return words
end

--- The file of the recipe that runs, {file (its name), sha256, path (where it is no recipe that resume.lua knows)}, or nil if
-- it is none, as at the prompt. arguments: default the global arg.
function run.made_by(arguments)
  local path = (arguments or arg or {})[0]
  local digits = path and files.kind(path) == "file" and files.sha256(path)
  if not digits then return nil end
  local made_by = {file = files.basename(path), sha256 = digits}
  if not plain_recipes.has(made_by) then made_by.path = files.real(path) end
  return made_by
end

--- What a process runs on: versions, device, host, cluster job, command. options: context, arguments (default the
-- global arg), recipe (its name).
function run.environment(options)
  local libraries = versions()
  local context = options.context
  local revision = libraries.revision
  libraries.revision = nil
  local host = files.read("/proc/sys/kernel/hostname", 4096)
  return {
    packlua = require("pack.version"), revision = revision or json.null, versions = libraries,
    recipe = options.recipe, made_by = run.made_by(options.arguments),
    started = utc(), host = host and host:match("%S+") or json.null,
    command = command_line(options.arguments or arg or {}), slurm = slurm(),
    device = context and context:device() or json.null,
    device_description = context and context:describe() or json.null,
    instruction_set = context and context:isa() or json.null,
    threads = context and context:threads() or json.null, cores = tonumber(C.pk_cores()),
  }
end

-- Writing ----------------------------------------------------------------------------------------

-- Appends a line, which the system has when this returns.
local function append(file, line)
  file:write(line .. "\n")
end

-- Logs what a file system turned out to lack.
local function log_remarks(self)
  if C.pk_file_remark(self.remarks) == nil then return end
  for _, remark in ipairs(files.remarks(self.remarks)) do
    self.remarks = self.remarks + 1
    self:log("%s", remark)
  end
end

local function refuse_closed(self)
  if self.closed then caller.raise("the run in %s is closed", self.folder) end
end

local function write_json(folder, name, value)
  json.write(files.join(folder, name), value)
end

-- A run whose folder is claimed: opens its files. lines: how many metrics.jsonl has; step: where it goes on.
local function open(folder, held, options, lines, step)
  local self = setmetatable({
    folder = folder, recipe = options.recipe, config = options.config, held = held, lines = lines,
    began = C.pk_clock(), print_line = print, rows = json.rows(), remarks = 0,
  }, Run)
  self.log_file = files.appending(self:path("run.log"))
  self.metrics_file = files.appending(self:path("metrics.jsonl"))
  if options.config and options.config.runtime.tensorboard then
    self.events = require("pack.run.tensorboard").create(folder, step)
  end
  if not held then self:log("%s: this file system has no locks; nothing keeps other processes out", folder) end
  return self
end

-- The folder is left out: the file is a configuration for further runs too, wherever this one is moved to.
local function write_config(folder, resolved)
  local config = require "pack.config"
  local saved = config.copy(resolved)
  saved.runtime.output_dir = false
  files.write(files.join(folder, "resolved.json"), config.encode(saved))
end

local function start(folder, held, options)
  if options.config then write_config(folder, options.config) end
  write_json(folder, "environment.json", run.environment(options))
  local self = open(folder, held, options, 0, 0)
  self.made_by = run.made_by(options.arguments)
  return self
end

--- Starts a run. options: recipe (its name), output (the folder; default runs/RECIPE-UTCTIME), config (a
-- resolved configuration), context, arguments (default the global arg). A folder that holds anything,
-- or that another process is writing to, is refused.
function run.create(options)
  local claimed, folder
  if options.output then
    claimed, folder = claim_given(options.output)
  else
    claimed, folder = claim_new(options.recipe)
  end
  return start(folder, claimed[1], options)
end

-- Resuming ---------------------------------------------------------------------------------------

-- What a run's own files are called, as patterns; node-NNN is a folder.
local own_files = {"^run%.log$", "^run%.lock$", "^metrics%.jsonl$", "^resolved%.json$", "^environment%.json$", "^best%.json$",
  "^result%.json$", "^epoch%-%d+%.", "^step%-%d+%.", "^events%.out%.tfevents%.", "%.tmp%-%d+%-%d+$"}
local own_folder = "^node%-%d+$"

local function is_own_file(name)
  for _, pattern in ipairs(own_files) do
    if name:find(pattern) then return true end
  end
  return false
end

-- Refuses a folder in which something else has the name of a run's own file or folder: a link could lead out of it, and
-- a pipe would be waited for.
local function check_own(folder)
  local names, message = files.list(folder)
  if not names then failure.usage("%s", message) end
  for _, name in ipairs(names) do
    local path = files.join(folder, name)
    local wanted = name:find(own_folder) and "directory" or is_own_file(name) and "file"
    local found = wanted and (files.is_link(path) and "symbolic link" or files.kind(path))
    if found ~= wanted then
      failure.usage("%s: is a %s where the run has a %s of its own; nothing is changed", path,
        found == "other" and "pipe or device" or found, wanted)
    end
  end
  return names
end

-- Takes the folder of a run that is there.
local function claim_again(folder)
  check_own(folder)
  local held, message = lock(folder)
  if held == nil then failure.usage("%s", message) end
  return held
end

-- Removes what a killed process left half written.
local function remove_unfinished(folder)
  for _, name in ipairs(check_own(folder)) do
    if name:find("%.tmp%-%d+%-%d+$") then os.remove(files.join(folder, name)) end
  end
end

-- Refuses to go on from a state where the run is past it: what follows would mix with what is there. States
-- that were passed over as damaged are set aside.
local function refuse_past(state, skipped)
  if files.exists(files.join(state.folder, "result.json")) then
    failure.usage("%s: the run is finished; --output DIR makes a branch", state.folder)
  end
  for _, other in ipairs(skipped or {}) do files.set_aside(other.path) end
  for _, other in ipairs(require("pack.run.checkpoint").list(state.folder)) do
    if other.step > state.info.step then
      failure.usage("%s: %s is newer; continue from that, or make a branch with --output DIR", state.path, other.path)
    end
  end
end

-- What environment.json says, or nil and what is wrong with it; nil alone where there is none.
local function read_environment(path)
  if not files.exists(path) then return nil end
  local text, message = files.read(path)
  if not text then return nil, message end
  local found
  found, message = json.decode(text, path)
  if type(found) ~= "table" or #found > 0 or type(found.resumed or {}) ~= "table" then
    return nil, message or path .. ": does not say where the run ran"
  end
  return found
end

-- Adds where and how the run goes on to environment.json. One that cannot be read is set aside: returns what is to be
-- said about it.
local function note_environment(folder, options)
  local path = files.join(folder, "environment.json")
  local first, problem = read_environment(path)
  local remark = problem and ("%s; it is kept as %s"):format(problem, files.set_aside(path))
  first = first or run.environment(options)
  first.resumed = json.array(first.resumed or {})
  table.insert(first.resumed, run.environment(options))
  write_json(folder, "environment.json", first)
  return remark
end

-- The environment.json of a branch: the recipe is the one that made the state.
local function write_environment(folder, state, options)
  local environment = run.environment(options)
  environment.made_by = state.info.made_by
  write_json(folder, "environment.json", environment)
end

-- The lines of metrics.jsonl that were there when the state was taken, at most `wanted`: how many are still there,
-- and their bytes. Usage error: the file is there and cannot be read.
local function measure_metrics(path, wanted)
  if not files.exists(path) then return 0, 0 end
  local found, bytes = files.lines(path, wanted)
  if not found then failure.usage("%s; without the file the run goes on with new lines alone", bytes) end
  return found, bytes
end

local function set_best(self, best)
  self.best = best ~= json.null and best or nil
  if self.best then
    write_json(self.folder, "best.json", self.best)
  else
    os.remove(self:path("best.json"))
  end
end

--- Continues a run from a state (see pack.checkpoint), in the state's folder or, as a branch, in
-- options.output: metrics.jsonl is what it was when the state was taken, and best.json the best evaluation by
-- then; run.log goes on. options: state, skipped (see checkpoint.find), output, recipe, config, context, arguments.
-- Refuses a folder that another process is writing to, and in the state's folder a run that is finished or has
-- newer states.
function run.resume(options)
  local state = options.state
  local folder, branch = options.output or state.folder, options.output and options.output ~= state.folder
  local source, wanted = files.join(state.folder, "metrics.jsonl"), state.info.metrics_lines
  local held, remark
  local found, bytes = measure_metrics(source, wanted)
  if branch then
    held = claim_given(folder)[1]
    if files.exists(source) then files.copy(source, bytes, files.join(folder, "metrics.jsonl")) end
    write_environment(folder, state, options)
  else
    held = claim_again(folder)
    refuse_past(state, options.skipped)
    remove_unfinished(folder)
    remark = note_environment(folder, options)
    if files.exists(source) then files.cut(source, bytes) end
  end
  write_config(folder, options.config)
  local self = open(folder, held, options, found, state.info.step)
  self.made_by = state.info.made_by
  set_best(self, state.info.best)
  self:log("resumed: %s, after %d steps", state.path, state.info.step)
  if remark then self:log("%s", remark) end
  if found < wanted then self:log("metrics.jsonl had only %d of its %d lines", found, wanted) end
  return self
end

--- The path of a file of the run.
function Run:path(name)
  return files.join(self.folder, name)
end

--- Writes a line (printf style) into run.log alone.
function Run:note(text, ...)
  refuse_closed(self)
  local line = utf8.printable(select("#", ...) > 0 and text:format(...) or text)
  append(self.log_file, utc() .. " " .. line:gsub("\n", "\n  "))
end

--- Prints a line (printf style) and writes it into run.log with the time.
function Run:log(text, ...)
  local line = select("#", ...) > 0 and text:format(...) or text
  self:note("%s", line)
  self.print_line(utf8.printable(line))
  io.stdout:flush()
end

--- Has lines printed by a function instead of print; nil goes back. A progress bar on a terminal does it.
function Run:print_through(print_line)
  self.print_line = print_line or print
end

local function note_best(self, row)
  local loss = row.loss
  if row.split ~= "validation" or not loss or loss - loss ~= 0 then return end
  if self.best and self.best.loss <= loss then return end
  self.best = row
  write_json(self.folder, "best.json", row)
end

--- Appends a row to metrics.jsonl and returns it. A row with split = "validation" that has the smallest
-- loss so far is kept in best.json.
function Run:metrics(row)
  refuse_closed(self)
  append(self.metrics_file, self.rows:encode(row))
  self.lines = self.lines + 1
  if self.events then self.events:row(row) end
  note_best(self, row)
  log_remarks(self)
  return row
end

--- Writes result.json: the fields of `result`, the recipe, the best evaluation and the run's time.
function Run:result(result)
  refuse_closed(self)
  local all = {recipe = self.recipe, best = self.best or json.null, finished = utc(),
    run_seconds = C.pk_clock() - self.began}
  for key, value in pairs(result) do all[key] = value end
  write_json(self.folder, "result.json", all)
end

--- Closes the run's files and gives up its lock; twice is harmless.
function Run:close()
  if self.closed then return end
  log_remarks(self)
  self.closed = true
  self.log_file:close()
  self.metrics_file:close()
  if self.events then self.events:close() end
  files.unlock(self.held)
  self.held = nil
end

return run
