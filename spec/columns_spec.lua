-- Columns of arenas: the largest of each row, some of them taken and put back, and random numbers for them.
local bit = require "bit"
local context = require "pack.core.context"
local emu = require "spec.support.emu"
local ffi = require "ffi"
local grad = require "pack.grad"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local program = require "pack.core.program"
local tensor = require "pack.core.tensor"
local C = require("pack.native").C

local inf, nan = math.huge, 0 / 0

-- The devices that there are, opened.
local function devices()
  return {context {device = "cpu"}, emu.open()}
end

local function guard_of(stopped, options)
  return tensor.from({stopped and 1 or 0, 0, 0, 0, 0, 0, 0, 0}, "i32", options)
end

-- 1 at the count largest magnitudes of a row, by sorting.
local function mask_of(row, count)
  local order, mask = {}, {}
  for c = 1, #row do order[c], mask[c] = c, 0 end
  local function key(c) return row[c] ~= row[c] and inf or math.abs(row[c]) end
  table.sort(order, function(a, b)
    local nan_a, nan_b = row[a] ~= row[a], row[b] ~= row[b]
    if nan_a ~= nan_b then return nan_a end
    if key(a) ~= key(b) then return key(a) > key(b) end
    return a < b
  end)
  for i = 1, count do mask[order[i]] = 1 end
  return mask
end

