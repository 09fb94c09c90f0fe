-- Traces of the CUDA device, on an emulated CUPTI: kernels, copies and fills with the operation that they are for.
local chrome_trace = require "spec.support.chrome_trace"
local config = require "pack.config"
local context = require "pack.core.context"
local data = require "pack.data.source"
local emu = require "spec.support.emu"
local ffi = require "ffi"
local helper = require "spec.support.helper"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"
local trace = require "pack.measure.trace"
local trainer = require "pack.train.trainer"

local device = emu.open()
if not device then
  pending("the emulated device is not part of this build", function() end)
  return
end

local function from(values, dtype)
  return tensor.from(values, dtype or "f32", {context = device})
end

-- What a capture has: operations, what the lanes did, by the name of the lane, and the lane of each event.
local function sort(capture)
  local sorted = {operations = {}, launches = {}, ["compute stream"] = {}, ["copy stream"] = {}}
  for _, event in capture:events() do
    if event.form then
      sorted.operations[event.operation + 1] = event
    else
      table.insert(sorted[capture.lanes[event.lane]], event)
    end
  end
  return sorted
end

-- "matmul: gemm" of each thing that the device did, in order of time.
local function courses(sorted)
  local list = {}
  for i, event in ipairs(sorted["compute stream"]) do
    local operation = event.operation and sorted.operations[event.operation + 1].form.name or "none"
    list[i] = operation .. ": " .. event.name
  end
  return list
end

-- That every operation's time is around what the device did for it, and everything is within the capture's.
local function check_times(capture, sorted)
  local last = 0
  for _, operation in ipairs(sorted.operations) do
    assert.is_true(operation.start >= last and operation.finish >= operation.start)
    last = operation.finish
  end
  for _, event in ipairs(sorted["compute stream"]) do
    assert.is_true(event.finish > event.start)
    if event.operation then
      local own = sorted.operations[event.operation + 1]
      assert.is_true(event.start >= own.start and event.finish <= own.finish)
    end
  end
  for _, event in capture:events() do
    assert.is_true(event.start >= 0 and event.finish <= capture.seconds + 1e-3) -- which begins a little later
  end
end

