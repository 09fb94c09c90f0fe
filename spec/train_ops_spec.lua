-- The operations of the training step: norms, the guard, clipping, mixing, AdamW, and the fused update.
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local inf, nan = math.huge, 0 / 0

local settings = {lr = 0.02, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, t = 3, clip = 0.7,
  step = 2, mixes = 1}

-- scalars [12], with changes to the settings above.
local function scalars_of(changes, options)
  local s = setmetatable(changes or {}, {__index = settings})
  return tensor.from({s.lr, s.beta1, s.beta2, s.eps, s.decay, 1 - s.beta1 ^ s.t, 1 - s.beta2 ^ s.t,
    s.clip, s.step, s.mixes, 0, 0}, "f64", options), s
end

local function guard_of(list, options)
  return tensor.from(list or {0, 0, 0, 0, 0, 0, 0, 0}, "i32", options)
end

-- A ring: half from oneself, half from the one before.
local function ring(n)
  local rows = {}
  for i = 1, n do
    rows[i] = {}
    for j = 1, n do rows[i][j] = 0 end
    rows[i][i] = 0.5
    local before = (i - 2) % n + 1
    rows[i][before] = rows[i][before] + 0.5
  end
  return rows
end

local function uniform(n)
  local rows = {}
  for i = 1, n do
    rows[i] = {}
    for j = 1, n do rows[i][j] = 1 / n end
  end
  return rows
end

-- All tensors of a step, with values of a seed.
local function state_of(n, width, dtype, options)
  local count = n * width
  local blocks = {}
  for b = 1, width / 64 do blocks[b] = b % 3 == 0 and 0 or 1 end
  local state = {
    x = numbers.tensor({n, width}, dtype, numbers.list(count, 21), options),
    g = numbers.tensor({n, width}, dtype, numbers.list(count, 22), options),
    m = numbers.tensor({n, width}, dtype, numbers.list(count, 23, -0.1, 0.1), options),
    v = numbers.tensor({n, width}, dtype, numbers.list(count, 24, 0, 0.1), options),
    scale = numbers.tensor({n}, "f64", numbers.list(n, 25, 0.1, 2), options),
    mixing = tensor.from(ring(n), "f64", options),
    blocks = tensor.from(blocks, "i32", options),
    scalars = scalars_of(nil, options),
    guard = guard_of(nil, options),
    bf16 = tensor.zeros({n, width}, "bf16", options),
  }
  state.norm = ops.gradient_norm(state.g, state.scale)
  return state
end

local function separate(s, last)
  ops.clip(s.g, s.scale, s.norm, s.scalars, s.guard)
  if not last then ops.mix(s.x, s.mixing, s.scalars, s.guard) end
  ops.adamw(s.x, s.g, s.m, s.v, s.blocks, s.scalars, s.guard)
  if last then ops.mix(s.x, s.mixing, s.scalars, s.guard) end
end

local function fused(s, last)
  ops.update(s.x, s.g, s.m, s.v, s.scale, s.norm, s.mixing, s.blocks, s.scalars, s.guard, s.bf16,
    {combine_last = last})
end

-- AdamW by DESIGN's formula on flat lists of one worker, in doubles.
local function adamw(x, g, m, v, s, decays)
  for c = 1, #x do
    m[c] = s.beta1 * m[c] + (1 - s.beta1) * g[c]
    v[c] = s.beta2 * v[c] + (1 - s.beta2) * g[c] ^ 2
    local step = (m[c] / (1 - s.beta1 ^ s.t)) / (math.sqrt(v[c] / (1 - s.beta2 ^ s.t)) + s.eps)
    x[c] = (decays(c) and 1 - s.lr * s.decay or 1) * x[c] - s.lr * step
  end
end

