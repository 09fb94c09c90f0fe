--- AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101).
--
--   m <- beta1 m + (1 - beta1) g           v <- beta2 v + (1 - beta2) g^2
--   x <- x - lr ((m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay x)
local ops = require "pack.core.ops"

local AdamW = {name = "adamw"}
AdamW.__index = AdamW

--- Moments of zero for every worker of a model.
function AdamW.create(model, settings)
  local self = setmetatable({settings = settings}, AdamW)
  self.exp_avg = model:zeros_like("moments")
  self.exp_avg_sq = model:zeros_like("moments")
  self.state = {{"exp_avg", self.exp_avg}, {"exp_avg_sq", self.exp_avg_sq}}
  return self
end

--- See pack.optim.
function AdamW:coefficients(t)
  local beta1, beta2 = self.settings.beta1, self.settings.beta2
  return beta1, beta2, 1 - beta1 ^ t, 1 - beta2 ^ t
end

--- See pack.optim.
function AdamW:apply(x, g, inputs)
  ops.adamw(x, g, self.exp_avg.tensor, self.exp_avg_sq.tensor, inputs.blocks, inputs.scalars, inputs.guard)
end

return AdamW
