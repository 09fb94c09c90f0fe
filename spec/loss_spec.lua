-- Cross-entropy, of whole logits and of a linear layer in chunks, against sums in f64.
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

-- Losses, counts, lse and the gradient for g [n] of logits [n, rows, vocabulary].
local function cross_entropy(logits, targets, g, n, rows, vocabulary)
  local loss, count, lses, grad = {}, {}, {}, {}
  for worker = 1, n do
    loss[worker], count[worker] = 0, 0
    for row = 1, rows do
      local at = (worker - 1) * rows + row
      local start, largest, sum = (at - 1) * vocabulary, -math.huge, 0
      for v = 1, vocabulary do largest = math.max(largest, logits[start + v]) end
      for v = 1, vocabulary do sum = sum + math.exp(logits[start + v] - largest) end
      local lse, target = largest + math.log(sum), targets[at]
      lses[at] = lse
      if target ~= -100 then
        loss[worker] = loss[worker] + lse - logits[start + target + 1]
        count[worker] = count[worker] + 1
      end
      for v = 1, vocabulary do
        local slope = math.exp(logits[start + v] - lse) - (v == target + 1 and 1 or 0)
        grad[start + v] = target == -100 and 0 or slope * g[worker]
      end
    end
  end
  return loss, count, lses, grad
end

