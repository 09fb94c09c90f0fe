-- Requests to stop: what they interrupt, and what they find whole or untouched. spec/prompt_spec.lua presses ^C.
local config = require "pack.config"
local context = require "pack.core.context"
local ffi = require "ffi"
local interrupt = require "pack.core.interrupt"
local native = require "pack.native"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local program = require "pack.core.program"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"
local trainer = require "pack.train.trainer"

local C = native.C

ffi.cdef "int getpid(void);"

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

  it("is held no longer than a function runs, whatever way it ends", function()
    local function levels(...) return C.pk_interrupt_held(), ... end
    assert.same({C.PK_HOLD_CODE, 1, nil, 3}, {interrupt.hold(C.PK_HOLD_CODE, levels, 1, nil, 3)})
    assert.equal(C.PK_HOLD_NOTHING, C.pk_interrupt_held())
    local raised = {}
    local good, problem = pcall(interrupt.hold, C.PK_HOLD_CODE, function()
      interrupt.hold(C.PK_HOLD_ALL, error, raised)
    end)
    assert.same({false, raised}, {good, problem})
    assert.equal(C.PK_HOLD_NOTHING, C.pk_interrupt_held())
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
      numbers.bytes(optimizer.exp_avg_sq.tensor), numbers.bytes(one.updater.guard), one:cursor(), one.step_number,
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
    assert.equal(C.PK_HOLD_NOTHING, C.pk_interrupt_held())
    one.write_batch = nil
    one:step()
    assert.equal(before * 2, one:cursor())
    one:free()
  end)
end)

describe("signals", function()
  -- oneDNN's products point the stack register into their memory, and a handler there would write over it.
  it("have a stack of their own for every handler", function()
    local path = os.tmpname()
    support.write(path, [[
      local ffi, C = require "ffi", require("pack.native").C
      ffi.cdef "struct action { void *handler; char more[256]; }; int sigaction(int, const void *, void *);"
      local STACK = 0x08000000
      local function flagged(number)
        local action = ffi.new("struct action")
        ffi.C.sigaction(number, nil, action)
        local flags = ffi.cast("int *", ffi.cast("char *", action) + 8 + 128)[0] -- after handler and mask
        return tonumber(ffi.cast("intptr_t", action.handler)) > 1 and bit.band(flags, STACK) ~= 0
      end
      C.pk_signals_hold()
      for _, number in ipairs {1, 2, 10, 12, 13, 15, 24, 25} do assert(flagged(number), number) end
      C.pk_signals_release()
      assert(flagged(2) and not flagged(15))
      require("jit.profile").start("i10", function() end)
      assert(flagged(27), "SIGPROF")
      require("jit.profile").stop()]])
    local code, _, err = support.run("packlua " .. path)
    os.remove(path)
    assert.same({0, ""}, {code, err})
  end)

  it("raise what is a failure, which nothing takes for a file that is damaged", function()
    local path = os.tmpname()
    support.write(path, [[
      local failure, ffi = require "pack.core.failure", require "ffi"
      ffi.cdef "int kill(int pid, int signal); int getpid(void);"
      local function press()
        ffi.C.kill(ffi.C.getpid(), 2)
        for _ = 1, 1e9 do end
      end
      local good, problem = pcall(press)
      assert(not good and failure.is(problem) and problem.exit == 130, tostring(problem))
      assert(select(2, failure.pcall(error, "other", 0)) == "other")
      require("pack.io.safetensors").open = function() error(problem, 0) end
      require("pack.run.checkpoint").open("x.state.safetensors.zst")
      error("it was taken for another error")]])
    local code, _, err = support.run("packlua --no-jit " .. path)
    os.remove(path)
    assert.equal(130, code, err)
    assert.is_truthy(err:find(":%d+: interrupted\n$"), err)
  end)

  it("reach no thread but the main one", function()
    local threads = context.create {device = "cpu", threads = 3}
    local own, main, others = tostring(ffi.C.getpid()), 0, 0
    for id in io.popen("ls /proc/" .. own .. "/task"):lines() do
      local text = support.read(("/proc/%s/task/%s/status"):format(own, id)) or ""
      local blocked = tonumber(text:match("SigBlk:%s*%x*(%x%x%x%x%x%x%x%x)") or "0", 16)
      local takes = math.floor(blocked / 2 ^ 14) % 2 == 0 -- SIGTERM
      if id == own then main = takes and 1 or 0 elseif takes then others = others + 1 end
    end
    threads:close()
    assert.same({1, 0}, {main, others})
  end)
end)
