--- What a step is made of: the seconds of its parts, each run by itself with the device idle before and after.
--
-- Apart from whole steps, as it is another way to run: clip, mixing and AdamW are separate operations here, which a
-- training step does in one pass over memory, so the parts add up to more than a step.
local native = require "pack.native"
local ops = require "pack.core.ops"
local program = require "pack.core.program"
local statistics = require "pack.measure.statistics"
local tensor = require "pack.core.tensor"

local components = {}

local MOST_RUNS, LONGEST_SECONDS = 5, 2

--- The parts in their order.
components.names = {"compute", "clip", "mix", "optimizer"}

-- Clipping as operations of their own: norms, the look for values that are not finite, and the clipping.
local function clip(update, losses, counts)
  local gradients, scale = update.gradients.tensor, ops.inverse_count(counts)
  local norm = ops.gradient_norm(gradients, scale)
  ops.check_finite(losses, norm, update.scalars, update.guard)
  ops.clip(gradients, scale, norm, update.scalars, update.guard)
end

-- The parts as functions that only launch operations, and the tensors between them.
local function parts_of(trainer)
  local model, update, optimizer = trainer.model, trainer.updater, trainer.optimizer
  local weights, scalars, guard = model.arena.tensor, update.scalars, update.guard
  local function between(dtype)
    return tensor.zeros({trainer.num_models}, dtype, {category = "workspace", context = trainer.context})
  end
  local kept = {losses = between(model.dtype), counts = between("f64")}
  local parts = {}
  function parts.compute(micro)
    local losses, counts = trainer:compute(micro)
    ops.copy(losses, {out = kept.losses})
    ops.copy(counts, {out = kept.counts})
  end
  function parts.clip() clip(update, kept.losses, kept.counts) end
  function parts.mix() ops.mix(weights, update.mixing, scalars, guard) end
  function parts.optimizer()
    ops.adamw(weights, update.gradients.tensor, optimizer.exp_avg.tensor, optimizer.exp_avg_sq.tensor,
      update.blocks, scalars, guard)
  end
  return parts, kept
end

-- A part as something to run: a recorded program, or the function itself.
local function runnable(trainer, part)
  if not trainer.config.runtime.compile then return part, function() end end
  local recorded = program.record(part, {}, trainer.context, {recompute = trainer.config.runtime.recompute})
  return function() recorded:run() end, function() recorded:free() end
end

-- The whole of a step's forward and backward passes: the first micro-step, and the later ones by one program.
local function runnable_compute(trainer, compute)
  local first, free_first = runnable(trainer, function() compute(1) end)
  if trainer.accumulation == 1 then return first, free_first end
  local later, free_later = runnable(trainer, function() compute(2) end)
  return function()
    first()
    for _ = 2, trainer.accumulation do later() end
  end, function()
    free_first()
    free_later()
  end
end

-- The median seconds of up to MOST_RUNS runs, none of which begins after LONGEST_SECONDS, and one before that does not
-- count.
local function time(trainer, run)
  local seconds, total = {}, 0
  run()
  repeat
    trainer.context:synchronize()
    local began = native.C.pk_clock()
    run()
    trainer.context:synchronize()
    seconds[#seconds + 1] = native.C.pk_clock() - began
    total = total + seconds[#seconds]
  until #seconds == MOST_RUNS or total > LONGEST_SECONDS
  return statistics.median(seconds)
end

--- The median seconds of each part over a few runs: {compute, clip, mix, optimizer}. The trainer has taken a step before;
-- its weights change.
function components.measure(trainer)
  local parts, kept = parts_of(trainer)
  local result = {}
  for _, name in ipairs(components.names) do
    local run, free = (name == "compute" and runnable_compute or runnable)(trainer, parts[name])
    result[name] = time(trainer, run)
    free()
  end
  for _, one in pairs(kept) do one:free() end
  return result
end

return components
