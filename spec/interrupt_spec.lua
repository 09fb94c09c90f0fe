-- Requests to stop: what they interrupt, and what they find whole or untouched. spec/prompt_spec.lua presses ^C.
local config = require "pack.config"
local context = require "pack.context"
local ffi = require "ffi"
local native = require "pack.native"
local numbers = require "spec.support.numbers"
local ops = require "pack.ops"
local program = require "pack.program"
local support = require "spec.support.helper"
local tensor = require "pack.tensor"
local trainer = require "pack.trainer"

local C = native.C

-- That a call fails as ^C makes it fail.
local function is_interrupted(call, ...)
  local good, problem = pcall(call, ...)
  assert.is_false(good)
  assert.same({130, "interrupted"}, {problem.exit, problem.message})
end

describe("a request to stop", function()
  support.watch()

  after_each(function()
    C.pk_interrupt_forget()
    C.pk_interrupt_hold(C.PK_HOLD_NOTHING)
  end)

  it("is answered by the next operation, which does nothing, and by no other", function()
    local a, out = tensor.from {1, 2}, tensor.from {8, 9}
    C.pk_interrupt_request()
    is_interrupted(ops.add, a, a, {out = out})
    assert.same({8, 9}, out:totable())
    ops.add(a, a, {out = out})
    assert.same({2, 4}, out:totable())
  end)

  it("waits while it is held", function()
    local a = tensor.from {1, 2}
    assert.equal(C.PK_HOLD_NOTHING, C.pk_interrupt_hold(C.PK_HOLD_ALL))
    C.pk_interrupt_request()
    assert.same({2, 4}, (a + a):totable())
    assert.equal(1, C.pk_interrupt_requested())
    assert.equal(C.PK_HOLD_ALL, C.pk_interrupt_hold(C.PK_HOLD_CODE))
    is_interrupted(function() return a + a end)
  end)

  it("finds a recorded program before its first operation", function()
    local state, input = tensor.from {1, 2}, tensor.from {10, 20}
    local recorded = program.record(function() ops.copy(state + input, {out = state}) end, {})
    C.pk_interrupt_request()
    is_interrupted(recorded.run, recorded)
    assert.same({1, 2}, state:totable())
    recorded:run()
    assert.same({11, 22}, state:totable())
    recorded:free()
  end)

  it("ends reading a large tensor", function()
    local t = tensor.zeros {100000}
    C.pk_interrupt_request()
    local good, problem = pcall(t.statistics, t)
    assert.is_false(good)
    assert.is_truthy(tostring(problem):find("interrupted", 1, true))
  end)
end)

describe("a training step", function()
  support.watch()

  local settings = {
    "model.vocab_size=257", "model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24",
    "model.context_length=8", "training.batch_tokens=64", "training.micro_batch_size=2", "training.max_tokens=640",
    "optimizer.warmup_fraction=0", "runtime.amp=false", "runtime.attention=flash", "decentralized.num_models=4",
  }

  local function create(compile, fused)
    local tokens = ffi.new("uint16_t[?]", 400)
    for i = 0, 399 do tokens[i] = (i * i + 3 * i) % 13 end
    local all = {"runtime.compile=" .. tostring(compile), unpack(settings)}
    return trainer.create(config.load("configs/tiny.lua", all), {context = context.default(), fused = fused,
      train = {tokens = tokens, count = 400}})
  end

  -- Everything that the next step depends on, tensors as bytes.
  local function state(one)
    local optimizer = one.optimizer
    return {numbers.bytes(one.model.arena.tensor), numbers.bytes(optimizer.exp_avg.tensor),
      numbers.bytes(optimizer.exp_avg_sq.tensor), numbers.bytes(optimizer.guard), one:cursor(), one.step_number,
      one.mixings}
  end

  after_each(function()
    C.pk_interrupt_forget()
    C.pk_interrupt_hold(C.PK_HOLD_NOTHING)
  end)

  for _, compile in ipairs {true, false} do
    it(("%s that is interrupted has not happened, and the next one takes its batch")
      :format(compile and "recorded" or "of single operations"), function()
      local one, other = create(compile), create(compile)
      for _ = 1, 2 do
        one:step()
        other:step()
      end
      for _ = 1, 3 do
        C.pk_interrupt_request()
        is_interrupted(one.step, one)
        assert.same(state(other), state(one))
      end
      assert.equal(other:step().loss, one:step().loss)
      assert.same(state(other), state(one))
      one:free()
      other:free()
    end)
  end

  for _, fused in ipairs {true, false} do
    it(("happens whole once its update has begun, %s"):format(fused and "fused" or "in parts"), function()
      local one, other = create(false, fused), create(false, fused)
      local check = ops.check_finite
      ops.check_finite = function(...) -- the update's first operation
        C.pk_interrupt_request()
        return check(...)
      end
      local good, row = pcall(one.step, one)
      ops.check_finite = check
      C.pk_interrupt_forget()
      assert.is_true(good, tostring(row))
      assert.equal(other:step().loss, row.loss)
      assert.same(state(other), state(one))
      one:free()
      other:free()
    end)
  end

  it("that was interrupted leaves a state that a checkpoint can take", function()
    local one = create(true)
    one:step()
    local before = one:cursor()
    one.write_batch = function() error("the batch was lost") end
    assert.is_false((pcall(one.step, one)))
    assert.equal(before, one:cursor())
    assert.is_true(one.batches:cursor() > before)
    one.write_batch = nil
    one:step()
    assert.equal(before * 2, one:cursor())
    one:free()
  end)
end)
