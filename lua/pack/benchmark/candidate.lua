--- One candidate of a benchmark, in a process of its own: so many workers, packed or one after the other, recorded or
-- operation by operation. Times whole steps first, and then, apart from that, what a step is made of.
local ceiling = require "pack.measure.ceiling"
local components = require "pack.benchmark.components"
local config_module = require "pack.config"
local data = require "pack.data.source"
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local json = require "pack.io.json"
local native = require "pack.native"
local run = require "pack.run.folder"
local runtime = require "pack.config.runtime"
local safetensors = require "pack.io.safetensors"
local sequential = require "pack.benchmark.sequential"
local trace = require "pack.measure.trace"
local trainer_module = require "pack.train.trainer"
local work = require "pack.measure.work"

local C = native.C
local candidate = {}

local MIB = 2 ^ 20
local CEILING_SECONDS = 0.2 -- for each of the products that make the ceiling
local product_dtypes = {f64 = "f64", f32 = "f32", amp = "bf16"}

-- Inputs -----------------------------------------------------------------------------------------

-- Batches that are the same at every step, of random tokens: the same samples for every number of workers.
local function repeated_batch(config)
  local batches, taken = trainer_module.batches(config, data.synthetic(config).train), false
  local function nothing() end
  local function first(_, tokens, targets)
    if taken then return end
    taken = true
    batches:next(tokens, targets)
    batches:close()
  end
  return {next = first, close = nothing, set_cursor = nothing, cursor = function() return 0 end}
end

-- Measuring --------------------------------------------------------------------------------------

local function bytes_in_use(context)
  local total = 0
  for _, bytes in pairs(context:memory().used) do total = total + bytes end
  return total
end

-- The most memory that this process has held, in bytes.
local function peak_rss()
  local kib = (files.read("/proc/self/status", MIB) or ""):match("VmHWM:%s*(%d+) kB")
  return kib and tonumber(kib) * 1024 or json.null
end

-- Makes the trainer of a job; notes how long that takes, and the recording of its step.
local function prepare(job, result)
  local config = job.config
  config.runtime.compile = job.execution == "compiled"
  local context, remarks = runtime.open(config)
  for _, remark in ipairs(remarks) do print(remark) end
  local opened = job.data == "cache" and data.open(config)
  local trainer = trainer_module.create(config, {context = context, train = opened and opened.train,
    batches = not opened and repeated_batch(config) or nil,
    dtype = job.dtype == "f64" and "f64" or nil, compute = job.mode == "sequential" and sequential.compute or nil})
  context:synchronize()
  result.setup_seconds = C.pk_clock() - job.started
  result.dtype = job.dtype or config.runtime.amp and "amp" or "f32"
  if config.runtime.compile then
    local began = C.pk_clock()
    local plan = trainer:recorded():memory()
    result.compile_seconds = C.pk_clock() - began
    result.planned_bytes = bytes_in_use(context) + plan.slab
    result.operations = plan.operations
  end
  return trainer, context
end

-- The timed window: `steps` whole steps between two moments at which the device is idle.
local function time_steps(trainer, context, steps)
  local seconds, row = {}, nil
  collectgarbage()
  context:synchronize()
  context:reset_peak()
  local began = C.pk_clock()
  for i = 1, steps do
    row = trainer:step()
    seconds[i] = row.step_seconds
  end
  context:synchronize()
  return C.pk_clock() - began, seconds, row.loss
end

local function save_weights(trainer, path)
  local list = {}
  for i, name in ipairs(trainer.model.names) do list[i] = {name = name, tensor = trainer.model.weight[name]} end
  safetensors.write(path, list)
end

-- The operations of one more step: the trace of them as a file, and who they are.
local function trace_step(trainer, context, path, result)
  local captured = trace.capture(context, function(capture)
    capture:step()
    trainer:step()
  end)
  if path then captured:write(path) end
  local list = json.array()
  for i, row in ipairs(captured:table()) do
    list[i] = {name = row.name, shape = row.shape, count = row.count, seconds = row.seconds, flops = row.flops,
      bytes = row.bytes}
  end
  result.operators, result.executed_flops = list, captured:totals().flops
  captured:free()
end

-- What is measured once, after the timed window, of which it is no part.
local function look_closer(job, trainer, context, result)
  trace_step(trainer, context, job.trace, result)
  if trainer.program then trainer.program:free() end
  trainer.program = nil
  result.component_seconds = components.measure(trainer)
  result.environment = run.environment {context = context, arguments = {}}
end

-- The work of the window, and which part it is of what this machine's best products would have done meanwhile. A memory
-- limit that leaves no room for those products leaves the ceiling unknown.
local function compare_with_ceiling(job, context, result)
  local product = product_dtypes[result.dtype]
  local good, rate = failure.pcall(ceiling.product, context, product, CEILING_SECONDS)
  if not good then return end
  result.ceiling_flops_per_second, result.ceiling_dtype = rate, product
  result.share_of_ceiling = result.flops * job.steps / result.window_seconds / result.ceiling_flops_per_second
end

--- Measures a job. job: config (resolved), mode ("sequential", "packed"), execution ("eager", "compiled"), warmup and
-- steps, dtype ("f64"; nil: what the configuration says), data ("synthetic", "cache"), started (when the process was
-- started, by pk_clock); closer: look at components too, and write the weights after the last step to the
-- file `weights` and a trace to `trace`; brief: leave out the ceiling. Returns a table of results; keep(result) is
-- called when the timed steps are in it.
function candidate.measure(job, keep)
  local result = {status = "ok"}
  local trainer, context = prepare(job, result)
  local began = C.pk_clock()
  for _ = 1, job.warmup do trainer:step() end
  context:synchronize()
  result.warmup_seconds = C.pk_clock() - began
  result.window_seconds, result.step_seconds, result.loss = time_steps(trainer, context, job.steps)
  result.tokens_per_second = job.steps * job.config.training.batch_tokens / result.window_seconds
  local memory = context:memory()
  result.peak_bytes, result.reserved_bytes, result.peak_rss_bytes = memory.total_peak, memory.reserved, peak_rss()
  result.flops = work.model_flops(job.config)
  if not job.brief then compare_with_ceiling(job, context, result) end
  if job.closer and job.weights then save_weights(trainer, job.weights) end
  if keep then keep(result) end
  if job.closer then look_closer(job, trainer, context, result) end
  trainer:free()
  return result
end

-- Why a measurement failed, as a result.
local function failed(problem)
  local message = tostring(problem)
  return {status = message:find("out of memory", 1, true) and "out_of_memory" or "failed", reason = message}
end

--- What the process does: measures the job in a file, and writes the result to the one that the job names, as soon as
-- the timed steps are done and again at the end. Raises what went wrong, after the result says so.
function candidate.main(path)
  local job = assert(json.read(path))
  job.config = config_module.load(job.config)
  local function keep(result)
    json.write(job.result, result)
  end
  local good, result = xpcall(function() return candidate.measure(job, keep) end, function(problem)
    return type(problem) == "string" and debug.traceback(problem, 2) or problem
  end)
  keep(good and result or failed(result))
  if not good then error(result, 0) end
end

return candidate
