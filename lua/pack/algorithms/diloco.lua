--- DiLoCo: workers train alone, and every so many steps an outer SGD moves a common anchor by what they did (Douillard et al.
-- 2023, arXiv:2311.08105).
--
-- Every step x <- U(x, g), and at the end of a round, with a the anchor and mu the outer momentum:
--   delta = a - mean x          b <- mu b + delta
--   a <- a - outer_lr (outer_nesterov ? delta + mu b : b)          x_i <- a
local diloco = {
  summary = "trains alone and averages what was done by an outer SGD, every so many steps",
  options = {
    {name = "every", type = "integer", default = 20, minimum = 1, maximum = 2 ^ 31, help = "steps of a round"},
    {name = "outer_lr", type = "number", default = 0.7, minimum = 0, maximum = 100, help = "learning rate of the outer SGD"},
    {name = "outer_momentum", type = "number", default = 0.9, minimum = 0, below = 1, help = "momentum of the outer SGD"},
    {name = "outer_nesterov", type = "boolean", default = true, help = "Nesterov's form of that momentum"},
  },
}

--- The anchor is where the workers begin; the outer momentum is 0. Both are the same for all workers.
function diloco:start(s)
  self.anchor = s:keep("anchor", s:average(s.x))
  self.velocity = s:keep("outer_momentum", s:zeros(1))
end

--- Whether step t ends a round.
function diloco:form(t)
  return (t + 1) % self.options.every == 0 and "end of round" or "round"
end

--- The optimizer alone, and at the end of a round the outer SGD.
function diloco:step(s)
  s:optimize()
  if s.form ~= "end of round" then return end
  local o = self.options
  local delta = self.anchor - s:average(s.x)
  s:assign(self.velocity, self.velocity * o.outer_momentum + delta)
  local push = o.outer_nesterov and delta + self.velocity * o.outer_momentum or self.velocity
  s:add(self.anchor, push, -o.outer_lr)
  s:assign(s.x, self.anchor)
end

return diloco
