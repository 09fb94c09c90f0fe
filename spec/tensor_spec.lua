-- Tensors as Lua objects: making, reading, indexing, views, operators, printing and freeing.
local ffi = require "ffi"
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local refused = numbers.assert_refused

describe("a tensor", function()
  helper.watch()

  it("is made from nested tables and gives them back", function()
    local values = {{1, 2, 3}, {-4, 5.5, 6}}
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      local t = tensor.from(values, dtype)
      assert.same(values, t:totable())
      assert.equal(dtype, t:dtype_name())
    end
    assert.same({{7, -8}}, tensor.from({{7, -8}}, "i32"):totable())
    assert.equal(2.5, tensor.from(2.5):totable())
  end)

  it("rounds to bf16 to nearest, ties to even, and keeps what is not finite", function()
    local ulp = 2 ^ -7
    local t = tensor.from({1 + ulp / 2, 1 + 1.5 * ulp, 1 + 0.51 * ulp, -1 / 0, 0 / 0}, "bf16")
    local got = t:totable()
    assert.same({1, 1 + 2 * ulp, 1 + ulp, -1 / 0}, {got[1], got[2], got[3], got[4]})
    assert.is_true(got[5] ~= got[5])
  end)

  it("says its shape, rank and extents", function()
    local t = tensor.zeros({2, 3, 4})
    assert.equal(3, t.rank)
    assert.equal(24, tonumber(t.numel))
    assert.equal(3, tonumber(t.shape[1]))
    assert.equal(4, t:size(2))
    assert.same({2, 3, 4}, t:sizes())
    assert.equal(2, #t)
    refused("dimension 3 of a tensor of rank 3", t.size, t, 3)
  end)

  it("is filled by full, ones and arange", function()
    assert.same({{7, 7}}, tensor.full({1, 2}, 7, "f64"):totable())
    assert.same({1, 1}, tensor.ones({2}):totable())
    assert.same({3, 5, 7}, tensor.arange(3, 3, 2, "i32"):totable())
    assert.same({0, 0}, tensor.empty({2}, "bf16"):totable())
  end)

  it("takes and gives C arrays", function()
    local t = tensor.zeros({2, 2}, "f64")
    t:write(ffi.new("double[4]", 1, 2, 3, 4))
    local array = t:read()
    assert.equal(3, array[2])
    t:write_numbers(ffi.new("double[4]", 5, 6, 7, 8), 4)
    assert.same({{5, 6}, {7, 8}}, t:totable())
    refused("writing 8 bytes", t.write, t, ffi.new("double[1]"), 8)
    refused("writing 3 values to a tensor of 4", t.write_numbers, t, ffi.new("double[3]"), 3)
  end)

  it("gives its only element as a number", function()
    assert.equal(9, tensor.from({{9}}):item())
    refused("has 2 elements", function() return tensor.from({1, 2}):item() end)
  end)

  it("has entries along dimension 0, counted from 1, that share its memory", function()
    local t = tensor.from({{1, 2}, {3, 4}}, "f64")
    assert.same({3, 4}, t[2]:totable())
    assert.equal(4, t[2][2]:item())
    t[1]:write(ffi.new("double[2]", 8, 9))
    assert.same({{8, 9}, {3, 4}}, t:totable())
    refused("index 3 of a tensor with 2 entries", function() return t[3] end)
    refused("index 0", function() return t[0] end)
    refused("index 1.5", function() return t[1.5] end)
    refused("index 1 of a tensor with 0 entries", function() return tensor.from(1)[1] end)
  end)

  it("has views with a stride, through which it is edited", function()
    local t = tensor.zeros({2, 5}, "f64")
    local v = t:view {shape = {2, 2}, stride = 5, offset = 1}
    v:write(ffi.new("double[4]", 1, 2, 3, 4))
    assert.same({{0, 1, 2, 0, 0}, {0, 3, 4, 0, 0}}, t:totable())
    assert.same({{1, 2}, {3, 4}}, v:totable())
    assert.same({3, 4}, v[2]:totable())
    refused("does not fit", t.view, t, {shape = {3, 5}})
    refused("does not fit", t.view, t, {shape = {2}, offset = -1})
  end)

  it("keeps a view's memory alive after it is freed itself", function()
    local t = tensor.from({{1, 2}, {3, 4}})
    local row = t[2]
    t:free()
    assert.same({3, 4}, row:totable())
  end)

  it("computes with + - * / and unary -, with tensors and numbers on either side", function()
    local a, b = tensor.from({1, 2, 3}, "f64"), tensor.from({4, 8, 16}, "f64")
    assert.same({5, 10, 19}, (a + b):totable())
    assert.same({-3, -6, -13}, (a - b):totable())
    assert.same({4, 16, 48}, (a * b):totable())
    assert.same({4, 4, 16 / 3}, (b / a):totable())
    assert.same({-1, -2, -3}, (-a):totable())
    assert.same({3, 4, 5}, (a + 2):totable())
    assert.same({3, 4, 5}, (2 + a):totable())
    assert.same({-1, 0, 1}, (a - 2):totable())
    assert.same({1, 0, -1}, (2 - a):totable())
    assert.same({3, 6, 9}, (a * 3):totable())
    assert.same({3, 6, 9}, (3 * a):totable())
    assert.same({1 / 3, 2 / 3, 1}, (a / 3):totable())
    assert.same({3, 1.5, 1}, (3 / a):totable())
    refused("arithmetic of a tensor and a string", function() return a + "x" end)
    refused("arithmetic of a tensor and a nil", function() return nil * a end)
  end)

  it("has every operation as a method", function()
    local t = tensor.from({{1, 2}, {3, 4}}, "f64")
    assert.same({4, 6}, t:sum({0}):totable())
    assert.same({{1, 2, 3, 4}}, t:reshape({1, -1}):totable())
    assert.same({{1, 3}, {2, 4}}, t:transpose({1, 0}):totable())
    assert.equal("f32", t:to("f32"):dtype_name())
  end)

  it("is equal to itself only", function()
    local a, b = tensor.from(1), tensor.from(1)
    assert.is_true(a == a)
    assert.is_false(a == b)
    assert.is_false(a == nil)
  end)

  it("prints dtype, shape, device and a corner of its values", function()
    assert.equal("f64 [2, 2] on cpu\n{{1, 2},\n {3, 4.5}}",
      tostring(tensor.from({{1, 2}, {3, 4.5}}, "f64")))
    assert.equal("f32 [10] on cpu\n{0, 1, 2, 3, 4, 5, ...}", tostring(tensor.arange(10)))
    assert.equal("f32 [] on cpu\n3", tostring(tensor.from(3)))
  end)

  it("tells what its values are like, without those that are not finite", function()
    local t = tensor.from({{1, 2, 6}, {1 / 0, 0 / 0, -1}}, "f64")
    assert.same({count = 6, finite = 4, minimum = -1, maximum = 6, mean = 2, deviation = math.sqrt(26 / 4)},
      t:statistics())
    assert.same({count = 1, finite = 0}, tensor.from({0 / 0}):statistics())
    assert.same({count = 0, finite = 0}, tensor.zeros({3, 0}):statistics())
    assert.same({count = 1, finite = 1, minimum = 7, maximum = 7, mean = 7, deviation = 0},
      tensor.from(7, "i32"):statistics())
  end)

  it("tells them of views and of many elements, whose mean is far from zero", function()
    -- 200,000 values 1e8 - 1 and 1e8 + 1 in turn, in columns of a wider tensor that holds other values.
    local base = tensor.full({2, 100010}, 5e8, "f64")
    local view = base:view {shape = {2, 100000}, stride = 100010, offset = 10}
    local values = ffi.new("double[?]", 200000)
    for i = 0, 199999 do values[i] = 1e8 + (i % 2 == 0 and -1 or 1) end
    view:write_numbers(values)
    local found = view:statistics()
    assert.same({200000, 200000, 1e8 - 1, 1e8 + 1}, {found.count, found.finite, found.minimum, found.maximum})
    assert.is_true(math.abs(found.mean - 1e8) < 1e-6)
    assert.is_true(math.abs(found.deviation - 1) < 1e-9)
  end)

  it("shows few entries of the dimensions before the last two", function()
    local _, lines = tostring(tensor.zeros {5, 5, 3, 3}):gsub("\n", "")
    assert.equal(15, lines) -- 2 x 2 matrices of 3 rows, and where more would be
    assert.is_truthy(tostring(tensor.zeros {3, 1, 1}):find("{{{0}},\n {{0}},\n ...}", 1, true))
  end)

  it("can be freed twice, and says so when it is used afterwards", function()
    local t = tensor.from({1, 2})
    t:free()
    t:free()
    assert.equal("f32 [2] (freed)", tostring(t))
    refused("was freed", t.totable, t)
    refused("was freed", t.write, t, ffi.new("float[2]"))
    refused("was freed", function() return t[1] end)
    refused("add: input 2 (b) was freed", ops.add, tensor.from({1, 2}), t)
    refused("negate: output y was freed", ops.negate, tensor.from({1, 2}), {out = t})
  end)

  it("refuses what is no tensor, naming it", function()
    refused("ragged", tensor.from, {{1, 2}, {3}})
    refused("not a number", tensor.from, {1, "two"})
    refused("is not an i32", tensor.from, {1.5}, "i32")
    refused("dtype 'f16'", tensor.zeros, {1}, "f16")
    refused("extent 2 of the shape is -1", tensor.zeros, {1, -1})
    refused("extent 1 of the shape is 1.5", tensor.zeros, {1.5})
    refused("not a whole number from 0 to below 2^53", tensor.zeros, {2 ^ 53})
    refused("rank 7: the largest is 6", tensor.zeros, {1, 1, 1, 1, 1, 1, 1})
    refused("too many elements", tensor.zeros, {2 ^ 40, 2 ^ 40})
    refused("memory category 'x'", tensor.zeros, {1}, "f32", {category = "x"})
    refused("no field or method 'frobnicate'", function() return tensor.from(1).frobnicate end)
    refused("cannot be assigned", function() tensor.from(1).frobnicate = 1 end)
  end)

  it("holds the seeded values of its stream, whatever the shape", function()
    local a = tensor.normal({4, 8}, 7, {dtype = "f64"})
    local b = tensor.normal({32}, 7, {dtype = "f64"})
    numbers.assert_same(numbers.flat(a), b)
    local c = tensor.uniform({1000}, 3, {dtype = "f64"})
    for _, value in ipairs(numbers.flat(c)) do assert.is_true(value >= 0 and value < 1) end
  end)
end)
