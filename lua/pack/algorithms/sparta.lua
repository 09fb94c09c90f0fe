--- SPARTA: every step a small random part of the parameters is mixed, the same for all workers (EXO Gym, github.com/exo-explore/gym).
--
--   x <- U(x, g), then W on the columns that were drawn, each with probability p
local sparta = {
  summary = "mixes a small random part of the parameters in every step",
  options = {
    {name = "probability", type = "number", default = 0.005, minimum = 0, maximum = 1,
      help = "part of the parameters that a mixing takes"},
  },
}

--- 1 at the columns that are mixed, [1, D].
function sparta:columns(s)
  return s:random_columns():less(s:full(self.options.probability))
end

--- The optimizer, and W on the columns of this step.
function sparta:step(s)
  s:optimize()
  if not s.mixes then return end
  local mixed = s:copy(s.x)
  s:mix(mixed, 4 * s.parameters * self.options.probability)
  s:add(s.x, (mixed - s.x) * self:columns(s), 1)
end

return sparta
