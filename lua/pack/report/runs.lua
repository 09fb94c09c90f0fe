--- Reads finished, failed and unfinished runs from their folders, for a report.
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local json = require "pack.io.json"
local run = require "pack.run.folder"

local report_runs = {}

local TAIL_BYTES = 4096 -- of a run.log, to find its last line

-- The object in a JSON file, or nil; a file that is there and cannot be read is a remark.
local function read_json(self, name)
  local path = files.join(self.folder, name)
  if not files.exists(path) then return nil end
  local text, message = files.read(path)
  local value
  if text then value, message = json.decode(text, name) end
  if type(value) == "table" then return value end
  table.insert(self.remarks, message or name .. ": not an object")
end

-- A value of a JSON file as a number: NaN where it is null or not there, as infinities and NaNs are.
local function number(x)
  return type(x) == "number" and x or 0 / 0
end

local function text(x)
  return type(x) == "string" and x or nil
end

-- Metrics ----------------------------------------------------------------------------------------

local step_columns = {"step", "tokens", "loss", "lr", "gamma", "tokens_per_second", "memory_bytes"}

-- The seconds of all steps, and the bytes that a worker sent, up to here.
local function add_costs(found, costs)
  table.insert(found.seconds, costs.seconds)
  table.insert(found.bytes, costs.bytes)
end

local function add_evaluation(self, row)
  local found = self.evaluations
  for _, name in ipairs {"step", "tokens", "loss", "consensus_distance"} do
    table.insert(found[name], number(row[name]))
  end
  add_costs(found, self.costs)
end

local function add_step(self, row)
  for _, name in ipairs(step_columns) do table.insert(self.steps[name], number(row[name])) end
  local costs = self.costs
  costs.seconds = costs.seconds + (type(row.step_seconds) == "number" and row.step_seconds or 0)
  costs.bytes = costs.bytes + (type(row.bytes_sent) == "number" and row.bytes_sent or 0)
  add_costs(self.steps, costs)
  if row.consensus_distance then
    table.insert(self.consensus.tokens, number(row.tokens))
    table.insert(self.consensus.distance, number(row.consensus_distance))
  end
end

-- Takes the lines of metrics.jsonl apart, one at a time, as the file may be large.
local function read_metrics(self)
  local path = files.join(self.folder, "metrics.jsonl")
  if not files.exists(path) then return end
  local file, message = files.open(path)
  if not file then return table.insert(self.remarks, message) end
  local unreadable = 0
  for line in file:lines() do
    local row = json.decode(line)
    if type(row) ~= "table" then
      unreadable = unreadable + 1
    elseif row.split == "validation" then
      add_evaluation(self, row)
    elseif row.step then
      add_step(self, row)
    end
  end
  file:close()
  if unreadable > 0 then
    table.insert(self.remarks, ("metrics.jsonl: %d unreadable line(s) left out"):format(unreadable))
  end
end

-- How it ended -----------------------------------------------------------------------------------

-- The last line of run.log without its time, or nil.
local function last_line(folder)
  local last
  for line in (files.tail(files.join(folder, "run.log"), TAIL_BYTES) or ""):gmatch("[^\n]+") do
    if line:find("^%d+%-%d+%-%d+T%S+ ") then last = line:gsub("^%S+ ", "") end
  end
  return last
end

local function has_state(folder)
  for _, name in ipairs(files.names(folder)) do
    if name:find("%.state%.safetensors%.zst$") then return true end
  end
  return false
end

-- "complete", "running", "failed" or "unfinished", and why or how far.
local function status_of(self)
  local locked = run.is_locked(self.folder)
  local steps = #self.steps.step
  local progress = ("%d steps taken"):format(steps > 0 and self.steps.step[steps] + 1 or 0)
  if locked then return "running", progress end
  local failed = files.read(self.folder .. ".failed.json") -- a sweep notes failures beside the folder, even of what
  failed = failed and json.decode(failed) -- comes after a result
  if type(failed) == "table" and failed.reason then return "failed", tostring(failed.reason) end
  if self.result then return "complete" end
  local last = last_line(self.folder)
  local reason = last and last:match("^failed: (.*)$")
  if reason then return "failed", reason end
  return "unfinished", progress .. (has_state(self.folder) and "; a state is saved" or "; no state is saved")
