-- The guard over mixing and update: what is not finite stops the run before another worker sees it.
local context = require "pack.core.context"
local ffi = require "ffi"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"
local trainer = require "pack.train.trainer"

local inf, nan = math.huge, 0 / 0

local function open(settings)
  return trainer.open("configs/smoke.lua", {"decentralized.topology=complete", "runtime.threads=1", unpack(settings)})
end

local function close(one)
  one:free()
  one.context:close()
end

local function arenas(one)
  return {weights = one.model.arena.tensor, exp_avg = one.optimizer.exp_avg.tensor,
    exp_avg_sq = one.optimizer.exp_avg_sq.tensor}
end

local function bytes_of(one)
  local list = {}
  for name, arena in pairs(arenas(one)) do list[name] = numbers.bytes(arena) end
  return list
end

-- Writes value to column `column` (from 0) of worker `worker` (from 0).
local function put(arena, worker, column, value)
  local width = arena:size(1)
  arena:view {shape = {1}, offset = worker * width + column}:write(ffi.new("float[1]", value))
end

local function message_of(one)
  local good, problem = pcall(one.step, one)
  assert.is_false(good)
  assert.equal(1, problem.exit)
  return tostring(problem)
end

describe("what is not finite in a worker's weights or moments", function()
  for _, device in ipairs {"cpu", "emu"} do
    for _, scheme in ipairs {"awc", "atc"} do
      for _, compile in ipairs {"true", "false"} do
        it(("stops the run before the step changes anything: %s, %s, compile=%s"):format(device, scheme, compile), function()
          for name, value in pairs {weights = nan, exp_avg = inf, exp_avg_sq = -inf} do
            local one = open {"decentralized.scheme=" .. scheme, "runtime.compile=" .. compile, "runtime.device=" .. device}
            one:step()
            put(arenas(one)[name], 2, 3, value)
            local before = bytes_of(one)
            local is = name == "weights" and "are" or "is"
            local wanted = ("worker 2: the %s %s not finite at step 1; nothing was mixed or updated since"):format(name, is)
            assert.is_truthy(message_of(one):find(wanted, 1, true))
            assert.same(before, bytes_of(one))
            assert.same({updates = 1, mixings = 1, stopped = {worker = 2, step = 1, what = name}}, one.updater:status())
            close(one)
          end
        end)
      end
    end
  end
end)

describe("a gradient whose square leaves the range of the second moment", function()
  -- A trainer whose gradient of worker 2 has a value so large in its second step.
  local function with_gradient(value, settings)
    local one = open {"runtime.compile=false", unpack(settings)}
    one:step()
    function one:compute()
      local losses, counts = getmetatable(self).compute(self)
      put(self.updater.gradients.tensor, 2, 5, value * counts[0]:item())
      return losses, counts
    end
    return one
  end

  it("stops the run where it is not clipped", function()
    for _, fused in ipairs {true, false} do
      local one = with_gradient(1e20, {"optimizer.grad_clip=off"})
      one.updater.fused = fused
      local before = bytes_of(one)
      assert.is_truthy(message_of(one):find("worker 2: the gradient norm of step 1 has a square that exp_avg_sq cannot hold", 1, true))
      assert.same(before, bytes_of(one))
      close(one)
    end
  end)

  it("is an ordinary one where it is clipped", function()
    local one = with_gradient(1e20, {"optimizer.grad_clip=1"})
    local record = one:step()
    assert.is_true(record.grad_norm_worker[3] > 9e19)
    local statistics = arenas(one).exp_avg_sq:statistics()
    assert.equal(statistics.count, statistics.finite)
    close(one)
  end)

  it("may be nearly as large", function()
    local one = with_gradient(5e18, {"optimizer.grad_clip=off"})
    one:step()
    one.compute = nil
    one:step()
    for _, arena in pairs(arenas(one)) do
      local statistics = arena:statistics()
      assert.equal(statistics.count, statistics.finite)
    end
    close(one)
  end)
end)

