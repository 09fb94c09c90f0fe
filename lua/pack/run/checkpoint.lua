--- Training states: all that a run needs to go on to the same bits, in a file of its own.
--
-- A state is a safetensors file inside zstd: tensors parameters/NAME, and in the same way what optimizer and algorithm keep,
-- such as exp_avg/NAME [N, ...], and guard (what the device counted); metadata "config", the resolved configuration, and
-- "state", JSON with counters, the position in the data, the best evaluation and where it was written. There is
-- no state of random numbers: every draw is a function of a seed and a position.
local arena = require "pack.model.arena"
local config = require "pack.config"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local files = require "pack.io.files"
local json = require "pack.io.json"
local native = require "pack.native"
local ops = require "pack.core.ops"
local plain_recipes = require "pack.run.plain_recipes"
local safetensors = require "pack.io.safetensors"
local schedule = require "pack.train.schedule"
local schema = require "pack.config.schema"
local state_info = require "pack.run.state_info"

local checkpoint = {}

local FORMAT = 1
local EXTENSION = ".state.safetensors.zst"

-- What is in a state -----------------------------------------------------------------------------

--- The tensors of a trainer's state, a list of {name, tensor}: what its updater keeps (see pack.updater), columns by the
-- names of the parameters and without the padding between them, and the guard.
function checkpoint.tensors(trainer)
  local list = {}
  for _, kept in ipairs(trainer.updater.kept) do
    if kept.arena then
      for _, entry in ipairs(kept.arena.layout) do
        list[#list + 1] = {name = kept.name .. "/" .. entry.name, tensor = kept.arena:view(entry.name)}
      end
    else
      list[#list + 1] = {name = kept.name, tensor = kept.tensor}
    end
  end
  list[#list + 1] = {name = "guard", tensor = trainer.updater.guard}
  return list
end

--- A configuration as the text that files of weights and states hold: without the run's folder, so that the same run
-- in another one makes the same files.
function checkpoint.config_text(resolved)
  local copy = config.copy(resolved)
  copy.runtime.output_dir = false
  return config.encode(copy)
end

-- The names of the parameters that an arena has where it does not have all.
local function part_names(columns, trainer)
  if #columns.layout == #trainer.model.layout then return nil end
  local names = json.array()
  for i, entry in ipairs(columns.layout) do names[i] = entry.name end
  return names
end

-- What a trainer keeps: name, rows where they are not one for each worker, parameters where they are not all, whole where it
-- has no columns.
local function kept_list(trainer)
  local list = json.array()
  for i, kept in ipairs(trainer.updater.kept) do
    local columns = kept.arena
    list[i] = {name = kept.name, whole = not columns or nil, parameters = columns and part_names(columns, trainer),
      rows = columns and columns.num_workers ~= trainer.num_models and columns.num_workers or nil}
  end
  return list
end

--- The metadata of a trainer's state, a table of strings. about: recipe, made_by (see run.made_by), data
-- (its identity), best (an evaluation), metrics_lines (lines of metrics.jsonl so far).
function checkpoint.metadata(trainer, about)
  local context, t = trainer.context, trainer.step_number
  local state = {
    format = FORMAT, step = t, tokens = t * trainer.config.training.batch_tokens,
    epoch = t > 0 and trainer.schedule:epoch_of_step(t - 1) or 0, mixings = trainer.mixings,
    cursor = trainer:cursor(), num_models = trainer.num_models,
    total_steps = trainer.total_steps, recipe = about.recipe, made_by = about.made_by, data = about.data,
    best = about.best or json.null, metrics_lines = about.metrics_lines or 0,
    device = context:device(), instruction_set = context:isa(), threads = context:threads(),
    build = ffi.string(native.C.pk_build_info()), kept = kept_list(trainer),
  }
  return {packlua = require("pack.version"), content = "state", config = checkpoint.config_text(trainer.config),
    state = json.encode(state)}
end

-- FNV-1a of a text's token streams; what is trained on, whatever files it came from.
local function tokens_identity(data)
  local width = data.tokenizer.vocab_size <= 65536 and 2 or 4
  local function hash(stream)
    return bit.tohex(native.C.pk_fnv1a(stream.tokens, stream.count * width))
  end
  return ("text %s %s, %d and %d tokens"):format(hash(data.train), hash(data.validation), data.train.count,
    data.validation.count)
end

--- What identifies data of pack.data.open: of a cache its identity, of text its tokens.
function checkpoint.data_identity(data)
  if data.sources then
    local list = {}
    for i, source in ipairs(data.sources) do list[i] = checkpoint.data_identity(source) end
    return table.concat(list, "; ")
  end
  return data.identity and "cache " .. data.identity or tokens_identity(data)
end

-- Names ------------------------------------------------------------------------------------------

--- The file name of the state at the end of an epoch (from 1).
function checkpoint.epoch_name(epoch)
  return ("epoch-%03d"):format(epoch) .. EXTENSION
end

--- The file name of the state before a step (from 0).
function checkpoint.step_name(step)
  return ("step-%08d"):format(step) .. EXTENSION
end

-- The schedule of the run in a folder; nil if its resolved.json is not there.
local function schedule_of(folder)
  local good, resolved = failure.pcall(config.load, files.join(folder, "resolved.json"), {})
  return good and schedule.create(resolved) or nil
end

--- The states in a run's folder, a list of {path, step, epoch (of an epoch's state)}, newest first.
function checkpoint.list(folder)
  local list, course = {}, nil
  for _, name in ipairs(files.names(folder)) do
    local kind, number = name:match("^(%a+)%-(%d+)" .. EXTENSION:gsub("%p", "%%%0") .. "$")
    number = tonumber(number)
    if kind == "step" then
      list[#list + 1] = {path = files.join(folder, name), step = number}
    elseif kind == "epoch" then
      course = course or schedule_of(folder)
      list[#list + 1] = {path = files.join(folder, name), epoch = number,
        step = course and course:steps_after_epoch(number) or -1}
    end
  end
  table.sort(list, function(a, b)
    if a.step ~= b.step then return a.step > b.step end
    return (a.epoch or 0) > (b.epoch or 0)
  end)
  return list
end

-- Reading ----------------------------------------------------------------------------------------

local State = {}
State.__index = State

local function without_place(message)
  return (tostring(message):gsub("^[^ ]*%.lua:%d+: ", ""))
end

--- Opens a state and checks its checksum and what it says of itself: an object with path, info (see
-- checkpoint.metadata) and file. Returns nil and a message that names the file when it is damaged or no state.
function checkpoint.open(path)
  local good, file = failure.pcall(safetensors.open, path)
  if not good then return nil, without_place(file) end
  local info, message = state_info.read(file)
  if not info then
    file:close()
    return nil, path .. ": " .. message
  end
  return setmetatable({path = path, folder = files.dirname(path), file = file, info = info}, State)
end

local function refuse_damaged(message, list)
  local other = list[2] and ("; --fallback continues with an older one (%s)"):format(list[2].path) or ""
  failure.raise(1, message .. other)
end

--- The state to continue from: a file, or the newest of a run's folder. options: fallback (pass over damaged
-- ones). Returns it and those passed over, a list of {path, message}. Errors: there is none, or it is damaged.
function checkpoint.find(path, options)
  local kind = files.kind(path)
  if not kind then failure.usage("%s: there is no such run or state", path) end
  local list = kind == "directory" and checkpoint.list(path) or {{path = path}}
  if #list == 0 then failure.usage("%s: the folder has no training state to continue from", path) end
  local skipped = {}
  for _, item in ipairs(list) do
    local state, message = checkpoint.open(item.path)
    if state then return state, skipped end
    if not (options and options.fallback) then refuse_damaged(message, list) end
    skipped[#skipped + 1] = {path = item.path, message = message}
  end
  failure.raise(1, ("%s: none of its states can be read; the newest: %s"):format(path, skipped[1].message))
end

--- The configuration of the state with settings, a list of "section.key=value", laid over it.
function State:config(settings)
  local saved, message = json.decode(self.file:metadata("config") or "", self.path .. " (config)")
  if type(saved) ~= "table" then failure.raise(1, message or self.path .. ": it has no configuration") end
  return config.resolve {table = saved, source = self.path, set = settings}
end

-- Comparing --------------------------------------------------------------------------------------

local function same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key, x in pairs(a) do
    if not same(x, b[key]) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end

local function show(row, x)
  if row.type ~= "fields" or not x then return schema.show(x) end
  local parts = {}
  for _, field in ipairs(row.fields) do parts[#parts + 1] = field.name .. " " .. schema.show(x[field.name]) end
  return table.concat(parts, " ")
end

--- The keys that a resumed run must keep but that differ, a list of {key, saved, wanted}; values as text.
-- free: a table of keys that may differ besides those of the schema.
function checkpoint.differences(saved, wanted, free)
  local list = {}
  for _, row in ipairs(schema.rows) do
    local a, b = saved[row.section][row.name], wanted[row.section][row.name]
    if row.resume == "same" and not (free and free[row.key]) and not same(a, b) then
      list[#list + 1] = {key = row.key, saved = show(row, a), wanted = show(row, b)}
    end
  end
  return list
end

-- What else a conversion to another number of workers may change.
local convertible = {
  ["decentralized.num_models"] = true, ["training.micro_batch_size"] = true,
  ["decentralized.topology"] = true, ["decentralized.group"] = true, ["decentralized.period"] = true,
}

--- Refuses a configuration or data with which the state cannot go on. options: data (its identity),
-- conversion ("average" or "tile": other numbers of workers are converted).
function State:check(wanted, options)
  local saved, conversion = self:config(), options.conversion
  local n, others = self.info.num_models, wanted.decentralized.num_models
  if n ~= others and not conversion then
    failure.usage("%s holds num_models %d workers, and %d are wanted; --allow-conversion average or tile "
      .. "makes them of these", self.path, n, others)
  end
  for _, one in ipairs(checkpoint.differences(saved, wanted, conversion and convertible)) do
    failure.usage("%s: the run has %s = %s, and a resumed run must keep it; %s is wanted", self.path, one.key,
      one.saved, one.wanted)
  end
  if options.data and self.info.data ~= options.data then
    failure.usage("%s: the run was trained on other data: on %s; now there is %s", self.path,
      tostring(self.info.data), options.data)
  end
end

--- The recipe that has to run for the state to go on, {file, sha256, path}, or nil where recipes/resume.lua does: what made
-- it adds nothing to training, or the state does not say what made it.
function State:recipe()
  local made_by = self.info.made_by
  if not made_by or plain_recipes.has(made_by) then return nil end
  return made_by
end

--- Refuses a state of a recipe that may have added something to training which the one that runs does not: `running` is
-- that one (see run.made_by).
function State:check_recipe(running)
  local made_by = self:recipe()
  if not made_by then return end
  if running and running.sha256 == made_by.sha256 then return end
  local shipped = plain_recipes.has_name(made_by.file) and ", which is not the one that packlua has," or ""
  failure.usage("%s: made by %s%s (SHA-256 %s...), and what that adds to training would be missing here; packlua %s "
    .. "--resume %s goes on with it, or go on without it with --allow-recipe", self.path, made_by.file,
    shipped, made_by.sha256:sub(1, 12), made_by.path or made_by.file, self.folder)
end

--- What may make a resumed run differ in its last bits, a list of texts.
function State:remarks(context)
  local info, list = self.info, {}
  local before, now = tostring(info.device):match("^%a+"), context:device():match("^%a+")
  if before ~= now or info.instruction_set ~= context:isa() then
    list[1] = ("the state was written on %s %s, and this is %s %s: results may differ in the last bits")
      :format(tostring(info.device), tostring(info.instruction_set), context:device(), context:isa())
  end
  return list
end

-- Restoring --------------------------------------------------------------------------------------

-- Row `from` of one arena's block into row `to` of another's.
local function copy_row(source, from, target, to)
  local size = source:size(1)
  local function row(t, i) return t:view {shape = {1, size}, stride = size, offset = i * size} end
  local a, b = row(source, from), row(target, to)
  b:write(a:read())
  a:free()
  b:free()
end

-- By name: fills the rows of `into`, a block [N, D], from those of `from` [M, D].
local convert = {}

function convert.tile(from, into)
  for i = 0, into:size(0) - 1 do copy_row(from, i % from:size(0), into, i) end
end

function convert.average(from, into)
  local mean = ops.average(from)
  for i = 0, into:size(0) - 1 do copy_row(mean, 0, into, i) end
  mean:free()
end

local function read_arena(file, prefix, into)
  for _, entry in ipairs(into.layout) do file:read_into(prefix .. entry.name, into:view(entry.name)) end
end

local function same_workers(state, trainer)
  return state.info.num_models == trainer.num_models
end

local function read_converted(state, prefix, into, conversion, context)
  local saved = arena.create(into.layout, state.info.num_models,
    {dtype = into.tensor.dtype, category = "workspace", context = context})
  read_arena(state.file, prefix, saved)
  convert[conversion](saved.tensor, into.tensor)
  saved:free()
end

-- Reads what is kept by a name. What all workers share, one row, stays as it is where their number changes.
local function read_kept(state, kept, trainer, conversion)
  local one = kept.arena
  if one and (same_workers(state, trainer) or one.num_workers == 1) then
    read_arena(state.file, kept.name .. "/", one)
  elseif one then
    read_converted(state, kept.name .. "/", one, conversion, trainer.context)
  elseif same_workers(state, trainer) then
    state.file:read_into(kept.name, kept.tensor)
  end -- else it stays as the algorithm began it
end

--- Puts a trainer where the state was taken. conversion: "average" or "tile", where the number of workers
-- differs: every worker becomes the average, or worker i becomes worker i mod N of the state's N.
function State:restore(trainer, conversion)
  local info = self.info
  for _, kept in ipairs(trainer.updater.kept) do read_kept(self, kept, trainer, conversion) end
  self.file:read_into("guard", trainer.updater.guard)
  trainer.step_number, trainer.mixings = info.step, info.mixings
  trainer:set_cursor(info.cursor)
end

--- Closes the file; twice is harmless.
function State:close()
  self.file:close()
end

return checkpoint
