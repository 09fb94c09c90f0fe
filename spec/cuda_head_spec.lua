-- The head with its loss on the CUDA device where its rows take several chunks, of one worker or of some together:
-- the emulated device's L2 cache has 1 MiB, so a chunk's logits have 2. Expected values are the CPU's.
local context = require "pack.core.context"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local support = require "spec.support.helper"

local emu = require("spec.support.emu").open()
if not emu then
  pending("the emulated device is not part of this build", function() end)
  return
end

local cpu = context {device = "cpu"}

local function place(chosen, shape, dtype, values)
  return numbers.tensor(shape, dtype, values, {context = chosen})
end

-- x, weight, targets and g of N workers, R rows, width d and vocabulary V. Every fifth target is ignored, and all of
-- the last worker's.
local function inputs(chosen, n, r, d, v, dtype)
  local targets = {}
  for i = 1, n * r do targets[i] = (i % 5 == 0 or i > (n - 1) * r) and -100 or i * 7919 % v end
  local function random(shape, seed) return numbers.list(numbers.count(shape), seed, -1, 1) end
  return place(chosen, {n, r, d}, dtype, random({n, r, d}, 1)), place(chosen, {n, v, d}, dtype, random({n, v, d}, 2)),
    place(chosen, {n, r}, "i32", targets),
    place(chosen, {n}, dtype == "f64" and "f64" or "f32", numbers.list(n, 3, 0.5, 1.5))
end

local function close(expected, got, tolerance)
  local a, b, largest = numbers.flat(expected), numbers.flat(got), 0
  assert.equal(#a, #b)
  for i = 1, #a do largest = math.max(largest, math.abs(a[i])) end
  for i = 1, #a do
    if not (math.abs(a[i] - b[i]) <= tolerance * largest) then
      error(("element %d is %.9g, not %.9g"):format(i, b[i], a[i]))
    end
  end
end

local function all_of(chosen, n, r, d, v, dtype)
  local x, weight, targets, g = inputs(chosen, n, r, d, v, dtype)
  local loss, count, lse = ops.linear_cross_entropy(x, weight, targets)
  local x_grad, weight_grad = ops.linear_cross_entropy_grad(g, x, weight, targets, lse)
  return {loss, count, lse, x_grad, weight_grad}, {ops.linear_cross_entropy_step(g, x, weight, targets)}
end

describe("the head on the CUDA device", function()
  support.watch()

  local tolerances = {f64 = 1e-12, f32 = 1e-5, bf16 = 2e-4}
  for _, case in ipairs {
    {2, 300, 8, 3001, "f32"}, -- chunks of 128 rows of one worker, the last of 44
    {3, 70, 5, 3000, "bf16"}, -- two workers in the first chunk, one in the second
    {2, 200, 8, 1501, "bf16"}, {2, 130, 3, 1100, "f64"},
  } do
    it(("is the CPU's in several chunks, and the same in one pass: %d x [%d, %d] x [%d, %d] of %s"):format(
      case[1], case[2], case[3], case[3], case[4], case[5]), function()
      local expected = all_of(cpu, unpack(case))
      local got, in_one = all_of(emu, unpack(case))
      for i = 1, #expected do
        close(expected[i], got[i], tolerances[case[5]])
        assert.same(numbers.flat(got[i]), numbers.flat(in_one[i]))
      end
    end)
  end

  it("has a loss that is not a number where a target is none of the vocabulary, and no other worker's", function()
    local x, weight = inputs(emu, 2, 4, 3, 10, "f32")
    for _, bad in ipairs {10, -1, -99, 2 ^ 30} do
      local loss, count = ops.linear_cross_entropy(x, weight, place(emu, {2, 4}, "i32", {1, 2, bad, 3, 1, 2, 3, -100}))
      local values = numbers.flat(loss)
      assert.is_true(values[1] ~= values[1])
      assert.is_true(values[2] > 0 and values[2] < 100)
      assert.same({4, 3}, numbers.flat(count))
    end
  end)

  it("has gradients of 0 for workers without rows", function()
    local x, weight = place(emu, {2, 0, 3}, "f32", {}), place(emu, {2, 4, 3}, "f32", numbers.list(24, 1))
    local targets, g = place(emu, {2, 0}, "i32", {}), place(emu, {2}, "f32", {1, 1})
    local loss, count, lse = ops.linear_cross_entropy(x, weight, targets)
    assert.same({0, 0}, numbers.flat(loss))
    assert.same({0, 0}, numbers.flat(count))
    local _, weight_grad = ops.linear_cross_entropy_grad(g, x, weight, targets, lse)
    for _, value in ipairs(numbers.flat(weight_grad)) do assert.equal(0, value) end
    assert.same({2, 4, 3}, weight_grad:sizes())
  end)
end)
