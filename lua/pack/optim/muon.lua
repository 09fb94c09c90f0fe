--- Muon: momentum whose matrices are made nearly orthogonal (Jordan et al. 2024, kellerjordan.github.io/posts/muon), and
-- AdamW for what is no matrix of a layer: embedding, head, norms and biases.
--
--   m <- mu m + (1 - mu) g          u = nesterov ? (1 - mu) g + mu m : m          o = NS(u)
--   x <- (1 - lr weight_decay) x - lr r o
--
-- for a matrix [out, in], where r = sqrt(max(1, out / in)) ("original") or 0.2 sqrt(max(out, in)) ("match_rms_adamw", by
-- which AdamW's learning rates serve). NS is five Newton-Schulz steps of degree five.
local AdamW = require "pack.optim.adamw"
local arena = require "pack.model.arena"
local ops = require "pack.core.ops"

local Muon = {name = "muon"}
Muon.__index = Muon

local USUAL_MOMENTUM = 0.95
local SMALLEST_NORM = 1e-7
local A, B, C = 3.4445, -4.7750, 2.0315
local STEPS = 5

--- Newton-Schulz: matrices [N, out, in] with all singular values brought near 1, and their directions kept.
function Muon.orthogonalize(u)
  local n, out, into = unpack(u:sizes())
  local tall = out > into
  local norm = ops.sqrt(ops.sum(u * u, {axes = {1, 2}, keep = true}))
  local o = u / norm:maximum(SMALLEST_NORM)
  if tall then o = ops.transpose(o, {permutation = {0, 2, 1}}) end
  for _ = 1, STEPS do
    local gram = ops.matmul(o, o, {transpose_b = true})
    local polynomial = gram * B + ops.matmul(gram, gram) * C
    o = o * A + ops.matmul(polynomial, o)
  end
  return tall and ops.reshape(ops.transpose(o, {permutation = {0, 2, 1}}), {shape = {n, out, into}}) or o
end

-- Whether a column of the layout is a matrix of a layer, and no table that rows are looked up in.
local function is_matrix(entry)
  return #entry.shape == 2 and not entry.name:find("^embedding%.") and not entry.name:find("^positions%.")
end

-- r of a matrix [out, in].
local scales = {
  original = function(out, into) return math.sqrt(math.max(1, out / into)) end,
  match_rms_adamw = function(out, into) return 0.2 * math.sqrt(math.max(out, into)) end,
}

-- The columns for which `accepts` holds, as arenas of their own: a step brings weights and gradients there and back. nil if
-- there is no such column.
local function part_of(model, accepts)
  local entries = {}
  for _, entry in ipairs(model.layout) do
    if accepts(entry) then entries[#entries + 1] = {entry.name, entry.shape} end
  end
  if #entries == 0 then return nil end
  local layout = arena.layout(entries)
  local part = {whole = model.layout, layout = layout, blocks = layout:blocks(model.context)}
  function part.zeros(category)
    return arena.create(layout, model.num_models, {dtype = model.dtype, category = category, context = model.context})
  end
  part.x, part.g = part.zeros("workspace"), part.zeros("workspace")
  return part
end

-- Copies the part's columns of a whole arena's tensor into an arena of the part's.
local function bring(part, from, into)
  for _, entry in ipairs(part.layout) do
    ops.copy(arena.columns(from, part.whole:entry(entry.name)), {out = into:view(entry.name)})
  end
end

local function bring_back(part, x)
  for _, entry in ipairs(part.layout) do
    ops.copy(part.x:view(entry.name), {out = arena.columns(x, part.whole:entry(entry.name))})
  end
end

--- Momentum for the matrices of a model and AdamW's moments for the rest. settings: momentum (default 0.95), nesterov
-- (default true), adjust ("match_rms_adamw" or "original"), and AdamW's.
function Muon.create(model, settings)
  local self = setmetatable({settings = settings, state = {}}, Muon)
  self.momentum = settings.momentum or USUAL_MOMENTUM
  self.nesterov = settings.nesterov ~= false
  self.scale = scales[settings.adjust or "match_rms_adamw"]
  local function keep(name, part)
    local one = part.zeros("moments")
    self.state[#self.state + 1] = {name, one}
    return one
  end
  self.matrices = part_of(model, is_matrix)
  self.rest = part_of(model, function(entry) return not is_matrix(entry) end)
  if self.matrices then self.velocity = keep("momentum", self.matrices) end
  if self.rest then
    self.exp_avg, self.exp_avg_sq = keep("exp_avg", self.rest), keep("exp_avg_sq", self.rest)
  end
  return self
end

--- See pack.optim: AdamW's, which the rest takes.
Muon.coefficients = AdamW.coefficients

local function update_matrices(self, x, g, inputs)
  local part, velocity, guard = self.matrices, self.velocity.tensor, inputs.guard
  bring(part, g, part.g)
  ops.blend(velocity, part.g.tensor, guard, nil, {own = self.momentum, scale = 1 - self.momentum})
  local u = self.velocity
  if self.nesterov then
    u = part.g
    ops.blend(part.g.tensor, velocity, guard, nil, {own = 1 - self.momentum, scale = self.momentum})
  end
  for _, entry in ipairs(part.layout) do
    local o = Muon.orthogonalize(u:view(entry.name))
    ops.affine(o, {scale = self.scale(entry.shape[1], entry.shape[2]), out = part.g:view(entry.name)})
  end
  bring(part, x, part.x)
  ops.sgd(part.x.tensor, part.g.tensor, nil, part.blocks, inputs.scalars, guard, {nesterov = 0})
  bring_back(part, x)
end

local function update_rest(self, x, g, inputs)
  local part = self.rest
  bring(part, x, part.x)
  bring(part, g, part.g)
  ops.adamw(part.x.tensor, part.g.tensor, self.exp_avg.tensor, self.exp_avg_sq.tensor, part.blocks, inputs.scalars,
    inputs.guard)
  bring_back(part, x)
end

--- See pack.optim. Where the guard is set both updates leave the columns as they are, and so does bringing them back.
function Muon:apply(x, g, inputs)
  if self.matrices then update_matrices(self, x, g, inputs) end
  if self.rest then update_rest(self, x, g, inputs) end
end

--- Releases the memory that is no state.
function Muon:free()
  for _, part in ipairs {self.matrices or nil, self.rest or nil} do
    for _, name in ipairs {"x", "g", "blocks"} do part[name]:free() end
  end
end

return Muon
