-- What recorded training steps keep, what they compute again, and the memory that this saves.
local config = require "pack.config"
local context = require "pack.core.context"
local ffi = require "ffi"
local packed_model = require "pack.model.packed"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local updater = require "pack.train.updater"
local program = require "pack.core.program"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"
local trainer = require "pack.train.trainer"

-- The peak of a step of the 20m preset with four workers and 32,768 targets, and its plan.
local function forecast(amp, level)
  local resolved = config.load("configs/20m.lua", {"training.max_tokens=1048576", "decentralized.num_models=4",
    "training.micro_batch_size=8", "runtime.threads=2", "runtime.amp=" .. tostring(amp)})
  resolved.runtime.recompute = level ~= "eager" and level or "auto"
  local own = context.create {forecast = true, threads = 2}
  local one = trainer.create(resolved, {context = own})
  local plan
  if level == "eager" then
    one:launch()
  else
    one:recorded():run()
    plan = one:recorded():memory()
  end
  local peak = own:memory().total_peak
  one:free()
  collectgarbage()
  own:close()
  return peak, plan
end

describe("recomputation", function()
  support.watch()

  for _, amp in ipairs {false, true} do
    it("brings the 20m step to at most 60% of the eager step's memory, " .. (amp and "amp" or "f32"), function()
      local eager = forecast(amp, "eager")
      local peak, plan = forecast(amp, "auto")
      assert.is_true(peak <= 0.60 * eager, ("%.3f of eager's"):format(peak / eager))
      assert.equal(1, plan.merged)
      assert.is_true(plan.recomputed > 0)
    end)

    it("saves more at each level, " .. (amp and "amp" or "f32"), function()
      local last, work = math.huge, -1
      for _, level in ipairs {"none", "cheap", "auto", "products"} do
        local peak, plan = forecast(amp, level)
        assert.is_true(peak < last, level)
        assert.is_true(plan.recomputed > work, level)
        last, work = peak, plan.recomputed
      end
    end)
  end

  it("does for each of many micro-steps what it does for one, in the same memory", function()
    local function plan_of(micro_steps)
      local resolved = config.load("configs/smoke.lua", {"training.micro_batch_size=1", "model.context_length=16",
        "decentralized.num_models=2", "decentralized.topology=ring", "training.batch_tokens=" .. 32 * micro_steps,
        "training.max_tokens=" .. 128 * micro_steps, "training.epoch_tokens_per_parameters=1000",
        "training.tokens_per_parameters=1000", "runtime.amp=true", "runtime.recompute=cheap"})
      local own = context.create {forecast = true, threads = 2}
      local one = trainer.create(resolved, {context = own})
      local plan = one:recorded():memory()
      one:free()
      collectgarbage()
      own:close()
      return plan
    end
    local few, more, many = plan_of(4), plan_of(8), plan_of(64)
    for _, name in ipairs {"recorded", "dropped", "merged", "fused", "recomputed", "slab"} do
      assert.equal(few[name], many[name], name)
    end
    assert.equal(15 * (more.operations - few.operations), many.operations - few.operations)
    assert.is_true(many.recomputed > 1 and many.fused > 1 and many.merged == 2)
  end)

  it("refuses a level that there is not", function()
    numbers.assert_refused("recompute 'all' is not none, cheap, auto or products", program.compile,
      function() end, {recompute = "all"})
  end)

  -- y = f(g(x)) is used at once and after a wait; x stays.
  local function waiting(make)
    local x = tensor.normal({1, 64, 64}, 1, {dtype = "f32"})
    local weight = tensor.normal({1, 64, 64}, 2, {dtype = "f32"})
    local function fn()
      local kept = ops.affine(x, {scale = 2})
      local y = make(kept, weight)
      local z = ops.affine(y, {scale = 0.5})
      for _ = 1, 20 do z = ops.affine(z, {scale = 0.5, shift = 0.25}) end
      return ops.add(ops.add(z, y), kept)
    end
    local expected, plans = numbers.bytes(fn()), {}
    for _, level in ipairs {"none", "cheap", "products"} do
      local one = program.record(fn, {}, nil, {recompute = level})
      one:run()
      assert.is_true(expected == numbers.bytes(one.results[1]), level)
      plans[level] = one:memory()
      one:free()
    end
    return plans
  end

  it("runs a product again, and what led to it, at the level of products only", function()
    local plans = waiting(function(kept, weight) return ops.matmul(ops.swiglu(kept, kept), weight) end)
    assert.equal(0, plans.none.recomputed)
    assert.equal(0, plans.cheap.recomputed)
    assert.equal(2, plans.products.recomputed)
  end)

  it("keeps apart what it makes again of one operation at two times", function()
    local x, weight = tensor.normal({5, 5, 1}, 1, {dtype = "f32"}), tensor.normal({5, 1}, 2, {dtype = "f32"})
    local outside, large = tensor.zeros({5, 1}, "f32"), tensor.zeros({5, 30}, "f32")
    local function fn()
      local y, rstd = ops.rmsnorm(x, weight, {eps = 0.125})
      ops.copy(ops.slice(ops.fill {shape = {5, 2}, value = 1}, {axis = 1, count = 1}), {out = outside})
      local z = ops.rmsnorm(y, weight, {eps = 0.125})
      for k = 1, 7 do ops.copy(ops.fill {shape = {5, 30}, value = k}, {out = large}) end
      local a = ops.log(rstd)
      local b = ops.sum(z, {axes = {1, 2}})
      return ops.exp(a), b, ops.affine(b, {scale = 2})
    end
    local expected = {fn()}
    local one = program.record(fn, {}, nil, {recompute = "cheap"})
    one:run()
    assert.equal(3, one:memory().recomputed)
    for i, result in ipairs(expected) do assert.is_true(numbers.bytes(result) == numbers.bytes(one.results[i]), i) end
    one:free()
  end)

  it("does not run a product again whose input was overwritten", function()
    local plans = waiting(function(kept)
      local weight = ops.affine(kept, {scale = 3})
      local y = ops.matmul(kept, weight)
      ops.copy(kept, {out = weight, accumulate = true})
      return y
    end)
    assert.equal(0, plans.products.recomputed)
  end)

  it("spends at most a twentieth of the products' operations by itself", function()
    local x = tensor.normal({1, 64, 64}, 1, {dtype = "f32"})
    local function record(others)
      return program.record(function()
        local kept = ops.affine(x, {scale = 2})
        local y = ops.matmul(kept, x)
        local z = ops.matmul(y, x)
        for _ = 1, others do z = ops.matmul(z, x) end
        return ops.add(ops.add(z, y), kept)
      end, {})
    end
    local few, many = record(17), record(18) -- 19 and 20 products in all
    assert.equal(0, few:memory().recomputed)
    assert.equal(1, many:memory().recomputed)
    few:free()
    many:free()
  end)
end)

