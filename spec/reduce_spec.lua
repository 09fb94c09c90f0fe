-- Reductions against sums in f64: which axes, which order, accumulation, NaN, and threads.
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local inf, nan = math.huge, 0 / 0

local function product(shape)
  local count = 1
  for _, extent in ipairs(shape) do count = count * extent end
  return count
end

-- Groups of values by result: the values of a flat list of shape that land on each element when axes
-- (a set of numbers from 0) are reduced, in order.
local function groups_of(list, shape, axes)
  local groups, results = {}, 0
  for index = 0, #list - 1 do
    local rest, place, stride = index, 0, 1
    for d = #shape, 1, -1 do
      local at = rest % shape[d]
      rest = (rest - at) / shape[d]
      if not axes[d - 1] then
        place = place + at * stride
        stride = stride * shape[d]
      end
    end
    groups[place + 1] = groups[place + 1] or {}
    table.insert(groups[place + 1], list[index + 1])
    results = math.max(results, place + 1)
  end
  return groups
end

local function sum_of(group)
  local total = 0
  for _, value in ipairs(group) do total = total + value end
  return total
end

local reductions = {
  sum = sum_of,
  mean = function(group) return sum_of(group) / #group end,
  max = function(group)
    local largest = -inf
    for _, value in ipairs(group) do largest = math.max(largest, value) end
    return largest
  end,
}

local cases = {
  {{7}, {0}}, {{3, 5}, {0}}, {{3, 5}, {1}}, {{3, 5}, {0, 1}}, {{3, 5}, {}},
  {{2, 3, 4}, {0}}, {{2, 3, 4}, {1}}, {{2, 3, 4}, {2}}, {{2, 3, 4}, {0, 2}}, {{2, 3, 4}, {1, 2}},
  {{2, 3, 4}, {2, 0}}, {{2, 1, 3, 1, 5}, {1, 2}}, {{2, 3, 2, 3, 2, 3}, {0, 2, 4}},
  {{2, 3, 2, 3, 2, 3}, {1, 3, 5}}, {{4, 300}, {0}}, {{300, 4}, {0}}, {{4, 300}, {1}}, {{1, 1}, {0}},
}

