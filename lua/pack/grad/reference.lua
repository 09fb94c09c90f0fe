--- The fused operations written with primitive ones: what they mean, and what second derivatives are
-- taken of. Each takes the inputs and the attributes of its fused operation and gives its first output.
local ops = require "pack.core.ops"

local reference = {}

local BF16, F32 = 2, 1

-- bf16 operands as f32: the fused operations multiply and add in f32.
local function wide(x)
  return x.raw_dtype == BF16 and ops.cast(x, {dtype = F32}) or x
end

-- The largest value along the last axis: a constant to gradients, which it cancels from. 0 where there is none.
local function largest(x)
  local empty = x:size(x.rank - 1) == 0
  return (empty and ops.sum or ops.max)(x:detach(), {axes = {x.rank - 1}, keep = true})
end

--- x [N, R, d] / sqrt(mean(x^2) + eps) * weight [N, d].
function reference.rmsnorm(x, weight, attributes)
  local square = ops.mean(ops.multiply(x, x), {axes = {2}, keep = true})
  local rstd = ops.rsqrt(ops.affine(square, {shift = attributes.eps}))
  local rows = ops.reshape(weight, {shape = {weight:size(0), 1, weight:size(1)}})
  return ops.multiply(ops.multiply(x, rstd), rows)
end

--- silu(gate) * up.
function reference.swiglu(gate, up)
  return ops.multiply(ops.silu(gate), up)
end

--- The same of gate and up that are the halves of x [..., 2f].
function reference.swiglu_split(x)
  local axis, half = x.rank - 1, x:size(x.rank - 1) / 2
  local gate = ops.slice(x, {axis = axis, start = 0, count = half})
  return reference.swiglu(gate, ops.slice(x, {axis = axis, start = half, count = half}))
end

--- exp(x) / sum(exp(x)) along the last axis.
function reference.softmax(x)
  local e = ops.exp(ops.subtract(x, largest(x)))
  return ops.divide(e, ops.sum(e, {axes = {x.rank - 1}, keep = true}))
end

-- [N, B, T, H, K] -> [N*B*H, T, K]: one matrix per head.
local function heads_first(x)
  local n, b, t, h, k = unpack(x:sizes())
  local turned = ops.transpose(x, {permutation = {0, 1, 3, 2, 4}})
  return ops.reshape(turned, {shape = {n * b * h, t, k}})
end

--- Causal attention of q, k, v [N, B, T, H, K], with the whole [T, T] matrices in memory.
function reference.attention(q, k, v, attributes)
  q, k, v = wide(q), wide(k), wide(v)
  local n, b, t, h, width = unpack(q:sizes())
  local scores = ops.matmul(heads_first(q), heads_first(k), {transpose_b = true})
  scores = ops.affine(scores, {scale = attributes.scale})
  local weights = reference.softmax(ops.causal_mask(scores, {fill = -math.huge}))
  local o = ops.reshape(ops.matmul(weights, heads_first(v)), {shape = {n, b, h, t, width}})
  return ops.transpose(o, {permutation = {0, 1, 3, 2, 4}})
end

--- The sum over a worker's valid targets of -log softmax(logits) [N, R, V] at targets [N, R].
function reference.cross_entropy(logits, targets)
  local shifted = ops.subtract(logits, largest(logits))
  local lse = ops.log(ops.sum(ops.exp(shifted), {axes = {2}, keep = true}))
  return ops.negate(ops.sum(ops.pick(ops.subtract(shifted, lse), targets), {axes = {1}}))
end

--- cross_entropy of x [N, R, d] times weight [N, V, d] transposed.
function reference.linear_cross_entropy(x, weight, targets)
  local logits = ops.matmul(wide(x), wide(weight), {transpose_b = true})
  return reference.cross_entropy(logits, targets)
end

return reference
