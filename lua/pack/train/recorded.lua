--- The recorded step of a trainer: one program, or, where gradients accumulate, parts that run again for each micro-step.
--
-- With one micro-step everything is one program. With more, three are recorded whatever their number: the first micro-step,
-- which overwrites the gradients, a later one, which adds to them, and the update. They run one after the other and share
-- their memory. The bits are those of the operations one by one.
local program = require "pack.core.program"

local recorded = {}

local Step = {}
Step.__index = Step

local function record(trainer, fn)
  return program.record(fn, {}, trainer.context, {recompute = trainer.config.runtime.recompute})
end

local function record_whole(trainer)
  return {record(trainer, function()
    local losses, counts = trainer:compute(1)
    return losses, counts, trainer.optimizer:update(losses, counts)
  end)}
end

local function record_parts(trainer)
  local losses, counts
  local function micro_step(index)
    return record(trainer, function() losses, counts = trainer:compute(index) end)
  end
  return {micro_step(1), micro_step(2), record(trainer, function()
    return losses, counts, trainer.optimizer:update(losses, counts)
  end)}
end

--- Records a trainer's step.
function recorded.create(trainer)
  local self = setmetatable({trainer = trainer, accumulation = trainer.accumulation}, Step)
  self.parts = self.accumulation == 1 and record_whole(trainer) or record_parts(trainer)
  return self
end

--- Runs the step: for each micro-step writes its part of the batch, then runs its program. Returns loss sums, counts of
-- valid targets and gradient norms per worker, tensors [N] that the next step overwrites.
function Step:run()
  if not self.ready then program.share(self.parts) end
  self.ready = true
  local parts = self.parts
  self.trainer:write_batch(1)
  parts[1]:run()
  if parts[3] then
    for micro = 2, self.accumulation do
      self.trainer:write_batch(micro)
      parts[2]:run()
    end
    parts[3]:run()
  end
  return unpack(parts[#parts].results)
end

--- The plan of the step: operations, how many run in it; activations, workspace and slab, bytes that the parts share;
-- and what was recorded, dropped, merged, fused and recomputed in all parts (see Program:memory).
function Step:memory()
  local plan = {}
  for i, part in ipairs(self.parts) do
    local own = part:memory()
    own.operations = own.operations * (self.parts[3] and i == 2 and self.accumulation - 1 or 1)
    for name, value in pairs(own) do
      local is_shared = name == "activations" or name == "workspace" or name == "slab"
      plan[name] = is_shared and math.max(plan[name] or 0, value) or (plan[name] or 0) + value
    end
  end
  return plan
end

--- Why a part is run operation by operation although the device could run it as one; "" if there is nothing to say.
function Step:remark()
  for _, part in ipairs(self.parts) do
    if part:remark() ~= "" then return part:remark() end
  end
  return ""
end

--- Gives the memory back now.
function Step:free()
  for _, part in ipairs(self.parts) do part:free() end
end

return recorded