describe("the bf16 copy of the weights", function()
  support.watch()

  local shape = {vocab_size = 30, layers = 1, width = 16, heads = 2, ffn_width = 24, context_length = 8,
    rope_theta = 1e4, norm_eps = 1e-5, init_std = 0.1}

  local function model_of(kept)
    local model = packed_model.create(shape, {num_models = 2, amp = true})
    model:initialize(3)
    if kept then model:keep_bf16() end
    return model
  end

  local function batch()
    local values = ffi.new("int32_t[?]", 32)
    for i = 0, 31 do values[i] = i * 7 % 30 end
    return tensor.zeros({2, 2, 8}, "i32"):write(values)
  end

  it("gives the losses and gradients of casts at each use", function()
    local tokens, results = batch(), {}
    for i, model in ipairs {model_of(true), model_of(false)} do
      local gradients = model:zeros_like("gradients")
      local loss = model:backward(tokens, tokens, gradients)
      results[i] = numbers.bytes(loss) .. numbers.bytes(gradients.tensor)
    end
    assert.is_true(results[1] == results[2])
  end)

  it("follows weights that are written by hand, by operations and by programs", function()
    local tokens, kept, plain = batch(), model_of(true), model_of(false)
    local function each(change)
      change(kept)
      change(plain)
      assert.equal(numbers.bytes(plain:loss(tokens, tokens)), numbers.bytes(kept:loss(tokens, tokens)))
    end
    local before = numbers.bytes(kept:loss(tokens, tokens))
    each(function(model) ops.fill {shape = {2, 16}, value = 2, dtype = "f32", out = model.weight["norm.weight"]} end)
    each(function(model) model:initialize(4) end)
    each(function(model)
      local flat = ffi.new("double[?]", 16 * 24 * 2)
      for i = 0, 16 * 24 * 2 - 1 do flat[i] = i % 7 / 10 end
      model.weight["blocks.0.ffn.up_proj.weight"]:write_numbers(flat, 16 * 24 * 2)
    end)
    each(function(model)
      local double = program.record(function()
        local twice = ops.affine(model.arena.tensor, {scale = 2})
        ops.copy(twice, {out = model.arena.tensor})
      end, {})
      double:run()
      double:free()
    end)
    assert.not_equal(before, numbers.bytes(kept:loss(tokens, tokens)))
  end)

  it("is written by the update, so that it need not be made again", function()
    local model, tokens = model_of(false), batch()
    local update = updater.create(model, {beta1 = 0.9, beta2 = 0.9, eps = 1e-8, weight_decay = 0.1, grad_clip = 1}, {})
    for t = 1, 2 do
      local losses, counts = model:backward(tokens, tokens, update.gradients)
      update:step {t = t, lr = 0.1, mixing = {{0.5, 0.5}, {0.5, 0.5}}, losses = losses, counts = counts}
      assert.equal(model.bf16_of, tonumber(require("pack.native").C.pk_tensor_writes(model.arena.tensor)))
      assert.equal(numbers.bytes(ops.cast(model.arena.tensor, {dtype = "bf16"})), numbers.bytes(model.bf16.tensor))
    end
  end)
end)
