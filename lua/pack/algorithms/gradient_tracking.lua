--- Gradient tracking: every worker follows the mean gradient of all, so that heterogeneous data does not pull workers apart
-- (DIGing, Nedic et al. 2016, arXiv:1607.03218).
--
--   y_0 = g_0,  y_t = W y_{t-1} + g_t - g_{t-1},  then gossip with y for g (awc or atc)
--
-- W being that of the step before: what is kept is W y, mixed at the end of each step.
local tracking = {
  summary = "gossip with estimates of the mean gradient of all workers in place of gradients",
}

--- A tracker and a gradient before the first one of zero.
function tracking:start(s)
  self.tracker = s:keep("tracker", s:zeros())
  self.previous = s:keep("previous_gradient", s:zeros())
end

--- The tracker follows the gradients, the optimizer follows the tracker, and both are mixed.
function tracking:step(s)
  s:add(self.tracker, s.g, 1)
  s:add(self.tracker, self.previous, -1)
  s:assign(self.previous, s.g)
  if s.mixes and s.scheme == "awc" then s:mix(s.x) end
  s:optimize(s.x, self.tracker)
  if s.mixes and s.scheme == "atc" then s:mix(s.x) end
  if s.mixes then s:mix(self.tracker) end
end

return tracking
