-- Operations that move elements, checked element by element through their indices, for every dtype.
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local dtypes = {"f64", "f32", "bf16", "i32"}

local function product(shape)
  local count = 1
  for _, extent in ipairs(shape) do count = count * extent end
  return count
end

-- Small whole numbers, which every dtype holds.
local function counting(count)
  local list = {}
  for i = 1, count do list[i] = i % 251 end
  return list
end

-- The list of a result of shape, whose element at the indices place (from 0) is value(place).
local function build(shape, value)
  local list = {}
  for index = 0, product(shape) - 1 do
    local place, rest = {}, index
    for d = #shape, 1, -1 do
      place[d] = rest % shape[d]
      rest = (rest - place[d]) / shape[d]
    end
    list[index + 1] = value(place)
  end
  return list
end

-- Reads a flat list of shape at indices from 0.
local function reader(list, shape)
  return function(place)
    local index = 0
    for d = 1, #shape do index = index * shape[d] + place[d] end
    return list[index + 1]
  end
end

-- Calls f(tensor, read) for each dtype, dense and with a worker stride.
local function for_each(shape, f)
  local list = counting(product(shape))
  for _, dtype in ipairs(dtypes) do
    f(numbers.tensor(shape, dtype, list), reader(list, shape))
    f(numbers.strided(shape, dtype, list), reader(list, shape))
  end
end

describe("transpose", function()
  for _, case in ipairs {
    {{3, 4}, {1, 0}}, {{2, 3, 4}, {0, 2, 1}}, {{2, 3, 4}, {2, 0, 1}}, {{2, 3, 4}, {0, 1, 2}},
    {{2, 3, 4, 2, 3}, {0, 1, 3, 2, 4}}, {{2, 1, 3, 1, 2, 2}, {5, 4, 3, 2, 1, 0}}, {{5}, {0}},
    {{70, 90}, {1, 0}},
  } do
    local shape, permutation = case[1], case[2]
    it(("of [%s] by {%s}"):format(table.concat(shape, ", "), table.concat(permutation, ", ")), function()
      for_each(shape, function(x, read)
        local turned = {}
        for i, source in ipairs(permutation) do turned[i] = shape[source + 1] end
        local result = ops.transpose(x, permutation)
        assert.same(turned, result:sizes())
        numbers.assert_same(build(turned, function(place)
          local from = {}
          for i, source in ipairs(permutation) do from[source + 1] = place[i] end
          return read(from)
        end), result)
      end)
    end)
  end
end)

describe("slice, pad and concat", function()
  it("slice takes entries along any axis", function()
    for axis = 0, 2 do
      for_each({4, 5, 6}, function(x, read)
        local shape = {4, 5, 6}
        shape[axis + 1] = 2
        local result = ops.slice(x, {axis = axis, start = 2, count = 2})
        numbers.assert_same(build(shape, function(place)
          place[axis + 1] = place[axis + 1] + 2
          return read(place)
        end), result)
      end)
    end
  end)

  it("slice can be empty or everything", function()
    local x = tensor.from({1, 2, 3}, "f32")
    assert.same({0}, ops.slice(x, {axis = 0, start = 3, count = 0}):sizes())
    numbers.assert_same({1, 2, 3}, ops.slice(x, {axis = 0, start = 0, count = 3}))
  end)

  it("pad puts zeros before and after", function()
    for axis = 0, 2 do
      for_each({2, 3, 4}, function(x, read)
        local shape = {2, 3, 4}
        local extent = shape[axis + 1]
        shape[axis + 1] = extent + 3
        numbers.assert_same(build(shape, function(place)
          place[axis + 1] = place[axis + 1] - 1
          local inside = place[axis + 1] >= 0 and place[axis + 1] < extent
          return inside and read(place) or 0
        end), ops.pad(x, {axis = axis, before = 1, after = 2}))
      end)
    end
  end)

  it("concat undoes slices", function()
    for axis = 0, 2 do
      for_each({3, 4, 5}, function(x)
        local extent = x:size(axis)
        local first = ops.slice(x, {axis = axis, start = 0, count = 1})
        local rest = ops.slice(x, {axis = axis, start = 1, count = extent - 1})
        assert.equal(numbers.bytes(x), numbers.bytes(ops.concat(first, rest, {axis = axis})))
      end)
    end
    numbers.assert_same({1, 2, 1, 2, 1, 2},
      ops.concat(tensor.from({1, 2}), tensor.from({1, 2}), tensor.from({1, 2}), {axis = 0}))
  end)

  it("write into outputs with a worker stride and leave the rest alone", function()
    local x = tensor.from({{1, 2}, {3, 4}}, "f32")
    local out, base = numbers.strided({2, 4}, "f32", counting(8))
    ops.pad(x, {axis = 1, before = 1, after = 1, out = out})
    numbers.assert_same({0, 1, 2, 0, 0, 3, 4, 0}, out)
    numbers.assert_same({77, 77, 0, 1, 2, 0, 77, 77, 77, 77, 77, 0, 3, 4, 0, 77, 77, 77}, base)
  end)
end)

