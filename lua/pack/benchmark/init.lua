--- Benchmarks of packed against sequential training: every candidate in a process of its own, in turns, its results in
-- a folder. What is measured is in candidate.lua, the order in plan.lua, what came of it in
-- summary.lua.
--
-- n-N.json               the configuration of N workers
-- n-N-MODE-EXECUTION     .json: a candidate's results; .log: what it printed; .trace.json: one step of it
-- summary.json           settings and comparisons; summary.md and plots show them
local benchmark_plan = require "pack.benchmark.plan"
local config_module = require "pack.config"
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local json = require "pack.io.json"
local native = require "pack.native"
local parity = require "pack.benchmark.parity"
local process = require "pack.io.process"
local progress = require "pack.io.progress"
local summary = require "pack.benchmark.summary"

local C = native.C
local benchmark = {
  --- The options of the recipe, for options.parse.
  options = benchmark_plan.options,
}

local Benchmark = {}
Benchmark.__index = Benchmark

local EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
local POLL_SECONDS = 1

-- The folder -------------------------------------------------------------------------------------

-- The path of a candidate's file with this ending.
function Benchmark:path(candidate, ending)
  return files.join(self.folder, candidate.name .. ending)
end

local function config_path(self, name)
  return files.join(self.folder, name .. ".json")
end

--- The new, empty folder for results that the options ask for.
function benchmark.claim(options)
  if not options.output then
    local folder, message = files.claim(os.date("!runs/benchmark-%Y%m%dT%H%M%SZ"))
    if not folder then failure.usage("%s\n--output DIR chooses another folder", message) end
    return folder
  end
  local folder = options.output
  local names = files.names(folder)
  if #names > 0 then
    failure.usage("%s: the folder is not empty; --resume goes on with what is there, --output DIR chooses another", folder)
  end
  if C.pk_directory_create(folder) ~= 0 then failure.usage("%s", native.message()) end
  return folder
end

-- Refuses to go on with results of other settings.
local function check_settings(folder, plan)
  local path = files.join(folder, "summary.json")
  local before, message = json.read(path)
  if not before then failure.usage("--resume: %s", message) end
  if type(before) ~= "table" or type(before.settings) ~= "table" then
    failure.usage("--resume: %s is not the summary of a benchmark", path)
  end
  local names = {}
  for name in pairs(plan.settings) do names[name] = true end
  for name in pairs(before.settings) do names[name] = true end
  for name in pairs(names) do
    local old, new = json.encode(before.settings[name] or json.null), json.encode(plan.settings[name] or json.null)
    if old ~= new then
      failure.usage("--resume: %s has results of %s %s, and %s is asked for now", folder, name, old, new)
    end
  end
end

local function check_config(self, name, config)
  local before = config_module.load(config_path(self, name))
  for _, row in ipairs(require("pack.config.schema").rows) do
    local old, new = before[row.section][row.name], config[row.section][row.name]
    if json.encode(old) ~= json.encode(new) then
      failure.usage("--resume: %s has results of %s %s, and %s is asked for now", self.folder, row.key,
        json.encode(old), json.encode(new))
    end
  end
end

-- The record of a candidate: with the rounds that are there from before, if any succeeded, or a new one.
local function open_record(self, candidate)
  local path = self:path(candidate, ".json")
  local before = files.exists(path) and json.read(path)
  if before and #before.repeats > 0 then
    if before.status ~= "ok" then before.status, before.reason = "ok", nil end
    return before
  end
  for _, ending in ipairs {".json", ".log", ".trace.json", ".weights.safetensors"} do
    os.remove(self:path(candidate, ending))
  end
  return {name = candidate.name, num_models = candidate.num_models, mode = candidate.mode,
    execution = candidate.execution, status = "not_started", repeats = json.array()}
end

