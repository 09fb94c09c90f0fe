--- One run of a sweep: its folder, how far it is, and the training that is started or continued there.
--
-- SWEEP/NAME               the run's folder (see pack.run)
-- SWEEP/NAME.log           what its process printed
-- SWEEP/NAME.failed.json   why it failed, when it did
-- SWEEP/locks/NAME         held by the process that does the run
-- SWEEP/set-aside/         what was left of runs that ended before they had saved anything
local checkpoint = require "pack.run.checkpoint"
local config = require "pack.config"
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local json = require "pack.io.json"
local run = require "pack.run.folder"
local study = require "pack.run.study"

local task = {}

local Task = {}
Task.__index = Task

--- The run `planned` (see sweep_plan.runs) of the sweep in `folder`; recipe names the sweep's in its files.
function task.create(folder, planned, recipe)
  return setmetatable({
    index = planned.index, name = planned.name, values = planned.values, config = planned.config, recipe = recipe,
    sweep = folder, folder = files.join(folder, planned.name),
    log = files.join(folder, planned.name .. ".log"),
    failed = files.join(folder, planned.name .. ".failed.json"),
    lock_path = files.join(folder, "locks/" .. planned.name),
  }, Task)
end

--- How far the run is: "running" (another process has it), "failed" (then why), "complete", "interrupted" (it has
-- a state to continue from, or only the beginnings of a run) or "new". What comes after the training belongs to the
-- run: it may have failed with a result there. A result that cannot be read is none.
function Task:status()
  if run.is_locked(self.folder) or not self.held and files.is_locked(self.lock_path) then return "running" end
  local failed = json.read(self.failed)
  if failed then return "failed", failed.reason end
  if self:result() then return "complete" end
  return files.exists(self.folder) and "interrupted" or "new"
end

--- Keeps other processes from the run until this one ends. Error: another process has it.
function Task:hold()
  files.mkdir(files.dirname(self.lock_path))
  local message
  self.held, message = files.lock(self.lock_path)
  if self.held == nil then failure.raise(1, message) end
end

--- Its result.json, or nil.
function Task:result()
  return json.read(files.join(self.folder, "result.json"))
end

-- What "auto" became in the run that is there does not make it another one.
local resolved_at_start = {["runtime.amp"] = true, ["runtime.attention"] = true}

--- Refuses to take a folder for this run whose configuration is another one: a usage error that names the key.
function Task:check()
  local path = files.join(self.folder, "resolved.json")
  if not files.exists(path) then return end
  local good, saved = failure.pcall(config.load, path, {})
  if not good then
    failure.usage("%s\nwithout the folder %s the run begins again", tostring(saved), self.folder)
  end
  for _, one in ipairs(checkpoint.differences(saved, self.config, resolved_at_start)) do
    failure.usage("%s: the run there has %s = %s, and the sweep now says %s; --output DIR begins a new sweep",
      self.folder, one.key, one.saved, one.wanted)
  end
end

--- Notes why the run failed, which keeps it from being tried again by itself.
function Task:fail(reason)
  json.write(self.failed, {name = self.name, reason = reason})
end

-- Puts what a process left that had not saved anything out of the way.
local function set_aside(self)
  local place = files.join(self.sweep, "set-aside")
  files.mkdir(place)
  for i = 1, math.huge do
    local target = ("%s/%s-%d"):format(place, self.name, i)
    if not files.exists(target) then
      local moved, message = os.rename(self.folder, target)
      if not moved then failure.raise(1, message) end
      return
    end
  end
end

-- The newest state that can be read, and those passed over; nil if there is none.
local function newest_state(self)
  if #checkpoint.list(self.folder) == 0 then return nil end
  return checkpoint.find(self.folder, {fallback = true})
end

--- Forgets that it failed. What failed after its training begins again.
function Task:forgive()
  if self:result() then set_aside(self) end
  os.remove(self.failed)
end

--- Opens the run's study (see pack.study): a new one, or from the newest state of what is there. trainer_parts: options for
-- pack.trainer.create.
function Task:study(trainer_parts)
  local state, skipped = newest_state(self)
  if not self:result() then os.remove(files.join(self.folder, "result.json")) end -- it cannot be read
  if not state and files.exists(self.folder) then set_aside(self) end
  self.opened = study.start {config = self.config, recipe = self.recipe, output = not state and self.folder or nil,
    state = state, skipped = skipped, trainer = trainer_parts}
  return self.opened
end

--- Trains to the end and writes the result.
function Task:train()
  local one = self:study()
  one:train()
  one:conclude()
  one:close()
end

--- Adds fields to result.json, such as a measurement of the sweep's own.
function Task:note_result(fields)
  local result = self:result()
  if not result then failure.raise(1, self.name .. ": the function of the sweep ended without a result.json") end
  for key, value in pairs(fields) do result[key] = value end
  json.write(files.join(self.folder, "result.json"), result)
end

return task
