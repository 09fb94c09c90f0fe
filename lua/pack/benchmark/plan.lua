--- What a benchmark measures: its candidates, each with a configuration, and the order of its turns.
local config_module = require "pack.config"
local failure = require "pack.core.failure"
local schema = require "pack.config.schema"

local plan = {}

--- The options of recipes/benchmark.lua beside those that all recipes share.
plan.options = {
  {name = "num-models", value = "N", many = true, type = "integer", minimum = 1, maximum = 4096,
    help = "numbers of workers (default 4 8)"},
  {name = "modes", value = "LIST", default = "sequential,packed", help = "ways of computing N models"},
  {name = "executions", value = "LIST", default = "eager,compiled",
    help = "operation by operation, or the recorded step"},
  {name = "warmup", value = "K", type = "integer", minimum = 1, maximum = 2 ^ 31, default = 2,
    help = "steps before the timed ones"},
  {name = "steps", value = "K", type = "integer", minimum = 1, maximum = 2 ^ 31, default = 5, help = "timed steps"},
  {name = "repeats", value = "R", type = "integer", minimum = 1, maximum = 1000, default = 3,
    help = "processes per candidate, in turns; the table has their median"},
  {name = "dtype", value = "f32|amp|f64", help = "precision (default: what the configuration says)"},
  {name = "topology", value = "NAME", help = "the same as --set decentralized.topology=NAME"},
  {name = "scheme", value = "awc|atc", help = "the same as --set decentralized.scheme=..."},
  {name = "data", value = "synthetic|cache", default = "synthetic",
    help = "one batch of random tokens, or data.cache_dir through the loader"},
  {name = "timeout", value = "SECONDS", type = "number", minimum = 0.001, maximum = 2 ^ 31, default = 3600,
    help = "longest time of one process"},
  {name = "budget-minutes", value = "M", type = "number", minimum = 0, maximum = 2 ^ 31,
    help = "what is not done by then becomes rows that say so"},
  {name = "output", value = "DIR", help = "folder of the results (default runs/benchmark-UTCTIME)"},
  {name = "resume", help = "goes on with what is in --output DIR"},
  {name = "tune", help = "instead: tries micro-batches, threads and recomputation; writes selected.json"},
}

local default_numbers = {4, 8}

-- The words of "a,b", each one of `allowed`, in the order of `allowed`.
local function words(option, text, allowed)
  local given, list = {}, {}
  for word in text:gmatch("[^,%s]+") do
    given[word] = true
    local known = false
    for _, name in ipairs(allowed) do known = known or name == word end
    if not known then
      failure.usage("--%s %s: there is no '%s'; there are %s", option, text, word, table.concat(allowed, ", "))
    end
  end
  for _, name in ipairs(allowed) do
    if given[name] then list[#list + 1] = name end
  end
  if #list == 0 then failure.usage("--%s is empty; there are %s", option, table.concat(allowed, ", ")) end
  return list
end

--- The configuration for N workers at the global batch of `base` (see config.with_workers). Usage error: a batch that N does
-- not divide.
function plan.with_workers(base, workers)
  local config, message = config_module.with_workers(base, workers, ("--num-models %d"):format(workers))
  return config or failure.usage("--num-models %d: %s", workers, message)
end

-- The configuration that all candidates start from.
local function base_of(options)
  local config = config_module.copy(options.config)
  config.runtime.output_dir = false
  if options.dtype then config.runtime.amp = options.dtype == "amp" end
  if options.topology then
    local row = schema.find("decentralized.topology")
    words("topology", options.topology, row.choices)
    config.decentralized.topology = options.topology
  end
  if options.scheme then config.decentralized.scheme = options.scheme end
  return config
end

local function check_schedule(options, config)
  if config.decentralized.adaptive_consensus then
    failure.usage("decentralized.adaptive_consensus needs the learning rates of a real run; switch it off for a "
      .. "benchmark: --set decentralized.adaptive_consensus=off")
  end
  if options.data == "cache" and not config.data.cache_dir then
    failure.usage("--data cache needs data.cache_dir, the folder of a token cache")
  end
  if options.data == "cache" then require("pack.data.source").open(config) end -- refuses one that cannot be trained on
  local total, needed = require("pack.train.schedule").create(config).total_steps, options.warmup + options.steps + 1
  if needed > total then
    failure.usage("--warmup %d and --steps %d are more than the %d steps of the configuration; a larger "
      .. "training.max_tokens, or off, has more", options.warmup, options.steps, total)
  end
end

local function candidates_of(settings)
  local list = {}
  for _, workers in ipairs(settings.num_models) do
    for _, execution in ipairs(settings.executions) do
      for _, mode in ipairs(settings.modes) do
        list[#list + 1] = {name = ("n-%d-%s-%s"):format(workers, mode, execution), config = "n-" .. workers,
          num_models = workers, mode = mode, execution = execution}
      end
    end
  end
  return list
end

local function sorted_numbers(list)
  local seen, result = {}, {}
  for _, n in ipairs(list) do
    if not seen[n] then result[#result + 1] = n end
    seen[n] = true
  end
  table.sort(result)
  return result
end

-- What the results of a command line depend on, beside configurations.
local function settings_of(options)
  return {
    num_models = sorted_numbers(options.num_models or default_numbers),
    modes = words("modes", options.modes, {"sequential", "packed"}),
    executions = words("executions", options.executions, {"eager", "compiled"}),
    warmup = options.warmup, steps = options.steps, repeats = options.repeats, dtype = options.dtype,
    data = options.data,
  }
end

--- The plan of a command line: settings (what the results depend on), base, the configuration without N, configs by
-- name, candidates, a list of {name, config, num_models, mode, execution}. Raises usage errors.
function plan.create(options)
  local settings, base, configs = settings_of(options), base_of(options), {}
  check_schedule(options, base)
  for _, workers in ipairs(settings.num_models) do configs["n-" .. workers] = plan.with_workers(base, workers) end
  return {settings = settings, base = base, configs = configs, candidates = candidates_of(settings)}
end

--- The turns of a plan: every candidate once, then all again, and so on, so that a machine that drifts does so under
-- all alike; every other round goes backwards. A list of {candidate, round}.
function plan.turns(self)
  local turns, count = {}, #self.candidates
  for round = 1, self.settings.repeats do
    for i = 1, count do
      turns[#turns + 1] = {candidate = self.candidates[round % 2 == 1 and i or count + 1 - i], round = round}
    end
  end
  return turns
end

return plan
