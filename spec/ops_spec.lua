-- Calling operations: attributes, outputs given by the caller, and errors at the caller's line.
local dispatch = require "pack.core.dispatch"
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local refused = numbers.assert_refused

describe("an operation", function()
  helper.watch()

  it("exists in Lua for every row of ops.def, and is described", function()
    assert.is_true(#dispatch.list > 40)
    for _, operation in ipairs(dispatch.list) do
      assert.is_function(ops[operation.name])
      local line = ops.help(operation.name)
      assert.is_truthy(line:find(operation.summary, 1, true), line)
    end
    assert.equal("ops.matmul(a, b, {transpose_a, transpose_b}) -> y: batched matrix product",
      ops.help "matmul")
    refused("there is no operation 'conv'", function() return ops.conv end)
  end)

  it("takes attributes by name, and its list attribute as the table's own entries", function()
    local t = tensor.from({{1, 2}, {3, 4}}, "f64")
    assert.same({3, 7}, ops.sum(t, {axes = {1}}):totable())
    assert.same({{3}, {7}}, ops.sum(t, {1, keep = true}):totable())
    assert.equal("bf16", ops.cast(t, {dtype = "bf16"}).dtype)
    assert.equal("bf16", ops.cast(t, {dtype = 2}).dtype)
  end)

  it("refuses attributes that it does not have or that are ill-typed", function()
    local t = tensor.from({{1, 2}, {3, 4}}, "f64")
    refused("sum: unknown attribute 'axis'; known: keep, axes, out", ops.sum, t, {axis = 1})
    refused("exp: unknown attribute '1'", ops.exp, t, {1})
    refused("slice: attribute count is missing", ops.slice, t, {axis = 0})
    refused("slice: attribute count is 1.5, not an integer", ops.slice, t, {axis = 0, count = 1.5})
    refused("affine: attribute scale is a string, not a number", ops.affine, t, {scale = "2"})
    refused("sum: attribute axes is a number, not a list", ops.sum, t, {axes = 1})
    refused("sum: entry 1 of attribute axes is x, not an integer", ops.sum, t, {axes = {"x"}})
    refused("cast: dtype 'f16' is not one of", ops.cast, t, {dtype = "f16"})
    refused("reshape: attribute shape has 7 entries", ops.reshape, t, {1, 1, 1, 1, 1, 2, 2})
  end)

  it("refuses inputs that are missing, too many or no tensors", function()
    local t = tensor.from({1, 2}, "f64")
    refused("add: input 2 (b) is missing", ops.add, t)
    refused("add: input 2 (b) is a number, not a tensor", ops.add, t, 2)
    refused("exp: after 1 inputs comes a table of attributes, not a tensor", ops.exp, t, t)
    refused("rmsnorm_grad: 5 inputs, more than 4", ops.rmsnorm_grad, t, t, t, t, t)
    refused("concat: input 1 (x) is missing", ops.concat, {axis = 0})
  end)

  it("concatenates arguments or a list", function()
    local a, b = tensor.from({1}, "f64"), tensor.from({2, 3}, "f64")
    assert.same({1, 2, 3}, ops.concat(a, b, {axis = 0}):totable())
    assert.same({2, 3, 1}, ops.concat({b, a}, {axis = 0}):totable())
  end)

  it("writes into a given output and returns it", function()
    local a, b = tensor.from({1, 2}, "f64"), tensor.from({3, 4}, "f64")
    local y = tensor.zeros({2}, "f64")
    assert.is_true(ops.add(a, b, {out = y}) == y)
    assert.same({4, 6}, y:totable())
    assert.is_true(ops.multiply(a, b, {out = {y}}) == y)
    assert.same({3, 8}, y:totable())
    refused("output y is f64 [2], not f64 [1]", ops.sum, a, {axes = {}, keep = true, out = y})
    refused("shares memory with input 1", ops.negate, y, {out = y})
    refused("add: out 1 is a number, not a tensor", ops.add, a, b, {out = 3})
    refused("fill: out 1 is a string, not a tensor", ops.fill, {shape = {2}, value = 1, out = "y"})
    refused("fill: after 0 inputs comes a table of attributes, not a number", ops.fill, 3)
  end)

  it("adds to a given output where it can", function()
    local a, y = tensor.from({1, 2}, "f64"), tensor.from({10, 20}, "f64")
    ops.copy(a, {out = y, accumulate = true})
    assert.same({11, 22}, y:totable())
    refused("does not accumulate", ops.exp, a, {out = y, accumulate = true})
    refused("accumulate needs out", ops.copy, a, {accumulate = true})
    refused("copy: accumulate is a number, not true or a list", ops.copy, a, {out = y, accumulate = 1})
  end)

  it("fails at the line of the caller", function()
    local a, b = tensor.from({1, 2}), tensor.from({1, 2, 3})
    local line = debug.getinfo(1, "l").currentline + 1
    local _, message = pcall(function() return a:add(b):exp() end)
    assert.is_truthy(message:find("ops_spec.lua:" .. line .. ": add: a [2] and b [3]", 1, true), message)
    line = debug.getinfo(1, "l").currentline + 1
    _, message = pcall(function() return a * b end)
    assert.is_truthy(message:find("ops_spec.lua:" .. line .. ": multiply:", 1, true), message)
  end)

  it("leaves nothing behind when it fails", function()
    local a, b = tensor.from({1, 2}), tensor.from({1, 2, 3})
    local context = require("pack.core.context").default()
    local before = context:memory().live
    for _ = 1, 10 do pcall(ops.add, a, b) end
    assert.equal(before, context:memory().live)
  end)
end)
