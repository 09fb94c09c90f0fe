-- Recorded programs: what they compute, what they refuse, and what they plan.
local context = require "pack.core.context"
local ffi = require "ffi"
local grad = require "pack.grad"
local packed_model = require "pack.model.packed"
local ops = require "pack.core.ops"
local updater = require "pack.train.updater"
local program = require "pack.core.program"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"
local topology = require "pack.mixing.topology"

describe("a compiled function", function()
  support.watch()

  it("computes what the function computes, with new inputs in each call", function()
    local f = program.compile(function(a, b)
      return ops.add(ops.multiply(a, b), a), ops.sum(b, {axes = {0}})
    end)
    for k = 1, 3 do
      local a, b = tensor.from({1, 2 * k}, "f64"), tensor.from({3, 4}, "f64")
      local y, total = f(a, b)
      assert.same({4, 10 * k}, y:totable())
      assert.equals(7, total:item())
    end
    f:free()
  end)

  it("is recorded once for each set of shapes", function()
    local recorded = 0
    local f = program.compile(function(a)
      recorded = recorded + 1
      return ops.negate(a)
    end)
    local two, three = tensor.from({1, 2}, "f32"), tensor.from({1, 2, 3}, "f32")
    f(two)
    f(three)
    assert.same({-1, -2}, f(two):totable())
    assert.same({-1, -2, -3}, f(three):totable())
    assert.equals(2, recorded)
    f:free()
  end)

  it("reads and writes tensors from outside in place", function()
    local x = tensor.from({1, 2}, "f64")
    local f = program.compile(function(a)
      ops.copy(a, {out = x, accumulate = true})
      return ops.affine(x, {scale = 10})
    end)
    local one = tensor.from({1, 1}, "f64")
    assert.same({20, 30}, f(one):totable())
    x:write(ffi.new("double[2]", 5, 6))
    assert.same({60, 70}, f(one):totable())
    assert.same({6, 7}, x:totable())
    f:free()
  end)

  it("starts tensors made inside with zeros in every run", function()
    local f = program.compile(function(a)
      local sum = tensor.zeros({2}, "f64")
      ops.copy(a, {out = sum, accumulate = true})
      ops.copy(a, {out = sum, accumulate = true})
      return sum
    end)
    local a = tensor.from({1, 2}, "f64")
    for _ = 1, 3 do assert.same({2, 4}, f(a):totable()) end
    f:free()
  end)

  it("differentiates inside", function()
    local f = program.compile(function(a)
      local _, gradients = grad.grad(function() return ops.multiply(a, ops.multiply(a, a)) end, {a})
      return gradients[1]
    end)
    assert.same({12, 27}, f(tensor.from({2, 3}, "f64")):totable())
    f:free()
  end)

  it("refuses to look at values while it is recorded, and leaves the context usable", function()
    local a = tensor.from({1, 2}, "f64")
    local reads = program.compile(function(x) return ops.affine(x, {scale = ops.sum(x):item()}) end)
    assert.error_matches(function() reads(a) end, "cannot be read while a program is recorded")
    local outside = tensor.from({1}, "f64")
    local writes = program.compile(function(x)
      outside:write(ffi.new("double[1]"))
      return x
    end)
    assert.error_matches(function() writes(a) end, "cannot be written while a program is recorded")
    assert.same({2, 4}, ops.add(a, a):totable())
  end)

  it("refuses a result that is no tensor, and a program inside a program", function()
    local a = tensor.from({1, 2}, "f64")
    local number = program.compile(function() return 3 end)
    assert.error_matches(function() number(a) end, "result 1 is a number")
    local hole = program.compile(function(x) return nil, ops.negate(x) end)
    assert.error_matches(function() hole(a) end, "result 1 is a nil")
    local inner = program.compile(function(x) return ops.negate(x) end)
    local outer = program.compile(function(x) return (inner(x)) end)
    assert.error_matches(function() outer(a) end, "being recorded already")
    assert.same({-1, -2}, inner(a):totable())
    inner:free()
  end)

  it("may have no operations", function()
    local x = tensor.from({1, 2}, "f64")
    local one = program.record(function() return x end, {})
    one:run()
    assert.equal(0, one:memory().operations)
    assert.same({1, 2}, one.results[1]:totable())
    one:free()
  end)

  it("refuses to be run or looked at after it was freed", function()
    local one = program.record(function() return ops.fill {shape = {2}, value = 1} end, {})
    one:free()
    for _, name in ipairs {"run", "memory", "describe", "remark"} do
      assert.error_matches(function() one[name](one) end, "the program was freed")
    end
    one:free()
  end)

  it("keeps its results readable after it was freed", function()
    local f = program.compile(function(x) return ops.negate(x) end)
    local y = f(tensor.from({1, 2}, "f64"))
    f:free()
    collectgarbage()
    assert.same({-1, -2}, y:totable())
  end)

  it("takes the memory of those that nobody holds any more", function()
    local own = context {memory_limit_mib = 3}
    for k = 1, 4 do
      local one = program.record(function()
        return ops.sum(ops.exp(ops.fill {shape = {2 ^ 18}, value = 0, dtype = "f64", context = own}))
      end, {}, own)
      one:run()
      assert.equals(2 ^ 18, one.results[1]:item(), k)
    end
    collectgarbage()
    own:close()
  end)

  it("says which operation failed when it runs #cpu", function()
    local weight = tensor.zeros({1, 4, 2}, "f32")
    local f = program.compile(function(ids) return ops.embedding(weight, ids) end)
    f(tensor.from({{1, 2}}, "i32"))
    assert.error_matches(function() f(tensor.from({{1, 7}}, "i32")) end,
      "operation 1 of a recorded program: embedding: id 7")
    f:free()
  end)
end)

