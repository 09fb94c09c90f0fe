--- Statements of the model's operations: products, tables, norms, rotations, attention, losses, and their gradients, which
-- wait for later statements.
local builder = require "spec.random.builder"
local plain = require "spec.random.plain"

local model = {}

local function bound(one) return math.max(math.abs(one.store.lo), math.abs(one.store.hi)) end

-- Rows [N, R, width] of floats, small ones where asked for.
local function rows(b, most, width)
  local s = b.sizes
  local x = b:pick(function(one)
    return one.kind == "F" and #one.shape == 3 and one.shape[1] == s.N and (not most or bound(one) <= most)
      and (not width or one.shape[3] == width)
  end)
  return x or b:leaf({s.N, s.R, width or b:one_of {s.d, s.f, s.d}}, "F")
end

-- A bf16 copy of floats, as training makes them.
local function halved(b, x)
  return b:apply("cast", {x}, {dtype = {kind = "H"}}, {{shape = x.shape, kind = "H", lo = x.store.lo, hi = x.store.hi}},
    {fixed = true})
end

local function half(b)
  return b.halves and not b.scope and b:chance(3)
end

-- Notes a forward operation whose gradient a later statement may take.
local function wait_for_gradient(b, name, inputs, outputs, attributes, g)
  for _, list in ipairs {inputs, outputs} do
    for _, one in ipairs(list) do
      if not one or one.tracked or one.kind == "H" and name ~= "linear_cross_entropy" and name ~= "attention" then return end
    end
  end
  local versions = {}
  for _, list in ipairs {inputs, outputs} do
    for _, one in ipairs(list) do versions[one.store] = one.store.version end
  end
  b.pending[#b.pending + 1] = {name = name, inputs = inputs, outputs = outputs, attributes = attributes, g = g, versions = versions,
    key = b.gene.id, scope = b.scope}
end

-- Products ----------------------------------------------------------------------------------------

local function product(b, x, y, turned_x, turned_y)
  local rank = #x.shape
  local m = turned_x and x.shape[rank] or x.shape[rank - 1]
  local k = turned_x and x.shape[rank - 1] or x.shape[rank]
  local p = turned_y and y.shape[rank - 1] or y.shape[rank]
  local shape = rank == 3 and {x.shape[1], m, p} or {m, p}
  local size = k * bound(x) * bound(y)
  return b:apply("matmul", {x, y}, {transpose_a = turned_x, transpose_b = turned_y},
    {{shape = shape, kind = "F", lo = -size, hi = size}})
end