describe("an update that gives a value that is not finite", function()
  local n, width = 3, 128

  -- What an update takes. A first moment of worker 1 is so large that its correction by 1 / (1 - beta1) overflows.
  local function state(device)
    local function filled(seed, deviation)
      return tensor.normal({n, width}, seed, {deviation = deviation, context = device})
    end
    local s = {x = filled(1, 1), g = filled(2, 1), m = filled(3, 0.1)}
    s.v = ops.multiply(filled(4, 0.1), filled(4, 0.1))
    put(s.m, 1, 70, 3e38)
    s.scale = tensor.full({n}, 1, "f64", {context = device})
    s.norm = tensor.full({n}, 1, "f64", {context = device})
    s.mixing = tensor.full({n, n}, 1 / n, "f64", {context = device})
    s.blocks = tensor.full({2}, 1, "i32", {context = device})
    s.scalars = tensor.from({1e-3, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 0, 7, 1, 0, 0}, "f64", {context = device})
    s.guard = tensor.zeros({8}, "i32", {context = device})
    s.losses = tensor.full({n}, 1, "f64", {context = device})
    return s
  end

  local function update(s, last)
    ops.update(s.x, s.g, s.m, s.v, s.scale, s.norm, s.mixing, s.blocks, s.scalars, s.guard, {combine_last = last})
  end

  local function adamw(s)
    ops.adamw(s.x, s.g, s.m, s.v, s.blocks, s.scalars, s.guard)
  end

  local function found(s)
    local guard = s.guard:totable()
    return {guard[1], guard[3], guard[7]}
  end

  for _, name in ipairs {"cpu", "emu"} do
    describe("on " .. name, function()
      local device

      setup(function() device = context.create {device = name, threads = 2} end)
      teardown(function() device:close() end)

      it("is found, and its column is mixed with nobody's (ATC)", function()
        local fused, apart = state(device), state(device)
        update(fused, true)
        adamw(apart)
        assert.same({0, 7, 2}, found(fused))
        assert.same({0, 7, 2}, found(apart))
        local own = numbers.flat(apart.x)
        ops.mix(apart.x, apart.mixing, apart.scalars, apart.guard)
        assert.same(own, numbers.flat(apart.x)) -- mixing apart from the update does not happen at all
        local x = fused.x:totable()
        for i = 1, n do
          for c = 1, width do
            local at = (i - 1) * width + c
            if c == 71 then
              assert.equal(own[at], x[i][c])
            else
              local mean = (own[c] + own[width + c] + own[2 * width + c]) / n
              assert.is_true(math.abs(x[i][c] - mean) < 1e-6)
            end
          end
        end
        assert.equal(-inf, x[2][71])
      end)

      it("is found where mixing came first (AWC)", function()
        local s = state(device)
        update(s, false)
        assert.same({0, 7, 2}, found(s))
        assert.equal(-inf, s.x:totable()[2][71])
      end)

      it("stops the next step", function()
        local s = state(device)
        update(s, true)
        ops.check_finite(s.losses, s.norm, s.scalars, s.guard)
        assert.same({1, 1, 7, 4, 0, 0, 2, 0}, s.guard:totable())
        local before = numbers.bytes(s.x)
        update(s, true)
        assert.equal(before, numbers.bytes(s.x))
      end)

      it("names the first of several workers", function()
        local s = state(device)
        put(s.m, 2, 3, 3e38)
        put(s.m, 0, 127, 3e38)
        update(s, true)
        assert.same({0, 7, 1}, found(s))
      end)
    end)
  end

  it("leaves the same bits on both devices", function()
    local sides = {}
    for _, name in ipairs {"cpu", "emu"} do
      local device = context.create {device = name, threads = 2}
      local s = state(device)
      update(s, true)
      sides[#sides + 1] = numbers.bytes(s.x) .. numbers.bytes(s.m) .. numbers.bytes(s.v) .. numbers.bytes(s.guard)
      device:close()
    end
    assert.is_true(sides[1] == sides[2])
  end)

  it("is told by the optimizer, with what is left", function()
    local one = open {}
    one:step()
    put(one.optimizer.exp_avg.tensor, 1, 4, 3e38)
    local message = message_of(one)
    assert.is_truthy(message:find("worker 1: the update of step 1 gave a value that is not finite", 1, true), message)
    assert.is_truthy(message:find("Go back to the last saved state", 1, true))
    assert.is_truthy(message_of(one):find("worker 1: the", 1, true))
    close(one)
  end)
end)

describe("check_arena", function()
  support.watch()

  it("names the first worker with a value that is not finite, and leaves a stop as it is", function()
    for _, dtype in ipairs {"f32", "f64"} do
      local rows = {}
      for i = 1, 4 do
        rows[i] = {}
        for c = 1, 70000 do rows[i][c] = c end
      end
      local scalars, guard = tensor.from({0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0}, "f64"), tensor.zeros({8}, "i32")
      ops.check_arena(tensor.from(rows, dtype), scalars, guard, {reason = 5})
      assert.same({0, 0, 0, 0, 0, 0, 0, 0}, guard:totable())
      rows[4][1], rows[2][69999] = nan, -inf
      ops.check_arena(tensor.from(rows, dtype), scalars, guard, {reason = 5})
      assert.same({1, 1, 9, 5, 0, 0, 0, 0}, guard:totable())
      rows[1][1] = inf
      ops.check_arena(tensor.from(rows, dtype), scalars, guard, {reason = 6})
      assert.same({1, 1, 9, 5, 0, 0, 0, 0}, guard:totable())
    end
  end)
end)