-- The axes as a set, the shapes of the result without and with extents of 1.
local function describe_axes(shape, axes)
  local set, dropped, kept = {}, {}, {}
  for _, axis in ipairs(axes) do set[axis] = true end
  if #axes == 0 then
    for d = 0, #shape - 1 do set[d] = true end
  end
  for d, extent in ipairs(shape) do
    kept[d] = set[d - 1] and 1 or extent
    if not set[d - 1] then dropped[#dropped + 1] = extent end
  end
  return set, dropped, kept
end

for name, reduce in pairs(reductions) do
  describe(name, function()
    for _, case in ipairs(cases) do
      local shape, axes = case[1], case[2]
      local title = ("of [%s] over {%s}"):format(table.concat(shape, ", "), table.concat(axes, ", "))
      it(title, function()
        local set, dropped, kept = describe_axes(shape, axes)
        for dtype, tolerance in pairs {f32 = 1e-7, f64 = 1e-14} do
          local list = numbers.list(product(shape), 11)
          for _, make in ipairs {numbers.tensor, numbers.strided} do
            local x = make(shape, dtype, list)
            local expected = {}
            for i, group in ipairs(groups_of(numbers.flat(x), shape, set)) do
              expected[i] = reduce(group)
            end
            local result = ops[name](x, {axes = axes})
            assert.same(dropped, result:sizes())
            numbers.assert_close(expected, result, tolerance)
            local wide = ops[name](x, {axes = axes, keep = true})
            assert.same(kept, wide:sizes())
            assert.equal(numbers.bytes(result), numbers.bytes(wide))
          end
        end
      end)
    end
  end)
end

describe("reductions", function()
  it("add a million f32 numbers as exactly as f64 does", function()
    local count = 1000003
    local x = tensor.full({count}, 0.1, "f32")
    local tenth = numbers.f32(0.1)
    assert.equal(numbers.f32(tenth * count), ops.sum(x):item())
    assert.equal(tenth, ops.mean(x):item())
    local columns = ops.reshape(ops.slice(x, {axis = 0, start = 0, count = 1000000}), {100000, 10})
    for _, value in ipairs(numbers.flat(ops.sum(columns, {axes = {0}}))) do
      assert.equal(numbers.f32(tenth * 100000), value)
    end
  end)

  it("let NaN and infinity through", function()
    local x = tensor.from({{1, nan, 3}, {inf, 2, -1}, {inf, -inf, 0}}, "f32")
    numbers.assert_same({nan, inf, nan}, ops.sum(x, {axes = {1}}))
    numbers.assert_same({nan, inf, inf}, ops.max(x, {axes = {1}}))
    numbers.assert_same({inf, nan, 3}, ops.max(x, {axes = {0}}))
    local long = tensor.zeros({100000}, "f32")
    numbers.put(long, nan, 70001)
    numbers.assert_same({nan}, ops.max(long))
  end)

  it("find the largest of negative numbers", function()
    numbers.assert_same({-2, -inf}, ops.max(tensor.from({{-3, -2}, {-inf, -inf}}, "f64"), {axes = {1}}))
  end)

  it("give 0 and NaN for sums and means of nothing", function()
    numbers.assert_same({0, 0}, ops.sum(tensor.zeros({2, 0}), {axes = {1}}))
    numbers.assert_same({nan, nan}, ops.mean(tensor.zeros({2, 0}), {axes = {1}}))
    numbers.assert_refused("no largest value", ops.max, tensor.zeros({2, 0}), {axes = {1}})
  end)

  it("write to an output with a worker stride", function()
    local x = tensor.from({{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}}, "f32")
    local out, base = numbers.strided({2, 2}, "f32", {0, 0, 0, 0})
    ops.sum(x, {axes = {1}, out = out})
    numbers.assert_same({4, 6, 12, 14}, out)
    assert.equal(77, numbers.flat(base)[2])
  end)
end)

describe("sum_to", function()
  local x_shape = {2, 3, 4}

  for _, case in ipairs {
    {{2, 3, 4}, {}}, {{1, 3, 4}, {0}}, {{2, 1, 4}, {1}}, {{2, 3, 1}, {2}}, {{3, 4}, {0}}, {{4}, {0, 1}},
    {{1}, {0, 1, 2}}, {{}, {0, 1, 2}}, {{3, 1}, {0, 2}}, {{2, 1, 1}, {1, 2}},
  } do
    local shape, axes = case[1], case[2]
    it(("undoes broadcasting of [%s]"):format(table.concat(shape, ", ")), function()
      local set = {}
      for _, axis in ipairs(axes) do set[axis] = true end
      for dtype, tolerance in pairs {f32 = 1e-7, f64 = 1e-15} do
        local x = numbers.tensor(x_shape, dtype, numbers.list(24, 12))
        local expected = {}
        for i, group in ipairs(groups_of(numbers.flat(x), x_shape, set)) do
          expected[i] = sum_of(group)
        end
        local result = ops.sum_to(x, {shape = shape})
        assert.same(shape, result:sizes())
        numbers.assert_close(expected, result, tolerance)
        -- Added to an output: the rounded sum, then one addition.
        local out = tensor.full(shape, 10, dtype)
        ops.sum_to(x, {shape = shape, out = out, accumulate = true})
        local sums = numbers.flat(result)
        for i, value in ipairs(sums) do sums[i] = numbers.round(dtype, 10 + value) end
        numbers.assert_same(sums, out)
      end
    end)
  end
end)

describe("reductions at any number of threads #threads", function()
  it("give the same bits", function()
    numbers.assert_same_at_threads(function(options)
      local x = numbers.tensor({4, 300, 331}, "f32", numbers.list(397200, 13), options)
      local long = ops.reshape(x, {397200})
      return ops.sum(x), ops.sum(x, {axes = {0}}), ops.sum(x, {axes = {1}}), ops.sum(x, {axes = {2}}),
        ops.mean(x, {axes = {0, 2}}), ops.max(long), ops.sum_to(x, {shape = {331}})
    end)
  end)
end)
