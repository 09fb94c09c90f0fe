-- Traces: what they note of operations, eager and recorded, their phases and threads, and the file they become.
local chrome_trace = require "spec.support.chrome_trace"
local config = require "pack.config"
local context = require "pack.core.context"
local data = require "pack.data.source"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local phase = require "pack.core.phase"
local program = require "pack.core.program"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"
local trace = require "pack.measure.trace"
local trainer = require "pack.train.trainer"

-- A trainer of a small packed model on made-up tokens.
local function small(changes, options)
  local settings = {
    "model.vocab_size=257", "model.layers=2", "model.width=16", "model.heads=2", "model.ffn_width=24",
    "model.context_length=8", "training.batch_tokens=64", "training.micro_batch_size=2", "training.max_tokens=640",
    "runtime.amp=false", "runtime.attention=flash", "decentralized.num_models=4",
  }
  for _, change in ipairs(changes or {}) do settings[#settings + 1] = change end
  local resolved = config.load("configs/tiny.lua", settings)
  options = options or {}
  return trainer.create(resolved, {context = options.context or context.default(), fused = options.fused,
    train = data.synthetic(resolved).train})
end

-- The operations among a capture's events, and the other events.
local function split(capture)
  local operations, lanes = {}, {}
  for _, event in capture:events() do table.insert(event.form and operations or lanes, event) end
  return operations, lanes
end

-- The operations of so many steps of a trainer, after one that is not traced.
local function steps_of(one, count)
  one:step()
  return trace.capture(one.context, function(capture)
    for _ = 1, count do
      capture:step()
      one:step()
    end
  end)
end

-- The phases that follow one another, equal ones in a row once.
local function course(operations)
  local list = {}
  for _, operation in ipairs(operations) do
    local name = table.concat(operation.phase, "/")
    if list[#list] ~= name then list[#list + 1] = name end
  end
  return list
end

local function names_of(operations)
  local names = {}
  for i, operation in ipairs(operations) do names[i] = operation.form.name end
  return names
end

describe("A trace", function()
  support.watch()

  it("notes each operation with what it works on, in order", function()
    local a = tensor.from({{1, 2}, {3, 4}, {5, 6}}, "f32")
    local capture = trace.capture(nil, function()
      ops.sum(ops.matmul(a, a, {transpose_a = true}), {axes = {1}})
    end)
    local operations = split(capture)
    assert.same({"matmul", "sum"}, names_of(operations))
    local product, sum = operations[1].form, operations[2].form
    assert.same({{dtype = "f32", shape = {3, 2}}, {dtype = "f32", shape = {3, 2}}}, product.inputs)
    assert.same({{dtype = "f32", shape = {2, 2}}}, product.outputs)
    assert.same({transpose_a = 1, transpose_b = 0}, product.attributes)
    assert.same({keep = 0, axes = {1}}, sum.attributes)
    assert.equal(2 * 2 * 2 * 3, product.flops)
    assert.equal(4 * (6 + 6 + 4), product.bytes)
    for i, operation in ipairs(operations) do
      assert.equal(i - 1, operation.operation)
      assert.is_true(operation.start >= 0 and operation.finish >= operation.start)
    end
    assert.is_true(operations[2].start >= operations[1].finish)
    capture:free()
  end)

  it("knows absent inputs, outputs that are added to, and a dtype's name", function()
    local x, y = tensor.from({1, 2}, "f64"), tensor.from({3, 4}, "f64")
    local capture = trace.capture(nil, function()
      ops.copy(x, {out = y, accumulate = true})
      ops.cast(x, {dtype = "bf16"})
    end)
    local operations = split(capture)
    assert.equal(1, operations[1].form.accumulate)
    assert.equal(2, operations[1].form.flops)
    assert.equal("bf16", operations[2].form.outputs[1].dtype)
    capture:free()
  end)

  it("has no events of what runs before, after, or on another context", function()
    local a, other = tensor.from({1, 2}, "f32"), context {threads = 1}
    ops.negate(a)
    local capture = trace.capture(nil, function() ops.fill {shape = {2}, value = 1, context = other} end)
    ops.negate(a)
    assert.equal(0, capture.count)
    assert.equal(0, capture.dropped)
    assert.same({}, capture:table())
    capture:free()
    other:close()
  end)

  it("keeps no tensor alive", function()
    local capture = trace.capture(nil, function() ops.negate(tensor.from({1, 2}, "f32")) end)
    local live = context.default():memory().live
    collectgarbage()
    collectgarbage()
    assert.is_true(context.default():memory().live < live)
    assert.same({2}, capture.forms[0].inputs[1].shape)
    capture:free()
  end)

  it("counts the events that do not fit", function()
    local one = context {threads = 1}
    local function run(capacity)
      return trace.capture(one, function()
        for _ = 1, 10 do ops.fill {shape = {3}, value = 1, context = one}:free() end
      end, {capacity = capacity})
    end
    local all, some = run(100), run(7)
    assert.is_true(all.count >= 10 and all.dropped == 0)
    assert.equal(7, some.count)
    assert.equal(all.count, some.count + some.dropped)
    all:free()
    some:free()
    one:close()
  end)

  it("ends when the function fails, and leaves the context to the next", function()
    numbers.assert_refused("no more", trace.capture, nil, function() error("no more", 0) end)
    numbers.assert_refused("traced already", trace.capture, nil, function()
      trace.capture(nil, function() end)
    end)
    numbers.assert_refused("a trace of 0 events", trace.capture, nil, function() end, {capacity = 0})
    trace.capture(nil, function() end):free()
  end)

  it("refuses to be read after it was freed", function()
    local capture = trace.capture(nil, function() end)
    capture:free()
    capture:free()
    numbers.assert_refused("was freed", capture.table, capture)
    numbers.assert_refused("was freed", capture.write, capture, "nowhere")
  end)

  it("takes no longer in operations than the clock around them", function()
    local one = small()
    local capture = steps_of(one, 2)
    local totals = capture:totals()
    assert.is_true(totals.count > 100)
    assert.is_true(totals.seconds > 0 and totals.seconds <= capture.seconds)
    capture:free()
    one:free()
  end)

  it("shows on each thread the pieces that it did, inside the operation #threads", function()
    local pieces = {}
    for threads = 1, 2 do
      local chosen = context {threads = threads}
      local one = small({}, {context = chosen})
      local capture = steps_of(one, 1)
      local operations, lanes = split(capture)
      pieces[threads] = {}
      for _, lane in ipairs(lanes) do
        local own = operations[lane.operation + 1]
        assert.is_true(lane.lane >= 1 and lane.lane <= threads)
        assert.is_true(lane.start >= own.start and lane.finish <= own.finish)
        assert.is_true(lane.busy > 0 and lane.busy <= lane.finish - lane.start + 1e-9)
        pieces[threads][lane.operation] = (pieces[threads][lane.operation] or 0) + lane.pieces
      end
      capture:free()
      one:free()
      chosen:close()
    end
    local busy = 0
    for _ in pairs(pieces[1]) do busy = busy + 1 end
    assert.is_true(busy > 40)
    assert.same(pieces[1], pieces[2]) -- work is cut into the same pieces for any number of threads
  end)

  it("notes a forecast's operations, which take no time", function()
    local forecast = context {forecast = true}
    local one = small({}, {context = forecast})
    local step = one:recorded()
    local capture = trace.capture(forecast, function() step:run() end)
    local operations = split(capture)
    assert.equal(step:memory().operations, #operations)
    capture:free()
    one:free()
    forecast:close()
  end)
end)

describe("A trace of a training step", function()
  support.watch()

  local modes = {eager = {"runtime.compile=false"}, recorded = {"runtime.compile=true"}}

  for mode, changes in pairs(modes) do
    it(mode .. " shows each projection as one product of all workers", function()
      local counts = {}
      for _, workers in ipairs {1, 2, 4} do
        local rows = 8 / workers
        local one = small {changes[1], "decentralized.num_models=" .. workers, "training.micro_batch_size=" .. rows}
        local capture = steps_of(one, 1)
        local projections = 0
        for _, operation in ipairs((split(capture))) do
          if operation.form.name == "matmul" then
            if not operation.form.again then projections = projections + 1 end
            for _, input in ipairs(operation.form.inputs) do assert.equal(workers, input.shape[1]) end
          end
        end
        table.insert(counts, projections)
        table.insert(counts, capture:totals().count)
        capture:free()
        one:free()
      end
      -- Forward and two gradients of q, k and v at once, out, gate and up at once, and down in each of 2 layers.
      assert.equal(3 * 4 * 2, counts[1])
      assert.same({counts[1], counts[2], counts[1], counts[2], counts[1], counts[2]}, counts)
    end)

    it(mode .. " goes through its phases once, also where operations run again", function()
      local one = small(changes)
      local capture = steps_of(one, 1)
      assert.same({"forward", "backward", "clip", "optimizer"}, course((split(capture))))
      capture:free()
      one:free()
      local apart = small(changes, {fused = false})
      capture = steps_of(apart, 1)
      assert.same({"forward", "backward", "clip", "mix", "optimizer"}, course((split(capture))))
      local seconds, sum = capture:phases(), 0
      for _, part in pairs(seconds) do sum = sum + part end
      assert.is_true(seconds.forward > 0 and seconds.mix > 0)
      assert.is_true(math.abs(sum - capture:totals().seconds) < 1e-9)
      capture:free()
      apart:free()
    end)

    it(mode .. " becomes a file with phases around operations, threads and memory", function()
      local folder = support.temporary()
      local one = small(changes)
      local capture = steps_of(one, 2)
      capture:write(folder .. "/trace.json")
      local file = chrome_trace.read(folder .. "/trace.json")
      assert.equal("operations", file.threads[0])
      assert.equal("thread 1", file.threads[1])
      assert.truthy(file.process:find("packlua on cpu", 1, true))
      local operations, around, outside = {}, {}, 0
      for _, slice in ipairs(file.slices) do
        if slice.thread > 0 then
          assert.is_true(slice.args.pieces > 0)
        elseif slice.category == "operation" then
          operations[#operations + 1] = slice
          if not slice.path:find "^step [12]/%a+/[%w_]+$" then outside = outside + 1 end
        else
          around[#around + 1] = slice.path
        end
      end
      assert.equal(capture:totals().count, #operations)
      assert.equal(0, outside)
      local expected = {}
      for step = 1, 2 do
        for _, name in ipairs {"", "/forward", "/backward", "/clip", "/optimizer"} do
          expected[#expected + 1] = "step " .. step .. name
        end
      end
      assert.same(expected, around)
      for _, slice in ipairs(operations) do
        if slice.name == "matmul" then
          assert.equal(4, slice.args.shapes[1][1])
          assert.equal("f32", slice.args.dtypes[2])
          assert.is_true(slice.args.flops > 0 and slice.args.bytes > 0)
        end
      end
      assert.is_true(#file.counters > 0)
      assert.equal("memory", file.counters[1].name)
      assert.is_true(file.counters[1].values.bytes > 0)
      capture:free()
      one:free()
      support.remove(folder)
    end)
  end

  it("has as many operations recorded as the program's plan says, and fewer than it recorded", function()
    local one = small()
    local capture = steps_of(one, 3)
    assert.equal(3 * one:recorded():memory().operations, capture:totals().count)
    capture:free()
    one:free()
  end)
end)

describe("A table of operations", function()
  support.watch()

  it("adds up calls of one shape, with rates and their share of a ceiling", function()
    local a, b = tensor.ones {8, 16, 16}, tensor.ones {8, 16, 16}
    local capture = trace.capture(nil, function()
      for _ = 1, 3 do ops.matmul(a, b, {transpose_b = true}) end
      ops.matmul(a, b)
      ops.add(a, b)
    end)
    local rows = capture:table {flops_per_second = {f32 = 1e9}, bytes_per_second = 1e8}
    local by_shape, share = {}, 0
    for _, row in ipairs(rows) do
      by_shape[row.name .. " " .. row.shape], share = row, share + row.share
    end
    local product = by_shape["matmul f32 [8, 16, 16] [8, 16, 16]T"]
    assert.equal(3, product.count)
    assert.equal(3 * 2 * 8 * 16 ^ 3, product.flops)
    assert.equal(1, by_shape["matmul f32 [8, 16, 16] *2"].count)
    local sum = by_shape["add f32 [8, 16, 16] *2"]
    assert.equal(3 * 4 * 2048, sum.bytes)
    assert.is_false(sum.product)
    assert.is_true(math.abs(share - 1) < 1e-12)
    assert.is_true(math.abs(product.of_ceiling - product.flops / product.seconds / 1e9) < 1e-9 * product.of_ceiling)
    assert.is_true(math.abs(sum.of_ceiling - sum.bytes / sum.seconds / 1e8) < 1e-9 * sum.of_ceiling)
    for i = 2, #rows do assert.is_true(rows[i].seconds <= rows[i - 1].seconds) end
    local lines = trace.lines(rows, 2)
    assert.equal(3, #lines)
    assert.truthy(lines[2]:find(rows[1].shape, 1, true))
    capture:free()
  end)

  it("goes by the ceiling of bf16 where anything multiplied is bf16", function()
    local size = {1, 1, 4, 1, 2}
    local q = ops.cast(tensor.ones(size), {dtype = "bf16"})
    local o, lse = ops.attention(q, q, q, {scale = 1})
    local capture = trace.capture(nil, function() ops.attention_grad(tensor.ones(size), q, q, q, o, lse, {scale = 1}) end)
    for _, row in ipairs(capture:table {flops_per_second = {f32 = 1e9, bf16 = 2e9}, bytes_per_second = 1}) do
      if row.name == "attention_grad" then
        assert.equal("bf16", row.dtype)
        assert.is_true(math.abs(row.of_ceiling - row.flops_per_second / 2e9) < 1e-12)
      end
    end
    capture:free()
  end)
end)

describe("A phase", function()
  support.watch()

  it("is inside another, and over when its function fails", function()
    local capture = trace.capture(nil, function()
      phase("outer", function()
        ops.fill {shape = {1}, value = 1}
        pcall(phase, "inner", function()
          ops.fill {shape = {2}, value = 1}
          error("stop")
        end)
        ops.fill {shape = {3}, value = 1}
      end)
      ops.fill {shape = {4}, value = 1}
    end)
    assert.same({"outer", "outer/inner", "outer", ""}, course((split(capture))))
    capture:free()
  end)

  it("returns what its function returns, and raises what it raises", function()
    local a, b, c = phase("any", function() return 1, nil, 3 end)
    assert.same({1, 3}, {a, c})
    assert.is_nil(b)
    local failure = {exit = 3}
    local good, raised = pcall(phase, "any", function() error(failure) end)
    assert.is_false(good)
    assert.equal(failure, raised)
  end)

  it("stays with operations that are recorded in it", function()
    local step = program.record(function()
      return phase("early", function() return ops.fill {shape = {2}, value = 1} end)
    end, {})
    local capture = trace.capture(nil, function() phase("late", function() step:run() end) end)
    assert.same({"early"}, course((split(capture))))
    capture:free()
    step:free()
  end)
end)
