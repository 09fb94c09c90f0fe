--- SlowMo: gossip, and every so many steps a slow momentum over what all workers did (Wang et al. 2019, arXiv:1910.00643).
--
-- Every step x <- U(W x, g), and at the end of a round, with a the anchor and eta the learning rate:
--   b <- mu b + (a - mean x) / eta          a <- a - outer_lr eta b          x_i <- a
local slowmo = {
  summary = "gossip with a slow momentum over all workers, every so many steps",
  options = {
    {name = "every", type = "integer", default = 12, minimum = 1, maximum = 2 ^ 31, help = "steps of a round"},
    {name = "outer_lr", type = "number", default = 1, minimum = 0, maximum = 100, help = "factor of the slow step"},
    {name = "outer_momentum", type = "number", default = 0.7, minimum = 0, below = 1, help = "the slow momentum mu"},
  },
}

--- Learning rates that differ between workers.
function slowmo.refuse(config)
  if config.optimizer.lr_factors then return "workers have learning rates of their own, and it needs one for all" end
end

--- The anchor is where the workers begin; the slow momentum is 0.
function slowmo:start(s)
  self.anchor = s:keep("anchor", s:average(s.x))
  self.velocity = s:keep("slow_momentum", s:zeros(1))
end

--- Whether step t ends a round.
function slowmo:form(t)
  return (t + 1) % self.options.every == 0 and "end of round" or "round"
end

--- Gossip, and at the end of a round the slow step.
function slowmo:step(s)
  if s.mixes then s:mix(s.x) end
  s:optimize()
  if s.form ~= "end of round" then return end
  local rate = s:learning_rate():slice(0, 0, 1)
  local moved = (self.anchor - s:average(s.x)) / rate:maximum(1e-30)
  s:assign(self.velocity, self.velocity * self.options.outer_momentum + moved)
  s:assign(self.anchor, self.anchor - self.velocity * (rate * self.options.outer_lr))
  s:assign(s.x, self.anchor)
end

return slowmo
