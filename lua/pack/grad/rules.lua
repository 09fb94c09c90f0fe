--- The gradient rule of every differentiable operation, keyed by its name.
--
-- A rule has
--   backward(b, g, node)  g is the cotangent of the first output, or the list of those of the first
--                         `results` outputs. b:give(i, t) contributes t to the
--                         cotangent of input i; b:emit(i, name, inputs, attributes) contributes the
--                         output of an operation, which the tape may write straight to where it
--                         belongs (i is a list if the operation has several outputs).
--   saves                 names of inputs and outputs that backward reads, as node.inputs[i] and
--                         node.outputs[o]. A value is true, or the name of the input whose gradient
--                         needs it.
--   shapes                node.shapes[i] and node.dtypes[i] of the inputs are kept.
--   results               how many of the first outputs gradients flow through, if more than one.
--   constants             outputs other than these through which no gradient is missing.
--   second                the form of pack.reference that is differentiated where the gradient
--                         operation's own gradient is wanted.
-- Rules are written with operations, so that an outer tape sees them. Cotangents of bf16 are f32.
local ops = require "pack.core.ops"

local BF16 = 2

local rules = {}

-- Contributes g, summed over what broadcasting repeated, to input i.
local function give_broadcast(b, i, g, node)
  if not b:wants(i) then return end
  local shape = node.shapes[i]
  local same = g.rank == #shape
  for d = 1, #shape do same = same and g:size(d - 1) == shape[d] end
  if same then b:give(i, g) else b:emit(i, "sum_to", {g}, {shape = shape}) end
end

rules.add = {
  shapes = true,
  backward = function(b, g, node)
    give_broadcast(b, 1, g, node)
    give_broadcast(b, 2, g, node)
  end,
}

rules.subtract = {
  shapes = true,
  backward = function(b, g, node)
    give_broadcast(b, 1, g, node)
    if b:wants(2) then give_broadcast(b, 2, ops.negate(g), node) end
  end,
}

rules.multiply = {
  shapes = true,
  saves = {a = "b", b = "a"},
  backward = function(b, g, node)
    if b:wants(1) then give_broadcast(b, 1, ops.multiply(g, node.inputs[2]), node) end
    if b:wants(2) then give_broadcast(b, 2, ops.multiply(g, node.inputs[1]), node) end
  end,
}

rules.divide = {
  shapes = true,
  saves = {b = true, y = "b"},
  backward = function(b, g, node)
    local quotient = ops.divide(g, node.inputs[2])
    give_broadcast(b, 1, quotient, node)
    if b:wants(2) then
      give_broadcast(b, 2, ops.negate(ops.multiply(quotient, node.outputs[1])), node)
    end
  end,
}

rules.affine = {
  backward = function(b, g, node)
    b:emit(1, "affine", {g}, {scale = node.attributes.scale})
  end,
}

rules.negate = {
  backward = function(b, g)
    b:emit(1, "negate", {g})
  end,
}

-- An operation whose result has no slope, of inputs that an outer tape may track.
local function constant(name, ...)
  local views = {...}
  for i, t in ipairs(views) do views[i] = t:detach() end
  local result = ops[name](unpack(views))
  for _, view in ipairs(views) do view:free() end
  return result
end

-- The gradient goes where the smaller or larger one came from; of equal ones, half to each.
local function choice(first_wins)
  return {
    shapes = true,
    saves = {a = true, b = true},
    backward = function(b, g, node)
      local left, right = node.inputs[1], node.inputs[2]
      local first, second = constant("less", left, right), constant("less", right, left)
      if not first_wins then first, second = second, first end
      local tie = ops.affine(ops.add(first, second), {scale = -0.5, shift = 0.5})
      if b:wants(1) then give_broadcast(b, 1, ops.multiply(g, ops.add(first, tie)), node) end
      if b:wants(2) then give_broadcast(b, 2, ops.multiply(g, ops.add(second, tie)), node) end
    end,
  }
end

rules.minimum, rules.maximum = choice(true), choice(false)

rules.gather_columns = {
  shapes = true,
  saves = {index = true},
  backward = function(b, g, node)
    local rows, columns = unpack(node.shapes[1])
    local count = g:size(1)
    local added = ops.embedding_grad(ops.reshape(g, {shape = {rows, count, 1}}),
      ops.expand(node.inputs[2], {shape = {rows, count}}), {vocabulary = columns})
    b:give(1, ops.reshape(added, {shape = {rows, columns}}))
  end,
}

rules.sum_squares = {
  saves = {x = true},
  backward = function(b, g, node)
    local x, shape = node.inputs[1], node.inputs[1]:sizes()
    for d = 2, #shape do shape[d] = 1 end
    local double = ops.reshape(ops.affine(g, {scale = 2}), {shape = shape})
    if x.dtype ~= "f64" then double = ops.cast(double, {dtype = x.dtype}) end
    b:emit(1, "multiply", {x, double})
  end,
}

