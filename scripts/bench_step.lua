#!/usr/bin/env packlua
-- Times whole training steps of a preset on made-up tokens, beside the ceiling of this machine:
--   packlua scripts/bench_step.lua [--config FILE] [--set KEY=VALUE]... [--workers N] [--amp] [--eager] [--steps K]
-- Prints the time before the first operation, each step's seconds and targets per second, the share that the model's
-- floating-point operations make up of the ceiling just before and after the step (a virtual machine's speed drifts),
-- and the allocator's peak; at the end medians; with --json one line instead, for scripts/peers/compare.lua.
local ceiling = require "pack.measure.ceiling"
local json = require "pack.io.json"
local native = require "pack.native"
local options = require "pack.run.options"
local plan = require "pack.train.plan"
local runtime = require "pack.config.runtime"
local statistics = require "pack.measure.statistics"
local trainer = require "pack.train.trainer"
local work = require "pack.measure.work"

local given = options.parse {
  recipe = "bench_step", summary = "Times training steps on made-up tokens.", arg = arg, config = false,
  extra = {
    {name = "config", value = "FILE", default = "configs/20m.lua", help = "configuration"},
    {name = "set", value = "KEY=VALUE", repeated = true, help = "changes a key; may be repeated"},
    {name = "workers", value = "N", type = "integer", minimum = 1, default = 4, help = "number of workers"},
    {name = "amp", help = "bf16 operands"},
    {name = "eager", help = "operations one by one instead of a recorded program"},
    {name = "steps", value = "K", type = "integer", minimum = 1, default = 3, help = "steps to time"},
    {name = "warmup", value = "K", type = "integer", minimum = 0, default = 0, help = "steps before these"},
    {name = "json", help = "one line of JSON"},
  },
}

local clock = native.C.pk_clock

local began = clock()
local settings = {"training.max_tokens=1073741824", "runtime.amp=" .. tostring(given.amp or false),
  "runtime.compile=" .. tostring(not given.eager), unpack(given.set or {})}
local config = plan.with_workers(given.config, settings, given.workers)
if not config then
  require("pack.core.failure").usage("the batch of %s cannot be shared out among %d workers", given.config, given.workers)
end
local context = runtime.open(config)
local one = trainer.create(config, {context = context})
local elements = one.accumulation * one.micro_elements
for i = 0, elements - 1 do
  one.host_tokens[i] = (i * 7919 + i * i % 31) % config.model.vocab_size
  one.host_targets[i] = ((i + 1) * 7919 + (i + 1) * (i + 1) % 31) % config.model.vocab_size
end
local function nothing()
  return 0
end
one.batches = {next = nothing, close = nothing, cursor = nothing, set_cursor = nothing}
local started = clock() - began

local function say(text, ...)
  if not given.json then print(text:format(...)) end
end

-- The high-water mark of the process's memory, in MiB.
local function peak_rss()
  for line in io.lines("/proc/self/status") do
    local kilobytes = line:match("^VmHWM:%s*(%d+)")
    if kilobytes then return kilobytes / 1024 end
  end
end

-- A context of its own, whose memory is not the step's.
local aside = require("pack.core.context").create {device = context:device(), threads = context:threads()}

-- GFLOP/s of the best large square product at this moment.
local function measured_ceiling()
  local found = ceiling.product(aside, "f32") / 1e9
  aside:trim()
  return found
end

local before = measured_ceiling()
say("%s", context:describe())
say("%d workers, %s, %s; %.2f s before the first operation; ceiling %.1f GFLOP/s", given.workers,
  given.amp and "amp" or "f32", given.eager and "eager" or "recorded", started, before)
local flops, seconds, cpu_seconds, shares, last = work.model_flops(config), {}, {}, {}, nil
local best = before
for i = 1, given.warmup + given.steps do
  local cpu_began = os.clock()
  last = one:step()
  local cpu_taken, after = os.clock() - cpu_began, measured_ceiling()
  local share = flops / last.step_seconds / 1e9 / ((before + after) / 2)
  if i > given.warmup then
    seconds[#seconds + 1], cpu_seconds[#cpu_seconds + 1], shares[#shares + 1] = last.step_seconds, cpu_taken, share
  end
  say("step %d: %.2f s, %.0f tok/s, %.1f%% of the ceiling of %.1f GFLOP/s, loss %.4f, peak %.0f MiB", last.step,
    last.step_seconds, last.tokens_per_second, 100 * share, (before + after) / 2, last.loss, last.memory_bytes / 2 ^ 20)
  best, before = math.max(best, after), after
end
local typical = statistics.median(seconds)
say("median: %.2f s, %.0f tok/s, %.1f%% of the ceiling around the step, %.1f%% of the best ceiling, %.1f GFLOP/s", typical,
  config.training.batch_tokens / typical, 100 * statistics.median(shares), 100 * flops / typical / best / 1e9, best)
if given.json then
  print((json.encode {peer = "packlua", dtype = given.amp and "bf16" or "f32", compile = not given.eager,
    threads = context:threads(), workers = given.workers, targets = config.training.batch_tokens,
    micro_batch = config.training.micro_batch_size, accumulation = one.accumulation, start_seconds = started,
    seconds = seconds, cpu_seconds = cpu_seconds, shares = shares, flops = flops, ceiling_gflops = best, peak_rss_mib = peak_rss(),
    peak_mib = last.memory_bytes / 2 ^ 20, loss = last.loss_worker, model = config.model}))
end
one:free()
