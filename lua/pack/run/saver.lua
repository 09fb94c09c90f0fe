--- When a run saves what: weights and states of epochs, states between epochs, and on signals.
--
-- Everything is copied at once and written in the background (see pk_saver in pack.h), each file read back
-- before it gets its name, so that a run always has its newest finished state.
local checkpoint = require "pack.run.checkpoint"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local files = require "pack.io.files"
local native = require "pack.native"
local process = require "pack.io.process"

local C = native.C
local saver = {}

local Saver = {}
Saver.__index = Saver

local EXIT_RESUMABLE = 75
local FOREVER = 1e9 -- seconds

local shape_buffer = ffi.new("int64_t[8]")

local function check(status)
  if status ~= 0 then failure.raise(1, native.message()) end
end

-- Room ---------------------------------------------------------------------------------------------

local SPARE_BYTES = 2 ^ 20 -- that pk_saver wants besides the data

-- Bytes as MiB with one decimal, what is wanted rounded up and what is there rounded down.
local function mib_wanted(bytes) return math.ceil(bytes / 2 ^ 20 * 10) / 10 end
local function mib_left(bytes) return math.floor(bytes / 2 ^ 20 * 10) / 10 end

-- Bytes of a training state, and of the weights of all workers and their average.
local function sizes(trainer)
  local tensors, workers = checkpoint.tensors(trainer), trainer.num_models
  local state, weights = 0, 0
  for _, item in ipairs(tensors) do
    local t = item.tensor
    local bytes = t.numel * tonumber(C.pk_dtype_size(t.raw_dtype))
    state = state + bytes
    if item.name:find("^parameters/") then weights = weights + bytes / workers * (workers + 1) end
  end
  return state, weights
end

-- Refuses to begin what could not be saved at its end.
local function check_room(self)
  local training, folder = self.trainer.config.training, self.run.folder
  local state, weights = sizes(self.trainer)
  local epochs, steps = training.checkpoint_policy ~= "none", training.checkpoint_steps or training.checkpoint_minutes
  local wanted = epochs and weights + (training.save_epoch_training_state and state or 0) or 0
  if steps then wanted = math.max(wanted, state) end
  if wanted > 0 then wanted = wanted + SPARE_BYTES end
  local room, message = files.room(folder)
  if not room then failure.raise(1, message) end
  if room < wanted then
    failure.raise(1, ("%s: the run saves %.1f MiB at once, and the disk has %.1f MiB left; --output DIR chooses a folder "
      .. "on another one"):format(folder, mib_wanted(wanted), mib_left(room)))
  end
  if room < state then
    self.run:log("%s: a state has %.1f MiB, and the disk has %.1f MiB left: on a signal the run could not be saved",
      folder, mib_wanted(state), mib_left(room))
  end
end

