-- Every differentiable operation's rule against central differences in f64.
local dispatch = require "pack.core.dispatch"
local grad = require "pack.grad"
local gradcheck = require "pack.grad.gradcheck"
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local rules = require "pack.grad.rules"
local tensor = require "pack.core.tensor"

local function count_of(shape)
  local count = 1
  for _, extent in ipairs(shape) do count = count * extent end
  return count
end

local function made(shape, seed, low, high)
  return numbers.tensor(shape, "f64", numbers.list(count_of(shape), seed, low, high))
end

local function indices(values)
  return tensor.from(values, "i32")
end

local function one(shape, low, high)
  return function() return {made(shape, 1, low, high)} end
end

local function two(shape_a, shape_b, low, high)
  return function() return {made(shape_a, 1, low, high), made(shape_b, 2, low, high)} end
end

local heads = {2, 2, 5, 2, 4}
local joined_heads = {2, 2, 3, 6, 4} -- of q, k and v

-- Inputs and attributes for every differentiable operation; several cases each where shapes matter.
local samples = {
  add = {{two({2, 3}, {3})}, {two({2, 1, 3}, {4, 1})}, {two({}, {2})}},
  subtract = {{two({2, 3}, {2, 1})}, {two({3}, {2, 3})}},
  multiply = {{two({2, 3}, {3})}, {two({2, 1, 3}, {4, 1})}, {two({2}, {2})}},
  divide = {{two({2, 3}, {3}, 0.5, 2)}, {two({1, 3}, {2, 3}, 0.5, 2)}},
  affine = {{one({2, 3}), {scale = -2.5, shift = 0.75}}},
  negate = {{one({2, 3})}},
  abs = {{one({2, 3})}},
  minimum = {{two({2, 3}, {2, 3})}, {two({2, 3}, {2, 1})}},
  maximum = {{two({2, 3}, {2, 3})}, {two({2, 3}, {3})}},
  where = {
    {function() return {tensor.from({{1, 0, 1}, {0, 0, 1}}, "f64"), made({2, 3}, 1), made({2, 3}, 2)} end},
    {function() return {tensor.from({{1, 0, 1}, {0, 0, 1}}, "f64"), made({1, 3}, 1), made({2, 1}, 2)} end},
  },
  exp = {{one({2, 3}, -2, 2)}},
  log = {{one({2, 3}, 0.5, 3)}},
  sqrt = {{one({2, 3}, 0.5, 3)}},
  rsqrt = {{one({2, 3}, 0.5, 3)}},
  sigmoid = {{one({2, 3}, -4, 4)}},
  silu = {{one({2, 3}, -4, 4)}},
  cast = {{one({2, 3}), {dtype = "f64"}}},
  copy = {{one({2, 3})}},
  sum = {{one({2, 3, 4}), {axes = {1}}}, {one({2, 3, 4}), {axes = {0, 2}, keep = true}}, {one({2, 3})}},
  mean = {{one({2, 3, 4}), {axes = {1}}}, {one({2, 3, 4}), {axes = {2, 0}, keep = true}},
    {one({2, 3})}},
  sum_to = {{one({2, 3, 4}), {shape = {3, 1}}}, {one({2, 3}), {shape = {}}}},
  reshape = {{one({2, 3, 4}), {shape = {6, -1}}}},
  transpose = {{one({2, 3, 4}), {permutation = {2, 0, 1}}}, {one({2, 3}), {permutation = {1, 0}}}},
  slice = {{one({3, 5}), {axis = 1, start = 1, count = 3}}, {one({3, 5}), {axis = 0, count = 1}}},
  pad = {{one({2, 3}), {axis = 1, before = 2, after = 1}}},
  concat = {{function() return {made({2, 3}, 1), made({2, 1}, 2), made({2, 2}, 3)} end, {axis = 1}}},
  expand = {{one({3, 1}), {shape = {2, 3, 4}}}},
  causal_mask = {{one({2, 4, 4}), {fill = -3}}},
  matmul = {
    {two({2, 3, 4}, {2, 4, 5})},
    {two({2, 3, 4}, {2, 5, 4}), {transpose_b = true}},
    {two({2, 4, 3}, {2, 4, 5}), {transpose_a = true}},
    {two({4, 3}, {5, 4}), {transpose_a = true, transpose_b = true}},
  },
  embedding = {{function()
    return {made({2, 4, 3}, 1), indices {{0, 3, 3}, {1, 1, 2}}}
  end}},
  embedding_grad = {{function()
    return {made({2, 3, 3}, 1), indices {{0, 3, 3}, {1, 1, 2}}}
  end, {vocabulary = 4}}},
  pick = {{function() return {made({2, 3, 4}, 1), indices {{0, -100, 3}, {1, 1, 2}}} end}},
  unpick = {{function() return {made({2, 3}, 1), indices {{0, -100, 3}, {1, 1, 2}}} end,
    {vocabulary = 4}}},
  gather_columns = {{function() return {made({2, 4}, 1), indices {3, 0, 3, 1, 3}} end}},
  sum_squares = {{one {2, 3}}, {one {2, 3, 2}}},
  rmsnorm = {{two({2, 3, 5}, {2, 5}, 0.3, 2), {eps = 1e-2}}},
  rope = {{one(heads), {theta = 100}}, {one(heads), {theta = 100, inverse = true}}},
  rope_split = {{one(joined_heads), {theta = 100}}, {one(joined_heads), {theta = 100, inverse = true}}},
  rope_join = {{function() return {made(heads, 1), made(heads, 2), made(heads, 3)} end, {theta = 100}}},
  swiglu_split = {{one({2, 3, 8}, -3, 3)}, {one({3, 2}, -3, 3)}},
  swiglu = {{two({2, 3, 4}, {2, 3, 4}, -3, 3)}},
  attention = {{function() return {made(heads, 1), made(heads, 2), made(heads, 3)} end,
    {scale = 0.7}}},
  cross_entropy = {{function()
    return {made({2, 3, 5}, 1, -3, 3), indices {{4, -100, 0}, {2, 2, 1}}}
  end}},
  linear_cross_entropy = {{function()
    return {made({2, 3, 4}, 1, -2, 2), made({2, 5, 4}, 2, -2, 2), indices {{4, -100, 0}, {2, 2, 1}}}
  end}},
}