rules.where = {
  shapes = true,
  saves = {condition = true},
  backward = function(b, g, node)
    local condition = node.inputs[1]
    local zero = ops.fill {shape = {}, dtype = g.dtype, value = 0, context = {handle = g.context}}
    if b:wants(2) then give_broadcast(b, 2, ops.where(condition, g, zero), node) end
    if b:wants(3) then give_broadcast(b, 3, ops.where(condition, zero, g), node) end
  end,
}

rules.abs = {
  saves = {x = true},
  backward = function(b, g, node)
    b:emit(1, "multiply", {g, constant("sign", node.inputs[1])})
  end,
}

rules.exp = {
  saves = {y = true},
  backward = function(b, g, node)
    b:emit(1, "multiply", {g, node.outputs[1]})
  end,
}

rules.log = {
  saves = {x = true},
  backward = function(b, g, node)
    b:emit(1, "divide", {g, node.inputs[1]})
  end,
}

rules.sqrt = {
  saves = {y = true},
  backward = function(b, g, node)
    b:emit(1, "divide", {ops.affine(g, {scale = 0.5}), node.outputs[1]})
  end,
}

rules.rsqrt = {
  saves = {y = true},
  backward = function(b, g, node)
    local y = node.outputs[1]
    local cube = ops.multiply(ops.multiply(y, y), y)
    b:emit(1, "multiply", {ops.affine(g, {scale = -0.5}), cube})
  end,
}

rules.sigmoid = {
  saves = {y = true},
  backward = function(b, g, node)
    local y = node.outputs[1]
    b:emit(1, "multiply", {g, ops.multiply(y, ops.affine(y, {scale = -1, shift = 1}))})
  end,
}

-- d/dx x s(x) = s (1 + x (1 - s))
rules.silu = {
  saves = {x = true},
  backward = function(b, g, node)
    local x = node.inputs[1]
    local s = ops.sigmoid(x)
    local slope = ops.multiply(x, ops.affine(s, {scale = -1, shift = 1}))
    b:emit(1, "multiply", {g, ops.multiply(s, ops.affine(slope, {shift = 1}))})
  end,
}

-- Casts whose two sides have cotangents of one dtype never get here: the tape passes through them.
rules.cast = {
  shapes = true,
  backward = function(b, g, node)
    b:emit(1, "cast", {g}, {dtype = b.gradient_dtype(node.dtypes[1])})
  end,
}

rules.copy = {
  backward = function(b, g)
    b:give(1, g)
  end,
}

-- g with the extents of 1 that a reduction without keep dropped.
local function with_kept_axes(g, node)
  if node.attributes.keep == true or node.attributes.keep == 1 then return g end
  local shape, axes = {}, node.attributes.axes
  for d = 1, #node.shapes[1] do shape[d] = #axes == 0 and 1 or node.shapes[1][d] end
  for _, axis in ipairs(axes) do shape[axis + 1] = 1 end
  return ops.reshape(g, {shape = shape})
end

rules.sum = {
  shapes = true,
  backward = function(b, g, node)
    b:emit(1, "expand", {with_kept_axes(g, node)}, {shape = node.shapes[1]})
  end,
}

rules.mean = {
  shapes = true,
  backward = function(b, g, node)
    local count, axes = 1, node.attributes.axes
    for d = 1, #node.shapes[1] do count = count * (#axes == 0 and node.shapes[1][d] or 1) end
    for _, axis in ipairs(axes) do count = count * node.shapes[1][axis + 1] end
    local share = ops.affine(with_kept_axes(g, node), {scale = 1 / count})
    b:emit(1, "expand", {share}, {shape = node.shapes[1]})
  end,
}

rules.sum_to = {
  shapes = true,
  backward = function(b, g, node)
    b:emit(1, "expand", {g}, {shape = node.shapes[1]})
  end,
}

rules.expand = {
  shapes = true,
  backward = function(b, g, node)
    b:emit(1, "sum_to", {g}, {shape = node.shapes[1]})
  end,
}

rules.reshape = {
  shapes = true,
  backward = function(b, g, node)
    b:emit(1, "reshape", {g}, {shape = node.shapes[1]})
  end,
}

rules.transpose = {
  backward = function(b, g, node)
    local inverse = {}
    for d, source in ipairs(node.attributes.permutation) do inverse[source + 1] = d - 1 end
    b:emit(1, "transpose", {g}, {permutation = inverse})
  end,
}

rules.slice = {
  shapes = true,
  backward = function(b, g, node)
    local at = node.attributes
    local after = node.shapes[1][at.axis + 1] - at.start - at.count
    b:emit(1, "pad", {g}, {axis = at.axis, before = at.start, after = after})
  end,
}

rules.pad = {
  shapes = true,
  backward = function(b, g, node)
    local at = node.attributes
    local count = node.shapes[1][at.axis + 1]
    b:emit(1, "slice", {g}, {axis = at.axis, start = at.before, count = count})
  end,
}

