--- Finished weights: opened from a training state or from safetensors of an average, a worker, or another program.
--
-- Opened weights have path, content ("state", "average", "worker", or "model" where a file does not say),
-- worker (its number, from 0, of a worker's file), num_models (of the run), step and epoch (nil if not known),
-- data (what a state was trained on, see checkpoint.data_identity) and config, the resolved configuration.
local architectures = require "pack.model.architectures"
local cache = require "pack.data.cache"
local checkpoint = require "pack.run.checkpoint"
local config = require "pack.config"
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local json = require "pack.io.json"
local packed_models = require "pack.model.packed"
local safetensors = require "pack.io.safetensors"
local schema = require "pack.config.schema"
local tokenizers = require "pack.data.tokenizer"

local weights = {}

local Weights = {}
Weights.__index = Weights

-- Opening ----------------------------------------------------------------------------------------

local function without_place(message)
  return (tostring(message):gsub("^[^ ]*%.lua:%d+: ", ""))
end

-- Calls f, and raises what it raises as a failure of the given exit code, without a place in the library.
local function guarded(exit, f, ...)
  local good, result = failure.pcall(f, ...)
  if good then return result end
  if failure.is(result) then error(result, 0) end
  failure.raise(exit, without_place(result))
end

local function check_path(path)
  if not path then failure.usage("no weights: --checkpoint FILE") end
  local kind = files.kind(path)
  if not kind then failure.usage("--checkpoint %s: there is no such file", path) end
  if kind == "directory" then
    failure.usage("--checkpoint %s: a folder; name one of its files, such as epoch-001.safetensors", path)
  end
end

local function open_state(self)
  local state, message = checkpoint.open(self.path)
  if not state then failure.raise(1, message) end
  local info = state.info
  self.file, self.content, self.prefix = state.file, "state", "parameters/"
  self.step, self.epoch, self.num_models, self.data = info.step, info.epoch, info.num_models, info.data
end

-- Opens a file of one model; false if it is a state.
local function open_model(self)
  local file = guarded(1, safetensors.open, self.path)
  local content = file:metadata("content")
  if content == "state" then
    file:close()
    return false
  end
  local function number(key) return tonumber(file:metadata(key) or "") end
  self.file, self.content, self.prefix = file, content or "model", ""
  self.step, self.epoch, self.worker = number("step"), number("epoch"), number("worker")
  self.num_models = number("num_models") or 1
  return true
end

-- Weights belong to one shape of model, which no setting can change.
local function refuse_model(path, saved, wanted)
  for _, one in ipairs(checkpoint.differences(saved, wanted)) do
    if one.key:find("^model%.") then
      failure.usage("%s: the weights are of %s = %s; %s is wanted", path, one.key, one.saved, one.wanted)
    end
  end
end

-- The configuration that the file holds, or nil.
local function saved_config(self)
  local text = self.file:metadata("config")
  if not text then return nil end
  local saved, message = json.decode(text, self.path .. " (config)")
  if type(saved) ~= "table" then failure.raise(1, message or self.path .. ": its configuration is no table") end
  return saved
end

-- The configuration of `given`, a file, or else the one that the weights' file holds. The device is free, as weights
-- can be used on another machine than the run's.
local function resolve(self, given, settings)
  local list = {"runtime.device=" .. schema.find("runtime.device").default}
  for _, setting in ipairs(settings or {}) do list[#list + 1] = setting end
  local saved = saved_config(self)
  if not saved and not given then
    failure.usage("%s: the file does not say what model it is of; --config FILE does", self.path)
  end
  local wanted = given and config.load(given, list)
    or config.resolve {table = saved, source = self.path, set = list}
  if saved then refuse_model(self.path, config.resolve {table = saved, source = self.path}, wanted) end
  return wanted
end

local function shape_text(shape)
  return "[" .. table.concat(shape, ", ") .. "]"
end

-- Refuses a file that has not each parameter in its shape, before anything is computed.
local function check_shapes(self)
  local config_of_model = self.config.model
  local parameters = architectures.of(config_of_model).parameter_list(config_of_model)
  for _, parameter in ipairs(parameters) do
    local name, shape = self.prefix .. parameter[1], {unpack(parameter[2])}
    if self.content == "state" then table.insert(shape, 1, self.num_models) end
    if not self.file:has(name) then failure.usage("%s: there is no tensor '%s'", self.path, name) end
    local found = shape_text(self.file:entry(name).shape)
    if found ~= shape_text(shape) then
      failure.usage("%s: '%s' is %s; the configuration makes it %s", self.path, name, found, shape_text(shape))
    end
  end
end

--- Opens weights. options: config (the path of a configuration, for files that do not hold one), set (a list of
-- "section.key=value"). Raises usage errors (no such file, settings that change the model, shapes that do not
-- fit) and failures (a damaged file).
function weights.open(path, options)
  check_path(path)
  local self = setmetatable({path = path}, Weights)
  if path:find("%.zst$") or not open_model(self) then open_state(self) end
  self.config = resolve(self, options and options.config, options and options.set)
  check_shapes(self)
  return self
end

-- Models -----------------------------------------------------------------------------------------

-- A model of n workers. Averages are evaluated in full precision, workers as they are trained.
local function create(self, n, context, amp)
  local runtime = self.config.runtime
  return packed_models.create(self.config.model, {num_models = n, context = context,
    amp = amp and runtime.amp == true, attention = runtime.attention})
end

local function fill(model, file, prefix)
  for _, name in ipairs(model.names) do guarded(1, file.read_into, file, prefix .. name, model.weight[name]) end
end

-- The file of a worker beside that of the average.
local function worker_path(self, index)
  return files.join(files.dirname(self.path), ("node-%03d/%s"):format(index, files.basename(self.path)))
end

--- Whether the weights of each worker are at hand: in the state, or in files beside that of the average.
function Weights:has_workers()
  return self.content == "state" or self.content == "average" and files.exists(worker_path(self, 0))
end

local function fill_from_files(self, model)
  for i = 0, self.num_models - 1 do
    local path, one = worker_path(self, i), model:worker(i)
    if not files.exists(path) then failure.usage("%s: there is no such file, of worker %d", path, i) end
    local other = weights.open(path)
    if other.step ~= self.step or other.worker ~= i then
      failure.usage("%s: worker %s after %s steps; worker %d after %s is wanted", path, tostring(other.worker),
        tostring(other.step), i, tostring(self.step))
    end
    fill(one, other.file, "")
    other:close()
    one:free()
  end
end

--- The packed model of all workers; usage error if they are not at hand. The caller frees it.
function Weights:workers(context)
  if not self:has_workers() then
    failure.usage("%s: it holds one model, and there are no files of workers beside it", self.path)
  end
  local model = create(self, self.num_models, context, true)
  if self.content == "state" then fill(model, self.file, self.prefix) else fill_from_files(self, model) end
  return model
end

--- The model that the weights are of, an ordinary one (N = 1): of a state the workers' average. The caller
-- frees it.
function Weights:model(context)
  if self.content == "state" then
    local packed = self:workers(context)
    local mean = packed:average()
    packed:free()
    return mean
  end
  local model = create(self, 1, context, self.content == "worker")
  fill(model, self.file, self.prefix)
  return model
end

--- What Weights:model gives, in words: "average", "worker" or "model".
function Weights:kind()
  return self.content == "state" and "average" or self.content
end

--- The same for people, such as "the average of 4 workers after 12 steps".
function Weights:describe()
  local kind = self:kind()
  local text = kind == "average" and ("the average of %d workers"):format(self.num_models)
    or kind == "worker" and ("worker %d of %d"):format(self.worker or 0, self.num_models) or "a model"
  return self.step and ("%s after %d steps"):format(text, self.step) or text
end

-- The tokenizer of a cache: the given one, if it is the cache's, or the recorded one; nil and why there is none.
local function cache_tokenizer(folder, spec)
  local good, opened = failure.pcall(cache.open, folder)
  if not good and spec then return tokenizers.open(spec) end
  if not good then return nil, without_place(opened) end
  local made, problem = opened:tokenizer(spec)
  opened:close()
  if not made and spec then failure.usage("%s", problem) end
  return made, problem
end

--- The tokenizer of what the weights were trained on; nil and the reason if it is not at hand. Usage errors: a
-- file that is no tokenizer or not that of the cache, or that has more pieces than the model.
function Weights:tokenizer()
  local data, made, problem = self.config.data, nil, nil
  local spec = data.tokenizer or nil
  if self.content == "model" and not (spec or data.cache_dir or data.text) then
    return nil, "the file does not say what its tokenizer was"
  end
  guarded(2, function()
    if data.cache_dir then
      made, problem = cache_tokenizer(data.cache_dir, spec)
    else
      made = tokenizers.open(spec)
    end
  end)
  if not made then return nil, problem end
  require("pack.data.source").check_vocabulary(self.config, "the tokenizer " .. made.name, made.vocab_size)
  return made
end

--- Closes the file; twice is harmless.
function Weights:close()
  self.file:close()
end

return weights