describe("gradient_norm", function()
  local ones = tensor.from({1, 1}, "f64")

  it("is each worker's norm times its scale", function()
    for dtype, tolerance in pairs {f32 = 1e-13, f64 = 1e-14} do
      local width = 70001
      local g = numbers.strided({3, width}, dtype, numbers.list(3 * width, 1))
      local list, expected, scale = numbers.flat(g), {}, {0.5, 1, 0.001}
      for worker = 1, 3 do
        local total = 0
        for c = 1, width do total = total + list[(worker - 1) * width + c] ^ 2 end
        expected[worker] = scale[worker] * math.sqrt(total)
      end
      local norm = ops.gradient_norm(g, tensor.from(scale, "f64"))
      assert.equal("f64", norm.dtype)
      numbers.assert_close(expected, norm, tolerance)
    end
  end)

  it("does not overflow or vanish", function()
    local function norm(value, dtype)
      return ops.gradient_norm(tensor.full({2, 400}, value, dtype), ones)
    end
    numbers.assert_close({20 * numbers.f32(1e20), 20 * numbers.f32(1e20)}, norm(1e20, "f32"), 1e-14)
    numbers.assert_close({20e300, 20e300}, norm(1e300, "f64"), 1e-14)
    numbers.assert_close({20e-300, 20e-300}, norm(1e-300, "f64"), 1e-14, 20e-300)
    numbers.assert_close({20e-320, 20e-320}, norm(1e-320, "f64"), 1e-14, 20e-320)
    numbers.assert_same({0, 0}, norm(0, "f64"))
  end)

  it("is not finite exactly for the workers whose gradient is not", function()
    for dtype in pairs {f32 = true, f64 = true} do
      local g = numbers.tensor({2, 70}, dtype, numbers.list(140, 2))
      for _, value in ipairs {nan, inf, -inf} do
        g = ops.copy(g)
        numbers.put(g, value, 131)
        local norm = numbers.flat(ops.gradient_norm(g, ones))
        assert.is_true(norm[1] < 10)
        assert.is_false(norm[2] < inf)
      end
    end
  end)
end)

describe("check_finite", function()
  local function checked(loss, norm, guard)
    guard = guard_of(guard)
    ops.check_finite(tensor.from(loss, "f32"), tensor.from(norm, "f64"), (scalars_of {step = 41}), guard)
    return numbers.flat(guard)
  end

  it("counts the update and the mixing while all is finite", function()
    assert.same({0, 0, 0, 0, 6, 7, 0, 0}, checked({1, 2}, {3, 1e300}, {0, 0, 0, 0, 5, 6, 0, 0}))
  end)

  it("names the first worker, the step and whether loss or norm it was", function()
    assert.same({1, 1, 41, 1, 0, 0, 0, 0}, checked({1, nan, nan}, {3, 4, 5}))
    assert.same({1, 1, 41, 2, 0, 0, 0, 0}, checked({1, 2, nan}, {3, inf, 5}))
    assert.same({1, 0, 41, 1, 0, 0, 0, 0}, checked({-inf, 2}, {nan, 4}))
  end)

  it("keeps the first stop", function()
    assert.same({1, 7, 3, 2, 9, 9, 0, 0}, checked({nan}, {nan}, {1, 7, 3, 2, 9, 9, 0, 0}))
  end)

  it("takes losses in f64", function()
    local guard = guard_of()
    ops.check_finite(tensor.from({1, inf}, "f64"), tensor.from({1, 1}, "f64"), (scalars_of()), guard)
    assert.same({1, 1, 2, 1, 0, 0, 0, 0}, numbers.flat(guard))
  end)
end)