end

-- Finding ----------------------------------------------------------------------------------------

local function is_run(folder)
  return files.exists(files.join(folder, "resolved.json"))
end

local function lists(names)
  local columns = {}
  for _, name in ipairs(names) do columns[name] = {} end
  return columns
end

--- Reads a run's folder: {folder, name, config, environment, result, recipe (its name), recipe_file and recipe_sha256
-- (nil in older runs), status, reason, remarks, steps, evaluations, consensus}. steps is lists by name of a column (step,
-- tokens, loss, lr, gamma, tokens_per_second, memory_bytes) with an entry per step, NaN for what is not a finite number;
-- evaluations (step, tokens, loss, consensus_distance) and consensus (tokens, distance) are too. steps and evaluations also
-- have seconds (of all steps) and bytes (that a worker sent) up to there. Usage error: no
-- configuration can be read there.
function report_runs.read(folder)
  folder = folder:gsub("(.)/+$", "%1")
  local self = {folder = folder, name = files.basename(folder), remarks = {}, steps = lists(step_columns),
    evaluations = lists {"step", "tokens", "loss", "consensus_distance", "seconds", "bytes"},
    consensus = lists {"tokens", "distance"}, costs = {seconds = 0, bytes = 0}}
  self.steps.seconds, self.steps.bytes = {}, {}
  self.config = read_json(self, "resolved.json")
  if not self.config then failure.usage("%s: %s", folder, self.remarks[1] or "there is no resolved.json") end
  self.environment = read_json(self, "environment.json") or {}
  self.result = read_json(self, "result.json")
  self.recipe = text(self.environment.recipe) or text((self.result or {}).recipe)
  local made_by = type(self.environment.made_by) == "table" and self.environment.made_by or {}
  self.recipe_file, self.recipe_sha256 = text(made_by.file), text(made_by.sha256)
  read_metrics(self)
  self.status, self.reason = status_of(self)
  return self
end

-- The run in a folder; or nil, its name and why it cannot be read.
local function read_or_explain(folder)
  local good, found = failure.pcall(report_runs.read, folder)
  if good then return found end
  if not failure.is(found) then error(found, 0) end
  return nil, {name = files.basename(folder), reason = found.message}
end

-- Runs of a sweep that failed before they had a folder: name.failed.json alone.
local function failed_alone(folder, name)
  local whole = files.join(folder, name)
  local stem = name:match("^(.*)%.failed%.json$")
  if not stem or is_run(files.join(folder, stem)) then return nil end
  local note = json.decode(files.read(whole) or "")
  return {name = stem, reason = tostring(type(note) == "table" and note.reason or "no reason was noted")}
end

--- The runs at a path, which is a run's folder or a folder of runs: a list of what `read` gives, and a list of
-- {name, reason} of runs that failed before they had a configuration, or whose configuration cannot be read. Usage
-- error: there are none.
function report_runs.find(path)
  if is_run(path) then return {report_runs.read(path)}, {} end
  local names = files.kind(path) == "directory" and files.names(path)
  if not names then failure.usage("%s: %s", path, files.exists(path) and "not a folder" or "there is no such folder") end
  local runs, failed = {}, {}
  for _, name in ipairs(names) do
    local inner = files.join(path, name)
    if files.kind(inner) == "directory" and is_run(inner) then
      runs[#runs + 1], failed[#failed + 1] = read_or_explain(inner)
    else
      failed[#failed + 1] = failed_alone(path, name)
    end
  end
  if #runs + #failed == 0 then
    failure.usage("%s: neither a run (there is no resolved.json) nor a folder of runs", path)
  end
  return runs, failed
end

return report_runs
