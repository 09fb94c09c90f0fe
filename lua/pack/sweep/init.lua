--- Sweeps: many runs that differ in some keys, each in a process and a folder of its own.
--
-- pack.sweep {recipe =, summary =, arg =, run = function(task) ... end} is a whole recipe: it reads the command
-- line, starts this same script once per run with --task, and sums up. Started again, it goes on where it was:
-- complete runs are skipped, interrupted ones continue from their state, failed ones stay failed unless --retry.
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local native = require "pack.native"
local options = require "pack.run.options"
local plan = require "pack.sweep.plan"
local process = require "pack.io.process"
local progress = require "pack.io.progress"
local summary = require "pack.sweep.summary"
local sweep_table = require "pack.sweep.table"
local sweep_task = require "pack.sweep.task"

local C = native.C
local sweep = {}

local POLL_SECONDS = 0.2
local EXIT_FAILED, EXIT_SAVED, EXIT_INTERRUPTED = 1, 75, 130

--- The options of a sweep, for options.parse.
sweep.options = {
  {name = "over", value = "KEY=V,V...", repeated = true, help = "an axis: every value with those of all other axes"},
  {name = "zip", value = "KEY=V,V...", many = true, help = "keys that change together, as one axis"},
  {name = "output", value = "DIR", help = "folder of the sweep (default runs/sweep-UTCTIME); one that is there goes on"},
  {name = "jobs", value = "J", type = "integer", minimum = 1, help = "runs at a time (default: one per device)"},
  {name = "devices", value = "LIST", help = "devices to share the runs among, such as cuda:0,cuda:1"},
  {name = "fixed-micro-batch", help = "training.micro_batch_size stays where N changes, and accumulation follows"},
  {name = "retry", help = "tries failed runs again"},
  {name = "collect", help = "runs nothing, only writes the summary of what is there"},
  {name = "dry-run", help = "shows the runs, or with --slurm what would be submitted, and ends"},
  {name = "slurm", help = "submits the runs as an array job through scripts/slurm.sh"},
  {name = "task", value = "K", type = "integer", minimum = 1, help = "only run K, in this process, as array jobs do"},
}

