--- The step of a trainer done the ordinary way: the N models one after the other, each by itself.
--
-- What packed training is compared with. Weights, gradients and moments are the same arenas, seen one worker at a time,
-- and the update is the same; only forward and backward run N times with one model instead of once with N.
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local sequential = {}

-- Worker `index` (from 0) of a tensor [N, ...], as a tensor [1, ...].
local function entry(whole, index)
  local shape, stride = whole:sizes(), whole.stride
  shape[1] = 1
  return whole:view {shape = shape, stride = stride, offset = index * stride}
end

-- Worker `index` as an ordinary model. It shares the bf16 copy of the weights too, which the packed model looks after.
local function model_of(trainer, index)
  local model = trainer.model:worker(index)
  if trainer.model.bf16 then
    model.bf16 = trainer.model.bf16:row(index)
    function model.refresh() end
  end
  return model
end

-- One worker with its part of the batch, its gradients, and where its loss and count go.
local function ordinary(trainer, index, losses, counts)
  local model = model_of(trainer, index)
  local one = {model = model, gradients = trainer.updater.gradients:row(index),
    loss = entry(losses, index), count = entry(counts, index), tokens = entry(trainer.tokens, index),
    targets = entry(trainer.targets, index)}
  return one
end

-- Forward and backward of one worker in a micro-step.
local function compute(one, micro)
  local loss, count = one.model:backward(one.tokens, one.targets, one.gradients, micro > 1)
  ops.copy(loss, {out = one.loss})
  ops.copy(count, {out = one.count})
end

--- What a trainer computes a micro-step's gradients by (compute of pack.trainer.create): its workers one after the other.
function sequential.compute(trainer)
  local function per_worker(dtype)
    return tensor.zeros({trainer.num_models}, dtype, {category = "workspace", context = trainer.context})
  end
  local losses, counts, workers = per_worker(trainer.model.dtype), per_worker("f64"), {}
  for index = 0, trainer.num_models - 1 do
    workers[index + 1] = ordinary(trainer, index, losses, counts)
  end
  return function(micro)
    for _, one in ipairs(workers) do compute(one, micro) end
    return losses, counts
  end
end

return sequential
