--- Quasi-global momentum: the momentum is that of where the mixed weights went, not of local gradients (Lin et al. 2021,
-- arXiv:2102.04761).
--
--   h = x - eta (weight_decay x + g + mu q)          x' = W h          q <- mu q + (1 - mu) (x - x') / eta
--
-- The optimizer is SGD without a momentum of its own, of g + mu q.
local quasi_global = {
  summary = "SGD with a momentum of the mixed weights' movement, for heterogeneous data",
  options = {
    {name = "momentum", type = "number", default = 0.9, minimum = 0, below = 1, help = "mu of the quasi-global momentum"},
  },
}

--- Optimizers with a momentum of their own.
function quasi_global.refuse(config)
  if config.optimizer.name ~= "sgd" or config.optimizer.momentum ~= 0 then
    return "it has a momentum of its own: set optimizer.name = sgd and optimizer.momentum = 0"
  end
end

--- A momentum of zero.
function quasi_global:start(s)
  self.momentum = s:keep("momentum", s:zeros())
end

--- SGD with the momentum, mixing, and the momentum of where the weights went.
function quasi_global:step(s)
  local mu, before = self.options.momentum, s:copy(s.x)
  s:optimize(s.x, s.g + self.momentum * mu)
  if s.mixes then s:mix(s.x) end
  s:lerp(self.momentum, (before - s.x) / s:learning_rate():maximum(1e-30), 1 - mu)
end

return quasi_global
