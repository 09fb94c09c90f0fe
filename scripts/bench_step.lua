#!/usr/bin/env packlua
-- Times whole training steps of a preset on made-up tokens, beside the ceiling of this machine:
--   packlua scripts/bench_step.lua [--config FILE] [--workers N] [--amp] [--eager] [--steps K]
-- Prints the time before the first operation, each step's seconds and targets per second, the share of the
-- ceiling that the model's floating-point operations make up, and the allocator's peak.
local native = require "pack.native"
local ops = require "pack.ops"
local options = require "pack.options"
local plan = require "pack.plan"
local runtime = require "pack.runtime"
local tensor = require "pack.tensor"
local trainer = require "pack.trainer"

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

-- GFLOP/s of the best of five products of two square matrices.
local function ceiling()
  local size, best = 2048, 0
  local a = tensor.normal({1, size, size}, 1, {dtype = "f32"})
  local y = ops.matmul(a, a)
  for _ = 1, 5 do
    local began = clock()
    ops.matmul(a, a, {out = y})
    best = math.max(best, 2 * size ^ 3 / (clock() - began) / 1e9)
  end
  a:free()
  y:free()
  return best
end

-- Floating-point operations of a step: 6 for each weight of a matrix and target, the head included, and the causal
-- half of attention's products, forward and backward: 6 L T d per target.
local function operations_of(config)
  local m, targets = config.model, config.training.batch_tokens
  local matrices = m.vocab_size * m.width + m.layers * (4 * m.width ^ 2 + 3 * m.width * m.ffn_width)
  return targets * (6 * matrices + 6 * m.layers * m.context_length * m.width)
end

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
one.batches = {next = function() end, close = function() end}
local started = clock() - began

local best = ceiling()
print(context:describe())
print(("%d workers, %s, %s; %.2f s before the first operation; ceiling %.1f GFLOP/s"):format(given.workers,
  given.amp and "amp" or "f32", given.eager and "eager" or "recorded", started, best))
for _ = 1, given.steps do
  local row = one:step()
  print(("step %d: %.2f s, %.0f tok/s, %.1f%% of the ceiling, loss %.4f, peak %.0f MiB"):format(row.step,
    row.step_seconds, row.tokens_per_second,
    100 * operations_of(config) / row.step_seconds / best / 1e9, row.loss, row.memory_bytes / 2 ^ 20))
end
one:free()