--- Saves a trainer's states and weights in a run's folder. options: run, trainer, data (its identity), level (1,
-- zstd's) and threads (1) that compress states. Error: the disk has no room for what the configuration saves.
function saver.create(options)
  local self = setmetatable({}, Saver)
  self.run, self.trainer, self.data = options.run, options.trainer, options.data
  check_room(self)
  local made = ffi.new("pk_saver *[1]")
  check(C.pk_saver_create(made))
  self.handle = ffi.gc(made[0], C.pk_saver_free)
  self.level, self.threads = options.level or 1, options.threads or 1
  self.progress = ffi.new("pk_saver_progress")
  self.waiting = {} -- functions by the number of the file after which they are called
  self.saved_at = C.pk_clock()
  return self
end

-- Writing ----------------------------------------------------------------------------------------

-- Hands a file over. list: {name, tensor, shape (default the tensor's)}. done() is called when it is there.
local function submit(self, path, level, metadata, list, done)
  local made = ffi.new("pk_snapshot *[1]")
  check(C.pk_snapshot_create(path, level, self.threads, made))
  local snapshot = ffi.gc(made[0], C.pk_snapshot_free)
  local keys = {}
  for key in pairs(metadata) do keys[#keys + 1] = key end
  table.sort(keys) -- so that the same content is the same bytes
  for _, key in ipairs(keys) do check(C.pk_snapshot_metadata(snapshot, key, metadata[key])) end
  for _, item in ipairs(list) do
    local shape = item.shape or item.tensor:sizes()
    for d, extent in ipairs(shape) do shape_buffer[d - 1] = extent end
    check(C.pk_snapshot_tensor(snapshot, item.name, item.tensor, #shape, shape_buffer))
  end
  check(C.pk_saver_submit(self.handle, ffi.gc(snapshot, nil)))
  C.pk_saver_poll(self.handle, 0, self.progress)
  if done then self.waiting[tonumber(self.progress.submitted)] = done end
end

--- Acts on what is finished, waiting at most so many seconds (0) for all. Raises what went wrong.
function Saver:poll(seconds)
  check(C.pk_saver_poll(self.handle, seconds or 0, self.progress))
  local finished = tonumber(self.progress.finished)
  for number, done in pairs(self.waiting) do
    if number <= finished then
      self.waiting[number] = nil
      done()
    end
  end
end

--- Waits until everything is written.
function Saver:finish()
  self:poll(FOREVER)
end

-- Removes step states but for the newest.
local function prune(self)
  local left = self.trainer.config.training.keep
  for _, item in ipairs(checkpoint.list(self.run.folder)) do
    if not item.epoch then
      left = left - 1
      if left < 0 then os.remove(item.path) end
    end
  end
end

-- One set of files is in memory at a time.
local function save_state(self, name, done)
  self:finish()
  self.saved_at, self.saved_step = C.pk_clock(), self.trainer.step_number
  local run, trainer = self.run, self.trainer
  submit(self, run:path(name), self.level, checkpoint.metadata(trainer, {recipe = run.recipe,
    made_by = run.made_by, data = self.data, best = run.best, metrics_lines = run.lines}), checkpoint.tensors(trainer), done)
end

-- The weights of one model under the names and shapes without the worker.
local function weights_of(model)
  local list = {}
  for _, name in ipairs(model.names) do
    local t = model.weight[name]
    local shape = t:sizes()
    table.remove(shape, 1)
    list[#list + 1] = {name = name, tensor = t, shape = shape}
  end
  return list
end

local function weights_metadata(self, epoch, content, worker)
  local trainer = self.trainer
  return {packlua = require("pack.version"), content = content, worker = worker and tostring(worker) or nil,
    epoch = tostring(epoch), num_models = tostring(trainer.num_models), step = tostring(trainer.step_number),
    config = checkpoint.config_text(trainer.config)}
end

-- epoch-NNN.safetensors of the average and of each worker.
local function save_weights(self, epoch)
  self:finish()
  local run, model = self.run, self.trainer.model
  local name = ("epoch-%03d.safetensors"):format(epoch)
  for i = 0, self.trainer.num_models - 1 do
    local folder = run:path(("node-%03d"):format(i))
    if files.is_link(folder) then failure.raise(1, folder .. ": is a symbolic link, not a folder") end
    files.mkdir(folder)
    local one = model:worker(i)
    submit(self, files.join(folder, name), 0, weights_metadata(self, epoch, "worker", i), weights_of(one))
    one:free()
  end
  local mean = model:average()
  self.weights = run:path(name)
  submit(self, self.weights, 0, weights_metadata(self, epoch, "average"), weights_of(mean))
  mean:free()
end

-- When -------------------------------------------------------------------------------------------

local function contains(list, wanted)
  for _, x in ipairs(list) do
    if x == wanted then return true end
  end
  return false
end

--- Whether training.checkpoint_policy saves an epoch; last: it is the run's last one.
function saver.saves_epoch(training, epoch, last)
  local policy, epochs = training.checkpoint_policy, training.checkpoint_epochs
  if policy == "none" then return false end
  if last then return true end
  if policy == "interval" then return epoch % epochs == 0 end
  return policy == "explicit" and (epochs == epoch or type(epochs) == "table" and contains(epochs, epoch))
end

local function save_epoch(self, epoch)
  save_weights(self, epoch)
  if self.trainer.config.training.save_epoch_training_state then
    save_state(self, checkpoint.epoch_name(epoch))
  end
end

local function step_state_due(self, training)
  local steps, minutes = training.checkpoint_steps, training.checkpoint_minutes
  return steps and self.trainer.step_number % steps == 0
    or minutes and C.pk_clock() - self.saved_at >= 60 * minutes
end

--- Saves the state between two steps, unless that is done.
function Saver:save_step()
  if self.saved_step == self.trainer.step_number then return end
  save_state(self, checkpoint.step_name(self.trainer.step_number), function() prune(self) end)
end

--- Ends the program after the signal of this number, with a state of this step, unless one is there.
function Saver:stop(number)
  self:save_step()
  self:finish()
  local folder, step = self.run.folder, self.trainer.step_number
  local message = ("%s: stopped after %d steps, and the state is saved; packlua recipes/resume.lua %s continues")
    :format(process.signal_name(number), step, folder)
  self.run:note("%s", message)
  self.run:close()
  failure.raise(EXIT_RESUMABLE, message)
end

--- To be called after each step, when everything about it is in the run's files: saves what is due. Raises
-- when saving failed, and ends the program with 75 when a signal came.
function Saver:after_step()
  self:poll()
  local trainer = self.trainer
  local training, schedule, t = trainer.config.training, trainer.schedule, trainer.step_number - 1
  if schedule:ends_epoch(t) then
    local epoch = schedule:epoch_of_step(t)
    if saver.saves_epoch(training, epoch, t + 1 == trainer.total_steps) then save_epoch(self, epoch) end
  end
  if step_state_due(self, training) then self:save_step() end
  local number = C.pk_signals_pending()
  if number ~= 0 then self:stop(number) end
end

--- Waits for what is not written, and ends; twice is harmless.
function Saver:close()
  if not self.handle then return end
  C.pk_saver_free(ffi.gc(self.handle, nil))
  self.handle = nil
end

return saver