describe("clip", function()
  -- The factors that gradients of 1 are multiplied by.
  local function factors(scale, norm, clip, dtype)
    local g = tensor.ones({#scale, 3}, dtype or "f64")
    ops.clip(g, tensor.from(scale, "f64"), tensor.from(norm, "f64"), (scalars_of {clip = clip}), guard_of())
    local list = numbers.flat(g)
    local result = {}
    for i = 1, #scale do
      assert.equal(list[3 * i - 2], list[3 * i])
      result[i] = list[3 * i]
    end
    return result
  end

  it("scales by min(1, clip / (norm + 1e-6))", function()
    assert.same({0.5, 2 * (1 / (4 + 1e-6))}, factors({0.5, 2}, {0.5, 4}, 1))
    assert.same({1 / (1 + 1e-6)}, factors({1}, {1}, 1))
    assert.same({numbers.f32(0.1 * (1 / (4 + 1e-6)))}, factors({0.1}, {4}, 1, "f32"))
  end)

  it("only scales when it is off", function()
    assert.same({0.5, 2}, factors({0.5, 2}, {0.5, 4e10}, 0))
  end)

  it("brings gradients of 1e20 to the norm asked for", function()
    local g, scale = tensor.full({1, 400}, 1e20, "f32"), tensor.from({1}, "f64")
    ops.clip(g, scale, ops.gradient_norm(g, scale), (scalars_of {clip = 1}), guard_of())
    numbers.assert_close({1}, ops.gradient_norm(g, scale), 1e-6)
  end)
end)

describe("mix", function()
  local function mixed(x, rows, changes)
    local guard = guard_of()
    ops.mix(x, tensor.from(rows, "f64"), (scalars_of(changes)), guard)
    return x, numbers.flat(guard)
  end

  it("multiplies by the matrix, summed in f64 and rounded once", function()
    for n = 1, 5 do
      for _, dtype in ipairs {"f32", "f64"} do
        local width = 700
        local x = numbers.strided({n, width}, dtype, numbers.list(n * width, 31))
        local list, expected, rows = numbers.flat(x), {}, ring(n)
        for i = 1, n do
          for c = 1, width do
            local total
            for j = 1, n do
              local term = rows[i][j] * list[(j - 1) * width + c]
              if rows[i][j] ~= 0 then total = total and total + term or term end
            end
            expected[(i - 1) * width + c] = numbers.round(dtype, total)
          end
        end
        local result, guard = mixed(x, rows)
        numbers.assert_same(expected, result)
        assert.same({0, 0, 0, 0, 0, 0, 0, 0}, guard)
      end
    end
  end)

  it("leaves every bit under the identity, and counts only what is a mixing", function()
    local list = numbers.list(300, 32)
    list[7], list[8] = -0.0, nan
    local x = numbers.tensor({3, 100}, "f32", list)
    local before = numbers.bytes(x)
    local _, guard = mixed(x, {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}, {mixes = 0})
    assert.equal(before, numbers.bytes(x))
    assert.same({0, 0, 0, 0, 0, 0, 0, 0}, guard)
  end)

  it("makes all workers equal to the bit when it is complete", function()
    for dtype in pairs {f32 = true, f64 = true} do
      local x = mixed(numbers.tensor({5, 333}, dtype, numbers.list(1665, 33)), uniform(5))
      for worker = 1, 4 do assert.equal(numbers.bytes(x[0]), numbers.bytes(x[worker])) end
    end
  end)

  it("keeps a NaN with the workers connected to it", function()
    for dtype in pairs {f32 = true, f64 = true} do
      local clean = numbers.tensor({4, 64}, dtype, numbers.list(256, 34))
      local dirty = ops.copy(clean)
      numbers.put(dirty, nan, 65, 128)
      mixed(clean, ring(4))
      mixed(dirty, ring(4))
      -- Worker 1 (from 0) is read by itself and by worker 2.
      for _, worker in ipairs {0, 3} do
        assert.equal(numbers.bytes(clean[worker]), numbers.bytes(dirty[worker]))
      end
      for _, worker in ipairs {1, 2} do
        local value = numbers.flat(dirty[worker])[1]
        assert.is_true(value ~= value)
      end
    end
  end)
end)

describe("adamw", function()
  for dtype, tolerance in pairs {f32 = 2e-6, f64 = 1e-14} do
    it("follows its formula in " .. dtype, function()
      local s = state_of(3, 64 * 5, dtype)
      local lists, width = {}, 64 * 5
      for _, name in ipairs {"x", "g", "m", "v"} do lists[name] = numbers.flat(s[name]) end
      for t = 3, 5 do
        local scalars, values = scalars_of {t = t}
        ops.adamw(s.x, s.g, s.m, s.v, s.blocks, scalars, s.guard)
        adamw(lists.x, lists.g, lists.m, lists.v, values, function(c)
          return (math.floor((c - 1) % width / 64) + 1) % 3 ~= 0
        end)
        for _, name in ipairs {"x", "m", "v"} do
          numbers.assert_close(lists[name], s[name], tolerance)
        end
      end
    end)
  end

  it("with zero gradients fixes norms and shrinks matrices by 1 - lr wd", function()
    local s = state_of(2, 64 * 3, "f32")
    local zeros = tensor.zeros({2, 192}, "f32")
    local before = numbers.flat(s.x)
    ops.adamw(s.x, zeros, ops.copy(zeros), ops.copy(zeros), s.blocks, s.scalars, s.guard)
    local factor, expected = numbers.f32(1 - settings.lr * settings.decay), {}
    for i, value in ipairs(before) do
      local in_norm = (i - 1) % 192 >= 128
      expected[i] = in_norm and value or numbers.f32(factor * value)
    end
    numbers.assert_same(expected, s.x)
  end)
end)

-- SGD by its formula on flat lists of all workers, in doubles; rate_of gives a worker's learning rate.
local function sgd(x, g, m, width, options, rate_of)
  for i = 1, #x do
    local block = math.floor((i - 1) % width / 64) + 1
    local d, lr = g[i], rate_of(math.floor((i - 1) / width) + 1)
    if options.momentum then
      m[i] = settings.beta1 * m[i] + g[i]
      d = options.nesterov and g[i] + settings.beta1 * m[i] or m[i]
    end
    x[i] = x[i] - lr * ((block % 3 ~= 0 and settings.decay or 0) * x[i] + d)
  end
end

-- The scalars with a learning rate for each worker.
local function scalars_with(rates)
  local list = numbers.flat(scalars_of())
  for _, rate in ipairs(rates) do list[#list + 1] = rate end
  return tensor.from(list, "f64")
end

describe("sgd", function()
  local width, rates = 64 * 5, {0.02, 0.05, 0.003}
  for dtype, tolerance in pairs {f32 = 2e-6, f64 = 1e-14} do
    for _, options in ipairs {{}, {momentum = true}, {momentum = true, nesterov = true}} do
      it(("follows its formula in %s%s%s"):format(dtype, options.momentum and ", momentum" or "",
        options.nesterov and ", nesterov" or ""), function()
        local s = state_of(3, width, dtype)
        local x, g, m = numbers.flat(s.x), numbers.flat(s.g), numbers.flat(s.m)
        for _, scalars in ipairs {s.scalars, scalars_with(rates)} do
          ops.sgd(s.x, s.g, options.momentum and s.m, s.blocks, scalars, s.guard, {nesterov = options.nesterov})
          sgd(x, g, m, width, options, function(i) return scalars == s.scalars and settings.lr or rates[i] end)
          numbers.assert_close(x, s.x, tolerance)
          numbers.assert_close(m, s.m, tolerance)
        end
      end)
    end
  end

  it("names the first worker whose result is not finite, and counts nothing", function()
    local s = state_of(3, 128, "f32")
    local g = numbers.list(3 * 128, 22)
    g[128 + 7], g[2 * 128 + 9] = inf, inf
    ops.sgd(s.x, tensor.from(g, "f32"):reshape(3, 128), s.m, s.blocks, s.scalars, s.guard)
    assert.same({0, 0, settings.step, 0, 0, 0, 2, 0}, numbers.flat(s.guard))
  end)
end)

describe("a learning rate for each worker", function()
  local rates = {0.02, 0.05, 0.003}
  local steps = {
    adamw = function(s) ops.adamw(s.x, s.g, s.m, s.v, s.blocks, s.scalars, s.guard) end,
    sgd = function(s) ops.sgd(s.x, s.g, s.m, s.blocks, s.scalars, s.guard) end,
    ["update, mixing first"] = function(s) fused(s, false) end,
    ["update, mixing last"] = function(s) fused(s, true) end,
  }
  for name, step in pairs(steps) do
    it("gives the bits of that rate for all: " .. name, function()
      local function weights(scalars)
        local s = state_of(3, 192, "f32")
        s.scalars, s.mixing = scalars, tensor.from({{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}, "f64")
        step(s)
        return s.x:totable()
      end
      local own = weights(scalars_with(rates))
      for i, rate in ipairs(rates) do assert.same(weights((scalars_of {lr = rate}))[i], own[i]) end
    end)
  end

  it("is for all workers or for none", function()
    local s = state_of(3, 64, "f32")
    assert.error_matches(function()
      ops.sgd(s.x, s.g, s.m, s.blocks, scalars_with {0.1, 0.2}, s.guard)
    end, "14 scalars are neither 12 nor 12 and a rate for each of 3 workers")
  end)
end)

describe("update", function()
  for n = 1, 5 do
    for _, dtype in ipairs {"f32", "f64"} do
      for _, last in ipairs {false, true} do
        it(("gives the bits of clip, mix and adamw for %d workers, %s, %s"):format(n, dtype,
          last and "mixing last" or "mixing first"), function()
          for _, width in ipairs {64, 64 * 3, 64 * 151} do
            local a, b = state_of(n, width, dtype), state_of(n, width, dtype)
            for _ = 1, 2 do
              separate(a, last)
              fused(b, last)
              a.g = numbers.tensor({n, width}, dtype, numbers.list(n * width, 26))
              b.g = ops.copy(a.g)
            end
            for _, name in ipairs {"x", "m", "v", "guard"} do
              assert.equal(numbers.bytes(a[name]), numbers.bytes(b[name]), name .. " differs")
            end
            assert.equal(numbers.bytes(ops.cast(b.x, {dtype = "bf16"})), numbers.bytes(b.bf16))
          end
        end)
      end
    end
  end

  it("follows the formula: mix, then AdamW from the mixed weights and unmixed gradients", function()
    local s, width = state_of(2, 64, "f64"), 64
    local x, g, m, v = numbers.flat(s.x), numbers.flat(s.g), numbers.flat(s.m), numbers.flat(s.v)
    local scale, expected = numbers.flat(s.scale), {}
    for worker = 0, 1 do
      local lists, square = {x = {}, g = {}, m = {}, v = {}}, 0
      for c = 1, width do
        local at = worker * width + c
        lists.x[c] = 0.5 * x[c] + 0.5 * x[width + c]
        lists.g[c], lists.m[c], lists.v[c] = g[at] * scale[worker + 1], m[at], v[at]
        square = square + lists.g[c] ^ 2
      end
      local factor = math.min(1, settings.clip / (math.sqrt(square) + 1e-6))
      for c = 1, width do lists.g[c] = lists.g[c] * factor end
      adamw(lists.x, lists.g, lists.m, lists.v, settings, function() return true end)
      for c = 1, width do expected[worker * width + c] = lists.x[c] end
    end
    fused(s, false)
    numbers.assert_close(expected, s.x, 1e-14)
  end)

  it("works without a bf16 copy, on views of wider arenas, and leaves gradients as they are", function()
    local s = state_of(3, 128, "f32")
    local before = numbers.bytes(s.g)
    local wide = {}
    for _, name in ipairs {"x", "g", "m", "v"} do
      wide[name] = numbers.strided({3, 128}, "f32", numbers.flat(s[name]))
    end
    fused(s, false)
    ops.update(wide.x, wide.g, wide.m, wide.v, s.scale, s.norm, s.mixing, s.blocks, s.scalars, guard_of(),
      nil, {combine_last = false})
    assert.equal(before, numbers.bytes(s.g))
    for _, name in ipairs {"x", "g", "m", "v"} do
      assert.equal(numbers.bytes(s[name]), numbers.bytes(wide[name]))
    end
  end)

  it("still decays weights and moments of a worker without targets", function()
    local s = state_of(2, 64, "f32")
    s.scale = tensor.from({0, 1}, "f64")
    s.g = numbers.tensor({2, 64}, "f32", numbers.list(128, 27))
    s.norm = ops.gradient_norm(s.g, s.scale)
    s.mixing = tensor.from({{1, 0}, {0, 1}}, "f64")
    local m, v = numbers.flat(s.m), numbers.flat(s.v)
    assert.equal(0, numbers.flat(s.norm)[1])
    fused(s, false)
    local new_m, new_v = numbers.flat(s.m), numbers.flat(s.v)
    for c = 1, 64 do
      assert.equal(numbers.f32(numbers.f32(settings.beta1) * m[c]), new_m[c])
      assert.equal(numbers.f32(numbers.f32(settings.beta2) * v[c]), new_v[c])
    end
    assert.same({0, 0, 0, 0, 0, 0, 0, 0}, numbers.flat(s.guard))
  end)

  it("keeps a worker's NaN gradient to itself until it is mixed", function()
    local clean, dirty = state_of(3, 64, "f32"), state_of(3, 64, "f32")
    numbers.put(dirty.g, nan, 71)
    fused(clean, false)
    fused(dirty, false)
    for _, name in ipairs {"x", "m", "v"} do
      for _, worker in ipairs {0, 2} do
        assert.equal(numbers.bytes(clean[name][worker]), numbers.bytes(dirty[name][worker]))
      end
    end
  end)
end)

describe("a stopped run", function()
  it("changes nothing, counters included", function()
    local s = state_of(3, 128, "f32")
    s.guard = guard_of {1, 2, 5, 1, 8, 9, 0, 0}
    local names, before = {"x", "g", "m", "v", "guard", "bf16"}, {}
    for _, name in ipairs(names) do before[name] = numbers.bytes(s[name]) end
    separate(s, false)
    ops.sgd(s.x, s.g, s.m, s.blocks, s.scalars, s.guard)
    fused(s, false)
    fused(s, true)
    ops.check_finite(tensor.from({nan, nan, nan}, "f32"), s.norm, s.scalars, s.guard)
    for _, name in ipairs(names) do assert.equal(before[name], numbers.bytes(s[name])) end
  end)
end)

describe("what is written in place", function()
  it("must not be read or written as something else by the same call", function()
    local s = state_of(2, 64, "f32")
    local function refused(message, ...)
      local good, err = pcall(...)
      assert.is_false(good)
      assert.is_truthy(err:find(message, 1, true), err)
    end
    local before = numbers.bytes(s.x)
    refused("adamw: input 1 is written to and shares memory with input 2", ops.adamw, s.x, s.x, s.m,
      s.v, s.blocks, s.scalars, s.guard)
    refused("adamw: input 3 is written to and shares memory with input 4", ops.adamw, s.x, s.g, s.m,
      s.m, s.blocks, s.scalars, s.guard)
    refused("update: input 1 is written to and shares memory with input 3", ops.update, s.x, s.g, s.x,
      s.v, s.scale, s.norm, s.mixing, s.blocks, s.scalars, s.guard, s.bf16, {combine_last = false})
    local w = tensor.from({{1, 0}, {0, 1}}, "f64")
    refused("mix: input 1 is written to and shares memory with input 2", ops.mix, w, w, s.scalars, s.guard)
    assert.equal(before, numbers.bytes(s.x))
  end)
end)

describe("reading the workers", function()
  it("average is the mean over workers, summed in f64", function()
    for dtype, tolerance in pairs {f32 = 1e-7, f64 = 1e-15} do
      local width = 20001
      local x = numbers.strided({3, width}, dtype, numbers.list(3 * width, 41))
      local list, expected = numbers.flat(x), {}
      for c = 1, width do
        expected[c] = (list[c] + list[width + c] + list[2 * width + c]) / 3
      end
      local result = ops.average(x)
      assert.same({1, width}, result:sizes())
      numbers.assert_close(expected, result, tolerance)
    end
  end)

  it("average of equal workers is each of them, to the bit", function()
    local row = numbers.tensor({1, 500}, "f32", numbers.list(500, 42))
    assert.equal(numbers.bytes(row), numbers.bytes(ops.average(ops.expand(row, {7, 500}))))
  end)

  it("consensus_distance is the root of the mean squared distance from the average", function()
    for dtype in pairs {f32 = true, f64 = true} do
      local width = 40001
      local x = numbers.strided({4, width}, dtype, numbers.list(4 * width, 43))
      local list, total = numbers.flat(x), 0
      for c = 1, width do
        local mean = 0
        for worker = 0, 3 do mean = mean + list[worker * width + c] / 4 end
        for worker = 0, 3 do total = total + (list[worker * width + c] - mean) ^ 2 end
      end
      numbers.assert_close({math.sqrt(total / 4)}, ops.consensus_distance(x), 1e-12)
    end
    assert.equal(0, ops.consensus_distance(tensor.full({3, 64}, 0.1, "f32")):item())
  end)
end)

describe("the step at any number of threads #threads", function()
  it("gives the same bits", function()
    for _, last in ipairs {false, true} do
      numbers.assert_same_at_threads(function(options)
        local s = state_of(3, 64 * 1100, "f32", options)
        fused(s, last)
        local t = state_of(3, 64 * 1100, "f32", options)
        separate(t, last)
        return s.norm, s.x, s.m, s.v, s.bf16, t.x, t.m, t.v, ops.average(s.x), ops.consensus_distance(s.x)
      end)
    end
  end)
end)