--- Starts on a plan (see benchmark_plan) in a folder. options: timeout and budget in seconds, resume (the folder holds
-- results with the same settings), brief (only whole steps are measured).
function benchmark.start(plan, folder, options)
  local self = setmetatable({plan = plan, folder = folder, records = {}, timeout = options.timeout,
    budget = options.budget or math.huge, brief = options.brief, began = C.pk_clock()}, Benchmark)
  for name, config in pairs(plan.configs) do
    if options.resume then
      check_config(self, name, config)
    else
      files.write(config_path(self, name), config_module.encode(config))
    end
  end
  for _, candidate in ipairs(plan.candidates) do self.records[candidate.name] = open_record(self, candidate) end
  self.turns = benchmark_plan.turns(plan)
  self.bar = progress.create {total = #self.turns, unit = "turn"}
  return self
end

--- Opens a benchmark in a new folder, or, with options.resume, in that of an earlier one with the same settings, if
-- there is one.
-- options: what options.parse gave. Raises usage errors. The object has folder, plan, turns, and records, the results
-- so far by the candidates' names.
function benchmark.open(options)
  local plan = benchmark_plan.create(options)
  if options.resume and not options.output then failure.usage("--resume needs --output DIR, the folder to go on with") end
  local resume = options.resume and files.exists(files.join(options.output, "summary.json"))
  if resume then check_settings(options.output, plan) end
  local self = benchmark.start(plan, resume and options.output or benchmark.claim(options),
    {timeout = options.timeout, budget = options.budget_minutes and options.budget_minutes * 60, resume = resume})
  self.on_result = self.write_summary
  self:write_summary()
  return self
end

-- Measuring --------------------------------------------------------------------------------------

-- Writes what a process is to do; returns the path.
local function write_job(self, candidate, closer)
  local settings = self.plan.settings
  local job = {config = config_path(self, candidate.config), mode = candidate.mode,
    execution = candidate.execution, warmup = settings.warmup, steps = settings.steps, dtype = settings.dtype,
    data = settings.data, started = C.pk_clock(), closer = closer, brief = self.brief, result = self:path(candidate, ".result.json"),
    trace = self:path(candidate, ".trace.json"), weights = self:path(candidate, ".weights.safetensors")}
  local path = self:path(candidate, ".job.json")
  json.write(path, job)
  os.remove(job.result)
  return path
end

-- Seconds that are left of the budget.
local function time_left(self)
  return self.budget - (C.pk_clock() - self.began)
end

-- Waits for a process; returns "ended", "interrupted" by a signal to this program, or "timeout" and the reason.
local function wait_for(self, child)
  local left = time_left(self)
  local limit = math.min(self.timeout, left)
  while not child:poll(math.min(POLL_SECONDS, math.max(0, limit - (child.seconds or 0)))) do
    local late = child.seconds >= limit
    if C.pk_signals_pending() ~= 0 or late then child:stop() end
    if C.pk_signals_pending() ~= 0 then return "interrupted" end
    if late and left < self.timeout then return "timeout", "the budget of --budget-minutes was used up meanwhile" end
    if late then return "timeout", ("it took longer than --timeout %.14g s"):format(self.timeout) end
  end
  return "ended"
end

-- What a process that has ended left: its result, or why there is none.
local function result_of(child, path)
  local result = files.exists(path) and json.read(path)
  if result and (result.status ~= "ok" or child.code == 0) then return result end
  if child.signal == process.signals.KILL then
    return {status = "killed", reason = "killed by SIGKILL, as the system does when memory runs out"}
  elseif child.signal then
    return {status = "crashed", reason = "ended by " .. process.signal_name(child.signal)}
  end
  return {status = "failed", reason = ("it ended with exit code %d"):format(child.code)}
end

-- The result of a process that was stopped as its time was up: what it had by then, if its timed steps were done.
local function result_in_time(path, reason)
  local result = files.exists(path) and json.read(path)
  if not result or result.status ~= "ok" then return {status = "timed_out", reason = reason} end
  result.reason = "stopped after the timed steps: " .. reason
  return result
end

-- Runs a candidate once, in its own process. Returns its result, or nil when a signal asked this program to stop.
local function measure(self, candidate, closer)
  local job = write_job(self, candidate, closer)
  local child = process.start {log = self:path(candidate, ".log"),
    command = {process.program(), "-e", ("require('pack.benchmark.candidate').main(%q)"):format(job)}}
  local how, reason = wait_for(self, child)
  local path = self:path(candidate, ".result.json")
  local result = how == "timeout" and result_in_time(path, reason) or how == "ended" and result_of(child, path)
  for _, name in ipairs {job, path} do os.remove(name) end
  if not result then return nil end
  result.process = {seconds = child.seconds, user_seconds = child.user_seconds,
    system_seconds = child.system_seconds, peak_rss_bytes = child.peak_rss}
  return result
end

-- The candidate that computes the same in the other mode.
local function counterpart(self, candidate)
  for _, other in ipairs(self.plan.candidates) do
    if other.num_models == candidate.num_models and other.execution == candidate.execution
      and other.mode ~= candidate.mode then
      return other
    end
  end
end

-- Compares the final weights of both modes once both are there, and removes them.
local function compare_weights(self, candidate)
  local other = counterpart(self, candidate)
  local path = self:path(candidate, ".weights.safetensors")
  local other_path = other and self:path(other, ".weights.safetensors")
  if not other then return os.remove(path) end
  if not (files.exists(path) and files.exists(other_path)) then return end
  local packed = candidate.mode == "packed"
  local worst, name = parity.of(packed and path or other_path, packed and other_path or path)
  for _, one in ipairs {candidate, other} do
    self.records[one.name].parity = {value = worst, tensor = name}
    os.remove(self:path(one, ".weights.safetensors"))
    self:write_record(one)
  end
end

-- Writes a candidate's JSON.
function Benchmark:write_record(candidate)
  json.write(self:path(candidate, ".json"), self.records[candidate.name])
end

-- Adds the result of a turn to a candidate's record.
local function note(self, candidate, result)
  local record = self.records[candidate.name]
  record.status, record.reason = result.status, result.reason
  if result.status == "ok" then
    table.insert(record.repeats, result)
    summary.derive(record)
  end
  self:write_record(candidate)
  if result.status == "ok" then compare_weights(self, candidate) end
end

-- Why a turn is not taken, or nil.
local function obstacle(self, turn)
  local record = self.records[turn.candidate.name]
  self.interrupted = self.interrupted or C.pk_signals_pending() ~= 0
  if self.interrupted then return "stopped" end
  if #record.repeats >= turn.round then return "is there from before" end
  if record.status ~= "ok" and record.status ~= "not_started" then return "did not succeed before" end
  if time_left(self) > (self.longest or 0) then return nil end
  record.reason = "the budget of --budget-minutes was used up"
  self:write_record(turn.candidate)
  return record.reason
end

local function say(self, index, turn, format, ...)
  self.bar:update(index, "%s, round %d: %s", turn.candidate.name, turn.round, format:format(...))
end

--- Takes a turn, if there is time and its candidate has not failed; what came of it is in the records and files.
function Benchmark:take(index)
  local turn = self.turns[index]
  local reason = obstacle(self, turn)
  if reason then return say(self, index, turn, "%s", reason) end
  local record, before = self.records[turn.candidate.name], C.pk_clock()
  local result = measure(self, turn.candidate, not self.brief and record.operators == nil)
  if not result then
    self.interrupted = true
    return say(self, index, turn, "stopped")
  end
  self.longest = math.max(self.longest or 0, self.budget < math.huge and C.pk_clock() - before or 0)
  note(self, turn.candidate, result)
  if self.on_result then self:on_result() end
  if result.status ~= "ok" then return say(self, index, turn, "%s: %s", result.status, summary.first_line(result.reason)) end
  say(self, index, turn, "%s tok/s", progress.count(result.tokens_per_second))
end

-- Results ----------------------------------------------------------------------------------------

-- Writes summary.json and summary.md; returns the summary.
function Benchmark:write_summary()
  local whole = summary.of(self.plan, self.records)
  json.write(files.join(self.folder, "summary.json"), whole)
  files.write(files.join(self.folder, "summary.md"), summary.markdown(whole))
  return whole
end

--- Writes summary and plots, prints the table, and ends the program as it deserves: 130 when it was interrupted, 1
-- when a candidate failed or was not measured.
function Benchmark:conclude()
  self.bar:finish()
  local whole = self:write_summary()
  for _, line in ipairs(require("pack.benchmark.plots").write(self.folder, whole)) do print(line) end
  print("\n" .. summary.text(whole))
  print("results: " .. files.join(self.folder, "summary.md"))
  self:raise_if_interrupted(("--resume --output %s goes on"):format(self.folder))
  local failed = summary.count_failed(whole)
  if failed > 0 then failure.raise(EXIT_FAILED, ("%d of %d candidates have no result"):format(failed, #whole.candidates)) end
end

--- Ends the program with 130, saying what to do next, if a signal ended the turns.
function Benchmark:raise_if_interrupted(hint)
  if self.interrupted then failure.raise(EXIT_INTERRUPTED, "interrupted; " .. hint) end
end

--- Takes all turns, one after the other; SIGINT and SIGTERM end them after what is measured just now is stopped.
function Benchmark:run()
  C.pk_signals_hold()
  for index in ipairs(self.turns) do self:take(index) end
  C.pk_signals_release()
end

return benchmark