local function masks_of(list, columns, count)
  local masks = {}
  for first = 1, #list, columns do
    for _, one in ipairs(mask_of({unpack(list, first, first + columns - 1)}, count)) do masks[#masks + 1] = one end
  end
  return masks
end

describe("topk_mask", function()
  -- Three rows of 70 with equal magnitudes, both zeros, infinities and NaN.
  local function odd_values()
    local list = numbers.list(210, 1)
    for i = 1, 210, 3 do list[i] = math.floor(list[i] * 3) end
    for i, value in ipairs {nan, -inf, inf, -0.0, 0, nan, 2 ^ -140, -2 ^ -149} do list[7 * i] = value end
    list[100], list[130] = nan, -nan
    return list
  end

  it("marks what sorting finds, of equal ones the first, and NaN before all", function()
    for _, device in ipairs(devices()) do
      for _, dtype in ipairs {"f32", "f64"} do
        local x = numbers.strided({3, 70}, dtype, odd_values(), {context = device})
        local list = numbers.flat(x)
        for _, count in ipairs {0, 1, 2, 3, 10, 35, 69, 70} do
          local mask = ops.topk_mask(x, {count = count})
          assert.equal(dtype, mask.dtype)
          numbers.assert_same(masks_of(list, 70, count), mask)
        end
      end
    end
  end)

  it("takes every NaN for the same magnitude", function()
    local words = ffi.new("uint32_t[4]", {0x7fc00000, 0x3f800000, 0xffffffff, 0x7f800001})
    local x = tensor.zeros({1, 4})
    x:write(ffi.cast("float *", words), 16)
    numbers.assert_same({1, 0, 1, 0}, ops.topk_mask(x, {count = 2}))
  end)

  it("counts the equal ones of long rows over all their pieces", function()
    local columns = 70001
    for _, dtype in ipairs {"f32", "f64"} do
      local list = {}
      for i = 1, 2 * columns do list[i] = i * 7919 % 5 - 2 end
      local x = numbers.tensor({2, columns}, dtype, list)
      for _, count in ipairs {1, 20000, 50000, columns - 1} do
        local got, left, before = numbers.flat(ops.topk_mask(x, {count = count})), {}, true
        for row = 0, 1 do
          local of = {[0] = 0, 0, 0}
          for c = 1, columns do
            local magnitude = math.abs(list[row * columns + c])
            of[magnitude] = of[magnitude] + 1
          end
          left[2] = math.min(count, of[2])
          left[1] = math.min(count - left[2], of[1])
          left[0] = count - left[2] - left[1]
          for c = 1, columns do
            local magnitude = math.abs(list[row * columns + c])
            local expected = left[magnitude] > 0 and 1 or 0
            left[magnitude] = left[magnitude] - expected
            before = before and got[row * columns + c] == expected
          end
        end
        assert.is_true(before, ("%s, %d"):format(dtype, count))
      end
    end
  end)

  it("is the same on the emulated device, whose blocks share a row", function()
    local device = emu.open()
    if not device then return end
    local columns = 30011
    for _, dtype in ipairs {"f32", "f64"} do
      local list = numbers.list(2 * columns, 3)
      for i = 1, #list do list[i] = math.floor(list[i] * 20) end
      local x, there = numbers.tensor({2, columns}, dtype, list), numbers.tensor({2, columns}, dtype, list, {context = device})
      for _, count in ipairs {1, 3333, columns} do
        assert.equal(numbers.bytes(ops.topk_mask(x, {count = count})), numbers.bytes(ops.topk_mask(there, {count = count})))
      end
    end
  end)

  it("gives nothing for no rows or columns, and refuses more columns than there are", function()
    assert.same({2, 0}, ops.topk_mask(tensor.zeros {2, 0}, {count = 0}):sizes())
    assert.same({0, 3}, ops.topk_mask(tensor.zeros {0, 3}, {count = 2}):sizes())
    numbers.assert_refused("topk_mask: the 4 largest of 3 columns", ops.topk_mask, tensor.zeros {2, 3}, {count = 4})
    numbers.assert_refused("topk_mask: the -1 largest of 3 columns", ops.topk_mask, tensor.zeros {2, 3}, {count = -1})
    numbers.assert_refused("topk_mask: x [3] must be [N, D]", ops.topk_mask, tensor.zeros {3}, {count = 1})
  end)
end)

describe("sum_squares", function()
  it("is each row's, in f64", function()
    for _, device in ipairs(devices()) do
      for dtype, tolerance in pairs {f32 = 1e-13, f64 = 1e-14} do
        local width = 70001
        local x = numbers.strided({3, width}, dtype, numbers.list(3 * width, 1), {context = device})
        local list, expected = numbers.flat(x), {0, 0, 0}
        for i, value in ipairs(list) do
          local row = math.ceil(i / width)
          expected[row] = expected[row] + value ^ 2
        end
        local sums = ops.sum_squares(x)
        assert.equal("f64", sums.dtype)
        assert.same({3}, sums:sizes())
        numbers.assert_close(expected, sums, tolerance)
      end
    end
  end)

  it("goes over all of a row's dimensions, and over none", function()
    numbers.assert_same({30, 174}, ops.sum_squares(tensor.from {{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}}))
    numbers.assert_same({0, 0}, ops.sum_squares(tensor.zeros {2, 0}))
    assert.same({0}, ops.sum_squares(tensor.zeros {0, 3}):sizes())
    numbers.assert_refused("sum_squares: x [3] must be [N, D]", ops.sum_squares, tensor.zeros {3})
  end)

  it("does not overflow in f32, and is not finite where a row is not", function()
    local x = tensor.from({{1e30, 0}, {inf, 1}, {nan, 1}, {-inf, nan}})
    local large = numbers.f32(1e30)
    numbers.assert_same({large * large, inf, nan, nan}, ops.sum_squares(x))
  end)

  it("has a gradient that is that of the sum of products", function()
    local x = numbers.tensor({2, 3}, "f32", numbers.list(6, 5))
    local _, gradients = grad(function(a) return ops.sum_squares(a) end, {x})
    numbers.assert_same(numbers.flat(x * 2), gradients[1])
  end)
end)

describe("columns", function()
  local index = {3, 0, 3, 129, 64}

  it("are gathered from every row", function()
    for _, device in ipairs(devices()) do
      for _, dtype in ipairs {"f32", "f64"} do
        local x = numbers.strided({3, 130}, dtype, numbers.list(390, 1), {context = device})
        local list, expected = numbers.flat(x), {}
        for row = 0, 2 do
          for _, c in ipairs(index) do expected[#expected + 1] = list[row * 130 + c + 1] end
        end
        local y = ops.gather_columns(x, tensor.from(index, "i32", {context = device}))
        assert.same({3, 5}, y:sizes())
        numbers.assert_same(expected, y)
      end
    end
  end)

  it("are written to from values of each row, or from the same for all", function()
    local columns = {5, 0, 129}
    for _, device in ipairs(devices()) do
      local options = {context = device}
      for _, dtype in ipairs {"f32", "f64"} do
        for _, rows in ipairs {1, 3} do
          local x, base = numbers.strided({3, 130}, dtype, numbers.list(390, 1), options)
          local values = numbers.tensor({rows, 3}, dtype, numbers.list(3 * rows, 2), options)
          local expected, from = numbers.flat(x), numbers.flat(values)
          for row = 0, 2 do
            for k, c in ipairs(columns) do
              expected[row * 130 + c + 1] = from[(rows == 1 and 0 or row * 3) + k]
            end
          end
          ops.scatter_columns(x, tensor.from(columns, "i32", options), values)
          numbers.assert_same(expected, x)
          assert.equal(77, numbers.flat(base)[133])
        end
      end
    end
  end)

  it("are not written to in a step that was stopped", function()
    for _, device in ipairs(devices()) do
      local options = {context = device}
      local x = tensor.zeros({2, 5}, "f32", options)
      local values, where = tensor.ones({1, 2}, "f32", options), tensor.from({1, 4}, "i32", options)
      ops.scatter_columns(x, where, values, guard_of(true, options))
      numbers.assert_same({0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, x)
      ops.scatter_columns(x, where, values, guard_of(false, options))
      numbers.assert_same({0, 1, 0, 0, 1, 0, 1, 0, 0, 1}, x)
    end
  end)

  it("are others in each run of a program", function()
    for _, device in ipairs(devices()) do
      local options = {context = device}
      local x, y = tensor.from({{1, 2, 3}, {4, 5, 6}}, "f32", options), tensor.zeros({2, 3}, "f32", options)
      local chosen = tensor.from({0}, "i32", options)
      local recorded = program.record(function()
        ops.scatter_columns(y, chosen, ops.gather_columns(x, chosen))
      end, {}, device)
      for _, c in ipairs {2, 0} do
        chosen:write(ffi.new("int32_t[1]", c))
        recorded:run()
      end
      numbers.assert_same({1, 0, 3, 4, 0, 6}, y)
      recorded:free()
    end
  end)

  it("may be none", function()
    local x, none = tensor.ones {2, 3}, tensor.zeros({0}, "i32")
    assert.same({2, 0}, ops.gather_columns(x, none):sizes())
    ops.scatter_columns(x, none, tensor.zeros {2, 0})
    numbers.assert_same({1, 1, 1, 1, 1, 1}, x)
    assert.same({0, 1}, ops.gather_columns(tensor.zeros {0, 3}, tensor.from({1}, "i32")):sizes())
  end)

  it("are refused where x has none of that index", function()
    local x, wrong = tensor.ones {2, 3}, tensor.from({1, 3}, "i32")
    numbers.assert_refused("gather_columns: index 1 is 3, not in 0 .. 2", ops.gather_columns, x, wrong)
    numbers.assert_refused("scatter_columns: index 1 is 3, not in 0 .. 2", ops.scatter_columns, x, wrong, tensor.zeros {2, 2})
    numbers.assert_same({1, 1, 1, 1, 1, 1}, x)
    numbers.assert_refused("values [2, 3] must be [2, 2], as x and index says", ops.scatter_columns, x,
      tensor.from({1, 2}, "i32"), tensor.zeros {2, 3})
    numbers.assert_refused("index is f32, but i32 is wanted", ops.gather_columns, x, tensor.zeros {2})
    local device = emu.open()
    if not device then return end
    local there = ops.gather_columns(tensor.ones({2, 3}, "f32", {context = device}),
      tensor.from({1, 3}, "i32", {context = device}))
    numbers.assert_same({1, nan, 1, nan}, there)
  end)
end)

describe("random_columns", function()
  -- The key of a stream without a name: a step of SplitMix64 and FNV-1a's offset.
  local function key_of(seed)
    local z = ffi.cast("uint64_t", seed) + 0x9E3779B97F4A7C15ULL
    z = bit.bxor(z, bit.rshift(z, 30)) * 0xBF58476D1CE4E5B9ULL
    z = bit.bxor(z, bit.rshift(z, 27)) * 0x94D049BB133111EBULL
    z = bit.bxor(bit.bxor(z, bit.rshift(z, 31)), 0xCBF29CE484222325ULL)
    return ffi.new("uint32_t[2]", {tonumber(z % 4294967296ULL), tonumber(z / 4294967296ULL)})
  end

  local function expected_of(seed, counter, columns)
    local key, words, list = key_of(seed), ffi.new("uint32_t[4]"), {}
    for c = 0, columns - 1 do
      if c % 4 == 0 then C.pk_philox(ffi.new("uint32_t[4]", {c / 4, 0, counter, 1}), key, words) end
      list[c + 1] = math.floor(words[c % 4] / 256) / 2 ^ 24
    end
    return list
  end

  it("are words of Philox, by seed and counter", function()
    for _, device in ipairs(devices()) do
      for _, counter in ipairs {0, 1, 77, 2 ^ 32 - 1} do
        for _, dtype in ipairs {"f32", "f64"} do
          local y = ops.random_columns(tensor.from({counter}, "f64", {context = device}),
            {seed = 42, columns = 67, dtype = dtype})
          assert.same({1, 67}, y:sizes())
          numbers.assert_same(expected_of(42, counter, 67), y)
        end
      end
    end
  end)

  it("are another mask in each run of a program", function()
    for _, device in ipairs(devices()) do
      local counter = tensor.from({0}, "f64", {context = device})
      local recorded = program.record(function()
        return ops.random_columns(counter, {seed = 5, columns = 400}):less(0.25)
      end, {}, device)
      for _, step in ipairs {0, 1, 9} do
        counter:write_numbers(ffi.new("double[1]", step), 1)
        recorded:run()
        local mask, chosen = numbers.flat(recorded.results[1]), 0
        for c, value in ipairs(expected_of(5, step, 400)) do
          assert.equal(value < 0.25 and 1 or 0, mask[c])
          chosen = chosen + mask[c]
        end
        assert.is_true(math.abs(chosen - 100) < 40)
      end
      recorded:free()
    end
  end)

  it("want one counter, and may be none", function()
    numbers.assert_refused("random_columns: counter [2] is not one number", ops.random_columns, tensor.zeros({2}, "f64"),
      {columns = 3})
    numbers.assert_refused("random_columns: counter is f32, but f64 is wanted", ops.random_columns, tensor.zeros {1},
      {columns = 3})
    assert.same({1, 0}, ops.random_columns(tensor.zeros({}, "f64"), {columns = 0}):sizes())
  end)
end)

describe("operations on columns at any number of threads #threads", function()
  it("give the same bits", function()
    numbers.assert_same_at_threads(function(options)
      local list = numbers.list(3 * 140000, 4)
      for i = 1, #list, 2 do list[i] = math.floor(list[i] * 4) end
      local x = numbers.tensor({3, 140000}, "f32", list, options)
      local chosen = {}
      for k = 1, 40000 do chosen[k] = k * 3 end
      local index = tensor.from(chosen, "i32", options)
      local some = ops.gather_columns(x, index)
      local y = ops.copy(x)
      ops.scatter_columns(y, index, some * 2)
      return ops.topk_mask(x, {count = 50001}), some, y, ops.sum_squares(x),
        ops.random_columns(tensor.zeros({1}, "f64", options), {columns = 140001})
    end)
  end)
end)
