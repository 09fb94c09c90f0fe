--- The runs of a sweep: every combination of its axes' values, each with a name and a checked configuration.
local batch = require "pack.config.batch"
local config = require "pack.config"
local failure = require "pack.core.failure"
local groups = require "pack.report.groups"

local plan = {}

local MAX_RUNS = 10000 -- all are planned and checked before the first one starts
local MAX_NAME = 200 -- of the 255 bytes that file systems allow, endings such as .log left room for

-- Reads "KEY=V1,V2,...".
local function read_axis(option, text)
  local key, list = text:match("^([^=]+)=(.*)$")
  if not key then failure.usage("--%s %s: expected KEY=VALUE,VALUE...", option, text) end
  local values, seen = {}, {}
  for value in (list .. ","):gmatch("(.-),") do
    if value == "" then failure.usage("--%s %s: an empty value", option, text) end
    if seen[value] then failure.usage("--%s %s: the value %s is there twice", option, text, value) end
    seen[value] = true
    values[#values + 1] = value
  end
  return key, values
end

-- Refuses a key that two axes would set.
local function take_key(taken, option, key)
  if taken[key] then failure.usage("--%s %s: another axis sets this key", option, key) end
  taken[key] = true
end

-- The keys that change together as one axis: point i has every key's value i.
local function read_zipped(texts, taken)
  local axis = {keys = {}, points = {}}
  for _, text in ipairs(texts) do
    local key, list = text:match("^([^=]+)=(.*)$")
    if not key then failure.usage("--zip %s: expected KEY=VALUE,VALUE...", text) end
    take_key(taken, "zip", key)
    local count = 0
    for value in (list .. ","):gmatch("(.-),") do
      count = count + 1
      axis.points[count] = axis.points[count] or {}
      axis.points[count][#axis.keys + 1] = value
    end
    axis.keys[#axis.keys + 1] = key
    axis.count = axis.count or count
    if count ~= axis.count then
      failure.usage("--zip: %s has %d values and %s has %d; they change together", axis.keys[1], axis.count, key, count)
    end
  end
  return axis
end

--- The axes of --over texts ("KEY=V1,V2": every combination) and --zip texts (keys that change together), a
-- list of {keys, points}: points[i] has a text per key. Usage errors name the option.
function plan.axes(over, zip)
  local axes, taken = {}, {}
  for _, text in ipairs(over or {}) do
    local key, values = read_axis("over", text)
    take_key(taken, "over", key)
    local axis = {keys = {key}, points = {}}
    for i, value in ipairs(values) do axis.points[i] = {value} end
    axes[#axes + 1] = axis
  end
  if zip then axes[#axes + 1] = read_zipped(zip, taken) end
  if #axes == 0 then failure.usage("a sweep needs --over KEY=VALUE,VALUE... or --zip") end
  return axes
end

-- All combinations, the last axis changing first: lists of {key, value}.
local function combinations(axes, first)
  if not axes[first] then return {{}} end
  local list, others = {}, combinations(axes, first + 1)
  for _, point in ipairs(axes[first].points) do
    for _, rest in ipairs(others) do
      local one = {}
      for k, key in ipairs(axes[first].keys) do one[#one + 1] = {key = key, value = point[k]} end
      for _, pair in ipairs(rest) do one[#one + 1] = pair end
      list[#list + 1] = one
    end
  end
  return list
end

-- Refuses axes of more combinations than can be meant.
local function check_count(axes)
  local count = 1
  for _, axis in ipairs(axes) do count = count * #axis.points end
  if count > MAX_RUNS then failure.usage("the axes have %.0f combinations; a sweep has at most %d runs", count, MAX_RUNS) end
end

-- {key = the shortest name that no other axis has}: num_models, or decentralized.num_models.
local function short_names(axes)
  local keys, names = plan.keys(axes), {}
  for i, name in ipairs(groups.short(keys)) do names[keys[i]] = name end
  return names
end

-- "num_models=2,topology=ring": what names a run's folder; long ones are cut and made unique by `index`.
local function run_name(pairs_of, short, index)
  local parts = {}
  for i, pair in ipairs(pairs_of) do
    parts[i] = short[pair.key] .. "=" .. pair.value:gsub("[^%w._+-]", "_")
  end
  local name = table.concat(parts, ",")
  return #name <= MAX_NAME and name or ("%s,run=%d"):format(name:sub(1, MAX_NAME), index)
end

-- The setting that keeps the global batch where the number of workers changes, or nil where it stays.
local function follow_batch(base, pairs_of, options)
  if options.fixed_micro_batch then return nil end
  local workers
  for _, pair in ipairs(pairs_of) do
    if pair.key == "training.micro_batch_size" or pair.key == "training.batch_tokens" then return nil end
    if pair.key == "decentralized.num_models" then workers = tonumber(pair.value) end
  end
  if not workers or workers < 1 or workers ~= math.floor(workers) then return nil end -- the check of keys refuses it
  local rows, message = batch.micro_batch_size(base, workers)
  if rows then return ("training.micro_batch_size=%d"):format(rows) end
  failure.usage("decentralized.num_models=%d: %s (--fixed-micro-batch keeps training.micro_batch_size, and accumulation "
    .. "follows)", workers, message)
end

-- Refuses two runs of one name, which values that differ in odd characters alone would give.
local function check_names(runs)
  local seen = {}
  for _, run in ipairs(runs) do
    if seen[run.name] then failure.usage("two runs of the sweep would have the name %s", run.name) end
    seen[run.name] = true
  end
end

--- The runs of a configuration file with `settings` ("key=value") over axes, a list of {index, name, values
-- ({key = text}), settings, config}. Where N changes, micro_batch_size follows, so that the global batch stays;
-- options: fixed_micro_batch (it does not). Every configuration is checked: usage errors name the run.
function plan.runs(path, settings, axes, options)
  check_count(axes)
  local base, short = config.load(path, settings), short_names(axes)
  local runs = {}
  for index, pairs_of in ipairs(combinations(axes, 1)) do
    local own, values = {unpack(settings)}, {}
    local follow = follow_batch(base, pairs_of, options or {})
    if follow then own[#own + 1] = follow end
    for _, pair in ipairs(pairs_of) do
      own[#own + 1] = pair.key .. "=" .. pair.value
      values[pair.key] = pair.value
    end
    local name = run_name(pairs_of, short, index)
    local good, resolved = failure.pcall(config.load, path, own)
    if not good then
      if not failure.is(resolved) then error(resolved, 0) end
      failure.usage("%s: %s", name, resolved.message)
    end
    runs[index] = {index = index, name = name, values = values, settings = own, config = resolved}
  end
  check_names(runs)
  return runs
end

--- The keys of axes in order.
function plan.keys(axes)
  local keys = {}
  for _, axis in ipairs(axes) do
    for _, key in ipairs(axis.keys) do keys[#keys + 1] = key end
  end
  return keys
end

return plan