local function split(text)
  local list = {}
  for part in (text or ""):gmatch("[^,]+") do list[#list + 1] = part end
  return list
end

-- The arguments that plan the same runs in a process that does one of them.
local function plan_arguments(found)
  local list = {"--config", found.config_file}
  local function add(option, ...)
    list[#list + 1] = option
    for i = 1, select("#", ...) do list[#list + 1] = (select(i, ...)) end
  end
  for _, text in ipairs(found.set or {}) do add("--set", text) end
  if found.device then add("--device", found.device) end
  for _, text in ipairs(found.over or {}) do add("--over", text) end
  if found.zip then add("--zip", unpack(found.zip)) end
  if found.fixed_micro_batch then add("--fixed-micro-batch") end
  add("--output", found.output)
  return list
end

-- Running one --------------------------------------------------------------------------------------

-- What an error says, in one line, without the library's own place in front and the traceback behind.
local function reason_of(message)
  return (tostring(message):gsub("\nstack traceback.*$", ""):gsub("^[^ ]*lua/pack/[^ ]*%.lua:%d+: ", ""))
end

-- Has the recipe's function do one run in this process, and notes why it failed if it did.
local function run_here(task, run)
  task:hold()
  local status, reason = task:status()
  if status == "complete" then return print(task.name .. ": complete") end
  if status == "failed" then
    failure.raise(EXIT_FAILED, ("%s failed before: %s (--retry tries again)"):format(task.name, reason))
  end
  if status == "running" then failure.raise(EXIT_FAILED, task.folder .. ": another process is running it") end
  local good, result = xpcall(run, function(message)
    return failure.is(message) and message or debug.traceback(tostring(message), 2)
  end, task)
  if good then
    if type(result) == "table" then task:note_result(result) end
    return
  end
  local exit = failure.is(result) and result.exit or EXIT_FAILED
  if exit ~= 0 and exit ~= EXIT_SAVED and exit ~= EXIT_INTERRUPTED then task:fail(reason_of(result)) end
  error(result, 0)
end

-- Running all --------------------------------------------------------------------------------------

local Scheduler = {}
Scheduler.__index = Scheduler

-- Which runs there are to do, in order; the others are told of.
local function find_waiting(self, retry)
  for _, task in ipairs(self.tasks) do
    local status = task:status()
    if status == "failed" and retry then
      task:forgive()
      status = "new"
    end
    if status == "complete" or status == "failed" or status == "running" then
      self.display:done(summary.row(task))
    else
      self.waiting[#self.waiting + 1] = task
    end
  end
end

-- Threads of each run where several share the processor, as settings of its command.
local function thread_settings(self)
  local jobs = math.min(self.jobs, #self.waiting)
  if jobs < 2 or #self.devices > 0 or self.config.runtime.threads then return {} end
  return {"--set", "runtime.threads=" .. math.max(1, math.floor(tonumber(C.pk_cores()) / jobs))}
end

local function start(self, task, slot)
  local command = {process.program(), self.script}
  for _, argument in ipairs(self.arguments) do command[#command + 1] = argument end
  for _, argument in ipairs(self.thread_settings) do command[#command + 1] = argument end
  local device = self.devices[(slot - 1) % math.max(1, #self.devices) + 1]
  if device then
    command[#command + 1] = "--device"
    command[#command + 1] = device
  end
  command[#command + 1] = "--task"
  command[#command + 1] = tostring(task.index)
  self.running[#self.running + 1] = {task = task, slot = slot, device = device, began = C.pk_clock(),
    process = process.start {command = command, log = task.log}}
end

-- A slot that no run has.
local function free_slot(self)
  local taken = {}
  for _, item in ipairs(self.running) do taken[item.slot] = true end
  for slot = 1, self.jobs do
    if not taken[slot] then return slot end
  end
end

-- Notes the end of a process that did not say itself why it failed.
local function note_end(self, item)
  local task, one = item.task, item.process
  local status = task:status()
  if one.code == EXIT_SAVED or one.code == EXIT_INTERRUPTED then
    self.saved = self.saved and one.code == EXIT_SAVED
    return self.display:print("%s: interrupted%s", task.name, one.code == EXIT_SAVED and ", a state is saved" or "")
  end
  if status ~= "failed" and status ~= "running" and one.code ~= 0 and not (self.stopping and one.signal) then
    task:fail(one.signal and ("ended by %s%s; see %s"):format(process.signal_name(one.signal),
      one.signal == process.signals.KILL and ", as when the system is out of memory" or "", task.log)
      or ("ended with exit code %d; see %s"):format(one.code, task.log))
  end
  self.display:done(summary.row(task))
end

local function collect_ended(self)
  for i = #self.running, 1, -1 do
    local item = self.running[i]
    if item.process:poll(0) then
      table.remove(self.running, i)
      item.process:close()
      note_end(self, item)
    end
  end
end

-- Asks all runs to save and end, once.
local function stop(self)
  if self.stopping then return end
  self.stopping, self.saved = true, true
  self.display:print("interrupted: the runs save and end")
  for _, item in ipairs(self.running) do item.process:send("USR1") end
end

-- Starts what is waiting and looks at what runs, until all is done or stopped.
function Scheduler:run()
  C.pk_signals_hold()
  while #self.running > 0 or (#self.waiting > 0 and not self.stopping) do
    while not self.stopping and #self.waiting > 0 and #self.running < self.jobs do
      start(self, table.remove(self.waiting, 1), free_slot(self))
    end
    if self.running[1] then self.running[1].process:poll(POLL_SECONDS) end
    if C.pk_signals_pending() ~= 0 then stop(self) end
    collect_ended(self)
    self.display:update(self.running)
  end
  C.pk_signals_release()
  self.display:finish()
end

local function schedule(tasks, found, spec)
  local devices = split(found.devices)
  local self = setmetatable({tasks = tasks, waiting = {}, running = {}, devices = devices,
    jobs = found.jobs or math.max(1, #devices), config = found.config, script = spec.arg[0],
    arguments = plan_arguments(found), display = sweep_table.create(#tasks)}, Scheduler)
  find_waiting(self, found.retry)
  self.thread_settings = thread_settings(self)
  self:run()
  return self
end

-- The ends of a sweep --------------------------------------------------------------------------------

local function conclude(tasks, axes, folder, scheduler)
  local found = summary.of(tasks, axes)
  summary.write(found, folder)
  print(("%d runs: %s; %s/report.md"):format(#tasks, summary.counts_text(found), folder))
  for _, row in ipairs(found.runs) do
    if row.name == found.best then print(("least loss: %.4f of %s"):format(row.result.loss, row.name)) end
  end
  if scheduler and scheduler.stopping then
    failure.raise(scheduler.saved and EXIT_SAVED or EXIT_INTERRUPTED, "interrupted; the same command goes on")
  end
  if found.counts.failed then failure.raise(EXIT_FAILED, "not all runs succeeded: " .. summary.counts_text(found)) end
  if scheduler and found.counts.complete ~= #tasks then
    failure.raise(EXIT_FAILED, "not all runs are complete; the same command goes on")
  end
end

-- "1-3,7" of {1, 2, 3, 7}.
local function ranges(numbers)
  local parts, i = {}, 1
  while numbers[i] do
    local last = i
    while numbers[last + 1] == numbers[last] + 1 do last = last + 1 end
    parts[#parts + 1] = last == i and tostring(numbers[i]) or ("%d-%d"):format(numbers[i], numbers[last])
    i = last + 1
  end
  return table.concat(parts, ",")
end

-- Hands the runs that are not complete to Slurm, as an array of jobs that run one task each.
local function submit(tasks, found, spec)
  local numbers = {}
  for _, task in ipairs(tasks) do
    local status = task:status()
    if status == "failed" and found.retry and not found.dry_run then
      task:forgive()
      status = "new"
    end
    if status == "new" or status == "interrupted" or (status == "failed" and found.retry) then numbers[#numbers + 1] = task.index end
  end
  if #numbers == 0 then return print("nothing to submit: every run is complete, failed or running") end
  local list = ranges(numbers)
  if found.jobs then list = list .. "%" .. found.jobs end
  local command = {native.home() .. "/scripts/slurm.sh", "--array", list}
  if found.dry_run then command[#command + 1] = "--dry-run" end
  command[#command + 1] = spec.arg[0]
  for _, argument in ipairs(plan_arguments(found)) do command[#command + 1] = argument end
  command[#command + 1] = "--task"
  command[#command + 1] = "%a"
  io.stdout:flush()
  local one = process.start {command = command, own_group = false}
  while not one:poll(1) do end
  if one.code ~= 0 then failure.raise(EXIT_FAILED, "scripts/slurm.sh failed") end
end

local function show_runs(tasks, keys)
  for _, task in ipairs(tasks) do
    local parts = {}
    for i, key in ipairs(keys) do parts[i] = key .. "=" .. task.values[key] end
    local c = task.config
    print(("%4d  %-11s  %s  (N %d, micro-batch %d, %s targets in all)"):format(task.index, (task:status()),
      table.concat(parts, " "), c.decentralized.num_models, c.training.micro_batch_size,
      progress.count(require("pack.train.schedule").create(c).total_tokens)))
  end
end

-- The tasks of what the command line says, checked: all, or the one to run.
local function tasks_of(found, axes, recipe)
  local tasks = {}
  for i, planned in ipairs(plan.runs(found.config_file, found.settings, axes, found)) do
    planned.config.runtime.output_dir = files.join(found.output, planned.name)
    tasks[i] = sweep_task.create(found.output, planned, recipe)
    if not found.task or found.task == i then tasks[i]:check() end
  end
  return tasks
end

-- Refuses devices that are not there, on which every run would fail.
local function check_devices(found)
  local list = split(found.devices)
  if #list == 0 and found.config.runtime.device ~= "auto" then list[1] = found.config.runtime.device end
  for _, name in ipairs(list) do
    if C.pk_device_check(name) ~= 0 then failure.usage("%s", native.message()) end
  end
end

-- Makes the sweep's folder and takes it, as two sweeps at once would start each run twice. Usage error: it cannot be
-- made, or another process has it.
local function claim(folder)
  if C.pk_directory_create(files.join(folder, "locks")) ~= 0 then failure.usage("%s", native.message()) end
  local held, message = files.lock(files.join(folder, "locks/sweep"))
  if held == nil then failure.usage("%s", message) end
  return held
end

-- A new folder for a sweep that was given none.
local function claim_new(base)
  local folder, message = files.claim(base)
  if not folder then failure.usage("%s\n--output DIR chooses another folder", message) end
  return folder
end

--- Whether a command line (the global arg) asks for a sweep: it has --over or --zip. For recipes that are both a study and a
-- sweep.
function sweep.is_wanted(arguments)
  for _, argument in ipairs(arguments) do
    if argument:find("^%-%-over%f[=%z]") or argument:find("^%-%-zip%f[=%z]") then return true end
  end
  return false
end

--- A sweep as a recipe. spec: recipe (its name), summary, arg (the global arg), run(task), which does one run (see
-- pack.sweep.task; task:train() is the usual one) and may return fields for its result.json; over and zip, lists of
-- axes for when the command line has none; default_config. Exit codes: 1 when not all runs are complete at the end,
-- 75 when interrupted with states saved.
function sweep.run(spec)
  local found = options.parse {recipe = spec.recipe, summary = spec.summary, arg = spec.arg, extra = sweep.options,
    default_config = spec.default_config}
  if not found.over and not found.zip then found.over, found.zip = spec.over, spec.zip end
  local axes = plan.axes(found.over, found.zip)
  if found.task and not found.output then failure.usage("--task needs --output, the sweep's folder") end
  local given = found.output
  found.output = given or ("runs/%s-%s"):format(spec.recipe, os.date("!%Y%m%dT%H%M%SZ"))
  local tasks = tasks_of(found, axes, spec.recipe)
  local runs_all = not (found.task or found.slurm or found.dry_run or found.collect)
  if runs_all then check_devices(found) end
  if not given and (runs_all or found.slurm and not found.dry_run) then
    found.output = claim_new(found.output)
    tasks = tasks_of(found, axes, spec.recipe) -- under the name that is now known
  end
  if found.task then
    if found.task > #tasks then failure.usage("--task %d: the sweep has %d runs", found.task, #tasks) end
    return run_here(tasks[found.task], spec.run)
  end
  if found.slurm then return submit(tasks, found, spec) end
  if found.dry_run then return show_runs(tasks, plan.keys(axes)) end
  if found.collect then
    if not files.exists(found.output) then failure.usage("%s: there is no such sweep", found.output) end
    return conclude(tasks, axes, found.output)
  end
  local held = claim(found.output)
  conclude(tasks, axes, found.output, schedule(tasks, found, spec))
  files.unlock(held)
end

return setmetatable(sweep, {__call = function(_, spec) return sweep.run(spec) end})
