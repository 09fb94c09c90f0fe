-- Ceilings: what is measured, and how.
local ceiling = require "pack.measure.ceiling"
local context = require "pack.core.context"
local support = require "spec.support.helper"
local trace = require "pack.measure.trace"

describe("A ceiling", function()
  support.watch()

  local sides, copied = ceiling.sides, ceiling.copied
  before_each(function() ceiling.sides, ceiling.copied = {cpu = {16, 32}}, {cpu = 1024} end)
  after_each(function() ceiling.sides, ceiling.copied = sides, copied end)

  it("is of the best square product in each dtype, and of copying", function()
    local found
    local capture = trace.capture(nil, function()
      found = ceiling.measure(nil, {dtypes = {"f64", "bf16"}, seconds = 0})
    end)
    local best = {f64 = 0, bf16 = 0, copy = 0}
    for _, event in capture:events() do
      local form = event.form
      if form and form.name == "matmul" then
        local dtype = form.inputs[1].dtype
        best[dtype] = math.max(best[dtype], form.flops / (event.finish - event.start))
      elseif form and form.name == "copy" then
        best.copy = math.max(best.copy, form.bytes / (event.finish - event.start))
      end
    end
    capture:free()
    -- The clock is read around an operation, so that what it says is a little less than the operation's own.
    assert.is_true(found.flops_per_second.f64 > 0 and found.flops_per_second.f64 <= best.f64)
    assert.is_true(found.flops_per_second.bf16 > 0 and found.flops_per_second.bf16 <= best.bf16)
    assert.is_true(found.bytes_per_second > 0 and found.bytes_per_second <= best.copy)
    assert.is_nil(found.flops_per_second.f32)
    assert.same({16, 32}, found.sides)
  end)

  it("leaves out copying on request", function()
    local found = ceiling.measure(context.default(), {dtypes = {"f32"}, seconds = 0, copy = false})
    assert.is_nil(found.bytes_per_second)
    assert.is_true(found.flops_per_second.f32 > 0)
  end)

  it("takes the best of at least two calls, after one that does not count", function()
    local calls = 0
    local best = ceiling.best_of(context.default(), function() calls = calls + 1 end, 0)
    assert.is_true(calls >= 3)
    assert.is_true(best >= 0 and best < 1)
  end)
end)