-- All results that gradients flow through as one tensor.
local function results_of(name, ...)
  local results = {}
  for o = 1, rules[name].results or 1 do results[o] = (select(o, ...)) end
  return #results > 1 and ops.concat(results, {axis = 0}) or results[1]
end

-- Inputs by place that results jump with.
local jumps = {where = {true}}

-- The operation as a function of its float inputs, and those inputs.
local function function_of(name, inputs, attributes)
  local floats, constant = {}, {}
  for i, input in ipairs(inputs) do
    constant[i] = input.dtype == "i32" or jumps[name] and jumps[name][i]
    if not constant[i] then floats[#floats + 1] = input end
  end
  local function call(...)
    local given, arguments, next_float = {...}, {}, 1
    for i, input in ipairs(inputs) do
      if constant[i] then
        arguments[i] = input
      else
        arguments[i], next_float = given[next_float], next_float + 1
      end
    end
    arguments[#arguments + 1] = attributes or {}
    return results_of(name, ops[name](unpack(arguments)))
  end
  return call, floats
end

describe("the rule of", function()
  helper.watch()

  for _, operation in ipairs(dispatch.list) do
    local name = operation.name
    if operation.differentiable then
      it(name .. " agrees with differences", function()
        local cases = assert(samples[name], "no sample input for " .. name)
        for number, case in ipairs(cases) do
          local call, floats = function_of(name, case[1](), case[2])
          gradcheck(call, floats, {name = name .. " " .. number})
        end
      end)
    end
    if operation.differentiable and samples[name] and #samples[name][1][1]() > 1 then
      it(name .. " gives the same for each input alone", function()
        local case = samples[name][1]
        local call, floats = function_of(name, case[1](), case[2])
        local _, together = grad(call, floats)
        for i, leaf in ipairs(floats) do
          local _, alone = grad(function(x)
            local arguments = {unpack(floats)}
            arguments[i] = x
            return call(unpack(arguments))
          end, {leaf})
          numbers.assert_close(numbers.flat(together[i]), alone[1], 1e-14)
        end
      end)
    end
  end
end)

describe("gradcheck", function()
  helper.watch()

  it("returns the worst error and where it is", function()
    local worst = gradcheck(function(x) return x * x end, {made({2, 3}, 4)})
    assert.is_true(worst.error > 0 and worst.error < 1e-7)
    assert.equal(1, worst.input)
    assert.is_truthy(worst.index:find("^%[%d, %d%]$"))
    assert.is_true(math.abs(worst.analytic - worst.numeric) < 1e-7)
  end)

  it("finds a wrong gradient and names input, index and both values", function()
    local x = tensor.from({{1, 2}, {3, 4}}, "f64")
    -- 3 x - 2 detach(x) has the value of x but thrice its gradient.
    numbers.assert_refused("gradient of input 1 at [1, 1] is ", gradcheck, function(a)
      return a * 3 - a:detach() * 2
    end, {x}, {name = "thrice"})
    assert.same({{1, 2}, {3, 4}}, x:totable())
  end)

  it("asks for f64", function()
    numbers.assert_refused("input 1 is not an f64 tensor", gradcheck, ops.exp, {tensor.from({1})})
  end)
end)