-- A trainer of a small packed model on made-up tokens.
local function small(changes)
  local settings = {
    "model.vocab_size=257", "model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24",
    "model.context_length=8", "training.batch_tokens=32", "training.micro_batch_size=2", "training.max_tokens=320",
    "decentralized.num_models=2",
  }
  for _, change in ipairs(changes) do settings[#settings + 1] = change end
  local resolved = config.load("configs/tiny.lua", settings)
  return trainer.create(resolved, {context = device, train = data.synthetic(resolved).train})
end

describe("a trace of the CUDA device", function()
  helper.watch()
  after_each(emu.repair)

  it("names for each kernel the operation that launched it", function()
    local a, b = from {{1, 2}, {3, 4}}, from {{5, 6}, {7, 8}}
    ops.matmul(a, b):free() -- before the trace
    local capture = trace.capture(device, function()
      local product = ops.matmul(a, b)
      ops.add(product, b)
      ops.sum(product, {axes = {0}})
    end)
    ops.matmul(a, b):free()
    local sorted = sort(capture)
    assert.equal("", capture.note)
    assert.equal(0, capture.dropped)
    assert.same({"matmul: gemm", "add: dense_rows", "sum: job.columns ? columns"}, courses(sorted))
    assert.same({{dtype = "f32", shape = {2, 2}}, {dtype = "f32", shape = {2, 2}}}, sorted.operations[2].form.inputs)
    check_times(capture, sorted)
    capture:free()
  end)

  it("shows what starts an operation on the lane of the host, before it runs", function()
    local a = from {1, 2}
    local capture = trace.capture(device, function() ops.negate(ops.negate(a)) end)
    local sorted = sort(capture)
    assert.equal(2, #sorted.launches)
    for i, launch in ipairs(sorted.launches) do
      assert.equal("negate", launch.name)
      assert.equal(i - 1, launch.operation)
      assert.is_true(launch.start <= sorted["compute stream"][i].start)
    end
    capture:free()
  end)

  it("shows copies and fills with their bytes, and for no operation outside of any", function()
    local a
    local capture = trace.capture(device, function()
      a = tensor.zeros({100}, "f32", {context = device})
      a:write(ffi.new("float[100]"))
      a:totable()
    end)
    local sorted = sort(capture)
    local seen = {}
    for _, lane in ipairs {"compute stream", "copy stream"} do
      for _, event in ipairs(sorted[lane]) do
        assert.is_nil(event.operation)
        seen[#seen + 1] = ("%s: %s %d"):format(lane, event.name, event.bytes)
      end
    end
    assert.same({"compute stream: fill 400", "compute stream: copy on the device 400",
      "compute stream: copy from the device 400", "copy stream: copy to the device 400"}, seen)
    capture:free()
  end)

  it("has nothing of what another context does", function()
    local other = context {device = "emu"}
    local b = tensor.from({1, 2}, "f32", {context = other})
    local capture = trace.capture(device, function() ops.negate(b):totable() end)
    assert.equal(0, capture.count)
    capture:free()
    collectgarbage()
    collectgarbage()
    other:close()
  end)

  it("tells what a graph's kernels are for, as if they had been launched one by one", function()
    local own = emu.recorded(device)
    local capture
    local counts = emu.count(function()
      capture = trace.capture(device, function()
        for _ = 1, 3 do own.program:run() end
      end)
    end)
    assert.same({1, 2}, {counts.captures, counts.graph_launches})
    assert.same({4, 5, 6}, own.state:totable())
    local sorted = sort(capture)
    assert.equal("", capture.note)
    assert.equal(3 * own.program:memory().operations, #sorted.operations)
    local all, by_run = courses(sorted), {{}, {}, {}}
    assert.equal(9, #all)
    for i, text in ipairs(all) do table.insert(by_run[math.ceil(i / 3)], text) end
    assert.same({"copy: dense_rows", "affine: dense_rows", "matmul: gemm"}, by_run[1])
    assert.same(by_run[1], by_run[2])
    assert.same(by_run[1], by_run[3])
    for i, event in ipairs(sorted["compute stream"]) do assert.equal(i - 1, event.operation) end
    local graphs = 0
    for _, launch in ipairs(sorted.launches) do graphs = graphs + (launch.name == "graph" and 1 or 0) end
    assert.equal(2, graphs)
    check_times(capture, sorted)
    capture:free()
    own.program:free()
  end)

  it("captures a graph that it does not know again, and only then", function()
    local own = emu.recorded(device)
    for _ = 1, 2 do own.program:run() end
    local function traced()
      local capture
      local counts = emu.count(function()
        capture = trace.capture(device, function() own.program:run() end)
      end)
      local all = courses(sort(capture))
      capture:free()
      return {counts.captures, counts.graph_launches, #all, all[3]}
    end
    assert.same({1, 1, 3, "matmul: gemm"}, traced())
    assert.same({0, 1, 3, "matmul: gemm"}, traced())
    local after = emu.count(function() own.program:run() end)
    assert.same({0, 1}, {after.captures, after.graph_launches})
    assert.same({6, 7, 8}, own.state:totable())
    own.program:free()
  end)

  it("goes on operation by operation where a graph cannot be captured", function()
    local own = emu.recorded(device)
    own.program.say = function() end
    own.program:run()
    emu.fail("cudaStreamEndCapture", emu.errors.capture_invalidated)
    local capture = trace.capture(device, function() own.program:run() end)
    assert.same({"copy: dense_rows", "affine: dense_rows", "matmul: gemm"}, courses(sort(capture)))
    assert.same({3, 4, 5}, own.state:totable())
    capture:free()
    own.program:free()
  end)

  it("says that CUPTI is missing, and waits for each operation", function()
    local own = emu.recorded(device)
    for _ = 1, 2 do own.program:run() end
    emu.pretend {cupti = false}
    local capture
    local counts = emu.count(function()
      capture = trace.capture(device, function() own.program:run() end)
    end)
    assert.equal("Without CUPTI there are no kernels in this trace, graphs are not used, and each operation's time has "
      .. "launching it and waiting for it in it: libcupti.so cannot be opened: it is not emulated. Install it, or name "
      .. "its folder in LD_LIBRARY_PATH.", capture.note)
    assert.equal(own.program:memory().operations, capture.count)
    assert.equal(0, counts.graph_launches)
    assert.equal(own.program:memory().operations + 2, counts.synchronizations) -- and at the beginning and the end
    assert.same({}, capture.lanes)
    assert.same({4, 5, 6}, own.state:totable())
    capture:free()
    own.program:run()
    assert.same({5, 6, 7}, own.state:totable())
    own.program:free()
  end)

  it("says that CUPTI traces another context already", function()
    local other = context {device = "emu"}
    local inner
    local outer = trace.capture(device, function() inner = trace.capture(other, function() end) end)
    assert.matches("CUPTI is tracing another context already", inner.note, 1, true)
    assert.equal("", outer.note)
    inner:free()
    outer:free()
    other:close()
  end)

  it("loses nothing where there is more than a buffer takes", function()
    local a, b, count = from {1, 2}, from {0, 0}, 16000 -- of which each has about 300 bytes of 4 MiB
    local capture = trace.capture(device, function()
      for _ = 1, count do ops.negate(a, {out = b}) end
    end)
    local sorted = sort(capture)
    assert.equal(0, capture.dropped)
    assert.equal(count, #sorted["compute stream"])
    for i, event in ipairs(sorted["compute stream"]) do assert.equal(i - 1, event.operation) end
    capture:free()
  end)

  it("tells how many records were lost", function()
    local a = from {1, 2}
    emu.lose_records(3) -- one operation's: its number, its call, its kernel
    local capture = trace.capture(device, function()
      local b = ops.negate(a)
      device:synchronize()
      ops.negate(b)
    end)
    assert.equal(3, capture.dropped)
    assert.equal("3 records of CUPTI were lost.", capture.note)
    local sorted = sort(capture)
    assert.same({"negate: dense_rows"}, courses(sorted))
    assert.equal(2, #sorted.operations)
    assert.equal(0, sorted.operations[1].finish - sorted.operations[1].start)
    capture:free()
  end)
end)

describe("a trace of a training step on the CUDA device", function()
  helper.watch()
  after_each(emu.repair)

  -- The names of threads, and of slices by category: with the path of phases, the operation of what the device did.
  local function read(path)
    local file = chrome_trace.read(path)
    local found = {phase = {}, operation = {}, device = {}, counters = file.counters, threads = file.threads}
    for _, slice in ipairs(file.slices) do
      table.insert(found[slice.category], slice)
    end
    return found
  end

  local function count_by(slices, name_of)
    local counts = {}
    for _, slice in ipairs(slices) do
      local name = name_of(slice)
      if name then counts[name] = (counts[name] or 0) + 1 end
    end
    return counts
  end

  for mode, changes in pairs {eager = {"runtime.compile=false"}, recorded = {"runtime.compile=true"}} do
    it(mode .. " becomes a file whose kernels name their operation and what it works on", function()
      local one, folder, capture = small(changes), helper.temporary(), nil
      one:step()
      local counts = emu.count(function()
        capture = trace.capture(device, function(running)
          for _ = 1, 2 do
            running:step()
            one:step()
          end
        end)
      end)
      assert.equal(mode == "recorded" and 2 or 0, counts.graph_launches)
      assert.equal("", capture.note)
      check_times(capture, sort(capture))
      capture:write(folder .. "/trace.json")
      local file = read(folder .. "/trace.json")
      assert.same({"launches", "compute stream", "copy stream"}, {file.threads[1], file.threads[2], file.threads[3]})
      local operations = count_by(file.operation, function(slice)
        assert.matches("^step [12]/%a+/[%w_]+$", slice.path)
        return slice.name
      end)
      assert.equal("step 1", file.phase[1].path)
      assert.equal("step 1/forward", file.phase[2].path)
      local kernels = count_by(file.device, function(slice)
        if slice.thread ~= 2 then return nil end
        if not slice.args.operation then -- clearing memory, bringing data: no kernel is without one
          assert.is_true(slice.args.copied_bytes > 0, slice.name)
          return nil
        end
        assert.is_true(#slice.args.shapes + #slice.args.outputs > 0 and #slice.args.shapes == #slice.args.dtypes)
        return slice.args.operation
      end)
      for name, count in pairs(operations) do assert.is_true((kernels[name] or 0) >= count, name) end
      for name in pairs(kernels) do assert.is_true(operations[name] > 0, name) end
      for _, slice in ipairs(file.device) do -- each worker's weights in one product
        if slice.thread == 2 and slice.args.operation == "matmul" then assert.equal(2, slice.args.shapes[1][1]) end
      end
      assert.equal("memory", file.counters[1].name)
      assert.is_true(file.counters[1].values.bytes > 0)
      capture:free()
      one:free()
      helper.remove(folder)
    end)
  end
end)

describe("ranges for tools", function()
  -- What a tool, attached to a process from its start or not, was told while that ran some code.
  local function told(code, attached)
    local before = attached and "NVTX_INJECTION64_PATH=" .. emu.file() .. " " or ""
    local status, out, err = helper.run(before .. "packlua -e '\n" .. [[
      local emu = require "spec.support.emu"
      local device = emu.open()
      local ops, phase, tensor = require "pack.core.ops", require "pack.core.phase", require "pack.core.tensor"
      ]] .. code .. [[
      io.write(emu.ranges())']])
    assert.equal("", err)
    assert.equal(0, status)
    return out
  end

  local phases = [[
    local a = tensor.from({{1, 2}}, "f32", {context = device})
    phase("outer", function()
      ops.matmul(a, a, {transpose_b = true})
      pcall(phase, "inner", error, device)
    end, device)
  ]]

  it("are around phases and operations, which name what they work on", function()
    assert.equal("push outer\npush matmul f32 [1, 2] f32 [1, 2]\npop\npush inner\npop\npop\n", told(phases, true))
  end)

  it("are not where no tool is", function()
    assert.equal("", told(phases, false))
  end)

  it("are around steps, and around the launch of a recorded one", function()
    local text = told([[
      local config = require "pack.config"
      local resolved = config.load("configs/tiny.lua", {"model.layers=1", "model.width=16", "model.heads=2",
        "model.ffn_width=24", "model.context_length=8", "training.batch_tokens=32", "training.micro_batch_size=1",
        "training.max_tokens=320"})
      local one = require("pack.train.trainer").create(resolved,
        {context = device, train = require("pack.data.source").synthetic(resolved).train})
      for _ = 1, 2 do one:step() end
    ]], true)
    local first, second = text:match "^(.-)\nend\nstart step 1\n(.*)$"
    assert.matches("^.*start step 0\n.*push forward\n.*push backward\n.*push matmul f32 %[4, 8, 16%]", first)
    assert.matches("^push recorded program\npop\n", second)
  end)
end)
