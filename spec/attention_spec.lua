-- Causal attention and its gradients against direct loops in f64.
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"

-- Calls f(offset of position 0, elements between positions) for every head of [n, b, t, h, k].
local function each_head(size, f)
  local n, b, t, h, k = unpack(size)
  for sequence = 0, n * b - 1 do
    for head = 0, h - 1 do f(sequence * t * h * k + head * k, h * k, (sequence * h + head) * t) end
  end
end

-- Softmax weights of query i over keys 0 .. i, and the log of their sum of exponentials.
local function weights_of(q, k, start, step, i, width, scale)
  local scores, largest = {}, -math.huge
  for j = 0, i do
    local score = 0
    for c = 1, width do score = score + q[start + i * step + c] * k[start + j * step + c] end
    scores[j] = score * scale
    largest = math.max(largest, scores[j])
  end
  local sum = 0
  for j = 0, i do sum = sum + math.exp(scores[j] - largest) end
  local lse = largest + math.log(sum)
  for j = 0, i do scores[j] = math.exp(scores[j] - lse) end
  return scores, lse
end

local function attention(size, q, k, v, scale)
  local o, lses, t, width = {}, {}, size[3], size[5]
  each_head(size, function(start, step, lse_start)
    for i = 0, t - 1 do
      local weights, lse = weights_of(q, k, start, step, i, width, scale)
      lses[lse_start + i + 1] = lse
      for c = 1, width do
        local sum = 0
        for j = 0, i do sum = sum + weights[j] * v[start + j * step + c] end
        o[start + i * step + c] = sum
      end
    end
  end)
  return o, lses
end

local function zeros(count)
  local list = {}
  for i = 1, count do list[i] = 0 end
  return list
end

