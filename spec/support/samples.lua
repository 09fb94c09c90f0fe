--- Random inputs for every operation of ops.def, to compare devices with.
--
-- samples[name](draw, dtype) describes one call: {inputs = {...}, attributes = {...}}. An input is {shape = ,
-- dtype = , values = flat list}, or false where it may be absent. draw(low, high) gives whole numbers.
local numbers = require "spec.support.numbers"

local samples = {}

-- Values of a dtype; whole ones for i32.
local function floats(draw, shape, dtype, low, high)
  local values = numbers.list(numbers.count(shape), draw(1, 1e6), low, high)
  if dtype == "i32" then
    for i = 1, #values do values[i] = math.floor(values[i] * 9) end
  end
  return {shape = shape, dtype = dtype, values = values}
end

-- Whole numbers in 0 .. below-1; with ignored, every fourth or so is -100.
local function indices(draw, shape, below, ignored)
  local values = {}
  for i = 1, numbers.count(shape) do
    values[i] = ignored and draw(1, 4) == 1 and -100 or draw(0, below - 1)
  end
  return {shape = shape, dtype = "i32", values = values}
end

local function fixed(dtype, values, shape)
  return {shape = shape or {#values}, dtype = dtype, values = values}
end

-- A shape of rank low .. 4, of N = 1 .. 9 workers and odd extents.
local function any_shape(draw, low)
  local shape = {draw(1, 9)}
  for d = 2, draw(low or 1, 4) do shape[d] = draw(1, 2) == 1 and draw(1, 9) or draw(1, 70) end
  return shape
end

local function rows_of(draw)
  return draw(1, 9), draw(1, 20)
end

-- Elementwise -------------------------------------------------------------------------------------

local function pair(low, high)
  return function(draw, dtype)
    local a, b = any_shape(draw), {}
    for d = 1, #a do b[d] = a[d] end
    for _, shape in ipairs {a, b} do
      for d = 1, #a do
        if draw(1, 4) == 1 then shape[d] = 1 end
      end
    end
    if draw(1, 3) == 1 then table.remove(b, 1) end
    return {inputs = {floats(draw, a, dtype, low, high), floats(draw, b, dtype, low, high)}}
  end
end

samples.add, samples.subtract, samples.multiply = pair(-1, 1), pair(-1, 1), pair(-1, 1)
samples.divide = pair(0.1, 2)
samples.minimum, samples.maximum, samples.less = pair(-1, 1), pair(-1, 1), pair(-1, 1)

function samples.where(draw, dtype)
  local sample = pair(-1, 1)(draw, dtype)
  local a = sample.inputs[1].shape
  local condition = floats(draw, draw(1, 2) == 1 and a or {a[#a]}, dtype, 0, 1)
  for i, value in ipairs(condition.values) do condition.values[i] = value < 0.5 and 0 or value end
  return {inputs = {condition, unpack(sample.inputs)}}
end

local function map(low, high, attributes)
  return function(draw, dtype)
    return {inputs = {floats(draw, any_shape(draw), dtype, low, high)}, attributes = attributes}
  end
end

samples.affine = map(-2, 2, {scale = -1.7, shift = 0.3})
samples.negate, samples.copy, samples.abs = map(-2, 2), map(-2, 2), map(-2, 2)
samples.sign, samples.round, samples.floor = map(-2, 2), map(-9, 9), map(-9, 9)
samples.exp, samples.sigmoid, samples.silu = map(-9, 9), map(-9, 9), map(-9, 9)
samples.log, samples.sqrt, samples.rsqrt = map(0.01, 9), map(0.01, 9), map(0.01, 9)

function samples.cast(draw, dtype)
  local to = ({"f64", "f32", "bf16", "i32"})[draw(1, 4)]
  return {inputs = {floats(draw, any_shape(draw), dtype, -1000, 1000)}, attributes = {dtype = to}}
end

-- Reductions --------------------------------------------------------------------------------------

local function reduction(draw, dtype)
  local shape, axes = any_shape(draw), {}
  for d = 0, #shape - 1 do
    if draw(1, 2) == 1 then axes[#axes + 1] = d end
  end
  return {inputs = {floats(draw, shape, dtype)}, attributes = {axes = axes, keep = draw(0, 1) == 1}}
end

samples.sum, samples.mean, samples.max = reduction, reduction, reduction

function samples.sum_to(draw, dtype)
  local shape, to = any_shape(draw, 2), {}
  for d = draw(1, #shape), #shape do to[#to + 1] = draw(1, 2) == 1 and 1 or shape[d] end
  return {inputs = {floats(draw, shape, dtype)}, attributes = {shape = to}}
end

-- Moving ------------------------------------------------------------------------------------------

function samples.reshape(draw, dtype)
  local shape = any_shape(draw)
  return {inputs = {floats(draw, shape, dtype)}, attributes = {shape = {shape[1], -1}}}
end

function samples.transpose(draw, dtype)
  local shape, permutation = any_shape(draw), {}
  for d = 1, #shape do table.insert(permutation, draw(1, d), d - 1) end
  return {inputs = {floats(draw, shape, dtype)}, attributes = {permutation = permutation}}
end

function samples.slice(draw, dtype)
  local shape = any_shape(draw)
  local axis = draw(1, #shape)
  local start = draw(0, shape[axis] - 1)
  return {inputs = {floats(draw, shape, dtype)},
    attributes = {axis = axis - 1, start = start, count = draw(1, shape[axis] - start)}}
end

function samples.pad(draw, dtype)
  local shape = any_shape(draw)
  return {inputs = {floats(draw, shape, dtype)},
    attributes = {axis = draw(1, #shape) - 1, before = draw(0, 3), after = draw(0, 3)}}
end

function samples.concat(draw, dtype)
  local shape, inputs = any_shape(draw), {}
  local axis = draw(1, #shape)
  for i = 1, draw(1, 4) do
    local own = {unpack(shape)}
    own[axis] = draw(1, 9)
    inputs[i] = floats(draw, own, dtype)
  end
  return {inputs = inputs, attributes = {axis = axis - 1}}
end

function samples.expand(draw, dtype)
  local shape, from = any_shape(draw), {}
  for d = 1, #shape do from[d] = draw(1, 2) == 1 and 1 or shape[d] end
  return {inputs = {floats(draw, from, dtype)}, attributes = {shape = shape}}
end

function samples.causal_mask(draw, dtype)
  local t = draw(1, 40)
  return {inputs = {floats(draw, {draw(1, 9), draw(1, 3), t, t}, dtype)}, attributes = {fill = -3}}
end

-- Made from nothing -------------------------------------------------------------------------------

function samples.fill(draw, dtype)
  return {inputs = {}, attributes = {shape = any_shape(draw), dtype = dtype, value = draw(-9, 9)}}
end

function samples.random_uniform(draw, dtype)
  return {inputs = {}, attributes = {shape = any_shape(draw), dtype = dtype, seed = draw(0, 99)}}
end

function samples.random_normal(draw, dtype)
  return {inputs = {},
    attributes = {shape = any_shape(draw), dtype = dtype, seed = draw(0, 99), mean = 0.5, deviation = 2}}
end

-- Products and tables -----------------------------------------------------------------------------

function samples.matmul(draw, dtype)
  local n, m, k, p = draw(1, 9), draw(1, 40), draw(1, 40), draw(1, 40)
  local transpose_a, transpose_b = draw(0, 1) == 1, draw(0, 1) == 1
  local a = transpose_a and {n, k, m} or {n, m, k}
  local b = transpose_b and {n, p, k} or {n, k, p}
  if draw(1, 5) == 1 then
    table.remove(a, 1)
    table.remove(b, 1)
  end
  return {inputs = {floats(draw, a, dtype), floats(draw, b, dtype)},
    attributes = {transpose_a = transpose_a, transpose_b = transpose_b}}
end

function samples.embedding(draw, dtype)
  local n, r = rows_of(draw)
  local v, d = draw(1, 50), draw(1, 40)
  return {inputs = {floats(draw, {n, v, d}, dtype), indices(draw, {n, r, draw(1, 3)}, v)}}
end

function samples.embedding_grad(draw, dtype)
  local n, r = rows_of(draw)
  local v, d, more = draw(1, 50), draw(1, 40), draw(1, 3)
  return {inputs = {floats(draw, {n, r, more, d}, dtype), indices(draw, {n, r, more}, v)},
    attributes = {vocabulary = v}}
end

function samples.pick(draw, dtype)
  local n, r = rows_of(draw)
  local v = draw(1, 50)
  return {inputs = {floats(draw, {n, r, v}, dtype), indices(draw, {n, r}, v, true)}}
end

function samples.unpick(draw, dtype)
  local n, r = rows_of(draw)
  local v = draw(1, 50)
  return {inputs = {floats(draw, {n, r}, dtype), indices(draw, {n, r}, v, true)}, attributes = {vocabulary = v}}
end

-- The model ---------------------------------------------------------------------------------------

-- Whether results are wanted in bf16.
local function bf16_or_not(draw, dtype)
  return draw(0, 1) == 1 and dtype == "f32"
end

function samples.rmsnorm(draw, dtype)
  local n, r = rows_of(draw)
  local d = draw(1, 3) == 1 and 320 or draw(1, 90)
  return {inputs = {floats(draw, {n, r, d}, dtype), floats(draw, {n, d}, dtype, 0.5, 1.5)},
    attributes = {eps = 1e-5, bf16 = bf16_or_not(draw, dtype)}}
end

function samples.add_rmsnorm(draw, dtype)
  local norm = samples.rmsnorm(draw, dtype)
  table.insert(norm.inputs, 1, floats(draw, norm.inputs[1].shape, dtype))
  return norm
end

function samples.rmsnorm_grad(draw, dtype)
  local n, r = rows_of(draw)
  local d = draw(1, 3) == 1 and 320 or draw(1, 90)
  return {inputs = {floats(draw, {n, r, d}, dtype), floats(draw, {n, r, d}, dtype),
    floats(draw, {n, d}, dtype, 0.5, 1.5), floats(draw, {n, r}, dtype, 0.5, 2)}}
end

local function heads_of(draw, even)
  local k = ({16, 64, 64, 128})[draw(1, 4)]
  if even then k = 2 * draw(1, 33) end
  return {draw(1, 3), draw(1, 2), draw(1, 70), draw(1, 3), k}
end

function samples.rope(draw, dtype)
  return {inputs = {floats(draw, heads_of(draw, true), dtype)},
    attributes = {theta = 10000, inverse = draw(0, 1) == 1, bf16 = bf16_or_not(draw, dtype)}}
end

-- q, k and v lie behind each other along the heads.
function samples.rope_split(draw, dtype)
  local shape = heads_of(draw, true)
  shape[4] = 3 * shape[4]
  return {inputs = {floats(draw, shape, dtype)},
    attributes = {theta = 10000, inverse = draw(0, 1) == 1, bf16 = bf16_or_not(draw, dtype)}}
end

function samples.rope_join(draw, dtype)
  local shape = heads_of(draw, true)
  return {inputs = {floats(draw, shape, dtype), floats(draw, shape, dtype), floats(draw, shape, dtype)},
    attributes = {theta = 10000, inverse = draw(0, 1) == 1, bf16 = bf16_or_not(draw, dtype)}}
end

function samples.swiglu(draw, dtype)
  local shape = any_shape(draw)
  return {inputs = {floats(draw, shape, dtype, -5, 5), floats(draw, shape, dtype)},
    attributes = {bf16 = bf16_or_not(draw, dtype)}}
end

function samples.swiglu_grad(draw, dtype)
  local shape = any_shape(draw)
  return {inputs = {floats(draw, shape, dtype), floats(draw, shape, dtype, -5, 5), floats(draw, shape, dtype)},
    attributes = {bf16 = bf16_or_not(draw, dtype)}}
end

-- A shape of rank 2 or more and the same with its last extent doubled, for gate and up.
local function halves(draw)
  local shape = any_shape(draw, 2)
  local both = {unpack(shape)}
  both[#both] = 2 * both[#both]
  return shape, both
end

function samples.swiglu_split(draw, dtype)
  local _, both = halves(draw)
  return {inputs = {floats(draw, both, dtype, -5, 5)}, attributes = {bf16 = bf16_or_not(draw, dtype)}}
end

function samples.swiglu_split_grad(draw, dtype)
  local shape, both = halves(draw)
  return {inputs = {floats(draw, shape, dtype), floats(draw, both, dtype, -5, 5)},
    attributes = {bf16 = bf16_or_not(draw, dtype)}}
end

local function wide(dtype)
  return dtype == "bf16" and "f32" or dtype
end

function samples.attention(draw, dtype)
  local heads = heads_of(draw)
  return {inputs = {floats(draw, heads, dtype), floats(draw, heads, dtype), floats(draw, heads, dtype)},
    attributes = {scale = heads[5] ^ -0.5}}
end

-- o and lse that belong to q, k and v come from the operation itself, on the device that is compared with.
function samples.attention_grad(draw, dtype)
  local forward = samples.attention(draw, dtype)
  local heads = forward.inputs[1].shape
  local g = floats(draw, heads, wide(dtype))
  return {inputs = {g, unpack(forward.inputs)}, attributes = forward.attributes,
    after = {name = "attention", from = 2, count = 3, attributes = forward.attributes, outputs = {1, 2}}}
end

-- Losses ------------------------------------------------------------------------------------------

function samples.cross_entropy(draw, dtype)
  local n, r = rows_of(draw)
  local v = draw(2, 90)
  return {inputs = {floats(draw, {n, r, v}, dtype, -5, 5), indices(draw, {n, r}, v, true)}}
end

function samples.cross_entropy_grad(draw, dtype)
  local forward = samples.cross_entropy(draw, dtype)
  local n = forward.inputs[1].shape[1]
  return {inputs = {floats(draw, {n}, dtype), unpack(forward.inputs)},
    after = {name = "cross_entropy", from = 2, count = 2, outputs = {3}}}
end

function samples.linear_cross_entropy(draw, dtype)
  local n, r = rows_of(draw)
  local d, v = draw(1, 40), draw(2, 90)
  return {inputs = {floats(draw, {n, r, d}, dtype), floats(draw, {n, v, d}, dtype),
    indices(draw, {n, r}, v, true)}}
end

function samples.linear_cross_entropy_grad(draw, dtype)
  local forward = samples.linear_cross_entropy(draw, dtype)
  local n = forward.inputs[1].shape[1]
  return {inputs = {floats(draw, {n}, wide(dtype)), unpack(forward.inputs)},
    after = {name = "linear_cross_entropy", from = 2, count = 3, outputs = {3}}}
end

-- Of its outputs, only the gradients, which are the last two, can be added to.
function samples.linear_cross_entropy_step(draw, dtype)
  local backward = samples.linear_cross_entropy_grad(draw, dtype)
  return {inputs = backward.inputs, accumulate = {false, false, false, true, true}}
end

-- The training step -------------------------------------------------------------------------------

local function scalars(draw)
  local t = draw(1, 9)
  return fixed("f64", {0.02, 0.9, 0.95, 1e-8, 0.1, 1 - 0.9 ^ t, 1 - 0.95 ^ t, draw(0, 2) * 0.7, t - 1, draw(0, 1),
    0, 0})
end

local function guard(draw)
  local stopped = draw(1, 5) == 1 and 1 or 0
  return fixed("i32", {stopped, 1, 3, 2, 5, 4, 0, 0})
end

local function mixing(draw, n)
  local values = {}
  for i = 1, n do
    for j = 1, n do values[(i - 1) * n + j] = (i == j and 0.5 or 0) + (j == (i + n - 2) % n + 1 and 0.5 or 0) end
  end
  if draw(1, 2) == 1 then
    for i = 1, n * n do values[i] = 1 / n end
  end
  return fixed("f64", values, {n, n})
end

local function decays(draw, count)
  local values = {}
  for b = 1, count do values[b] = draw(0, 1) end
  return fixed("i32", values)
end

local function arena(draw, dtype, low, high, shape)
  return floats(draw, shape, dtype, low, high)
end

function samples.inverse_count(draw)
  local values = {}
  for i = 1, draw(1, 9) do values[i] = draw(0, 3) * 7 end
  return {inputs = {fixed("f64", values)}}
end

function samples.gradient_norm(draw, dtype)
  local n = draw(1, 9)
  return {inputs = {floats(draw, {n, draw(1, 5000)}, dtype), floats(draw, {n}, "f64", 0.1, 2)}}
end

function samples.sum_squares(draw, dtype)
  return {inputs = {floats(draw, draw(1, 2) == 1 and {draw(1, 9), draw(1, 5000)} or any_shape(draw, 2), dtype)}}
end

function samples.check_arena(draw, dtype)
  local n, width = draw(1, 9), draw(1, 900)
  local x = floats(draw, {n, width}, dtype)
  if draw(1, 2) == 1 then x.values[draw(1, n * width)] = draw(0, 1) == 1 and 0 / 0 or -math.huge end
  return {inputs = {x, scalars(draw), guard(draw)}, attributes = {reason = draw(5, 7)}}
end

function samples.check_finite(draw, dtype)
  local n = draw(1, 9)
  local loss, norm = floats(draw, {n}, dtype, 1, 5), floats(draw, {n}, "f64", 1, 5)
  if draw(1, 2) == 1 then loss.values[draw(1, n)] = draw(0, 1) == 1 and 0 / 0 or math.huge end
  if draw(1, 2) == 1 then norm.values[draw(1, n)] = 0 / 0 end
  return {inputs = {loss, norm, scalars(draw), guard(draw)}}
end

function samples.clip(draw, dtype)
  local n = draw(1, 9)
  return {inputs = {floats(draw, {n, draw(1, 900)}, dtype), floats(draw, {n}, "f64", 0.1, 2),
    floats(draw, {n}, "f64", 0.1, 3), scalars(draw), guard(draw)}}
end

function samples.mix(draw, dtype)
  local n = draw(1, 9)
  return {inputs = {floats(draw, {n, draw(1, 900)}, dtype), mixing(draw, n), scalars(draw), guard(draw)}}
end

function samples.adamw(draw, dtype)
  local shape = {draw(1, 9), 64 * draw(1, 12)}
  return {inputs = {arena(draw, dtype, -1, 1, shape), arena(draw, dtype, -1, 1, shape),
    arena(draw, dtype, -0.1, 0.1, shape), arena(draw, dtype, 0, 0.1, shape), decays(draw, shape[2] / 64),
    scalars(draw), guard(draw)}}
end

function samples.update(draw, dtype)
  local shape = {draw(1, 9), 64 * draw(1, 12)}
  local n = shape[1]
  return {inputs = {arena(draw, dtype, -1, 1, shape), arena(draw, dtype, -1, 1, shape),
    arena(draw, dtype, -0.1, 0.1, shape), arena(draw, dtype, 0, 0.1, shape), floats(draw, {n}, "f64", 0.1, 2),
    floats(draw, {n}, "f64", 0.1, 3), mixing(draw, n), decays(draw, shape[2] / 64), scalars(draw), guard(draw),
    draw(0, 1) == 1 and arena(draw, "bf16", -1, 1, shape)}, attributes = {combine_last = draw(0, 1) == 1}}
end

function samples.sgd(draw, dtype)
  local shape = {draw(1, 9), 64 * draw(1, 12)}
  local s = scalars(draw)
  if draw(0, 1) == 1 then -- a learning rate for each worker
    for i = 1, shape[1] do s.values[12 + i] = draw(1, 100) / 1000 end
    s.shape = {12 + shape[1]}
  end
  return {inputs = {arena(draw, dtype, -1, 1, shape), arena(draw, dtype, -1, 1, shape),
    draw(0, 1) == 1 and arena(draw, dtype, -0.1, 0.1, shape), decays(draw, shape[2] / 64), s, guard(draw)},
    attributes = {nesterov = draw(0, 1) == 1}}
end

function samples.blend(draw, dtype)
  local rows, columns = draw(1, 9), draw(1, 900)
  local from = draw(0, 1) == 1 and 1 or rows
  local factor = ({false, {rows, 1}, {rows}, {1}, {}})[draw(1, 5)]
  return {inputs = {floats(draw, {rows, columns}, dtype), floats(draw, {from, columns}, dtype), guard(draw),
    factor and floats(draw, factor, "f64", -1, 1)},
    attributes = {own = draw(0, 2) / 2, scale = draw(-10, 10) / 10, lerp = draw(0, 1) == 1}}
end

function samples.topk_mask(draw, dtype)
  local columns = draw(1, 900)
  local x = floats(draw, {draw(1, 9), columns}, dtype)
  for i = 1, #x.values, 3 do x.values[i] = draw(-2, 2) end -- with equal ones
  return {inputs = {x}, attributes = {count = draw(0, columns)}}
end

function samples.random_columns(draw, dtype)
  return {inputs = {fixed("f64", {draw(0, 1e6)})},
    attributes = {dtype = dtype, seed = draw(0, 1e6), columns = draw(1, 900)}}
end

function samples.gather_columns(draw, dtype)
  local columns = draw(1, 900)
  return {inputs = {floats(draw, {draw(1, 9), columns}, dtype), indices(draw, {draw(1, 1200)}, columns)}}
end

-- Some of the columns, none of them twice.
function samples.scatter_columns(draw, dtype)
  local rows, columns, order = draw(1, 9), draw(1, 900), {}
  for c = 1, columns do table.insert(order, draw(1, c), c - 1) end
  local count = draw(1, columns)
  local index = fixed("i32", {unpack(order, 1, count)})
  return {inputs = {floats(draw, {rows, columns}, dtype), index,
    floats(draw, {draw(1, 2) == 1 and 1 or rows, count}, dtype), draw(1, 2) == 1 and guard(draw)}}
end

function samples.average(draw, dtype)
  return {inputs = {floats(draw, {draw(1, 9), draw(1, 900)}, dtype)}}
end

samples.consensus_distance = samples.average

return samples