describe("expand and reshape", function()
  it("expand repeats by broadcasting", function()
    for_each({2, 1, 3}, function(x, read)
      numbers.assert_same(build({2, 2, 4, 3}, function(place)
        return read {place[2], 0, place[4]}
      end), ops.expand(x, {2, 2, 4, 3}))
    end)
    numbers.assert_same({5, 5, 5, 5}, ops.expand(tensor.full({}, 5, "bf16"), {2, 2}))
  end)

  it("reshape shares memory where it can", function()
    local x = tensor.from({{1, 2, 3}, {4, 5, 6}}, "f32")
    local y = ops.reshape(x, {3, -1})
    assert.same({3, 2}, y:sizes())
    ops.fill {shape = {3, 2}, value = 9, dtype = "f32", out = y}
    numbers.assert_same({9, 9, 9, 9, 9, 9}, x)
    local strided, base = numbers.strided({2, 4}, "f32", counting(8))
    local heads = ops.reshape(strided, {2, 2, 2})
    assert.equal(9, tonumber(heads.stride))
    ops.fill {shape = {2, 2, 2}, value = 3, dtype = "f32", out = heads}
    assert.equal(3, numbers.flat(base)[3])
    assert.equal(77, numbers.flat(base)[2])
  end)

  it("reshape copies where it must", function()
    for_each({2, 6}, function(x)
      local expected = numbers.flat(x)
      local y = ops.reshape(x, {3, 4})
      assert.same({3, 4}, y:sizes())
      numbers.assert_same(expected, y)
      local out = numbers.strided({3, 4}, x.dtype, counting(12))
      ops.reshape(tensor.zeros({2, 6}, x.dtype), {shape = {3, 4}, out = out})
      numbers.assert_same(numbers.flat(tensor.zeros({12})), out)
    end)
  end)
end)

describe("causal_mask", function()
  it("fills what comes later", function()
    for _, shape in ipairs {{3, 3}, {2, 4, 4}, {2, 3, 5, 5}, {1, 1}} do
      local length, rank = shape[#shape], #shape
      for _, dtype in ipairs {"f32", "f64"} do
        for _, make in ipairs {numbers.tensor, numbers.strided} do
          local list = counting(product(shape))
          local x, read = make(shape, dtype, list), reader(list, shape)
          local result = ops.causal_mask(x, {fill = -math.huge})
          assert.equal(length, result:size(rank - 1))
          numbers.assert_same(build(shape, function(place)
            return place[rank] > place[rank - 1] and -math.huge or read(place)
          end), result)
        end
      end
    end
  end)
end)

describe("fill and random", function()
  it("fill makes every dtype", function()
    for _, dtype in ipairs(dtypes) do
      numbers.assert_same({-3, -3, -3, -3}, ops.fill {shape = {2, 2}, value = -3, dtype = dtype})
    end
    assert.equal(2.5, ops.fill({shape = {}, value = 2.5, dtype = "f64"}):item())
  end)

  it("random numbers are the same in every dtype, up to rounding", function()
    local wide = ops.random_normal {shape = {2000}, seed = 5, dtype = "f64"}
    local single = ops.random_normal {shape = {2000}, seed = 5, dtype = "f32"}
    assert.equal(numbers.bytes(ops.cast(wide, {dtype = "f32"})), numbers.bytes(single))
    local half = ops.random_normal {shape = {2000}, seed = 5, dtype = "bf16"}
    assert.equal(numbers.bytes(ops.cast(wide, {dtype = "bf16"})), numbers.bytes(half))
  end)

  it("uniform numbers stay below 1 in every dtype and differ by seed", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      local list = numbers.flat(ops.random_uniform {shape = {3, 20000}, seed = 1, dtype = dtype})
      local total = 0
      for _, value in ipairs(list) do
        assert.is_true(value >= 0 and value < 1)
        total = total + value
      end
      assert.is_true(math.abs(total / #list - 0.5) < 0.01)
    end
    assert.not_equal(numbers.bytes(ops.random_uniform {shape = {8}, seed = 1}),
      numbers.bytes(ops.random_uniform {shape = {8}, seed = 2}))
  end)

  it("normal numbers have the mean and deviation asked for", function()
    local x = ops.random_normal {shape = {40000}, seed = 3, mean = 2, deviation = 0.5, dtype = "f64"}
    local mean = ops.mean(x):item()
    local centred = x - mean
    local deviation = math.sqrt(ops.mean(ops.multiply(centred, centred)):item())
    assert.is_true(math.abs(mean - 2) < 0.01)
    assert.is_true(math.abs(deviation - 0.5) < 0.01)
  end)

  it("fill outputs with a worker stride as dense ones", function()
    local out = numbers.strided({4, 700}, "f32", counting(2800))
    ops.random_normal {shape = {4, 700}, seed = 9, dtype = "f32", out = out}
    assert.equal(numbers.bytes(ops.random_normal {shape = {4, 700}, seed = 9, dtype = "f32"}),
      numbers.bytes(out))
  end)
end)

describe("moving at any number of threads #threads", function()
  it("gives the same bits", function()
    numbers.assert_same_at_threads(function(options)
      local x = ops.random_normal {shape = {3, 200, 301}, seed = 4, dtype = "f32", context = options.context}
      return x, ops.transpose(x, {2, 0, 1}), ops.pad(x, {axis = 1, before = 3, after = 4}),
        ops.concat(x, x, {axis = 2}), ops.slice(x, {axis = 2, start = 1, count = 299})
    end)
  end)
end)
