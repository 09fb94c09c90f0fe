--- Tuning: which micro-batch, number of threads and recomputation make packed training fastest on this machine.
--
-- One key after the other: its values take turns, among them the one so far, and the fastest stays; of those that are as
-- fast to within MARGIN, the one that takes the least memory.
local benchmark = require "pack.benchmark"
local benchmark_plan = require "pack.benchmark.plan"
local config_module = require "pack.config"
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local json = require "pack.io.json"
local native = require "pack.native"
local progress = require "pack.io.progress"
local runtimes = require "pack.config.runtime"
local schema = require "pack.config.schema"
local summary = require "pack.benchmark.summary"

local C = native.C
local tune = {}

local MARGIN = 0.02
local MIB = 2 ^ 20

-- What there is to try --------------------------------------------------------------------------

local function divisors(number)
  local list = {}
  for n = 1, number do
    if number % n == 0 then list[#list + 1] = n end
  end
  return list
end

-- Powers of two below the number, and the number.
local function doublings(number)
  local list, n = {}, 1
  while n < number do
    list[#list + 1], n = n, 2 * n
  end
  list[#list + 1] = number
  return list
end

local function processors(config)
  return config.runtime.threads or tonumber(C.pk_cores())
end

-- The keys to tune: {key, name, values, now (the value in the configuration)}.
local function axes_of(config)
  local training, runtime = config.training, config.runtime
  local sequences = training.batch_tokens / config.model.context_length / config.decentralized.num_models
  local axes = {{key = "training.micro_batch_size", name = "micro", values = divisors(sequences),
    now = training.micro_batch_size}}
  if runtimes.device(runtime.device) == "cpu" then
    local count = processors(config)
    axes[#axes + 1] = {key = "runtime.threads", name = "threads", values = doublings(count), now = count}
  end
  local row = schema.find("runtime.recompute")
  if row then axes[#axes + 1] = {key = row.key, name = "recompute", values = row.choices, now = runtime.recompute} end
  return axes
end

local function with_value(config, key, value)
  local section, name = key:match("^([^.]+)%.(.+)$")
  local changed = {}
  for other, rows in pairs(config) do changed[other] = rows end
  changed[section] = {}
  for other, x in pairs(config[section]) do changed[section][other] = x end
  changed[section][name] = value
  return config_module.resolve {table = changed, source = "--tune"}
end

-- Trying it ---------------------------------------------------------------------------------------

-- A plan whose candidates are the values of an axis, the configured one first: where time is short, no other is
-- chosen without having been faster.
local function plan_of(settings, config, axis)
  local plan = {settings = settings, base = config, configs = {}, candidates = {}}
  for _, value in ipairs(axis.values) do
    local name = ("%s-%s"):format(axis.name, value)
    plan.configs["config-" .. name] = with_value(config, axis.key, value)
    table.insert(plan.candidates, value == axis.now and 1 or #plan.candidates + 1, {name = name,
      config = "config-" .. name, num_models = config.decentralized.num_models, mode = "packed",
      execution = "compiled", value = value})
  end
  return plan
end

local function speed_of(record)
  return record.tokens_per_second and record.tokens_per_second.median or 0
end

-- The candidate to choose; nil if none was measured.
local function best_of(plan, records)
  local fastest, best = 0, nil
  for _, candidate in ipairs(plan.candidates) do fastest = math.max(fastest, speed_of(records[candidate.name])) end
  for _, candidate in ipairs(plan.candidates) do
    local record = records[candidate.name]
    local fast = fastest > 0 and speed_of(record) >= fastest * (1 - MARGIN)
    if fast and (not best or record.peak_bytes < records[best.name].peak_bytes) then best = candidate end
  end
  return best
end

local function show_trials(axis, plan, records, chosen)
  print(axis.key)
  for _, candidate in ipairs(plan.candidates) do
    local record = records[candidate.name]
    local mark = (candidate == chosen and " <- chosen" or "") .. (candidate.value == axis.now and " (as configured)" or "")
    if record.tokens_per_second then
      print(("  %8s  %8s tok/s  %8.1f MiB%s"):format(candidate.value, progress.count(speed_of(record)),
        record.peak_bytes / MIB, mark))
    else
      print(("  %8s  %s%s"):format(candidate.value, summary.first_line(record.reason or record.status), mark))
    end
  end
end

local function trials_of(axis, plan, records, chosen)
  local trials = json.array()
  for i, candidate in ipairs(plan.candidates) do
    local record = records[candidate.name]
    trials[i] = {value = candidate.value, status = record.status, reason = record.reason,
      tokens_per_second = record.tokens_per_second, peak_bytes = record.peak_bytes}
  end
  return {key = axis.key, before = axis.now, chosen = chosen and chosen.value or axis.now, trials = trials}
end

local function check(options)
  if options.resume then failure.usage("--tune begins anew: it has no --resume") end
  if #(options.num_models or {}) > 1 then
    failure.usage("--tune is for one number of workers; --num-models names %d", #options.num_models)
  end
end

-- Writes what was found: all trials, and the configuration.
local function write_results(folder, config, axes)
  json.write(files.join(folder, "tuning.json"), {axes = axes})
  files.write(files.join(folder, "selected.json"), config_module.encode(config))
end

--- Tunes the configuration of a command line (what options.parse gave) for one number of workers: that of --num-models,
-- or its own. Writes selected.json, the configuration, and tuning.json, all trials. Ends the program with 130 when a
-- signal interrupts it, with 1 when nothing could be measured.
function tune.run(options)
  check(options)
  local one = {}
  for key, value in pairs(options) do one[key] = value end
  one.num_models = options.num_models or {options.config.decentralized.num_models}
  one.modes, one.executions = "packed", "compiled"
  local whole = benchmark_plan.create(one)
  local config = select(2, next(whole.configs))
  local folder, axes, measured = benchmark.claim(options), json.array(), false
  local ends = C.pk_clock() + (options.budget_minutes and options.budget_minutes * 60 or math.huge)
  for _, axis in ipairs(axes_of(config)) do
    local plan = plan_of(whole.settings, config, axis)
    local bench = benchmark.start(plan, folder, {timeout = options.timeout, budget = ends - C.pk_clock(), brief = true})
    bench:run()
    bench.bar:finish()
    local chosen = best_of(plan, bench.records)
    show_trials(axis, plan, bench.records, chosen)
    if chosen then config, measured = plan.configs[chosen.config], true end
    axes[#axes + 1] = trials_of(axis, plan, bench.records, chosen)
    write_results(folder, config, axes)
    bench:raise_if_interrupted("what was found by then is in " .. folder)
  end
  if not measured then failure.raise(1, "nothing could be measured: " .. folder) end
  print("packlua recipes/train.lua --config " .. files.join(folder, "selected.json"))
end

return tune