describe("a program's plan", function()
  it("drops what nothing reads", function()
    local one = program.record(function()
      local x = ops.fill {shape = {8}, value = 2, dtype = "f64"}
      ops.exp(ops.negate(x))
      return ops.add(x, x)
    end, {})
    local plan = one:memory()
    assert.equals(4, plan.recorded)
    assert.equals(2, plan.dropped)
    one:run()
    assert.equals(4, one.results[1]:totable()[8])
    one:free()
  end)

  it("gives buffers whose lives do not meet the same place", function()
    local one = program.record(function()
      local x = tensor.full({1024}, 1, "f64")
      for _ = 1, 10 do x = ops.affine(x, {scale = 2}) end
      return x
    end, {})
    local plan = one:memory()
    assert.equals(8192, plan.activations) -- each result takes the place of its input
    assert.equals(8192, plan.slab)
    one:run()
    assert.equals(1024, one.results[1]:totable()[1024])
    assert.is_truthy(one:describe():find("affine: f64 [1024] @", 1, true))
    one:free()
    local turned = program.record(function()
      local x = tensor.full({32, 32}, 1, "f64")
      for _ = 1, 10 do x = ops.transpose(x, {permutation = {1, 0}}) end
      return x
    end, {})
    assert.equals(2 * 8192, turned:memory().slab)
    turned:free()
  end)

  it("computes a cheap result again rather than keeping it through a long wait, to the same bits", function()
    local size = 4096
    local gate = tensor.normal({1, size}, 1, {dtype = "f32"})
    local up = tensor.normal({1, size}, 2, {dtype = "f32"})
    local function chain(waits)
      return function()
        local a, b = ops.affine(gate, {scale = 2}), ops.affine(up, {scale = 3})
        local y = ops.swiglu(a, b)
        local z = ops.add(y, y)
        for _ = 1, waits do z = ops.affine(z, {scale = 0.5, shift = 0.25}) end
        return ops.add(ops.add(z, y), ops.multiply(a, b))
      end
    end
    local short, long = program.record(chain(3), {}), program.record(chain(40), {})
    assert.equals(0, short:memory().recomputed)
    assert.equals(1, long:memory().recomputed)
    assert.equals(47, long:memory().recorded)
    local expected = chain(40)():totable()
    long:run()
    assert.same(expected, long.results[1]:totable())
    short:free()
    long:free()
  end)

  it("does not compute again from what was overwritten meanwhile", function()
    local outside = tensor.from({{1, 2, 3, 4}}, "f32")
    local function step()
      local y = ops.swiglu(outside, outside)
      local z = ops.add(y, y)
      ops.fill {shape = {1, 4}, value = 9, dtype = "f32", out = outside}
      for _ = 1, 40 do z = ops.affine(z, {scale = 0.5}) end
      return ops.add(z, y)
    end
    local one = program.record(step, {})
    assert.equals(0, one:memory().recomputed)
    one:run()
    local recorded = one.results[1]:totable()
    outside:write_numbers(ffi.new("double[4]", 1, 2, 3, 4))
    assert.same(step():totable(), recorded)
    one:free()
  end)

  it("is what the run takes, within the slab's bytes", function()
    local own = context.create {threads = 1}
    local one = program.record(function()
      local x = tensor.full({1, 64, 64}, 0.5, "f32", {context = own})
      return ops.matmul(x, ops.matmul(x, x))
    end, {}, own)
    local before = own:memory().total
    one:run()
    assert.equals(one:memory().slab, own:memory().total - before)
    one:free()
    collectgarbage()
    own:close()
  end)
end)

