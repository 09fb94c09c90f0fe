-- Layouts and arenas: names for the columns of one [N, D] block.
local arena = require "pack.model.arena"
local ffi = require "ffi"
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"

local refused = numbers.assert_refused

local function small_layout()
  return arena.layout {{"embedding", {5, 13}}, {"norm", {13}}, {"proj", {8, 8}}}
end

describe("a layout", function()
  it("starts every column at a multiple of 64 elements", function()
    local layout = small_layout()
    local starts, sizes, padded = {}, {}, {}
    for i, entry in ipairs(layout) do
      starts[i], sizes[i], padded[i] = entry.start, entry.numel, entry.padded_numel
    end
    assert.same({0, 128, 192}, starts)
    assert.same({65, 13, 64}, sizes)
    assert.same({128, 64, 64}, padded)
    assert.equal(256, layout.size)
    assert.equal(65 + 13 + 64, layout.parameters)
    assert.same({13}, layout:entry("norm").shape)
  end)

  it("marks the blocks where weight decay applies: tensors of two dimensions or more", function()
    local blocks = small_layout():blocks()
    assert.equal("i32", blocks.dtype)
    assert.same({1, 1, 0, 1}, blocks:totable())
  end)

  it("has columns that follow each other as one, where no padding lies between them", function()
    local joins = {{"both", {"a", "b"}}, {"apart", {"b", "c"}}, {"padded", {"odd", "last"}}}
    local layout = arena.layout({{"a", {8, 8}}, {"b", {16, 8}}, {"odd", {3, 8}}, {"c", {8, 8}}, {"last", {8, 8}}}, joins)
    local both = layout:entry("both")
    assert.same({24, 8}, both.shape)
    assert.same({0, 192, {"a", "b"}}, {both.start, both.numel, both.parts})
    refused("the layout has no 'apart'", layout.entry, layout, "apart")
    refused("the layout has no 'padded'", layout.entry, layout, "padded")
    assert.same({"both", "odd", "c", "last"}, layout:joined_names())
    local one = arena.create(layout, 2, {dtype = "f64"})
    local values = ffi.new("double[256]")
    values[0] = 7
    one:view("b"):write(values)
    assert.equal(7, one:view("both"):totable()[1][9][1])
    assert.equal(0, one:view("both"):totable()[2][9][1])
  end)

  it("refuses a name given twice, and one it does not have", function()
    refused("'a' is there twice", arena.layout, {{"a", {1}}, {"a", {2}}})
    refused("entry 1 is not {name, shape}", arena.layout, {{"a"}})
    refused("the layout has no 'b'", function() arena.layout({{"a", {1}}}):entry("b") end)
  end)
end)

describe("an arena", function()
  helper.watch()

  it("is all zeros, padding too", function()
    local a = arena.create(small_layout(), 3, {dtype = "f64"})
    assert.same({3, 256}, a.tensor:sizes())
    for _, value in ipairs(numbers.flat(a.tensor)) do assert.equal(0, value) end
  end)

  it("has views by name whose edits are edits of the arena", function()
    local a = arena.create(small_layout(), 2, {dtype = "f64"})
    local norm = a:view "norm"
    assert.same({2, 13}, norm:sizes())
    local values = ffi.new("double[26]")
    for i = 0, 25 do values[i] = i + 1 end
    norm:write(values)
    local flat = numbers.flat(a.tensor)
    for worker = 0, 1 do
      for column = 0, 255 do
        local inside = column >= 128 and column < 128 + 13
        local expected = inside and worker * 13 + column - 128 + 1 or 0
        assert.equal(expected, flat[worker * 256 + column + 1])
      end
    end
  end)

  it("gives the same view for the same name, and all of them in order", function()
    local a = arena.create(small_layout(), 2)
    assert.is_true(rawequal(a:view "proj", a:view "proj"))
    local list = a:list()
    assert.equal(3, #list)
    assert.is_true(rawequal(list[3], a:view "proj"))
    assert.same({2, 5, 13}, list[1]:sizes())
  end)

  it("is counted under its category and freed with its views", function()
    local memory = function() return require("pack.core.context").default():memory().used.moments end
    local before = memory()
    local a = arena.create(small_layout(), 2, {dtype = "f64", category = "moments"})
    a:view "norm"
    assert.equal(before + 2 * 256 * 8, memory())
    a:free()
    a:free()
    assert.equal(before, memory())
  end)
end)
