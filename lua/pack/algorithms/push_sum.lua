--- Stochastic gradient push: gossip over directed links, where only what a worker sends must sum to 1 (Assran et al. 2018,
-- arXiv:1811.10792).
--
--   y = p x - (x - U(x, g))          p <- A p          x <- A y / p          p_0 = 1
--
-- A is column-stochastic: column j says how worker j shares what it has.
local push_sum = {
  summary = "gossip over directed links, with weights that correct for them",
  column_stochastic = true,
}

--- Every worker's weight is 1.
function push_sum:start(s)
  self.weights = s:keep("push_weights", s:full(1, {s.num_models, 1}))
end

--- The optimizer, then x and the weights along the links, and x without its weight.
function push_sum:step(s)
  local before = s:copy(s.x)
  s:optimize()
  s:assign(s.x, before * self.weights - (before - s.x))
  if s.mixes then
    s:mix(s.x)
    s:mix(self.weights)
  end
  s:assign(s.x, s.x / self.weights)
end

return push_sum
