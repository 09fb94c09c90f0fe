--- CHOCO-SGD: gossip of compressed differences (Koloskova et al. 2019, arXiv:1902.00340).
--
--   h = U(x, g)          xh_i <- xh_i + Q(h_i - xh_i)          x_i <- h_i + consensus_lr sum_j W_ij (xh_j - xh_i)
--
-- Q is topk (the ratio of a worker's parameters with the largest magnitudes), randk (a random subset, common to all
-- workers), sign (times the mean magnitude) or int8 (by the largest magnitude / 127); none keeps all.
local choco = {
  summary = "gossip that sends compressed differences",
  options = {
    {name = "compressor", type = "choice", default = "topk", choices = {"topk", "randk", "sign", "int8", "none"},
      help = "how differences are compressed"},
    {name = "ratio", type = "number", default = 0.01, above = 0, maximum = 1,
      help = "part of the parameters that topk and randk send"},
    {name = "consensus_lr", type = "number", default = 0.4, above = 0, maximum = 1,
      help = "gamma, how far weights move to the mixed copies"},
  },
}

-- By name: Q of rows d [N, D], and the bytes of a message of so many parameters.
local compressors = {}

function compressors.none(_, d, s)
  return d, 4 * s.parameters
end

local function count_of(self, s)
  return math.ceil(self.options.ratio * s.parameters)
end

function compressors.topk(self, d, s)
  local count = count_of(self, s)
  return d * d:topk_mask {count = count}, 8 * count -- a value and its column
end

function compressors.randk(self, d, s)
  local count = count_of(self, s)
  return d * (s:random_columns() * self.real):topk_mask {count = count}, 4 * count -- the columns follow from the seed
end

function compressors.sign(_, d, s)
  local mean = d:abs():sum(1, {keep = true}) / s.parameters
  return d:sign() * mean, 4 + s.parameters / 8
end

function compressors.int8(_, d, s)
  local scale = (d:abs():max(1, {keep = true}) / 127):maximum(1e-30)
  return (d / scale):round() * scale, 4 + s.parameters
end

--- Copies of zero, which every neighbour has too.
function choco:start(s)
  self.copies = s:keep("copies", s:zeros())
  if self.options.compressor == "randk" then self.real = s:parameter_columns() end
end

--- The optimizer, what changed in compressed form, and a step towards the neighbours' copies.
function choco:step(s)
  s:optimize()
  if not s.mixes then return end
  local change, bytes = compressors[self.options.compressor](self, s.x - self.copies, s)
  s:add(self.copies, change, 1)
  local mixed = s:copy(self.copies)
  s:mix(mixed, bytes)
  s:add(s.x, mixed - self.copies, self.options.consensus_lr)
end

return choco
