-- Device memory and Lua's collector: dropped temporaries, limits, and what is left after a refusal.
local context = require "pack.core.context"
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local refused = numbers.assert_refused
local MIB = 1024 * 1024

describe("device memory", function()
  helper.watch()

  it("stays bounded while 10,000 temporaries of 1 MB are dropped", function()
    local chosen = context {threads = 1}
    local a = tensor.ones({MIB / 4}, "f32", {context = chosen})
    for _ = 1, 10000 do
      local dropped = ops.negate(a)
      assert(dropped)
    end
    assert.equal(10000, chosen:memory().allocations - 1)
    assert.is_true(chosen:memory().total_peak < 80 * MIB,
      ("the peak was %.1f MiB"):format(chosen:memory().total_peak / MIB))
    assert.equal(chosen:memory().total_peak, chosen:peak())
  end)

  it("stays bounded whatever another device context holds", function()
    local large, chosen = context {threads = 1}, context {threads = 1}
    local held = tensor.zeros({1024 * MIB / 4}, "f32", {context = large}) -- never touched: only addresses
    local dropped = tensor.zeros({80 * MIB / 4}, "f32", {context = large}):view {shape = {1, 1}}
    ops.negate(dropped) -- runs the collector for the large one
    local a = tensor.ones({MIB / 4}, "f32", {context = chosen})
    for _ = 1, 600 do ops.negate(a) end
    local peak = chosen:memory().total_peak / MIB
    assert.is_true(peak < 80, ("the peak was %.1f MiB"):format(peak))
    held:free()
  end)

  it("comes back at once with free", function()
    local chosen = context {threads = 1}
    local t = tensor.zeros({MIB}, "f64", {context = chosen, category = "data"})
    assert.equal(8 * MIB, chosen:memory().used.data)
    t:free()
    assert.equal(0, chosen:memory().used.data)
    assert.equal(0, chosen:memory().live)
    assert.equal(8 * MIB, chosen:memory().peak.data)
    chosen:reset_peak()
    assert.equal(0, chosen:memory().total_peak)
    assert.equal(0, chosen:peak())
  end)

  it("is not given beyond the limit: the error names the request and what is in use", function()
    local chosen = context {threads = 1, memory_limit_mib = 16}
    assert.equal(16 * MIB, chosen:memory().limit)
    local parameters = tensor.zeros({MIB}, "f64", {context = chosen, category = "parameters"})
    local call = function() return tensor.zeros({2 * MIB}, "f64", {context = chosen}) end
    refused("out of memory: 16.0 MiB more for activations would pass the limit of 16.0 MiB", call)
    refused("parameters 8.0 MiB", call)
    local y = ops.affine(parameters[0], {scale = 2})
    assert.equal(0, y:item())
  end)

  it("is given after dropped tensors were collected", function()
    local chosen = context {threads = 1, memory_limit_mib = 16}
    local a = tensor.ones({MIB / 2}, "f64", {context = chosen})
    collectgarbage "stop"
    for _ = 1, 20 do ops.negate(a) end
    collectgarbage "restart"
    assert.is_true(chosen:memory().total_peak <= 16 * MIB)
  end)

  it("of a closed context is kept until its tensors are gone", function()
    local chosen = context {threads = 1}
    local t = tensor.from({1, 2, 3}, "f64", {context = chosen})
    chosen:close()
    chosen:close()
    assert.same({2, 4, 6}, (t + t):totable())
    refused("the device context was closed", chosen.memory, chosen)
  end)

  it("of two contexts does not mix", function()
    local one, two = context {threads = 1}, context {threads = 1}
    local a = tensor.from({1}, "f64", {context = one})
    local b = tensor.from({1}, "f64", {context = two})
    refused("belongs to another device context", ops.add, a, b)
  end)
end)

describe("a device context", function()
  it("describes itself", function()
    local chosen = context {threads = 2, memory_limit_mib = 512}
    assert.is_truthy(chosen:describe():find("^cpu: .*2 threads.*limit 512.0 MiB$"), chosen:describe())
    assert.equal(2, chosen:threads())
    assert.equal("cpu", chosen:device())
    chosen:synchronize()
    chosen:trim()
  end)

  it("refuses devices, options and numbers that are not possible", function()
    refused("device 'tpu' is not known", context, {device = "tpu"})
    refused("unknown option 'thread'; known: attention, deterministic, device, forecast, memory_limit_mib, threads, without",
      context, {thread = 1})
    refused("attention is auto, cudnn or flash, not 'fast'", context, {attention = "fast"})
    refused("attention by cuDNN is not available on device 'cpu'", context, {attention = "cudnn"})
    refused("there is no operation 'rmsnor' to do without", context, {without = {"add", "rmsnor"}})
    refused("threads is a string", context, {threads = "2"})
    refused("memory_limit_mib is -1", context, {memory_limit_mib = -1})
    refused("threads 5000", context, {threads = 5000})
  end)
end)