-- logits, and gradients from those of the logits, of x [n, rows, d] and weight [n, vocabulary, d].
local function linear(x, weight, n, rows, vocabulary, d)
  local logits = {}
  for at = 0, n * rows - 1 do
    local worker = math.floor(at / rows)
    for v = 0, vocabulary - 1 do
      local sum = 0
      for c = 1, d do sum = sum + x[at * d + c] * weight[(worker * vocabulary + v) * d + c] end
      logits[#logits + 1] = sum
    end
  end
  return logits
end

local function linear_grad(slopes, x, weight, n, rows, vocabulary, d)
  local x_grad, weight_grad = {}, {}
  for i = 1, #x do x_grad[i] = 0 end
  for i = 1, #weight do weight_grad[i] = 0 end
  for at = 0, n * rows - 1 do
    local worker = math.floor(at / rows)
    for v = 0, vocabulary - 1 do
      local slope = slopes[at * vocabulary + v + 1]
      for c = 1, d do
        local place = (worker * vocabulary + v) * d + c
        x_grad[at * d + c] = x_grad[at * d + c] + slope * weight[place]
        weight_grad[place] = weight_grad[place] + slope * x[at * d + c]
      end
    end
  end
  return x_grad, weight_grad
end

-- Targets below vocabulary, every fifth one ignored.
local function targets_of(n, rows, vocabulary, options)
  local list = numbers.list(n * rows, 3, 0, vocabulary)
  for i = 1, #list do
    list[i] = i % 5 == 2 and -100 or math.min(math.floor(list[i]), vocabulary - 1)
  end
  return numbers.strided({n, rows}, "i32", list, options), list
end

local function plus(list, addend)
  local sums = {}
  for i, value in ipairs(list) do sums[i] = value + addend end
  return sums
end

local function full(count, value)
  local list = {}
  for i = 1, count do list[i] = value end
  return list
end

local tolerances = {f64 = 1e-13, f32 = 2e-6, bf16 = 1e-2}
local function product_dtype(dtype) return dtype == "f64" and "f64" or "f32" end

describe("cross_entropy", function()
  require("spec.support.helper").watch()

  it("sums a worker's -log softmax at valid targets, and has its gradient", function()
    for _, dtype in ipairs {"f64", "f32"} do
      for seed, size in ipairs {{1, 1, 1}, {2, 7, 5}, {2, 37, 100}, {1, 3, 1001}} do
        local n, rows, vocabulary = unpack(size)
        local logits = numbers.strided(size, dtype, numbers.list(n * rows * vocabulary, seed, -5, 5))
        local targets, list = targets_of(n, rows, vocabulary)
        local g = numbers.tensor({n}, dtype, numbers.list(n, 4, 0.5, 2))
        local loss, count, lse = ops.cross_entropy(logits, targets)
        local grad = ops.cross_entropy_grad(g, logits, targets, lse)
        local wanted, counts, lses, wanted_grad = cross_entropy(numbers.flat(logits), list, numbers.flat(g),
          n, rows, vocabulary)
        numbers.assert_close(wanted, loss, tolerances[dtype])
        numbers.assert_same(counts, count)
        assert.equal("f64", count.dtype)
        numbers.assert_close(lses, lse, tolerances[dtype])
        numbers.assert_close(wanted_grad, grad, tolerances[dtype])
      end
    end
  end)

  it("is exact for logits of any size", function()
    for _, dtype in ipairs {"f64", "f32"} do
      local logits = tensor.from({{{1e4, -1e4, 0}, {-1e4, -1e4, -1e4}}}, dtype)
      local targets = tensor.from({{1, 2}}, "i32")
      local loss, _, lse = ops.cross_entropy(logits, targets)
      numbers.assert_close({2e4 + math.log(3)}, loss, 1e-6)
      numbers.assert_close({1e4, -1e4 + math.log(3)}, lse, 1e-6)
      numbers.assert_close({1, -1, 0, 1 / 3, 1 / 3, -2 / 3},
        ops.cross_entropy_grad(tensor.ones({1}, dtype), logits, targets, lse), dtype == "f64" and 1e-11 or 1e-3)
    end
  end)

  it("gives the same bits at any number of threads #threads", function()
    numbers.assert_same_at_threads(function(options)
      local logits = numbers.tensor({2, 100, 60}, "f32", numbers.list(12000, 5), options)
      local targets = targets_of(2, 100, 60, options)
      local loss, count, lse = ops.cross_entropy(logits, targets)
      local g = tensor.ones({2}, "f32", options)
      return loss, count, lse, ops.cross_entropy_grad(g, logits, targets, lse)
    end)
  end)
end)

describe("linear_cross_entropy", function()
  require("spec.support.helper").watch()

  -- {n, rows, vocabulary, d}: within one tile of everything, beyond its borders, and one of each.
  local sizes = {{1, 1, 1, 1}, {2, 9, 7, 4}, {1, 13, 1100, 3}, {2, 300, 33, 5}, {1, 1030, 70, 2}}

  local function operands(size, dtype, options)
    local n, rows, vocabulary, d = unpack(size)
    local x = numbers.strided({n, rows, d}, dtype, numbers.list(n * rows * d, 6, -2, 2), options)
    local weight = numbers.strided({n, vocabulary, d}, dtype, numbers.list(n * vocabulary * d, 7), options)
    local targets, list = targets_of(n, rows, vocabulary, options)
    local g = numbers.tensor({n}, product_dtype(dtype), numbers.list(n, 8, 0.5, 2), options)
    return x, weight, targets, g, list
  end

  local function wanted_of(size, x, weight, g, list)
    local n, rows, vocabulary, d = unpack(size)
    x, weight = numbers.flat(x), numbers.flat(weight)
    local logits = linear(x, weight, n, rows, vocabulary, d)
    local loss, count, lse, slopes = cross_entropy(logits, list, numbers.flat(g), n, rows, vocabulary)
    local x_grad, weight_grad = linear_grad(slopes, x, weight, n, rows, vocabulary, d)
    return {loss = loss, count = count, lse = lse, x_grad = x_grad, weight_grad = weight_grad}
  end

  for _, dtype in ipairs {"f64", "f32", "bf16"} do
    it("is the cross-entropy of the product, with its gradients, " .. dtype, function()
      for _, size in ipairs(sizes) do
        local x, weight, targets, g, list = operands(size, dtype)
        local wanted = wanted_of(size, x, weight, g, list)
        local loss, count, lse = ops.linear_cross_entropy(x, weight, targets)
        -- Logits are sums of exact products: bf16 loses nothing before the gradient's rounding.
        local exact = math.min(tolerances[dtype], 2e-6)
        numbers.assert_close(wanted.loss, loss, exact)
        numbers.assert_same(wanted.count, count)
        numbers.assert_close(wanted.lse, lse, exact)
        local x_grad, weight_grad = ops.linear_cross_entropy_grad(g, x, weight, targets, lse)
        numbers.assert_close(wanted.x_grad, x_grad, tolerances[dtype])
        numbers.assert_close(wanted.weight_grad, weight_grad, tolerances[dtype])
      end
    end)

    it("adds to those gradients that are to be added to, " .. dtype, function()
      for _, size in ipairs {sizes[2], sizes[4]} do
        local n, rows, vocabulary, d = unpack(size)
        local x, weight, targets, g, list = operands(size, dtype)
        local wanted = wanted_of(size, x, weight, g, list)
        local _, _, lse = ops.linear_cross_entropy(x, weight, targets)
        for flags = 0, 3 do
          local first, second = flags % 2 == 1, flags >= 2
          local x_grad = numbers.strided({n, rows, d}, product_dtype(dtype), full(n * rows * d, 3))
          local weight_grad = numbers.strided({n, vocabulary, d}, product_dtype(dtype),
            full(n * vocabulary * d, 5))
          ops.linear_cross_entropy_grad(g, x, weight, targets, lse,
            {out = {x_grad, weight_grad}, accumulate = {first, second}})
          numbers.assert_close(plus(wanted.x_grad, first and 3 or 0), x_grad, tolerances[dtype])
          numbers.assert_close(plus(wanted.weight_grad, second and 5 or 0), weight_grad, tolerances[dtype])
        end
      end
    end)
  end

  it("agrees with the product and the loss one after the other", function()
    local size = {2, 300, 700, 6}
    local x, weight, targets, g = operands(size, "f64")
    local logits = ops.matmul(x, weight, {transpose_b = true})
    local loss, count, lse = ops.cross_entropy(logits, targets)
    local fused, fused_count, fused_lse = ops.linear_cross_entropy(x, weight, targets)
    numbers.assert_close(numbers.flat(loss), fused, 1e-13)
    numbers.assert_same(numbers.flat(count), fused_count)
    numbers.assert_close(numbers.flat(lse), fused_lse, 1e-13)
    local slopes = ops.cross_entropy_grad(g, logits, targets, lse)
    local x_grad, weight_grad = ops.linear_cross_entropy_grad(g, x, weight, targets, lse)
    numbers.assert_close(numbers.flat(ops.matmul(slopes, weight)), x_grad, 1e-13)
    numbers.assert_close(numbers.flat(ops.matmul(slopes, x, {transpose_a = true})), weight_grad, 1e-13)
  end)

  it("gives a worker without targets loss 0, count 0 and zero gradients", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      local n, rows, vocabulary, d = 2, 6, 9, 4
      local x = numbers.tensor({n, rows, d}, dtype, numbers.list(n * rows * d, 9))
      local weight = numbers.tensor({n, vocabulary, d}, dtype, numbers.list(n * vocabulary * d, 10))
      local targets = tensor.from({{-100, -100, -100, -100, -100, -100}, {0, 1, 2, 3, -100, 8}}, "i32")
      local loss, count, lse = ops.linear_cross_entropy(x, weight, targets)
      assert.equal(0, numbers.flat(loss)[1])
      assert.is_true(numbers.flat(loss)[2] > 0)
      numbers.assert_same({0, 5}, count)
      local g = tensor.ones({n}, product_dtype(dtype))
      local x_grad, weight_grad = ops.linear_cross_entropy_grad(g, x, weight, targets, lse)
      local rows_grad, tokens_grad = numbers.flat(x_grad), numbers.flat(weight_grad)
      for i = 1, rows * d do assert.equal(0, rows_grad[i]) end
      for i = 1, vocabulary * d do assert.equal(0, tokens_grad[i]) end
      for c = 1, d do assert.equal(0, rows_grad[rows * d + 4 * d + c]) end -- worker 1's ignored row
      assert.not_equal(0, rows_grad[rows * d + 1])
    end
  end)

  it("keeps a worker's NaN to that worker", function()
    local x, weight, targets, g = operands({2, 9, 7, 4}, "f32")
    local loss, _, lse = ops.linear_cross_entropy(x, weight, targets)
    local x_grad, weight_grad = ops.linear_cross_entropy_grad(g, x, weight, targets, lse)
    local poisoned = numbers.tensor({2, 9, 4}, "f32", numbers.flat(x))
    numbers.put(poisoned, 0 / 0, 9 * 4 + 1)
    local loss2, _, lse2 = ops.linear_cross_entropy(poisoned, weight, targets)
    local x_grad2, weight_grad2 = ops.linear_cross_entropy_grad(g, poisoned, weight, targets, lse2)
    assert.equal(numbers.flat(loss)[1], numbers.flat(loss2)[1])
    assert.not_equal(numbers.flat(loss2)[2], numbers.flat(loss2)[2])
    for i = 1, 36 do assert.equal(numbers.flat(x_grad)[i], numbers.flat(x_grad2)[i]) end
    for i = 1, 28 do assert.equal(numbers.flat(weight_grad)[i], numbers.flat(weight_grad2)[i]) end
  end)

  it("loses no NaN of a single token", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      for _, token in ipairs {1, 700, 1100} do
        local x, weight, targets = operands({1, 3, 1100, 2}, dtype)
        numbers.put(weight, 0 / 0, token * 2)
        local loss, _, lse = ops.linear_cross_entropy(x, weight, targets)
        numbers.assert_same({0 / 0}, loss)
        numbers.assert_same({0 / 0, 0 / 0, 0 / 0}, lse)
      end
    end
  end)

  -- e^-80 is a normal number of f32, e^-90 is not; 1e-5 e^-80 is not either.
  it("makes no subnormal gradients, which some processors are slow at #cpu", function()
    local x = numbers.tensor({1, 1, 1}, "f32", {1})
    local weight = numbers.tensor({1, 3, 1}, "f32", {0, -80, -90})
    local targets = tensor.from({{0}}, "i32")
    for g_value, kept in pairs {[1] = math.exp(-80), [1e-5] = 0} do
      local g = numbers.tensor({1}, "f32", {g_value})
      local _, _, lse = ops.linear_cross_entropy(x, weight, targets)
      local _, apart = ops.linear_cross_entropy_grad(g, x, weight, targets, lse)
      local _, _, _, _, at_once = ops.linear_cross_entropy_step(g, x, weight, targets)
      for _, weight_grad in ipairs {apart, at_once} do
        local made = numbers.flat(weight_grad)
        assert.equal(0, made[3])
        assert.is_true(math.abs(made[2] - kept) <= 1e-6 * kept)
      end
      local logits = tensor.from({{{0, -80, -90}}}, "f32")
      local slopes = numbers.flat(ops.cross_entropy_grad(g, logits, targets, lse))
      assert.equal(0, slopes[3])
      assert.is_true(math.abs(slopes[2] - kept) <= 1e-6 * kept)
    end
  end)

  it("gives the same bits at any number of threads #threads", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      numbers.assert_same_at_threads(function(options)
        local x, weight, targets, g = operands({2, 520, 1100, 5}, dtype, options)
        local loss, count, lse = ops.linear_cross_entropy(x, weight, targets)
        local x_grad, weight_grad = ops.linear_cross_entropy_grad(g, x, weight, targets, lse)
        return loss, count, lse, x_grad, weight_grad
      end)
    end
  end)
end)

describe("the gradient of linear_cross_entropy", function()
  it("is zero for the weight where there are no rows", function()
    for _, dtype in ipairs {"f64", "f32"} do
      local x, weight = tensor.zeros({2, 0, 3}, dtype), tensor.ones({2, 4, 3}, dtype)
      local targets, g = tensor.zeros({2, 0}, "i32"), tensor.ones({2}, dtype)
      local _, _, lse = ops.linear_cross_entropy(x, weight, targets)
      local out = tensor.ones({2, 4, 3}, dtype)
      ops.linear_cross_entropy_grad(g, x, weight, targets, lse, {out = {false, out}})
      assert.equal(0, ops.sum(ops.multiply(out, out)):item())
      ops.fill {shape = {2, 4, 3}, value = 1, dtype = dtype, out = out}
      ops.linear_cross_entropy_step(g, x, weight, targets, {out = {false, false, false, false, out}})
      assert.equal(0, ops.sum(ops.multiply(out, out)):item())
      ops.fill {shape = {2, 4, 3}, value = 1, dtype = dtype, out = out}
      ops.linear_cross_entropy_grad(g, x, weight, targets, lse, {out = {false, out}, accumulate = {false, true}})
      assert.equal(24, ops.sum(ops.multiply(out, out)):item())
    end
  end)
end)

describe("targets", function()
  it("outside the vocabulary are refused by worker, row, target and vocabulary, before anything runs #cpu", function()
    local logits, x, weight = tensor.zeros {2, 3, 4}, tensor.zeros {2, 3, 5}, tensor.zeros {2, 4, 5}
    local lse, g, out = tensor.zeros {2, 3}, tensor.ones {2}, tensor.full({2, 3, 4}, 7)
    for _, bad in ipairs {4, -1, -101, 2147483647} do
      local targets = tensor.from({{0, 1, -100}, {3, bad, 0}}, "i32")
      local text = (": target %d of worker 1, row 1, is not in 0 .. 3"):format(bad)
      numbers.assert_refused("cross_entropy" .. text, ops.cross_entropy, logits, targets)
      numbers.assert_refused("cross_entropy_grad" .. text, ops.cross_entropy_grad, g, logits, targets, lse,
        {out = out})
      numbers.assert_refused("linear_cross_entropy" .. text, ops.linear_cross_entropy, x, weight, targets)
      numbers.assert_refused("linear_cross_entropy_grad" .. text, ops.linear_cross_entropy_grad, g, x, weight,
        targets, lse)
    end
    assert.equal(7, numbers.flat(out)[1])
  end)
end)