local config = {vocab_size = 50, layers = 2, width = 16, heads = 2, ffn_width = 24,
  context_length = 16, rope_theta = 1e4, norm_eps = 1e-5, init_std = 0.1}

local function of_architecture(name)
  local own = {architecture = name}
  for key, value in pairs(config) do own[key] = value end
  return own
end

-- The bytes of losses and norms of 20 steps and of the final weights. options: architecture, workers, amp, scheme, micro
-- (micro-steps), fused, recompute.
local function train(recorded, options)
  local n, rows, micros = options.workers or 3, 2, options.micro or 2
  local model = packed_model.create(of_architecture(options.architecture), {num_models = n, amp = options.amp})
  model:initialize(3)
  local update = updater.create(model, {beta1 = 0.9, beta2 = 0.98, eps = 1e-8, weight_decay = 0.1,
    grad_clip = false}, {scheme = options.scheme, fused = options.fused})
  local mixer = topology.create("one_peer_exponential", n)
  local function batch() return tensor.zeros({n, rows, config.context_length}, "i32") end
  local tokens, targets = {batch(), batch()}, {batch(), batch()}
  local function step()
    local losses, counts = model:backward(tokens[1], targets[1], update.gradients)
    for micro = 2, micros do
      local more, of = model:backward(tokens[micro], targets[micro], update.gradients, true)
      losses, counts = ops.add(losses, more), ops.add(counts, of)
    end
    return losses, update:update(losses, counts)
  end
  local one = recorded and program.record(step, {}, nil, {recompute = options.recompute})
  local seen, count = {}, n * rows * config.context_length
  for t = 1, 20 do
    local values = ffi.new("int32_t[?]", count)
    for micro = 1, micros do
      for i = 0, count - 1 do values[i] = (i * 7 + t * 13 + micro + i * i % 11) % 50 end
      tokens[micro]:write(values)
      for i = 0, count - 1 do values[i] = i % 9 == t % 9 and -100 or (values[i] * 3 + 1) % 50 end
      targets[micro]:write(values)
    end
    local gamma, w = t / 20, mixer:matrix(t - 1)
    local mixing = {}
    for i = 1, n do
      mixing[i] = {}
      for j = 1, n do mixing[i][j] = gamma * w[i][j] + (i == j and 1 - gamma or 0) end
    end
    update.settings.grad_clip = t % 4 ~= 0 and 0.1 * t
    update:prepare {t = t, lr = 0.001 * t, mixing = mixing}
    local losses, norms
    if one then
      one:run()
      update:updated()
      losses, norms = unpack(one.results)
    else
      losses, norms = step()
    end
    update:check()
    seen[#seen + 1] = ffi.string(losses:read(), 4 * n) .. ffi.string(norms:read(), 8 * n)
  end
  if one then one:free() end
  local x = model.arena.tensor
  return table.concat(seen) .. ffi.string(x:read(), tonumber(x.numel) * 4)
end

describe("a recorded training step", function()
  support.watch()

  for _, case in ipairs {
    {scheme = "awc"}, {scheme = "atc", micro = 1}, {scheme = "awc", amp = true, micro = 1},
    {scheme = "atc", amp = true, levels = {"none", "products"}},
    {scheme = "awc", amp = true, fused = false},
    {architecture = "gpt2", workers = 1, scheme = "awc", amp = true},
    {architecture = "gpt2", workers = 2, scheme = "atc", levels = {"none", "products"}},
    {architecture = "gpt2", workers = 3, scheme = "awc", amp = true, levels = {"auto", "none", "products"}},
  } do
    local words = {}
    for _, key in ipairs {"architecture", "workers", "scheme", "amp", "micro", "fused"} do
      if case[key] ~= nil then words[#words + 1] = ("%s %s"):format(key, tostring(case[key])) end
    end
    it("gives the bits of the eager step over 20 steps: " .. table.concat(words, ", "), function()
      local eager = train(false, case)
      for _, level in ipairs(case.levels or {"auto"}) do
        case.recompute = level
        assert.is_true(eager == train(true, case), level)
      end
    end)
  end
end)
