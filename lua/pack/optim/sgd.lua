--- SGD with momentum and decoupled weight decay; Nesterov's form where asked for.
--
--   m <- mu m + g          d = nesterov ? g + mu m : m          x <- x - lr (weight_decay x + d)
--
-- Without momentum there is no m.
local ops = require "pack.core.ops"

local SGD = {name = "sgd"}
SGD.__index = SGD

local USUAL_MOMENTUM = 0.9

--- A momentum of zero for every worker of a model. settings: momentum (default 0.9; 0: none), nesterov.
function SGD.create(model, settings)
  local momentum = settings.momentum or USUAL_MOMENTUM
  local self = setmetatable({momentum = momentum, nesterov = settings.nesterov == true, state = {}}, SGD)
  if momentum == 0 then return self end
  self.exp_avg = model:zeros_like("moments")
  self.state[1] = {"exp_avg", self.exp_avg}
  return self
end

--- See pack.optim: the momentum has beta1's place.
function SGD:coefficients()
  return self.momentum, 0, 1, 1
end

--- See pack.optim.
function SGD:apply(x, g, inputs)
  ops.sgd(x, g, self.exp_avg and self.exp_avg.tensor, inputs.blocks, inputs.scalars, inputs.guard,
    {nesterov = self.nesterov and 1 or 0})
end

return SGD
