-- blend, by which algorithms change what they keep: sums, copies and means in place, under the guard.
local context = require "pack.core.context"
local emu = require "spec.support.emu"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local program = require "pack.core.program"
local tensor = require "pack.core.tensor"

local inf, nan = math.huge, 0 / 0

local rows, columns = 3, 130

local function guard_of(stopped, options)
  return tensor.from({stopped and 1 or 0, 0, 0, 0, 0, 0, 0, 0}, "i32", options)
end

-- y [3, 130], which has a stride of its own, and x [1 or 3, 130].
local function arenas(dtype, x_rows, options)
  return numbers.strided({rows, columns}, dtype, numbers.list(rows * columns, 1), options),
    numbers.tensor({x_rows, columns}, dtype, numbers.list(x_rows * columns, 2), options)
end

-- What is expected of y, where own and c are each row's.
local function expected_of(dtype, y, x, own, c)
  local a, b, list = numbers.flat(y), numbers.flat(x), {}
  local function round(value) return numbers.round(dtype, value) end
  for r = 1, rows do
    for k = 1, columns do
      local i, j = (r - 1) * columns + k, #b == columns and k or (r - 1) * columns + k
      list[i] = round(round(round(own[r]) * a[i]) + round(round(c[r]) * b[j]))
    end
  end
  return list
end

local function same(value) return {value, value, value} end

-- Factors, and what they are for each row.
local factors = {
  {"no factor", nil, same(1)},
  {"one for all", function(options) return tensor.from({0.3}, "f64", options) end, same(0.3)},
  {"one without dimensions", function(options) return tensor.full({}, 0.3, "f64", options) end, same(0.3)},
  {"one for each row", function(options) return tensor.from({0.3, -2, 0}, "f64", options) end, {0.3, -2, 0}},
  {"a column", function(options) return tensor.from({{0.3}, {-2}, {0}}, "f64", options) end, {0.3, -2, 0}},
}

describe("blend", function()
  for _, factor in ipairs(factors) do
    local name, make, values = unpack(factor)
    it("is own y + scale factor x, or the mean with these weights, with " .. name, function()
      for _, dtype in ipairs {"f32", "f64"} do
        for _, x_rows in ipairs {1, rows} do
          local y, x = arenas(dtype, x_rows)
          local c, rest = {}, {}
          for r = 1, rows do c[r], rest[r] = -1.1 * values[r], 1 - -1.1 * values[r] end
          local expected = expected_of(dtype, y, x, same(0.7), c)
          ops.blend(y, x, guard_of(), make and make(), {own = 0.7, scale = -1.1})
          numbers.assert_same(expected, y)
          expected = expected_of(dtype, y, x, rest, c)
          ops.blend(y, x, guard_of(), make and make(), {scale = -1.1, lerp = true})
          numbers.assert_same(expected, y)
        end
      end
    end)
  end

  it("copies without a look at what was there", function()
    local y, x = tensor.from({{nan, inf}, {1, 2}}), tensor.from({{3, 4}, {-5, nan}})
    ops.blend(y, x, guard_of())
    numbers.assert_same({3, 4, -5, nan}, y)
    y = tensor.from({{nan, inf}, {1, 2}})
    ops.blend(y, x, guard_of(), tensor.from({1}, "f64"), {lerp = true})
    numbers.assert_same({3, 4, -5, nan}, y)
  end)

  it("changes nothing in a step that was stopped", function()
    for _, attributes in ipairs {{}, {own = 1}, {lerp = true, scale = 0.5}} do
      local y, x = arenas("f32", rows)
      local before = numbers.bytes(y)
      ops.blend(y, x, guard_of(true), nil, attributes)
      assert.equal(before, numbers.bytes(y))
    end
  end)

  it("takes another factor in every run of a program, and the guard as it is then", function()
    for _, device in ipairs {context {device = "cpu"}, emu.open()} do
      local options = {context = device}
      local y, x = arenas("f32", 1, options)
      local copy = ops.copy(y)
      local rate, guard = tensor.from({0}, "f64", options), guard_of(false, options)
      local recorded = program.record(function()
        ops.blend(y, x, guard, rate, {own = 1})
        ops.blend(y, x, guard, rate, {lerp = true})
      end, {}, options.context)
      for _, value in ipairs {0.25, -1, 3} do
        rate:write_numbers(require("ffi").new("double[1]", value), 1)
        recorded:run()
        ops.blend(copy, x, guard, nil, {own = 1, scale = value})
        ops.blend(copy, x, guard, nil, {own = 1 - value, scale = value})
        assert.equal(numbers.bytes(copy), numbers.bytes(y))
      end
      numbers.put(guard, 1, 1)
      recorded:run()
      assert.equal(numbers.bytes(copy), numbers.bytes(y))
      recorded:free()
    end
  end)

  it("refuses factors and tensors that do not fit", function()
    local y, x = arenas("f32", rows)
    local function refused(text, ...)
      numbers.assert_refused(text, ops.blend, ...)
    end
    refused("blend: factor [2] must be [3], as y says", y, x, guard_of(), tensor.zeros({2}, "f64"))
    refused("blend: factor is f32, but f64 is wanted", y, x, guard_of(), tensor.zeros({3}))
    refused("blend: x [2, 130] must be [3, 130], as y says", y, tensor.zeros {2, columns}, guard_of())
    refused("blend: input 1 is written to and shares memory with input 2", y, y, guard_of())
    refused("blend: y is f32, but x is f64", y, tensor.zeros({rows, columns}, "f64"), guard_of())
  end)

  it("does nothing to no columns and no rows", function()
    for _, shape in ipairs {{2, 0}, {0, 5}} do
      local y = tensor.zeros(shape)
      ops.blend(y, tensor.zeros(shape), guard_of(), tensor.full({}, 2, "f64"), {own = 1})
      assert.same(shape, y:sizes())
    end
  end)

  it("gives the same bits on any number of threads #threads", function()
    numbers.assert_same_at_threads(function(options)
      local y = numbers.tensor({3, 70000}, "f32", numbers.list(210000, 1), options)
      local x = numbers.tensor({1, 70000}, "f32", numbers.list(70000, 2), options)
      ops.blend(y, x, guard_of(false, options), tensor.from({0.1, 0.2, 0.3}, "f64", options), {lerp = true})
      return y
    end)
  end)
end)
