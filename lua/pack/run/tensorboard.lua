--- A run's rows as scalars in an event file for TensorBoard (runtime.tensorboard).
--
-- Each process of a run writes a file of its own. That of one which goes on begins by saying at which step,
-- so that TensorBoard drops the steps after it which an earlier process had taken in vain.
local caller = require "pack.core.caller"
local files = require "pack.io.files"
local native = require "pack.native"
local tfevents = require "pack.run.tfevents"

caller.register()

local C = native.C
local tensorboard = {}

local Events = {}
Events.__index = Events

local FLUSH_SECONDS = 2

-- Fields of a row that say where it is, not how it went.
local skipped = {step = true, tokens = true, epoch = true, targets = true, topology_phase = true}

-- A name that sorts behind those of the run's earlier processes.
local function free_path(folder, time)
  local host = (files.read("/proc/sys/kernel/hostname", 4096) or ""):match("%S+") or "localhost"
  local base = ("%s/events.out.tfevents.%010d.%s"):format(folder, time, host:gsub("[^%w._-]", "_"))
  local path, i = base, 1
  while files.exists(path) do
    i = i + 1
    path = ("%s.%d"):format(base, i)
  end
  return path
end

-- Brings what was written to the system.
local function flush(self)
  self.file:write(table.concat(self.pending))
  self.pending, self.flushed = {}, C.pk_clock()
end

local function write(self, message)
  self.pending[#self.pending + 1] = tfevents.record(message)
end

--- Starts an event file in the folder of a run, which goes on at `step` (0 when it begins).
function tensorboard.create(folder, step)
  local time = C.pk_time()
  local self = setmetatable({path = free_path(folder, time), pending = {}}, Events)
  self.file = files.appending(self.path)
  write(self, tfevents.version(time))
  write(self, tfevents.start(time, step))
  flush(self)
  return self
end

-- The numbers of a row as {tag, value}, sorted by tag; entry i of a list is name/i, counted from 0.
local function scalars_of(row)
  local list, prefix = {}, row.split and row.split .. "/" or ""
  local function add(tag, x)
    if type(x) == "number" then list[#list + 1] = {prefix .. tag, x} end
  end
  local names = {}
  for name in pairs(row) do
    if not skipped[name] then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    add(name, row[name])
    for i, x in ipairs(type(row[name]) == "table" and row[name] or {}) do add(("%s/%d"):format(name, i - 1), x) end
  end
  return list
end

--- Writes a row of metrics.jsonl: every number in it, those of a split under its name, such as validation/loss. An
-- evaluation stands at the last step before it: the step after it may be where another process goes on.
function Events:row(row)
  local step = row.split and math.max(0, row.step - 1) or row.step
  write(self, tfevents.scalars(C.pk_time(), step, scalars_of(row)))
  if row.split or C.pk_clock() - self.flushed >= FLUSH_SECONDS then flush(self) end
end

--- Ends the file; twice is harmless.
function Events:close()
  if not self.file then return end
  flush(self)
  self.file:close()
  self.file = nil
end

return tensorboard
