-- RMSNorm and SwiGLU against their formulas in f64, with gradients, strides, accumulation and threads.
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"

local eps = 1e-3

-- y, rstd of x [n, rows, width] and weight [n, width].
local function rmsnorm(x, weight, n, rows, width)
  local y, rstd = {}, {}
  for worker = 0, n - 1 do
    for row = 0, rows - 1 do
      local start, square = (worker * rows + row) * width, 0
      for c = 1, width do square = square + x[start + c] ^ 2 end
      local r = 1 / math.sqrt(square / width + eps)
      rstd[#rstd + 1] = r
      for c = 1, width do y[start + c] = x[start + c] * r * weight[worker * width + c] end
    end
  end
  return y, rstd
end

local function rmsnorm_grad(g, x, weight, rstd, n, rows, width)
  local x_grad, weight_grad = {}, {}
  for i = 1, n * width do weight_grad[i] = 0 end
  for worker = 0, n - 1 do
    for row = 0, rows - 1 do
      local start, r, mean = (worker * rows + row) * width, rstd[worker * rows + row + 1], 0
      for c = 1, width do
        local place = worker * width + c
        mean = mean + g[start + c] * weight[place] * x[start + c] * r / width
        weight_grad[place] = weight_grad[place] + g[start + c] * x[start + c] * r
      end
      for c = 1, width do
        x_grad[start + c] = r * (g[start + c] * weight[worker * width + c] - x[start + c] * r * mean)
      end
    end
  end
  return x_grad, weight_grad
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

local tolerances = {f64 = 1e-13, f32 = 2e-6}
local sizes = {{1, 1, 1}, {2, 3, 5}, {1, 200, 33}, {2, 130, 16}}

local function each_case(f)
  for _, dtype in ipairs {"f64", "f32"} do
    for seed, size in ipairs(sizes) do
      local n, rows, width = unpack(size)
      local x = numbers.strided({n, rows, width}, dtype, numbers.list(n * rows * width, seed, -3, 3))
      local weight = numbers.strided({n, width}, dtype, numbers.list(n * width, seed + 10))
      local g = numbers.strided({n, rows, width}, dtype, numbers.list(n * rows * width, seed + 20))
      f(dtype, n, rows, width, x, weight, g)
    end
  end
end

describe("rmsnorm", function()
  require("spec.support.helper").watch()

  it("divides each row by its root mean square and multiplies by its worker's weight", function()
    each_case(function(dtype, n, rows, width, x, weight)
      local y, rstd = ops.rmsnorm(x, weight, {eps = eps})
      local wanted, wanted_rstd = rmsnorm(numbers.flat(x), numbers.flat(weight), n, rows, width)
      numbers.assert_close(wanted, y, tolerances[dtype])
      numbers.assert_close(wanted_rstd, rstd, tolerances[dtype])
    end)
  end)

  it("has the gradients of its formula", function()
    each_case(function(dtype, n, rows, width, x, weight, g)
      local _, rstd = ops.rmsnorm(x, weight, {eps = eps})
      local x_grad, weight_grad = ops.rmsnorm_grad(g, x, weight, rstd)
      local wanted, wanted_weight = rmsnorm_grad(numbers.flat(g), numbers.flat(x), numbers.flat(weight),
        numbers.flat(rstd), n, rows, width)
      numbers.assert_close(wanted, x_grad, tolerances[dtype])
      numbers.assert_close(wanted_weight, weight_grad, tolerances[dtype])
    end)
  end)

  it("adds its gradients to those outputs that are to be added to", function()
    each_case(function(dtype, n, rows, width, x, weight, g)
      local _, rstd = ops.rmsnorm(x, weight, {eps = eps})
      local wanted, wanted_weight = rmsnorm_grad(numbers.flat(g), numbers.flat(x), numbers.flat(weight),
        numbers.flat(rstd), n, rows, width)
      for flags = 0, 3 do
        local first, second = flags % 2 == 1, flags >= 2
        local x_grad = numbers.strided({n, rows, width}, dtype, full(n * rows * width, 7))
        local weight_grad = numbers.strided({n, width}, dtype, full(n * width, 9))
        ops.rmsnorm_grad(g, x, weight, rstd, {out = {x_grad, weight_grad}, accumulate = {first, second}})
        numbers.assert_close(plus(wanted, first and 7 or 0), x_grad, tolerances[dtype])
        numbers.assert_close(plus(wanted_weight, second and 9 or 0), weight_grad, tolerances[dtype])
      end
    end)
  end)

  it("gives the same bits at any number of threads #threads", function()
    numbers.assert_same_at_threads(function(options)
      local x = numbers.tensor({2, 300, 40}, "f32", numbers.list(24000, 1), options)
      local weight = numbers.tensor({2, 40}, "f32", numbers.list(80, 2), options)
      local g = numbers.tensor({2, 300, 40}, "f32", numbers.list(24000, 3), options)
      local y, rstd = ops.rmsnorm(x, weight, {eps = eps})
      local x_grad, weight_grad = ops.rmsnorm_grad(g, x, weight, rstd)
      return y, rstd, x_grad, weight_grad
    end)
  end)
end)

describe("swiglu", function()
  require("spec.support.helper").watch()

  local function case(dtype, options)
    local shape, count = {2, 37, 501}, 2 * 37 * 501
    return numbers.strided(shape, dtype, numbers.list(count, 4, -6, 6), options),
      numbers.strided(shape, dtype, numbers.list(count, 5), options),
      numbers.strided(shape, dtype, numbers.list(count, 6), options)
  end

  it("multiplies silu(gate) with up, and has its gradients", function()
    for _, dtype in ipairs {"f64", "f32"} do
      local gate, up, g = case(dtype)
      local gates, ups, gs = numbers.flat(gate), numbers.flat(up), numbers.flat(g)
      local y, gate_grad, up_grad = {}, {}, {}
      for i = 1, #gates do
        local s = 1 / (1 + math.exp(-gates[i]))
        y[i] = gates[i] * s * ups[i]
        gate_grad[i] = gs[i] * ups[i] * (s + gates[i] * s * (1 - s))
        up_grad[i] = gs[i] * gates[i] * s
      end
      numbers.assert_close(y, ops.swiglu(gate, up), tolerances[dtype])
      local first, second = ops.swiglu_grad(g, gate, up)
      numbers.assert_close(gate_grad, first, tolerances[dtype])
      numbers.assert_close(up_grad, second, tolerances[dtype])
    end
  end)

  it("reads gate and up from the halves of one tensor, and writes both gradients there", function()
    for _, dtype in ipairs {"f64", "f32"} do
      for _, size in ipairs {{2, 37, 501}, {3, 1}, {2, 2, 3, 4}} do
        local axis, joined = #size - 1, {unpack(size)}
        joined[#joined] = 2 * size[#size]
        local both = numbers.strided(joined, dtype, numbers.list(numbers.count(joined), 7, -6, 6))
        local g = numbers.strided(size, dtype, numbers.list(numbers.count(size), 8))
        local gate = ops.slice(both, {axis = axis, start = 0, count = size[#size]})
        local up = ops.slice(both, {axis = axis, start = size[#size], count = size[#size]})
        numbers.assert_same(numbers.flat(ops.swiglu(gate, up)), ops.swiglu_split(both))
        local gate_grad, up_grad = ops.swiglu_grad(g, gate, up)
        numbers.assert_same(numbers.flat(ops.concat({gate_grad, up_grad}, {axis = axis})),
          ops.swiglu_split_grad(g, both))
      end
    end
  end)

  it("stays finite at gates of any size", function()
    for _, dtype in ipairs {"f64", "f32"} do
      local gate = numbers.tensor({4}, dtype, {-1e4, 1e4, -200, 200})
      local one = numbers.tensor({4}, dtype, {1, 1, 1, 1})
      numbers.assert_close({0, 1e4, 0, 200}, ops.swiglu(gate, one), 1e-7)
      local gate_grad, up_grad = ops.swiglu_grad(one, gate, one)
      numbers.assert_close({0, 1, 0, 1}, gate_grad, 1e-7)
      numbers.assert_close({0, 1e4, 0, 200}, up_grad, 1e-7)
    end
  end)

  it("gives the same bits at any number of threads #threads", function()
    numbers.assert_same_at_threads(function(options)
      local gate, up, g = case("f32", options)
      local both, half = ops.concat({gate, up}, {axis = 2}), ops.concat({g, g}, {axis = 2})
      return ops.swiglu(gate, up), ops.swiglu_split(half), ops.swiglu_split_grad(g, both), ops.swiglu_grad(g, gate, up)
    end)
  end)
end)
