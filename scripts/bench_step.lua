#!/usr/bin/env packlua
-- Times whole training steps of a preset on made-up tokens, beside the ceiling of this machine:
--   packlua scripts/bench_step.lua [--config FILE] [--workers N] [--amp] [--eager] [--steps K]
-- Prints the time before the first operation, each step's seconds and targets per second, the share of the
-- ceiling that the model's floating-point operations make up, and the allocator's peak.
local ceiling = require "pack.ceiling"
local native = require "pack.native"
local options = require "pack.options"
local plan = require "pack.plan"
local runtime = require "pack.runtime"
local trainer = require "pack.trainer"
local work = require "pack.work"

local given = options.parse {
  recipe = "bench_step", summary = "Times training steps on made-up tokens.", arg = arg, config = false,
  extra = {
    {name = "config", value = "FILE", default = "configs/20m.lua", help = "configuration"},
    {name = "workers", value = "N", type = "integer", minimum = 1, default = 4, help = "number of workers"},
    {name = "amp", help = "bf16 operands"},
    {name = "eager", help = "operations one by one instead of a recorded program"},
    {name = "steps", value = "K", type = "integer", minimum = 1, default = 3, help = "steps to time"},
  },
}

local clock = native.C.pk_clock

local began = clock()
local config = plan.with_workers(given.config, {"training.max_tokens=1048576",
  "runtime.amp=" .. tostring(given.amp or false), "runtime.compile=" .. tostring(not given.eager)}, given.workers)
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

local best = ceiling.product(context, "f32") / 1e9
print(context:describe())
print(("%d workers, %s, %s; %.2f s before the first operation; ceiling %.1f GFLOP/s"):format(given.workers,
  given.amp and "amp" or "f32", given.eager and "eager" or "recorded", started, best))
for _ = 1, given.steps do
  local row = one:step()
  print(("step %d: %.2f s, %.0f tok/s, %.1f%% of the ceiling, loss %.4f, peak %.0f MiB"):format(row.step,
    row.step_seconds, row.tokens_per_second,
    100 * work.model_flops(config) / row.step_seconds / best / 1e9, row.loss, row.memory_bytes / 2 ^ 20))
end
one:free()
