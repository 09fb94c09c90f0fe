-- Rotary embedding against rotations in f64, up to late positions.
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"

-- x [n, batch, positions, heads, width] turned by its positions; the inverse turns back.
local function rope(x, n, batch, positions, heads, width, theta, inverse)
  local y, half = {}, width / 2
  for row = 0, n * batch * positions - 1 do
    local position = row % positions
    for head = 0, heads - 1 do
      local start = (row * heads + head) * width
      for k = 1, half do
        local angle = position * theta ^ (-2 * (k - 1) / width) * (inverse and -1 or 1)
        local a, b = x[start + k], x[start + half + k]
        y[start + k] = a * math.cos(angle) - b * math.sin(angle)
        y[start + half + k] = b * math.cos(angle) + a * math.sin(angle)
      end
    end
  end
  return y
end

local tolerances = {f64 = 1e-13, f32 = 2e-7}

describe("rope", function()
  require("spec.support.helper").watch()

  it("turns pairs of a head's halves by position, the other way round for the inverse", function()
    for _, dtype in ipairs {"f64", "f32"} do
      for seed, size in ipairs {{1, 1, 1, 1, 2}, {2, 3, 5, 2, 8}, {2, 1, 70, 3, 6}} do
        local n, batch, positions, heads, width = unpack(size)
        local count = n * batch * positions * heads * width
        local x = numbers.strided(size, dtype, numbers.list(count, seed))
        for _, inverse in ipairs {false, true} do
          local wanted = rope(numbers.flat(x), n, batch, positions, heads, width, 10000, inverse)
          numbers.assert_close(wanted, ops.rope(x, {theta = 10000, inverse = inverse}), tolerances[dtype])
        end
      end
    end
  end)

  it("is as exact at position 4095 as at 1", function()
    local x = numbers.tensor({1, 1, 4096, 1, 64}, "f32", numbers.list(4096 * 64, 9))
    local wanted = rope(numbers.flat(x), 1, 1, 4096, 1, 64, 10000)
    local y = numbers.flat(ops.rope(x, {theta = 10000}))
    for _, position in ipairs {1, 2047, 4095} do
      for k = 1, 64 do
        assert.near(wanted[position * 64 + k], y[position * 64 + k], 2e-7)
      end
    end
  end)

  it("leaves position 0 as it is, and its inverse undoes it", function()
    local list = numbers.list(2 * 9 * 16, 10)
    local x = numbers.tensor({1, 2, 9, 2, 8}, "f64", list)
    local y = ops.rope(x, {theta = 100})
    local flat = numbers.flat(y)
    for i = 1, 16 do assert.equal(list[i], flat[i]) end
    assert.not_equal(list[17], flat[17])
    numbers.assert_close(list, ops.rope(y, {theta = 100, inverse = true}), 1e-14)
  end)

  -- The heads first .. first+count-1 of x [n, b, t, h, k].
  local function heads_of(x, first, count)
    return ops.slice(x, {axis = 3, start = first, count = count})
  end

  it("of q and k is what rope_split does while it cuts q, k and v apart, which rope_join undoes", function()
    for _, dtype in ipairs {"f64", "f32"} do
      for seed, size in ipairs {{1, 1, 1, 1, 2}, {2, 3, 5, 2, 8}, {2, 1, 70, 3, 6}} do
        local n, batch, positions, heads, width = unpack(size)
        local shape = {n, batch, positions, 3 * heads, width}
        local x = numbers.strided(shape, dtype, numbers.list(numbers.count(shape), seed))
        for _, inverse in ipairs {false, true} do
          local turned = {theta = 10000, inverse = inverse}
          local back = {theta = 10000, inverse = not inverse}
          local q, k, v = ops.rope_split(x, turned)
          numbers.assert_same(numbers.flat(ops.rope(heads_of(x, 0, heads), turned)), q)
          numbers.assert_same(numbers.flat(ops.rope(heads_of(x, heads, heads), turned)), k)
          numbers.assert_same(numbers.flat(heads_of(x, 2 * heads, heads)), v)
          local whole = ops.rope_join(q, k, v, back)
          numbers.assert_same(numbers.flat(ops.rope(q, back)), heads_of(whole, 0, heads))
          numbers.assert_same(numbers.flat(ops.rope(k, back)), heads_of(whole, heads, heads))
          numbers.assert_same(numbers.flat(v), heads_of(whole, 2 * heads, heads))
        end
      end
    end
  end)

  it("gives the same bits at any number of threads #threads", function()
    numbers.assert_same_at_threads(function(options)
      local x = numbers.tensor({2, 2, 70, 3, 8}, "f32", numbers.list(2 * 2 * 70 * 24, 11), options)
      return ops.rope(x, {theta = 10000}), ops.rope_split(x, {theta = 10000})
    end)
  end)
end)
