--- AccumAdamW: AdamW whose moments take the mean gradient of a window of s steps, so that they are those of a batch s
-- times as large ("From Promise to Practice", appendix C). With update t from 0 and k = floor(t / s) + 1:
--
--   m = beta1 M + (1 - beta1) g            v = beta2 V + (1 - beta2) g^2
--   x <- AdamW's step with m, v, and k for its number
--   b <- b + g / s, and where the window ends
--   M <- beta1 M + (1 - beta1) b           V <- beta2 V + (1 - beta2) b^2           b <- 0
local AdamW = require "pack.optim.adamw"
local ops = require "pack.core.ops"

local AccumAdamW = {name = "accumadamw"}
AccumAdamW.__index = AccumAdamW

--- M, V and b of zero for every worker of a model; settings.window is s.
function AccumAdamW.create(model, settings)
  local self = setmetatable({settings = settings}, AccumAdamW)
  self.exp_avg = model:zeros_like("moments")
  self.exp_avg_sq = model:zeros_like("moments")
  self.accum_grad = model:zeros_like("moments")
  self.state = {{"exp_avg", self.exp_avg}, {"exp_avg_sq", self.exp_avg_sq}, {"accum_grad", self.accum_grad}}
  return self
end

--- See pack.optim.
function AccumAdamW:coefficients(t)
  return AdamW.coefficients(self, math.floor((t - 1) / self.settings.window) + 1)
end

--- See pack.optim.
function AccumAdamW:form(t)
  return t % self.settings.window == 0 and "end of window" or "window"
end

--- See pack.optim.
function AccumAdamW:apply(x, g, inputs)
  local settings, guard = self.settings, inputs.guard
  local mean, square, sum = self.exp_avg.tensor, self.exp_avg_sq.tensor, self.accum_grad.tensor
  ops.adamw(x, g, ops.copy(mean), ops.copy(square), inputs.blocks, inputs.scalars, guard)
  ops.blend(sum, g, guard, nil, {own = 1, scale = 1 / settings.window})
  if inputs.form ~= "end of window" then return end
  ops.blend(mean, sum, guard, nil, {own = settings.beta1, scale = 1 - settings.beta1})
  ops.blend(square, sum * sum, guard, nil, {own = settings.beta2, scale = 1 - settings.beta2})
  ops.blend(sum, ops.affine(sum, {scale = 0}), guard)
end

return AccumAdamW
