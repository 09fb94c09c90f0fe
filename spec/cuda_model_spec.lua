-- Operations of the model on the CUDA device where size or values take them other ways than the random shapes of
-- cuda_parity_spec.lua: long runs of equal ids, sums in chunks, wide rows, results in the memory of operands,
-- numbers that stand for nothing. Expected values are the CPU's, or worked out here.
local context = require "pack.core.context"
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local emu = require("spec.support.emu").open()
if not emu then
  pending("the emulated device is not part of this build", function() end)
  return
end

local cpu = context {device = "cpu"}
local nan = 0 / 0

local function place(chosen, shape, dtype, values)
  return numbers.tensor(shape, dtype, values, {context = chosen})
end

-- A tensor of made-up values on each device.
local function both(shape, dtype, seed, low, high)
  local values = numbers.list(numbers.count(shape), seed, low, high)
  return place(cpu, shape, dtype, values), place(emu, shape, dtype, values)
end

-- The same values with rows an odd number of elements apart.
local function apart(t)
  return (numbers.strided(t:sizes(), t.dtype, numbers.flat(t), {context = emu}))
end

describe("the gradient of an embedding on the CUDA device", function()
  helper.watch()

  -- ids [N, R] that share of which are the first.
  local function ids_of(n, r, vocabulary, share)
    local list = numbers.list(n * r, 5, 0, vocabulary)
    local chance = numbers.list(n * r, 6, 0, 1)
    for i = 1, n * r do
      list[i] = chance[i] < share and vocabulary - 1 or math.min(math.floor(list[i]), vocabulary - 1)
    end
    return list
  end

  for _, case in ipairs {
    {n = 2, r = 2500, vocabulary = 300, width = 4, share = 1, dtype = "f32"}, -- one run in pieces
    {n = 1, r = 4700, vocabulary = 70000, width = 3, share = 0.4, dtype = "f32"}, -- three digits, two tiles
    {n = 3, r = 700, vocabulary = 9, width = 130, share = 0.1, dtype = "f64"}, -- nine runs, two slabs of columns
  } do
    it(("adds %d ids of %d, %d%% of them the last, as the CPU does"):format(case.r, case.vocabulary,
      100 * case.share), function()
      local ids = ids_of(case.n, case.r, case.vocabulary, case.share)
      local g, other_g = both({case.n, case.r, case.width}, case.dtype, 7)
      local expected = ops.embedding_grad(g, place(cpu, {case.n, case.r}, "i32", ids), {vocabulary = case.vocabulary})
      local got = ops.embedding_grad(other_g, place(emu, {case.n, case.r}, "i32", ids),
        {vocabulary = case.vocabulary})
      numbers.assert_close(numbers.flat(expected), got, case.dtype == "f64" and 1e-14 or 2e-6)
      numbers.assert_same(numbers.flat(got), ops.embedding_grad(apart(other_g), place(emu, {case.n, case.r}, "i32",
        ids), {vocabulary = case.vocabulary}))
    end)
  end

  it("adds up to 63 rows in the CPU's order, to the bit", function()
    local ids = {}
    for i = 1, 3 * 63 do ids[i] = i % 3 end
    local g, other_g = both({1, 189, 5}, "f32", 8)
    local expected = ops.embedding_grad(g, place(cpu, {1, 189}, "i32", ids), {vocabulary = 4})
    numbers.assert_same(numbers.flat(expected),
      ops.embedding_grad(other_g, place(emu, {1, 189}, "i32", ids), {vocabulary = 4}))
  end)

  it("leaves out ids that are none of the vocabulary", function()
    local g = place(emu, {1, 4, 2}, "f32", {1, 2, 3, 4, 5, 6, 7, 8})
    numbers.assert_same({1, 2, 0, 0, 5, 6},
      ops.embedding_grad(g, place(emu, {1, 4}, "i32", {0, 3, 2, -1}), {vocabulary = 3}))
  end)
end)