function model.matmul(b)
  local s, kind = b.sizes, b.halves and b:chance(2) and "H" or "F"
  local x = b:pick(function(one) return one.kind == kind and (#one.shape == 3 or #one.shape == 2) and builder.numel(one.shape) < 20000 end)
    or b:leaf({s.N, s.R, s.d}, kind)
  local rank, turned_x, turned_y = #x.shape, b:chance(4), b:chance(2)
  local k = turned_x and x.shape[rank - 1] or x.shape[rank]
  local y = b:chance(3) and b:pick(function(one)
    return one.kind == kind and #one.shape == rank and (rank == 2 or one.shape[1] == x.shape[1])
      and one.shape[turned_y and rank or rank - 1] == k and builder.numel(one.shape) < 20000
  end)
  if not y then
    local p = b:one_of {s.d, s.f, 2 * s.f, 3 * s.d, 1}
    local shape = turned_y and {p, k} or {k, p}
    if rank == 3 then table.insert(shape, 1, x.shape[1]) end
    y = b:like(shape, kind, -1, 1)
  end
  product(b, x, y, turned_x, turned_y)
end

--- Scores of rows among each other, with what is ahead masked.
function model.scores(b)
  local x = rows(b, 4)
  local scores = product(b, x, x, false, true)
  if scores then
    b:apply("causal_mask", {scores}, {fill = -2}, {{shape = scores.shape, kind = "F", lo = math.min(scores.store.lo, -2),
      hi = scores.store.hi}})
  end
end

-- Tables ------------------------------------------------------------------------------------------

function model.embedding(b)
  local s = b.sizes
  local kind = b.halves and b:chance(3) and "H" or "F"
  local weight = b:like({s.N, s.V, b:one_of {s.d, s.f}}, kind, -400, 400)
  local shape = b:chance(2) and {s.N, s.R} or {s.N, s.B, s.T}
  local ids = b:indices(shape, s.V)
  shape = {unpack(shape)}
  shape[#shape + 1] = weight.shape[3]
  b:apply("embedding", {weight, ids}, nil, {{shape = shape, kind = kind, lo = weight.store.lo, hi = weight.store.hi}})
end

function model.embedding_grad(b)
  local s, g = b.sizes, rows(b)
  if g.shape[2] ~= s.R then return end
  local ids, size = b:indices({s.N, s.R}, s.V), bound(g) * s.R
  b:apply("embedding_grad", {g, ids}, {vocabulary = s.V}, {{shape = {s.N, s.V, g.shape[3]}, kind = "F", lo = -size, hi = size}})
end

function model.pick(b)
  local x = rows(b)
  local index = b:indices({x.shape[1], x.shape[2]}, x.shape[3], true)
  if x.shape[3] == 0 then return end
  b:apply("pick", {x, index}, nil, {{shape = {x.shape[1], x.shape[2]}, kind = "F", lo = math.min(0, x.store.lo),
    hi = math.max(0, x.store.hi)}})
end

function model.unpick(b)
  local s = b.sizes
  local g = b:like({s.N, s.R}, "F", -400, 400)
  b:apply("unpick", {g, b:indices({s.N, s.R}, s.V, true)}, {vocabulary = s.V},
    {{shape = {s.N, s.R, s.V}, kind = "F", lo = math.min(0, g.store.lo), hi = math.max(0, g.store.hi)}})
end

-- Norms -------------------------------------------------------------------------------------------

local EPS = 0.125

local function norm_results(x, kind)
  local size = math.sqrt(math.max(x.shape[3], 1))
  return {shape = x.shape, kind = kind, lo = -size, hi = size},
    {shape = {x.shape[1], x.shape[2]}, kind = "F", lo = 1 / math.sqrt(bound(x) ^ 2 + EPS), hi = 1 / math.sqrt(EPS)}
end

local function norm(b, x)
  local weight = b:like({x.shape[1], x.shape[3]}, "F", -1, 1)
  local half_result = half(b)
  local y, rstd = norm_results(x, half_result and "H" or "F")
  local made, scale = b:apply("rmsnorm", {x, weight}, {eps = EPS, bf16 = half_result or nil}, {y, rstd})
  if made and not half_result then wait_for_gradient(b, "rmsnorm", {x, weight}, {scale}, {}, made) end
  if made and b.halves and not half_result and b:chance(2) then halved(b, made) end
  return made
end

function model.rmsnorm(b)
  local x = rows(b)
  if x.shape[3] > 0 then norm(b, x) end
end

--- The sum of a residual, and its norm, which become one operation.
function model.residual(b)
  local x = rows(b)
  if x.shape[3] == 0 then return end
  local y = b:like(x.shape, "F", -400, 400)
  local sum = b:apply("add", {x, y}, nil, {{shape = x.shape, kind = "F", lo = x.store.lo + y.store.lo, hi = x.store.hi + y.store.hi}})
  if sum then norm(b, sum) end
end

function model.add_rmsnorm(b)
  local x = rows(b)
  if b.scope or x.shape[3] == 0 then return end
  local y, weight, half_result = b:like(x.shape, "F", -400, 400), b:like({x.shape[1], x.shape[3]}, "F", -1, 1), half(b)
  local lo, hi = x.store.lo + y.store.lo, x.store.hi + y.store.hi
  local result, rstd = norm_results({shape = x.shape, store = {lo = lo, hi = hi}}, half_result and "H" or "F")
  b:apply("add_rmsnorm", {x, y, weight}, {eps = EPS, bf16 = half_result or nil},
    {{shape = x.shape, kind = "F", lo = lo, hi = hi}, result, rstd})
end

-- Rotations and gates -----------------------------------------------------------------------------

-- Heads [N, B, T, times * H, K] of floats, with an even K.
local function heads(b, times, even)
  local s = b.sizes
  local x = b:pick(function(one)
    return one.kind == "F" and #one.shape == 5 and one.shape[1] == s.N and one.shape[4] == times * s.H
      and (not even or one.shape[5] % 2 == 0) and bound(one) <= 20
  end)
  if x and not b:chance(4) then return x end
  local shape = {s.N, s.B, s.T, times * s.H, even and s.K % 2 == 1 and s.K + 1 or s.K}
  local flat = b:pick(function(one)
    return one.kind == "F" and #one.shape == 3 and builder.same_shape(one.shape, {s.N, s.R, times * s.H * shape[5]}) and bound(one) <= 20
  end)
  if flat then return plain.reshaped(b, flat, shape) end
  return b:leaf(shape, "F")
end

local function turn(name, times, results)
  model[name] = function(b)
    local list = {}
    for i = 1, name == "rope_join" and 3 or 1 do
      list[i] = i == 1 and heads(b, times, true) or b:like(list[1].shape, "F", -20, 20)
    end
    local attributes, size, shape = {theta = 100, inverse = b:chance(3), bf16 = half(b) or nil}, 0, {unpack(list[1].shape)}
    for _, one in ipairs(list) do size = math.max(size, 1.5 * bound(one)) end
    shape[4] = name == "rope_split" and shape[4] / 3 or name == "rope_join" and shape[4] * 3 or shape[4]
    local made = {}
    for i = 1, results do made[i] = {shape = shape, kind = attributes.bf16 and "H" or "F", lo = -size, hi = size} end
    local one, two, three = b:apply(name, list, attributes, made, {tracked = results})
    if one and results == 3 and b.halves and not attributes.bf16 and b:chance(2) then
      halved(b, one)
      halved(b, two)
      halved(b, three)
    end
  end
end

turn("rope", 1, 1)
turn("rope_split", 3, 3)
turn("rope_join", 1, 1)

function model.swiglu(b)
  local gate = b:pick(function(one) return one.kind == "F" and bound(one) <= 20 end) or rows(b)
  local up = b:like(gate.shape, "F", -20, 20)
  local half_result, size = half(b), math.max(0.3, bound(gate)) * bound(up)
  local y = b:apply("swiglu", {gate, up}, {bf16 = half_result or nil},
    {{shape = gate.shape, kind = half_result and "H" or "F", lo = -size, hi = size}})
  if y and not half_result then wait_for_gradient(b, "swiglu", {gate, up}, {}, {}, y) end
  if y and b.halves and not half_result and b:chance(2) then halved(b, y) end
end

function model.swiglu_split(b)
  local x = b:pick(function(one)
    return one.kind == "F" and #one.shape >= 2 and one.shape[#one.shape] % 2 == 0 and bound(one) <= 20
  end) or b:leaf({b.sizes.N, b.sizes.R, 2 * b.sizes.f}, "F")
  local shape, half_result, size = {unpack(x.shape)}, half(b), math.max(0.3, bound(x)) * bound(x)
  shape[#shape] = shape[#shape] / 2
  local y = b:apply("swiglu_split", {x}, {bf16 = half_result or nil},
    {{shape = shape, kind = half_result and "H" or "F", lo = -size, hi = size}})
  if y and not half_result then wait_for_gradient(b, "swiglu_split", {x}, {}, {}, y) end
end

-- Attention and losses ----------------------------------------------------------------------------

function model.attention(b)
  local q = heads(b, 1)
  if builder.numel(q.shape) == 0 and b:chance(2) then return end
  local k, v = b:like(q.shape, "F", -20, 20), b:like(q.shape, "F", -20, 20)
  if b.halves and b:chance(2) then q, k, v = halved(b, q), halved(b, k), halved(b, v) end
  local attributes = {scale = 0.5 / math.max(q.shape[5], 1)}
  local o, lse = b:apply("attention", {q, k, v}, attributes, {{shape = q.shape, kind = "F", lo = v.store.lo, hi = v.store.hi},
    {shape = {q.shape[1], q.shape[2], q.shape[4], q.shape[3]}, kind = "F", lo = -300, hi = 300}})
  if o then wait_for_gradient(b, "attention", {q, k, v}, {o, lse}, attributes, o) end
end

local function loss_results(rows_shape, size)
  local n, r = rows_shape[1], rows_shape[2]
  return {{shape = {n}, kind = "F", lo = 0, hi = size}, {shape = {n}, kind = "D", lo = 0, hi = r, constant = true},
    {shape = {n, r}, kind = "F", lo = -size, hi = size}}
end

function model.cross_entropy(b)
  local x = rows(b, 10)
  if x.shape[3] == 0 then return end
  local targets = b:indices({x.shape[1], x.shape[2]}, x.shape[3], true)
  local loss, count, lse = b:apply("cross_entropy", {x, targets}, nil, loss_results(x.shape, (2 * bound(x) + 5) * x.shape[2]))
  if loss then wait_for_gradient(b, "cross_entropy", {x, targets}, {lse}, {}, loss) end
  return loss, count
end

function model.linear_cross_entropy(b)
  local s, x = b.sizes, rows(b, 10)
  local weight, targets = b:like({x.shape[1], s.V, x.shape[3]}, "F", -1, 1), b:indices({x.shape[1], x.shape[2]}, s.V, true)
  if b.halves and b:chance(2) then x, weight = halved(b, x), halved(b, weight) end
  local size = (2 * bound(x) * x.shape[3] + 5) * x.shape[2]
  local loss, count, lse = b:apply("linear_cross_entropy", {x, weight, targets}, nil, loss_results(x.shape, size))
  if loss then wait_for_gradient(b, "linear_cross_entropy", {x, weight, targets}, {lse}, {}, loss) end
  return loss, count
end

--- The loss and its gradients in one operation.
function model.linear_cross_entropy_step(b)
  local s, x = b.sizes, rows(b, 10)
  if b.scope then return end
  local weight, targets = b:like({x.shape[1], s.V, x.shape[3]}, "F", -1, 1), b:indices({x.shape[1], x.shape[2]}, s.V, true)
  local g = b:like({x.shape[1]}, "F", -1, 1)
  local results = loss_results(x.shape, (2 * bound(x) * x.shape[3] + 5) * x.shape[2])
  results[4] = {shape = x.shape, kind = "F", lo = -2, hi = 2}
  local size = 2 * x.shape[2] * bound(x)
  results[5] = {shape = weight.shape, kind = "F", lo = -size, hi = size}
  b:apply("linear_cross_entropy_step", {g, x, weight, targets}, nil, results, {sums = {[4] = true, [5] = true}})
end

-- Gradients that waited ---------------------------------------------------------------------------

-- The shapes and bounds of the gradients: those of the first inputs.
local counts = {rmsnorm = 2, swiglu = 2, swiglu_split = 1, attention = 3, cross_entropy = 1, linear_cross_entropy = 2}

--- The gradient of an earlier operation, by its own operation.
function model.gradient(b)
  local list = {}
  for _, one in ipairs(b.pending) do
    local fresh = not b.scope and not one.scope
    for store, version in pairs(one.versions) do fresh = fresh and store.version == version end
    for _, input in ipairs(one.inputs) do fresh = fresh and not input.freed end
    for _, output in ipairs(one.outputs) do fresh = fresh and not output.freed end
    if fresh then list[#list + 1] = one end
  end
  local one = b.gene:pick(list)
  if not one then return end
  local g = b:like(one.g.shape, "F", -4, 4)
  local inputs, results, size = {g}, {}, 4 * bound(g) + 4
  for _, input in ipairs(one.inputs) do
    inputs[#inputs + 1] = input
    size = size * math.max(1, bound(input))
  end
  for _, output in ipairs(one.outputs) do inputs[#inputs + 1] = output end
  for i = 1, counts[one.name] do
    results[i] = {shape = one.inputs[i].shape, kind = "F", lo = -math.min(size, 200), hi = math.min(size, 200)}
  end
  b:apply(one.name .. "_grad", inputs, one.attributes, results)
end

return model