rules.concat = {
  shapes = true,
  backward = function(b, g, node)
    local axis, start = node.attributes.axis, 0
    for i = 1, #node.shapes do
      local count = node.shapes[i][axis + 1]
      b:emit(i, "slice", {g}, {axis = axis, start = start, count = count})
      start = start + count
    end
  end,
}

rules.causal_mask = {
  backward = function(b, g)
    b:emit(1, "causal_mask", {g}, {fill = 0})
  end,
}

-- With A = op(a) and B = op(b): gA = g B', gB = A' g, each turned back if its operand was.
rules.matmul = {
  saves = {a = "b", b = "a"},
  backward = function(b, g, node)
    local x, y = node.inputs[1], node.inputs[2]
    local turned_x = b.truth(node.attributes.transpose_a)
    local turned_y = b.truth(node.attributes.transpose_b)
    if (x or y).raw_dtype == BF16 then g = ops.cast(g, {dtype = BF16}) end
    if turned_x then
      b:emit(1, "matmul", {y, g}, {transpose_a = turned_y, transpose_b = true})
    else
      b:emit(1, "matmul", {g, y}, {transpose_b = not turned_y})
    end
    if turned_y then
      b:emit(2, "matmul", {g, x}, {transpose_a = true, transpose_b = turned_x})
    else
      b:emit(2, "matmul", {x, g}, {transpose_a = not turned_x})
    end
  end,
}

rules.embedding = {
  shapes = true,
  saves = {ids = true},
  backward = function(b, g, node)
    b:emit(1, "embedding_grad", {g, node.inputs[2]}, {vocabulary = node.shapes[1][2]})
  end,
}

rules.embedding_grad = {
  saves = {ids = true},
  backward = function(b, g, node)
    b:emit(1, "embedding", {g, node.inputs[2]})
  end,
}

rules.pick = {
  shapes = true,
  saves = {index = true},
  backward = function(b, g, node)
    b:emit(1, "unpick", {g, node.inputs[2]}, {vocabulary = node.shapes[1][3]})
  end,
}

rules.unpick = {
  saves = {index = true},
  backward = function(b, g, node)
    b:emit(1, "pick", {g, node.inputs[2]})
  end,
}

rules.rmsnorm = {
  second = "rmsnorm",
  saves = {x = true, weight = true, rstd = true},
  backward = function(b, g, node)
    local x, weight = node.inputs[1], node.inputs[2]
    b:emit({1, 2}, "rmsnorm_grad", {g, x, weight, node.outputs[2]})
  end,
}

-- A rotation is undone by the inverse one, which is its transpose.
rules.rope = {
  backward = function(b, g, node)
    local inverse = not b.truth(node.attributes.inverse)
    b:emit(1, "rope", {g}, {theta = node.attributes.theta, inverse = inverse})
  end,
}

-- Each is the transpose of the other with the inverse rotation.
rules.rope_split = {
  results = 3,
  backward = function(b, g, node)
    local inverse = not b.truth(node.attributes.inverse)
    b:emit(1, "rope_join", {g[1], g[2], g[3]}, {theta = node.attributes.theta, inverse = inverse})
  end,
}

rules.rope_join = {
  backward = function(b, g, node)
    local inverse = not b.truth(node.attributes.inverse)
    b:emit({1, 2, 3}, "rope_split", {g}, {theta = node.attributes.theta, inverse = inverse})
  end,
}

rules.swiglu = {
  second = "swiglu",
  saves = {gate = true, up = true},
  backward = function(b, g, node)
    b:emit({1, 2}, "swiglu_grad", {g, node.inputs[1], node.inputs[2]})
  end,
}

rules.swiglu_split = {
  second = "swiglu_split",
  saves = {x = true},
  backward = function(b, g, node)
    b:emit(1, "swiglu_split_grad", {g, node.inputs[1]})
  end,
}

rules.attention = {
  second = "attention",
  saves = {q = true, k = true, v = true, o = true, lse = true},
  backward = function(b, g, node)
    local q, k, v = node.inputs[1], node.inputs[2], node.inputs[3]
    b:emit({1, 2, 3}, "attention_grad", {g, q, k, v, node.outputs[1], node.outputs[2]},
      {scale = node.attributes.scale})
  end,
}

rules.cross_entropy = {
  second = "cross_entropy",
  constants = {count = true},
  saves = {logits = true, targets = true, lse = true},
  backward = function(b, g, node)
    b:emit(1, "cross_entropy_grad", {g, node.inputs[1], node.inputs[2], node.outputs[3]})
  end,
}

rules.linear_cross_entropy = {
  second = "linear_cross_entropy",
  constants = {count = true},
  saves = {x = true, weight = true, targets = true, lse = true},
  backward = function(b, g, node)
    local x, weight, targets = node.inputs[1], node.inputs[2], node.inputs[3]
    b:emit({1, 2}, "linear_cross_entropy_grad", {g, x, weight, targets, node.outputs[3]})
  end,
}

return rules