describe("numbers that stand for nothing on the CUDA device", function()
  helper.watch()

  it("give rows of NaN where an id is none of the vocabulary", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      for _, width in ipairs {1, 8} do
        local values, expected = {}, {}
        for i = 1, 3 * width do values[i] = i end
        for c = 1, width do
          expected[c], expected[width + c], expected[2 * width + c] = values[2 * width + c], nan, nan
          expected[3 * width + c] = values[c]
        end
        local weight = place(emu, {1, 3, width}, dtype, values)
        numbers.assert_same(expected, ops.embedding(weight, place(emu, {1, 4}, "i32", {2, 3, -1, 0})))
      end
    end
  end)

  it("are picked as NaN, and 0 where ignored", function()
    local x = place(emu, {1, 4, 2}, "f64", {1, 2, 3, 4, 5, 6, 7, 8})
    local index = place(emu, {1, 4}, "i32", {1, -100, 2, -1})
    numbers.assert_same({2, 0, nan, nan}, ops.pick(x, index))
    numbers.assert_same({0, 9, 0, 0, 0, 0, 0, 0},
      ops.unpick(place(emu, {1, 4}, "f64", {9, 9, 9, 9}), index, {vocabulary = 2}))
  end)

  it("make the loss of their worker NaN", function()
    local logits = place(emu, {2, 2, 3}, "f32", {1, 2, 3, 1, 2, 3, 0, 0, 0, 0, 0, 0})
    local loss, count = ops.cross_entropy(logits, place(emu, {2, 2}, "i32", {0, 3, 1, -100}))
    numbers.assert_same({2, 1}, count)
    local got = numbers.flat(loss)
    assert.is_true(got[1] ~= got[1])
    numbers.assert_close({math.log(3)}, loss[1], 1e-6)
  end)
end)

describe("reductions on the CUDA device", function()
  helper.watch()

  it("sum few long results in chunks, in rows and in columns", function()
    for _, case in ipairs {
      {shape = {2, 30001}, axes = {1}}, {shape = {30001, 2}, axes = {0}}, {shape = {3, 9000, 2}, axes = {0, 1}},
      {shape = {20000}, axes = {}}, {shape = {5, 40, 100}, axes = {0, 2}},
    } do
      local x, other = both(case.shape, "f64", 9)
      for _, name in ipairs {"sum", "mean", "max"} do
        numbers.assert_close(numbers.flat(ops[name](x, {axes = case.axes})), ops[name](other, {axes = case.axes}),
          name == "max" and 0 or 1e-13)
      end
    end
  end)

  it("sum f32 with one rounding at the end", function()
    local values = {}
    for i = 1, 3000 do values[i] = i % 2 == 0 and 2 ^ -24 or 1 end
    numbers.assert_same({numbers.f32(1500 + 1500 * 2 ^ -24)}, ops.sum(place(emu, {3000}, "f32", values)))
    values[1] = 2 ^ 30
    numbers.assert_same({2 ^ 30 + 1536}, ops.sum(place(emu, {3000}, "f32", values)))
  end)

  it("have a NaN as the largest value where there is one", function()
    for _, dtype in ipairs {"f32", "f64"} do
      local values = numbers.list(3 * 1500, 3)
      values[1500 + 777] = nan
      local largest = {-1, nan, -1}
      for i = 1, 1500 do
        largest[1] = math.max(largest[1], numbers.round(dtype, values[i]))
        largest[3] = math.max(largest[3], numbers.round(dtype, values[3000 + i]))
      end
      numbers.assert_same(largest, ops.max(place(emu, {3, 1500}, dtype, values), {axes = {1}}))
      local turned = ops.transpose(place(emu, {3, 1500}, dtype, values), {permutation = {1, 0}})
      numbers.assert_same(largest, ops.max(turned, {axes = {0}}))
    end
  end)

  it("sum nothing to 0, and its mean is NaN", function()
    local x = tensor.zeros({2, 0, 3}, "f32", {context = emu})
    numbers.assert_same({0, 0, 0, 0, 0, 0}, ops.sum(x, {axes = {1}}))
    numbers.assert_same({nan, nan, nan, nan, nan, nan}, ops.mean(x, {axes = {1}}))
  end)
end)

