-- Matrix products against sums in f64: transposes, workers, strides, accumulation, tiles, and threads.
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

-- A product of flat row-major lists in double arithmetic; start is added to.
local function product(a, b, sizes, start)
  local n, m, p, k, result = sizes.n or 1, sizes.m, sizes.p, sizes.k, {}
  for worker = 0, n - 1 do
    for i = 0, m - 1 do
      for j = 0, p - 1 do
        local sum = start or 0
        for l = 0, k - 1 do
          local x = sizes.transpose_a and a[worker * m * k + l * m + i + 1] or a[(worker * m + i) * k + l + 1]
          local y = sizes.transpose_b and b[(worker * p + j) * k + l + 1] or b[worker * k * p + l * p + j + 1]
          sum = sum + x * y
        end
        result[#result + 1] = sum
      end
    end
  end
  return result
end

local function shape_of(sizes, rows, columns, turned)
  if turned then rows, columns = columns, rows end
  return sizes.n and {sizes.n, rows, columns} or {rows, columns}
end

-- The operands of a case, with worker strides of their own.
local function operands(sizes, dtype, options)
  local n = sizes.n or 1
  local a = numbers.strided(shape_of(sizes, sizes.m, sizes.k, sizes.transpose_a), dtype,
    numbers.list(n * sizes.m * sizes.k, 1), options)
  local b = numbers.strided(shape_of(sizes, sizes.k, sizes.p, sizes.transpose_b), dtype,
    numbers.list(n * sizes.k * sizes.p, 2), options)
  return a, b
end

local function each_case(f)
  for _, base in ipairs {{m = 3, p = 5, k = 4}, {n = 1, m = 1, p = 1, k = 1}, {n = 3, m = 7, p = 2, k = 9},
    {n = 2, m = 33, p = 17, k = 21}} do
    for flags = 0, 3 do
      local sizes = {n = base.n, m = base.m, p = base.p, k = base.k, transpose_a = flags % 2 == 1,
        transpose_b = flags >= 2}
      f(sizes, {transpose_a = sizes.transpose_a, transpose_b = sizes.transpose_b})
    end
  end
end

-- f32 sums of k products in -1 .. 1, and sums of exact products of bf16 values, which f32 holds.
local tolerances = {f64 = 1e-14, f32 = 1e-6, bf16 = 1e-6}

describe("matmul", function()
  require("spec.support.helper").watch()

  for _, dtype in ipairs {"f64", "f32", "bf16"} do
    it("multiplies " .. dtype .. " matrices, transposed or not", function()
      each_case(function(sizes, attributes)
        local a, b = operands(sizes, dtype)
        local result = ops.matmul(a, b, attributes)
        assert.same(shape_of(sizes, sizes.m, sizes.p), result:sizes())
        assert.equal(dtype == "f64" and "f64" or "f32", result.dtype)
        numbers.assert_close(product(numbers.flat(a), numbers.flat(b), sizes), result, tolerances[dtype])
      end)
    end)

    it("adds " .. dtype .. " products to an output that is given, and else overwrites it", function()
      each_case(function(sizes, attributes)
        local a, b = operands(sizes, dtype)
        local shape = shape_of(sizes, sizes.m, sizes.p)
        local count = (sizes.n or 1) * sizes.m * sizes.p
        local start = {}
        for i = 1, count do start[i] = 10 end
        local out = numbers.strided(shape, dtype == "f64" and "f64" or "f32", start)
        attributes.out, attributes.accumulate = out, true
        ops.matmul(a, b, attributes)
        local first, second = numbers.flat(a), numbers.flat(b)
        numbers.assert_close(product(first, second, sizes, 10), out, tolerances[dtype])
        attributes.accumulate = nil
        ops.matmul(a, b, attributes)
        numbers.assert_close(product(first, second, sizes), out, tolerances[dtype])
      end)
    end)
  end

  it("overwrites an output that holds NaN", function()
    local out = tensor.full({2, 2}, 0 / 0, "f32")
    ops.matmul(tensor.ones {2, 3}, tensor.ones {3, 2}, {out = out})
    numbers.assert_same({3, 3, 3, 3}, out)
  end)

  it("gives zeros, or the output as it was, when there is nothing to sum", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      local a, b = tensor.zeros({2, 3, 0}, dtype), tensor.zeros({2, 0, 2}, dtype)
      numbers.assert_same({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, ops.matmul(a, b))
      local out = tensor.full({2, 3, 2}, 7, dtype == "f64" and "f64" or "f32")
      ops.matmul(a, b, {out = out, accumulate = true})
      numbers.assert_same({7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}, out)
      assert.same({2, 0, 3}, ops.matmul(tensor.zeros({2, 0, 4}, dtype), tensor.zeros({2, 4, 3}, dtype)):sizes())
    end
  end)

  it("adds up across tiles and long sums exactly where every step is exact", function()
    for _, case in ipairs {{m = 1300, p = 1100, k = 3}, {m = 70, p = 90, k = 3000}} do
      for _, dtype in ipairs {"f64", "f32", "bf16"} do
        for flags = 0, 3 do
          local turn_a, turn_b = flags % 2 == 1, flags >= 2
          local a = tensor.ones(turn_a and {1, case.k, case.m} or {1, case.m, case.k}, dtype)
          local b = tensor.full(turn_b and {1, case.p, case.k} or {1, case.k, case.p}, 2, dtype)
          local result = ops.matmul(a, b, {transpose_a = turn_a, transpose_b = turn_b})
          numbers.assert_same({2 * case.k}, ops.max(result, {axes = {0, 1, 2}}))
          numbers.assert_same({2 * case.k * case.m * case.p}, ops.sum(result, {axes = {0, 1, 2}}))
        end
      end
    end
  end)

  it("keeps a NaN in the rows and the worker that it came from", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      local a, b = tensor.ones({2, 3, 4}, dtype), tensor.ones({2, 4, 2}, dtype)
      numbers.put(a, 0 / 0, 12 + 5)
      numbers.assert_same({4, 4, 4, 4, 4, 4, 4, 4, 0 / 0, 0 / 0, 4, 4}, ops.matmul(a, b))
    end
  end)

  it("gives the same bits at any number of threads #threads", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      for flags = 0, 3 do
        numbers.assert_same_at_threads(function(options)
          local sizes = {n = 2, m = 300, p = 130, k = 70, transpose_a = flags % 2 == 1, transpose_b = flags >= 2}
          local a, b = operands(sizes, dtype, options)
          local attributes = {transpose_a = sizes.transpose_a, transpose_b = sizes.transpose_b}
          local result = ops.matmul(a, b, attributes)
          attributes.out, attributes.accumulate = result, true
          ops.matmul(a, b, attributes)
          return result
        end)
      end
    end
  end)
end)