local function attention_grad(size, g, q, k, v, scale)
  local q_grad, k_grad, v_grad = zeros(#q), zeros(#q), zeros(#q)
  local t, width = size[3], size[5]
  each_head(size, function(start, step)
    for i = 0, t - 1 do
      local at = start + i * step
      local weights = weights_of(q, k, start, step, i, width, scale)
      local slopes, mean = {}, 0
      for j = 0, i do
        slopes[j] = 0
        for c = 1, width do
          slopes[j] = slopes[j] + g[at + c] * v[start + j * step + c]
          v_grad[start + j * step + c] = v_grad[start + j * step + c] + weights[j] * g[at + c]
        end
        mean = mean + weights[j] * slopes[j]
      end
      for j = 0, i do
        local slope = weights[j] * (slopes[j] - mean) * scale
        for c = 1, width do
          q_grad[at + c] = q_grad[at + c] + slope * k[start + j * step + c]
          k_grad[start + j * step + c] = k_grad[start + j * step + c] + slope * q[at + c]
        end
      end
    end
  end)
  return q_grad, k_grad, v_grad
end

local sizes = {{1, 1, 1, 1, 1}, {2, 1, 3, 2, 4}, {1, 2, 63, 1, 5}, {1, 1, 64, 2, 8}, {2, 1, 65, 1, 7},
  {1, 1, 131, 3, 4}}
local tolerances = {f64 = 1e-13, f32 = 2e-6, bf16 = 1e-2}

local function operands(size, dtype, options)
  local count, made = 1, {}
  for _, extent in ipairs(size) do count = count * extent end
  for i = 1, 3 do made[i] = numbers.strided(size, dtype, numbers.list(count, i, -2, 2), options) end
  made[4] = numbers.strided(size, dtype == "f64" and "f64" or "f32", numbers.list(count, 4), options)
  return unpack(made)
end

describe("attention", function()
  require("spec.support.helper").watch()

  for _, dtype in ipairs {"f64", "f32", "bf16"} do
    it("weighs what each position sees by a softmax, " .. dtype, function()
      for _, size in ipairs(sizes) do
        local q, k, v = operands(size, dtype)
        local o, lse = ops.attention(q, k, v, {scale = 0.7})
        assert.same(size, o:sizes())
        assert.same({size[1], size[2], size[4], size[3]}, lse:sizes())
        local wanted, lses = attention(size, numbers.flat(q), numbers.flat(k), numbers.flat(v), 0.7)
        numbers.assert_close(wanted, o, tolerances[dtype])
        -- The scores are not rounded to bf16: their operands alone are.
        numbers.assert_close(lses, lse, math.min(tolerances[dtype], 2e-6))
      end
    end)

    it("has the gradients of its formula, " .. dtype, function()
      for _, size in ipairs(sizes) do
        local q, k, v, g = operands(size, dtype)
        local o, lse = ops.attention(q, k, v, {scale = 0.7})
        local q_grad, k_grad, v_grad = ops.attention_grad(g, q, k, v, o, lse, {scale = 0.7})
        local wanted_q, wanted_k, wanted_v = attention_grad(size, numbers.flat(g), numbers.flat(q),
          numbers.flat(k), numbers.flat(v), 0.7)
        numbers.assert_close(wanted_q, q_grad, tolerances[dtype])
        numbers.assert_close(wanted_k, k_grad, tolerances[dtype])
        numbers.assert_close(wanted_v, v_grad, tolerances[dtype])
      end
    end)
  end

  it("takes a negative scale", function()
    local size = {1, 1, 66, 1, 4}
    local q, k, v, g = operands(size, "f64")
    local o, lse = ops.attention(q, k, v, {scale = -0.5})
    local lists = {numbers.flat(q), numbers.flat(k), numbers.flat(v)}
    numbers.assert_close(attention(size, lists[1], lists[2], lists[3], -0.5), o, 1e-13)
    local _, k_grad = ops.attention_grad(g, q, k, v, o, lse, {scale = -0.5})
    local _, wanted = attention_grad(size, numbers.flat(g), lists[1], lists[2], lists[3], -0.5)
    numbers.assert_close(wanted, k_grad, 1e-13)
  end)

  it("gives early positions the same bits whatever comes after them", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      local size, row = {1, 1, 100, 2, 4}, 8
      local q, k, v = operands(size, dtype)
      local before, before_lse = ops.attention(q, k, v, {scale = 0.5})
      for _, changed in ipairs {q, k, v} do numbers.put(changed, 3, 70 * row + 1, 100 * row) end
      local after, after_lse = ops.attention(q, k, v, {scale = 0.5})
      local a, b = numbers.flat(before), numbers.flat(after)
      for i = 1, 70 * row do assert.equal(a[i], b[i]) end
      assert.not_equal(a[70 * row + 1], b[70 * row + 1])
      assert.equal(numbers.flat(before_lse)[70], numbers.flat(after_lse)[70])
    end
  end)

  it("is exact for scores of any size", function()
    for _, dtype in ipairs {"f64", "f32"} do
      local q = numbers.tensor({1, 1, 2, 1, 1}, dtype, {1000, 1000})
      local k = numbers.tensor({1, 1, 2, 1, 1}, dtype, {-30, 30})
      local v = numbers.tensor({1, 1, 2, 1, 1}, dtype, {5, 7})
      local o, lse = ops.attention(q, k, v, {scale = 1})
      numbers.assert_same({5, 7}, o)
      numbers.assert_same({-30000, 30000}, lse)
      local g = numbers.tensor({1, 1, 2, 1, 1}, dtype, {1, 1})
      local q_grad, k_grad, v_grad = ops.attention_grad(g, q, k, v, o, lse, {scale = 1})
      numbers.assert_same({0, 0}, q_grad)
      numbers.assert_same({0, 0}, k_grad)
      numbers.assert_same({1, 1}, v_grad)
    end
  end)

  -- The second position gives e^-90 of its attention to the first, a subnormal number of f32.
  it("makes no subnormal weights, which some processors are slow at #cpu", function()
    local q = numbers.tensor({1, 1, 2, 1, 1}, "f32", {1, 1})
    local k = numbers.tensor({1, 1, 2, 1, 1}, "f32", {-90, 0})
    local v = numbers.tensor({1, 1, 2, 1, 1}, "f32", {1, 0})
    local o, lse = ops.attention(q, k, v, {scale = 1})
    numbers.assert_same({1, 0}, o)
    local g = numbers.tensor({1, 1, 2, 1, 1}, "f32", {0, 1})
    local q_grad, k_grad, v_grad = ops.attention_grad(g, q, k, v, o, lse, {scale = 1})
    numbers.assert_same({0, 0}, q_grad)
    numbers.assert_same({0, 0}, k_grad)
    numbers.assert_same({0, 1}, v_grad)
  end)

  it("gives the same bits at any number of threads #threads", function()
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      numbers.assert_same_at_threads(function(options)
        local q, k, v, g = operands({2, 2, 150, 3, 8}, dtype, options)
        local o, lse = ops.attention(q, k, v, {scale = 0.3})
        local q_grad, k_grad, v_grad = ops.attention_grad(g, q, k, v, o, lse, {scale = 0.3})
        return o, lse, q_grad, k_grad, v_grad
      end)
    end
  end)
end)