describe("RMSNorm on the CUDA device", function()
  helper.watch()

  -- Widths where rows are in registers, where they no longer are, and where a block's threads have several packs.
  for _, width in ipairs {1280, 1284, 2048, 2052, 2100} do
    it(("is the CPU's at width %d, with the same bits wherever rows lie"):format(width), function()
      local x, other_x = both({2, 35, width}, "f32", 1)
      local g, other_g = both({2, 35, width}, "f32", 2)
      local w, other_w = both({2, width}, "f32", 3, 0.5, 1.5)
      local y, rstd = ops.rmsnorm(x, w, {eps = 1e-5})
      local x_grad, weight_grad = ops.rmsnorm_grad(g, x, w, rstd)
      local function on_device(chosen_x, chosen_g)
        local results = {ops.rmsnorm(chosen_x, other_w, {eps = 1e-5})}
        results[3], results[4] = ops.rmsnorm_grad(chosen_g, chosen_x, other_w, results[2])
        return results
      end
      local got, moved = on_device(other_x, other_g), on_device(apart(other_x), apart(other_g))
      for i, expected in ipairs {y, rstd, x_grad, weight_grad} do
        numbers.assert_close(numbers.flat(expected), got[i], 4e-6)
        assert.equal(numbers.bytes(got[i]), numbers.bytes(moved[i]))
      end
    end)
  end

  it("of a sum has the bits of the two operations", function()
    for _, width in ipairs {64, 90, 1300} do
      local _, a = both({2, 9, width}, "f32", 1)
      local _, b = both({2, 9, width}, "f32", 2)
      local _, w = both({2, width}, "f32", 3, 0.5, 1.5)
      for _, bf16 in ipairs {false, true} do
        local sum, y, rstd = ops.add_rmsnorm(a, b, w, {eps = 1e-5, bf16 = bf16})
        local plain_sum = ops.add(a, b)
        local plain_y, plain_rstd = ops.rmsnorm(plain_sum, w, {eps = 1e-5})
        if bf16 then plain_y = plain_y:to("bf16") end
        assert.equal(numbers.bytes(plain_sum), numbers.bytes(sum))
        assert.equal(numbers.bytes(plain_y), numbers.bytes(y))
        assert.equal(numbers.bytes(plain_rstd), numbers.bytes(rstd))
      end
    end
  end)
end)

describe("cross-entropy on the CUDA device", function()
  helper.watch()

  it("is exact where logits are far apart, and infinite ones are not a number", function()
    local logits = place(emu, {1, 5, 3}, "f64", {1000, -1000, 0, -1000, -1001, -1002, math.huge, 0, 0,
      -math.huge, -math.huge, 2, -math.huge, -math.huge, -math.huge})
    local _, _, lse = ops.cross_entropy(logits, place(emu, {1, 5}, "i32", {0, 1, 2, 2, 0}))
    local got = numbers.flat(lse)
    assert.equal(1000, got[1])
    assert.is_true(math.abs(got[2] - (-1000 + math.log(1 + math.exp(-1) + math.exp(-2)))) < 1e-12)
    assert.is_true(got[3] ~= got[3])
    assert.equal(2, got[4])
    assert.is_true(got[5] ~= got[5])
  end)

  it("is the CPU's over more columns than a block has threads", function()
    for _, dtype in ipairs {"f32", "f64"} do
      local logits, other = both({2, 3, 1031}, dtype, 4, -20, 20)
      local targets = {5, 1030, -100, 0, 700, 2}
      local loss, _, lse = ops.cross_entropy(logits, place(cpu, {2, 3}, "i32", targets))
      local other_targets = place(emu, {2, 3}, "i32", targets)
      local other_loss, _, other_lse = ops.cross_entropy(other, other_targets)
      local tolerance = dtype == "f64" and 1e-14 or 1e-6
      numbers.assert_close(numbers.flat(loss), other_loss, tolerance)
      numbers.assert_close(numbers.flat(lse), other_lse, tolerance)
      local g, other_g = both({2}, dtype, 5)
      numbers.assert_close(numbers.flat(ops.cross_entropy_grad(g, logits, place(cpu, {2, 3}, "i32", targets), lse)),
        ops.cross_entropy_grad(other_g, other, other_targets, other_lse), tolerance)
    end
  end)
end)
