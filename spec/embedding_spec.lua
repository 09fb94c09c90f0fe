-- Looking rows and entries up, and the gradients that put them back.
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

-- ids of a shape below vocabulary.
local function ids_of(shape, vocabulary, seed, options)
  local count = 1
  for _, extent in ipairs(shape) do count = count * extent end
  local list = numbers.list(count, seed, 0, vocabulary)
  for i = 1, count do list[i] = math.min(math.floor(list[i]), vocabulary - 1) end
  return numbers.tensor(shape, "i32", list, options), list
end

describe("embedding", function()
  it("takes each worker's own rows", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      local weight = numbers.strided({2, 5, 3}, dtype, numbers.list(30, 1))
      local rows = numbers.flat(weight)
      local ids, list = ids_of({2, 2, 4}, 5, 2)
      local result = ops.embedding(weight, ids)
      assert.same({2, 2, 4, 3}, result:sizes())
      local expected = {}
      for i, id in ipairs(list) do
        local worker = math.floor((i - 1) / 8)
        for c = 1, 3 do expected[#expected + 1] = rows[worker * 15 + id * 3 + c] end
      end
      numbers.assert_same(expected, result)
    end
  end)

  it("names place, id and vocabulary of an id out of range #cpu", function()
    local weight = tensor.zeros({2, 5, 3})
    numbers.assert_refused("embedding: id 5 at [1, 0] is not in 0 .. 4 (vocabulary 5)", ops.embedding,
      weight, tensor.from({{0, 4}, {5, 1}}, "i32"))
    numbers.assert_refused("id -1 at [0, 1]", ops.embedding, weight, tensor.from({{0, -1}, {5, 1}}, "i32"))
    numbers.assert_refused("id -100 at [0, 0]", ops.embedding, weight, tensor.from({{-100}, {1}}, "i32"))
  end)
end)

describe("embedding_grad", function()
  it("adds the rows of equal ids in order", function()
    for dtype in pairs {f32 = true, f64 = true} do
      local vocabulary, width = 37, 5
      local ids, list = ids_of({3, 100}, vocabulary, 3)
      local g = numbers.strided({3, 100, width}, dtype, numbers.list(1500, 4))
      local rows, expected = numbers.flat(g), {}
      for i = 1, 3 * vocabulary * width do expected[i] = 0 end
      for i, id in ipairs(list) do
        local worker = math.floor((i - 1) / 100)
        for c = 1, width do
          local place = (worker * vocabulary + id) * width + c
          expected[place] = numbers.round(dtype, expected[place] + rows[(i - 1) * width + c])
        end
      end
      local result = ops.embedding_grad(g, ids, {vocabulary = vocabulary})
      assert.same({3, vocabulary, width}, result:sizes())
      numbers.assert_same(expected, result)
    end
  end)

  it("adds to an output that is given, and else overwrites it", function()
    local g, ids = tensor.from({{{1, 2}, {3, 4}}}, "f32"), tensor.from({{1, 1}}, "i32")
    local out = tensor.full({1, 3, 2}, 10, "f32")
    ops.embedding_grad(g, ids, {vocabulary = 3, out = out, accumulate = true})
    numbers.assert_same({10, 10, 14, 16, 10, 10}, out)
    ops.embedding_grad(g, ids, {vocabulary = 3, out = out})
    numbers.assert_same({0, 0, 4, 6, 0, 0}, out)
  end)

  it("writes nothing when an id is out of range #cpu", function()
    local g, ids = tensor.ones({1, 2, 2}), tensor.from({{0, 3}}, "i32")
    local out = tensor.full({1, 3, 2}, 10, "f32")
    numbers.assert_refused("embedding_grad: id 3 at [0, 1] is not in 0 .. 2", ops.embedding_grad, g, ids,
      {vocabulary = 3, out = out})
    numbers.assert_same({10, 10, 10, 10, 10, 10}, out)
  end)

  it("gives the same bits at any number of threads #threads", function()
    numbers.assert_same_at_threads(function(options)
      local ids = ids_of({2, 3000}, 50, 5, options)
      local g = numbers.tensor({2, 3000, 7}, "f32", numbers.list(42000, 6), options)
      return ops.embedding_grad(g, ids, {vocabulary = 50}),
        ops.embedding(ops.embedding_grad(g, ids, {vocabulary = 50}), ids)
    end)
  end)
end)

describe("pick and unpick", function()
  local index = tensor.from({{0, 3, -100}, {2, -100, 1}}, "i32")

  it("pick takes an entry of each row, 0 where it is ignored", function()
    for dtype in pairs {f32 = true, f64 = true} do
      local x = numbers.strided({2, 3, 4}, dtype, numbers.list(24, 7))
      local list = numbers.flat(x)
      numbers.assert_same({list[1], list[8], 0, list[15], 0, list[22]}, ops.pick(x, index))
    end
  end)

  it("unpick puts them back among zeros", function()
    for dtype in pairs {f32 = true, f64 = true} do
      local g = numbers.strided({2, 3}, dtype, {1, 2, 3, 4, 5, 6})
      numbers.assert_same({1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 6, 0, 0},
        ops.unpick(g, index, {vocabulary = 4}))
    end
  end)

  it("refuse other numbers out of range #cpu", function()
    local bad = tensor.from({{0, 4, 0}, {0, 0, 0}}, "i32")
    numbers.assert_refused("pick: id 4 at [0, 1] is not in 0 .. 3", ops.pick, tensor.zeros({2, 3, 4}), bad)
    numbers.assert_refused("unpick: id 4 at [0, 1]", ops.unpick, tensor.zeros({2, 3}), bad,
      {vocabulary = 4})
  end)
end)
