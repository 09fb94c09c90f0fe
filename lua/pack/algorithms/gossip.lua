--- Gossip averaging with a local optimizer (Lian et al. 2017, arXiv:1705.09056; mixed moments as in Decent-DP).
--
--   awc: x <- U(W x, g)          atc: x <- W U(x, g)
--
-- where W is that of the mixing, in steps that mix. link_drop takes pairs of workers out of a mixing: what each end gave the
-- other goes to its own diagonal. link_delay lets the part of W off the diagonal act on the x of some mixings ago.
local native = require "pack.native"

local gossip = {
  summary = "averages with neighbours, before the optimizer (awc) or after it (atc)",
  options = {
    {name = "mix_moments", type = "choice", default = "none", choices = {"none", "first", "both"},
      help = "moments that are mixed too, with the same W"},
    {name = "link_drop", type = "number", default = 0, minimum = 0, below = 1,
      help = "probability that a pair of workers does not reach each other in a mixing"},
    {name = "link_delay", type = "integer", default = 0, minimum = 0, maximum = 64,
      help = "mixings by which what others send is late"},
  },
}

--- Whether a step is W x and the optimizer's update alone, which one operation can do with AdamW.
function gossip:is_plain()
  return self.options.mix_moments == "none" and self.options.link_delay == 0
end

local moments = {none = {}, first = {"exp_avg"}, both = {"exp_avg", "exp_avg_sq"}}

--- With a delay, the weights of as many mixings before.
function gossip:start(s)
  self.past = {}
  for i = 1, self.options.link_delay do self.past[i] = s:keep("past_" .. i, s:copy(s.x)) end
end

--- The place that mixing k takes late weights from: with a delay of d, it uses what was kept at mixing k - d, and keeps its x
-- in the same place.
function gossip:form(_, k)
  local delay = self.options.link_delay
  if delay == 0 then return "" end
  return k == 0 and "first" or ("past %d"):format(k % delay + 1)
end

--- W without the pairs of workers that do not reach each other in mixing k.
function gossip:matrix(w, k)
  if self.options.link_drop == 0 then return w end
  return self:without_pairs(w, self:dropped_pairs(k, #w))
end

--- The pairs of workers, from 0, that do not reach each other in mixing k.
function gossip:dropped_pairs(k, n)
  local draws, list = native.array("double[?]", n * n), {}
  native.C.pk_random_uniform(self.seed, ("link_drop/%d"):format(k), 0, n * n, draws)
  for i = 0, n - 1 do
    for j = i + 1, n - 1 do
      if draws[i * n + j] < self.options.link_drop then list[#list + 1] = {i, j} end
    end
  end
  return list
end

--- w with what these pairs gave each other moved to the diagonal.
function gossip.without_pairs(_, w, pairs_down)
  local changed = {}
  for i, row in ipairs(w) do changed[i] = {unpack(row)} end
  for _, pair in ipairs(pairs_down) do
    local i, j = pair[1] + 1, pair[2] + 1
    changed[i][i], changed[i][j] = changed[i][i] + changed[i][j], 0
    changed[j][j], changed[j][i] = changed[j][j] + changed[j][i], 0
  end
  return changed
end

-- W x where the others' x is that of some mixings ago.
local function mix_late(self, s)
  local slot = tonumber(s.form:match("%d+")) or 1
  local late = self.past[slot]
  if s.form == "first" then
    for _, past in ipairs(self.past) do s:assign(past, s.x) end
  end
  local own, others = s:diagonal(), s:copy(late)
  s:mix(others)
  local mixed = others + (s.x - late) * own
  s:assign(late, s.x)
  s:assign(s.x, mixed)
end

local function mix(self, s, names)
  if not s.mixes then return end
  if self.options.link_delay > 0 then mix_late(self, s) else s:mix(s.x) end
  for _, name in ipairs(names) do s:mix(s:moment(name)) end
end

--- Mixing and the optimizer, in the order of the scheme.
function gossip:step(s)
  local names = moments[self.options.mix_moments]
  if s.scheme == "awc" then mix(self, s, names) end
  s:optimize()
  if s.scheme == "atc" then mix(self, s, names) end
end

return gossip
