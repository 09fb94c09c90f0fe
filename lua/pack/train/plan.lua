--- Memory forecasts: what a configuration's training step takes, known without running it.
--
-- A forecast builds the trainer in a context that counts memory without taking it, and records one step, or takes it
-- where steps are not recorded. What it says is what the allocator's peak will be, and a limit under which the step runs;
-- the peak of a step that is not recorded depends on when Lua's collector runs, but under a limit it runs in time.
local config_module = require "pack.config"
local failure = require "pack.core.failure"
local progress = require "pack.io.progress"
local runtime = require "pack.config.runtime"
local trainer = require "pack.train.trainer"

local plan = {}

local MIB = 1024 * 1024

-- The device that a forecast is for: its kernels and threads, none of its memory.
local function forecast_context(config)
  local settings = config.runtime
  return runtime.context {device = runtime.device(settings.device), threads = settings.threads, forecast = true,
    deterministic = settings.deterministic, attention = settings.attention}
end

-- The program of the step, having run, or nil where steps are not recorded.
local function take_step(one)
  if one.config.runtime.compile then
    one:recorded():run()
    return one:recorded()
  end
  one.updater:prepare(one:plan_step(0, 0, 1))
  one:launch()
end

--- The memory of a resolved configuration's training step in bytes: parameters, gradients, moments, data, activations,
-- workspace (the largest of one operation, which activations leave room for where they can) and total, the peak.
-- Also operations, how many a recorded step has.
function plan.of(config)
  local own = forecast_context(config)
  local settings = {}
  for key, value in pairs(config.runtime) do settings[key] = value end
  settings.amp = settings.amp == "auto" and own:has_bf16() or settings.amp == true
  local copy = {}
  for key, value in pairs(config) do copy[key] = value end
  copy.runtime = settings
  local one = trainer.create(copy, {context = own})
  local recorded = take_step(one)
  local memory, step = own:memory(), recorded and recorded:memory()
  local result = step and {operations = step.operations, activations = step.activations,
      workspace = step.slab - step.activations}
    or {activations = memory.peak.activations, workspace = memory.peak.workspace - memory.used.workspace}
  result.total = memory.total_peak
  for _, category in ipairs {"parameters", "gradients", "moments", "data"} do
    result[category] = memory.used[category]
  end
  one:free()
  own:close()
  return result
end

--- The configuration of a file with settings for another number of workers at the same global batch (see
-- config.with_workers), or nil where it cannot be shared out.
function plan.with_workers(path, settings, workers)
  return (config_module.with_workers(config_module.load(path, settings), workers))
end

local columns = {"parameters", "gradients", "moments", "data", "activations", "workspace", "total"}

local function line(first, cells)
  for i, cell in ipairs(cells) do cells[i] = ("%12s"):format(cell) end
  return ("%8s%s"):format(first, table.concat(cells))
end

local function row(workers, forecast)
  local cells = {}
  for i, name in ipairs(columns) do cells[i] = ("%.1f"):format(forecast[name] / MIB) end
  return line(workers, cells)
end

-- The largest N, among those that share out the rows, whose forecast is at most limit bytes.
local function largest_that_fits(path, settings, limit)
  local base = config_module.load(path, settings)
  for workers = base.training.batch_tokens / base.model.context_length, 1, -1 do
    local config = config_module.with_workers(base, workers)
    local forecast = config and plan.of(config)
    if forecast and forecast.total <= limit then return workers, forecast end
  end
end

--- Prints the forecast of a configuration file with settings ("key=value"): one row for each number of workers
-- (default: the configuration's), and, given a limit in bytes, the largest number that fits.
function plan.print(path, settings, options)
  local config = config_module.load(path, settings)
  local counts = options.num_models or {config.decentralized.num_models}
  forecast_context(config):close() -- refuses a device that is not there
  print(("memory of a training step in MiB, %d parameters per worker, %s targets a step"):format(
    config_module.parameters(config.model), progress.count(config.training.batch_tokens)))
  print(line("workers", {unpack(columns)}))
  for _, workers in ipairs(counts) do
    local own = plan.with_workers(path, settings, workers)
    if own then
      print(row(workers, plan.of(own)))
    else
      print(("%8d  the batch's sequences cannot be shared out among %d workers"):format(workers, workers))
    end
  end
  if not options.limit then return end
  local workers, forecast = largest_that_fits(path, settings, options.limit)
  if not workers then
    failure.raise(1, ("no number of workers fits in %.1f MiB"):format(options.limit / MIB))
  end
  print(("the most workers in %.1f MiB: %d, with %.1f MiB"):format(options.limit / MIB, workers,
    forecast.total / MIB))
end

return plan
