-- Second derivatives: of compositions, and of the fused operations by way of their reference forms.
local grad = require "pack.grad"
local gradcheck = require "pack.grad.gradcheck"
local gradgradcheck = gradcheck.gradgradcheck
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local reference = require "pack.grad.reference"
local tensor = require "pack.core.tensor"

local function made(shape, seed, low, high)
  local count = 1
  for _, extent in ipairs(shape) do count = count * extent end
  return numbers.tensor(shape, "f64", numbers.list(count, seed, low, high))
end

local heads = {2, 1, 4, 2, 2}
local targets = {{2, -100, 0}, {1, 1, 3}}

-- A fused operation, its inputs, attributes and integer inputs at the end.
local fused = {
  rmsnorm = {{{2, 3, 4}, {2, 4}}, {eps = 1e-2}},
  swiglu = {{{2, 2, 3}, {2, 2, 3}}, {}},
  swiglu_split = {{{2, 2, 6}}, {}},
  attention = {{heads, heads, heads}, {scale = 0.7}},
  cross_entropy = {{{2, 3, 4}}, {}, targets},
  linear_cross_entropy = {{{2, 3, 3}, {2, 4, 3}}, {}, targets},
}

local function inputs_of(case)
  local inputs = {}
  for i, shape in ipairs(case[1]) do inputs[i] = made(shape, i, -1.5, 1.5) end
  return inputs
end

-- fn (a fused operation or its reference) as a function of its float inputs.
local function call_of(fn, case)
  local ids = case[3] and tensor.from(case[3], "i32")
  return function(...)
    local arguments = {...}
    arguments[#arguments + 1] = ids
    arguments[#arguments + 1] = case[2]
    return (fn(unpack(arguments)))
  end
end

describe("the reference form of", function()
  helper.watch()

  for name, case in pairs(fused) do
    it(name .. " has the fused operation's value and gradient", function()
      local inputs = inputs_of(case)
      local value, gradients = grad(call_of(ops[name], case), inputs)
      local plain_value, plain = grad(call_of(reference[name], case), inputs)
      numbers.assert_close(numbers.flat(plain_value), value, 1e-13)
      for i = 1, #inputs do numbers.assert_close(numbers.flat(plain[i]), gradients[i], 1e-12) end
    end)
  end
end)

describe("the second derivative of", function()
  helper.watch()

  for name, case in pairs(fused) do
    it(name .. " agrees with differences", function()
      gradgradcheck(call_of(ops[name], case), inputs_of(case), {name = name, tolerance = 1e-6})
    end)

    it(name .. " is that of its reference form", function()
      local inputs, directions = inputs_of(case), {}
      for i, input in ipairs(inputs) do directions[i] = made(input:sizes(), 10 + i) end
      local products = grad.hvp(call_of(ops[name], case), inputs, directions)
      local plain = grad.hvp(call_of(reference[name], case), inputs, directions)
      for i = 1, #inputs do numbers.assert_close(numbers.flat(plain[i]), products[i], 1e-12) end
    end)
  end

  it("a fused operation given the same tensor twice agrees with differences", function()
    local x = {made({2, 2, 3}, 1)}
    gradcheck(function(a) return ops.swiglu(a, a) end, x)
    gradgradcheck(function(a) return ops.swiglu(a, a) end, x, {tolerance = 1e-6})
  end)

  it("attention over no positions is empty", function()
    local x = tensor.zeros({2, 1, 0, 1, 2}, "f64")
    local products = grad.hvp(function(a) return (ops.attention(a, a, a, {scale = 1})) end, {x}, {x})
    assert.same({2, 1, 0, 1, 2}, products[1]:sizes())
  end)

  it("q, k and v that are cut apart and joined agrees with differences", function()
    gradgradcheck(function(a)
      local q, k, v = ops.rope_split(a * a, {theta = 100})
      return ops.rope_join(q * k, ops.exp(k), v * q, {theta = 100})
    end, {made({2, 1, 3, 3, 4}, 1)}, {tolerance = 1e-6})
  end)

  it("compositions agrees with differences", function()
    local x, y = made({2, 3}, 1, 0.5, 2), made({3}, 2, 0.5, 2)
    gradgradcheck(function(a, b)
      return ops.sigmoid(a * b) / ops.sqrt(a) - ops.log(b) * ops.exp(a)
    end, {x, y}, {tolerance = 1e-6})
    gradgradcheck(function(a) return ops.sum_squares(a) * ops.exp(ops.sum_squares(a) * 0.1) end, {x}, {tolerance = 1e-6})
    gradgradcheck(function(a) return ops.rsqrt(ops.mean(a * a, {1, keep = true})) * a end, {x},
      {tolerance = 1e-6})
  end)

  it("choices agrees with differences", function()
    local x, y = made({2, 3}, 1), made({3}, 2)
    local condition = tensor.from({{1, 0, 1}, {0, 0, 1}}, "f64")
    gradgradcheck(function(a, b)
      return ops.minimum(a * a, b) * ops.maximum(a, b * b) * ops.abs(a * b) + condition:where(a * a * a, b * b * a)
    end, {x, y}, {tolerance = 1e-6})
  end)

  it("products, moves and look-ups agrees with differences", function()
    local w, x = made({2, 4, 3}, 1), made({2, 3, 3}, 2)
    local ids = tensor.from({{0, 3, 3}, {1, 1, 2}}, "i32")
    gradgradcheck(function(a, b)
      local rows = ops.embedding(a, ids) * b
      local turned = ops.transpose(rows, {permutation = {0, 2, 1}})
      local wide = ops.concat(turned, ops.slice(a, {axis = 1, count = 3}), {axis = 2})
      return ops.silu(ops.matmul(rows, wide)):pick(ids)
    end, {w, x}, {tolerance = 1e-6})
  end)

  it("rope and a mask within attention's neighbourhood agrees with differences", function()
    local x = made({1, 1, 4, 1, 4}, 3)
    gradgradcheck(function(a)
      local turned = ops.reshape(ops.rope(a * a, {theta = 50}), {shape = {1, 4, 4}})
      return ops.exp(ops.causal_mask(turned, {fill = -2}))
    end, {x}, {tolerance = 1e-6})
  end)
end)
