-- The CUDA device on the emulated runtime: what it says when something is missing or fails, copies, and recorded
-- programs as graphs.
local context = require "pack.core.context"
local emu = require "spec.support.emu"
local ffi = require "ffi"
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local plan = require "pack.train.plan"
local tensor = require "pack.core.tensor"

local MIB = 1024 * 1024

local device = emu.open()
if not device then
  pending("the emulated device is not part of this build", function() end)
  return
end

local function from(values, dtype, chosen)
  return tensor.from(values, dtype or "f32", {context = chosen or device})
end

-- The message of opening the device with a machine that looks like this.
local function refusal(machine)
  emu.pretend(machine)
  local good, message = pcall(context, {device = "emu"})
  assert.is_false(good)
  return (tostring(message):gsub("^%S+:%d+: ", ""))
end

-- That the process computes as before: on the CPU, and on the device when it is opened again.
local function check_usable()
  emu.repair()
  assert.same({4, 6}, ops.add(tensor.from({1, 2}, "f32"), tensor.from({3, 4}, "f32")):totable())
  local again = context {device = "emu"}
  assert.same({4, 6}, numbers.flat(ops.add(from({1, 2}, "f32", again), from({3, 4}, "f32", again))))
  collectgarbage()
  again:close()
end

describe("opening a CUDA device", function()
  after_each(check_usable)

  it("says that there is no driver", function()
    assert.equal("device 'emu': there is no NVIDIA driver on this machine", refusal {driver = 0})
  end)

  it("says that the driver is too old, and for what", function()
    local message = refusal {driver = 11040}
    assert.matches("^device 'emu': the driver is too old: it supports CUDA up to 11%.4, this build needs %d+%.%d%. "
      .. "Update the driver, or build with an older CUDA$", message)
  end)

  it("says that there is no GPU, and names CUDA_VISIBLE_DEVICES", function()
    assert.equal("device 'emu': the driver shows no GPU", refusal {devices = 0})
    emu.repair()
    local code, _, err = helper.run [[CUDA_VISIBLE_DEVICES=7 packlua -e '
      local emu = require "spec.support.emu"
      emu.open()
      emu.pretend {devices = 0}
      require("pack.core.context").create {device = "emu"}']]
    assert.equal(1, code)
    assert.matches("the driver shows no GPU; CUDA_VISIBLE_DEVICES is 7\n", err, 1, true)
  end)

  it("says how many there are when another is asked for", function()
    local message = select(2, pcall(context, {device = "emu:1"}))
    assert.matches("device 'emu:1': there is 1 CUDA device, counted from cuda:0", message, 1, true)
    emu.pretend {devices = 3}
    message = select(2, pcall(context, {device = "emu:3"}))
    assert.matches("device 'emu:3': there are 3 CUDA devices, counted from cuda:0", message, 1, true)
    message = select(2, pcall(context, {device = "emu:one"}))
    assert.matches("after cuda: comes a number, counted from 0, not 'one'", message, 1, true)
  end)

  it("says which architectures the build is for", function()
    assert.equal("device 'emu': emulated GPU is an sm_75: this build has kernels for sm_ 80 90 100 and newer",
      refusal {sm = 75})
    emu.repair()
    emu.fail("cudaFuncGetAttributes", emu.errors.no_kernel)
    local message = select(2, pcall(context, {device = "emu"}))
    assert.matches("device 'emu': opening the device: this build has no kernels for the device's architecture "
      .. "(cudaErrorNoKernelImageForDevice)", message, 1, true)
  end)

  it("gives back what it had taken when something fails half-way", function()
    for _, name in ipairs {"cudaStreamCreateWithFlags", "cudaHostAlloc", "cudaMalloc", "cudaEventCreateWithFlags",
      "cudaMemGetInfo"} do
      local counts = emu.count(function()
        emu.fail(name, emu.errors.memory)
        local good, message = pcall(context, {device = "emu"})
        assert.is_false(good)
        assert.matches("^.*device 'emu': .*the device has no memory left %(cudaErrorMemoryAllocation%)", message)
      end)
      assert.equal(counts.allocations, counts.releases, name)
    end
  end)
end)

describe("the device that is chosen", function()
  -- A packlua whose CUDA device is the emulated one, or that has none.
  local folder
  setup(function()
    folder = helper.temporary()
    local own = helper.program:match "^(.*)/"
    helper.run(("mkdir %s/with %s/without && for d in with without; do cp %s/packlua %s/packlua.home %s/$d; done; "
      .. "cp %s/libpackemu.so %s/with/libpackcuda.so && ln -s libpackcuda.so %s/with/libpackemu.so"):format(folder, folder,
        own, own, folder, own, folder, folder))
  end)
  teardown(function() helper.remove(folder) end)

  local function printed(build, lua, environment)
    local code, out, err = helper.run(("%s %s/%s/packlua -e %s"):format(environment or "", folder, build, helper.quote(lua)))
    assert.equal("", err)
    assert.equal(0, code)
    return out
  end

  it("by runtime.device = auto is a GPU that the build can use, else the CPU", function()
    local lua = 'print(require("pack.config.runtime").device "auto")'
    assert.equal("cuda:0\n", printed("with", lua))
    assert.equal("cpu\tnil\n", printed("without", lua))
  end)

  it("is opened under that name, and said in the resolved configuration", function()
    assert.equal("cuda:0\tcuda:0\n", printed("with", [[
      local config = require("pack.config").load("configs/tiny.lua", {"runtime.amp=false"})
      local opened = require("pack.config.runtime").open(config)
      print(opened:device(), config.runtime.device)]]))
  end)

  -- What makes a GPU unusable, and what is said of it.
  local unusable = {
    {"emu.pretend {driver = 0}", "there is no NVIDIA driver on this machine"},
    {"emu.pretend {driver = 12040}", "the driver is too old: it supports CUDA up to 12.4, this build needs "},
    {"emu.pretend {devices = 0}", "the driver shows no GPU"},
    {"emu.pretend {sm = 75}", "emulated GPU is an sm_75: this build has kernels for sm_ 80 90 100 and newer"},
    {"emu.fail('cudaFuncGetAttributes', emu.errors.no_kernel)",
      "opening the device: this build has no kernels for the device's architecture (cudaErrorNoKernelImageForDevice)"},
    {"emu.pretend {left = 0}", "pinned memory for copies: the device has no memory left (cudaErrorMemoryAllocation)"},
    {"emu.fail('cudaStreamCreateWithFlags', emu.errors.illegal_address)", "The device is lost to this process"},
  }

  it("by auto where the GPU cannot be used is the CPU, with the reason, and asked for by name a usage error", function()
    for _, case in ipairs(unusable) do
      local out = printed("with", ([[
        local emu = require "spec.support.emu"
        local pack = require "pack"
        local function try(device)
          emu.repair()
          %s
          local config = pack.config.load("configs/tiny.lua", {"runtime.amp=false", "runtime.device=" .. device})
          local good, opened, remarks = pcall(pack.runtime.open, config)
          if good then print(opened:device(), config.runtime.device, #remarks, remarks[1], pack.tensor.full({2}, 3):totable()[2])
          else print(opened.exit, opened.message) end
        end
        try "auto"
        try "cuda"]]):format(case[1]))
      local first, second = out:match "^(.-)\n(.*)\n$"
      assert.matches("^cpu\tcpu\t1\tdevice: cpu, as device 'cuda", first)
      assert.matches("^2\tdevice 'cuda': ", second)
      assert.matches("\t3$", first)
      for _, line in ipairs {first, second} do assert.matches(case[2], line, 1, true) end
    end
  end)

  it("where none is named is PACKLUA_DEVICE, or the CPU", function()
    local lua = 'print(require("pack.core.context").default():device())'
    assert.equal("cuda:0\n", printed("with", lua, "PACKLUA_DEVICE=cuda"))
    assert.equal("cpu\n", printed("with", lua))
  end)
end)

describe("a forecast for the CUDA device", function()
  after_each(emu.repair)

  -- Of the 20m preset in amp; the targets are 4.0 GiB with 4 workers and 5.2 GiB with 8.
  for workers, most in pairs {[4] = 4.0, [8] = 5.2} do
    it(("needs no driver, and stays within the memory that is the target with %d workers"):format(workers), function()
      emu.pretend {driver = 0}
      local config = plan.with_workers("configs/20m.lua", {"runtime.device=emu", "runtime.amp=true"}, workers)
      local forecast = plan.of(config)
      local gib = forecast.total / 2 ^ 30
      assert.is_true(gib <= most and gib > most - 1, ("%.2f GiB"):format(gib))
    end)
  end
end)

describe("a failure of the CUDA device", function()
  helper.watch()
  after_each(check_usable)

  it("to find cuBLASLt names the file, and other operations go on", function()
    emu.pretend {cublas = false}
    local own = context {device = "emu"}
    local a = from({{1, 2}, {3, 4}}, "f32", own)
    local message = select(2, pcall(ops.matmul, a, a))
    assert.matches("matmul: libcublasLt.so cannot be opened: it is not emulated. Install it, or name its folder in "
      .. "LD_LIBRARY_PATH", message, 1, true)
    assert.same({2, 4, 6, 8}, numbers.flat(ops.add(a, a)))
    emu.repair()
    assert.same({7, 10, 15, 22}, numbers.flat(ops.matmul(a, a)))
  end)

  it("to give memory says what is in use, and leaves the rest usable", function()
    emu.pretend {left = 64 * MIB}
    local own = context {device = "emu", memory_limit_mib = 4096}
    local kept = from({1, 2, 3}, "f32", own)
    local message = select(2, pcall(tensor.zeros, {40 * MIB}, "f32", {context = own, category = "moments"}))
    assert.matches("out of memory: 160.0 MiB more for moments is more than emu has left; in use: ", message, 1, true)
    assert.same({2, 4, 6}, numbers.flat(ops.add(kept, kept)))
    local most = tensor.zeros({8 * MIB}, "f32", {context = own})
    assert.equal(0, ops.sum(most):item())
  end)

  it("to give memory leaves the prompt usable", function()
    local folder = helper.temporary()
    helper.write(folder .. "/input", [[
      emu = require "spec.support.emu"
      own = pack.context.set_default(pack.context {device = "emu", memory_limit_mib = 4096})
      kept = pack.full({3}, 2)
      emu.pretend {left = 64 * 2 ^ 20}
      pack.zeros {160 * 2 ^ 20}
      pack.matmul(kept:view {shape = {3, 1}}, kept:view {shape = {1, 3}}):totable()[3][3]
      pack.zeros({8 * 2 ^ 20}):sum():item()
    ]])
    local code, out, err = helper.run(("packlua -i < %s/input"):format(folder))
    helper.remove(folder)
    assert.equal(0, code)
    assert.matches("^packlua: .-out of memory: 640.0 MiB more for activations is more than emu has left; in use: [^\n]*\n", err)
    assert.equal("4\n0\n", out)
  end)

  it("to give memory at once is made good by what waits to be used again", function()
    emu.pretend {left = 64 * MIB}
    local own = context {device = "emu", memory_limit_mib = 4096}
    tensor.zeros({8 * MIB}, "f32", {context = own}):free()
    local counts = emu.count(function() tensor.zeros({9 * MIB}, "f32", {context = own}):free() end)
    assert.equal(1, counts.releases)
  end)

  it("of a kernel's launch names the operation", function()
    local a = from {1, 2}
    emu.fail("cudaLaunchKernel", emu.errors.invalid_value)
    local message = select(2, pcall(ops.negate, a))
    assert.matches("negate: an error of the emulated runtime (cudaErrorInvalidValue)", message, 1, true)
    assert.same({-1, -2}, numbers.flat(ops.negate(a)))
  end)

  it("that loses the device says so, again at every later use, and the CPU goes on", function()
    local own = context {device = "emu"}
    local a = from({1, 2}, "f32", own)
    emu.fail("cudaStreamSynchronize", emu.errors.illegal_address)
    local lost = "an error of the emulated runtime (cudaErrorIllegalAddress). The device is lost to this process, and "
      .. "with it what was in its memory: start again, from the last state saved."
    for _, fn in ipairs {function() return a:totable() end, function() own:synchronize() end,
      function() return ops.add(a, a) end, function() return from({1}, "f32", own) end} do
      assert.matches(lost, select(2, pcall(fn)), 1, true)
    end
    assert.same({2, 4}, ops.add(tensor.from({1, 2}, "f32"), tensor.from({1, 2}, "f32")):totable())
    a:free()
  end)
end)

describe("a copy to the CUDA device", function()
  helper.watch()

  -- Whole numbers below 2^24, each another one.
  local function counted(count, first)
    local values = ffi.new("float[?]", count)
    for i = 0, count - 1 do values[i] = (first + i) % 2 ^ 24 end
    return values
  end

  it("of more than a pinned half arrives whole", function()
    local count = 5 * MIB / 4 * 2 + 3 -- two halves and a half
    local big = tensor.zeros({count}, "f32", {context = device})
    local values, back = counted(count, 7), ffi.new("float[?]", count)
    big:write(values)
    big:read(back)
    assert.is_true(ffi.string(values, count * 4) == ffi.string(back, count * 4))
  end)

  it("leaves the caller free to change its data, while what was given arrives in order", function()
    local count = 3 * MIB / 4
    local targets, values = {}, ffi.new("float[?]", count)
    for k = 1, 6 do -- 18 MiB through halves of 4
      targets[k] = tensor.zeros({count}, "f32", {context = device})
      for i = 0, count - 1 do values[i] = k * 1000 + i % 1000 end
      targets[k]:write(values)
    end
    ffi.fill(values, count * 4)
    for k = 1, 6 do
      targets[k]:read(values)
      for i = 0, count - 1, 4099 do assert.equal(k * 1000 + i % 1000, values[i]) end
    end
  end)

  it("does not wait for the device", function()
    local small = tensor.zeros({100}, "f32", {context = device})
    local values = counted(100, 1)
    local counts = emu.count(function() for _ = 1, 20 do small:write(values) end end)
    assert.equal(20, counts.uploads)
    assert.equal(20 * 400, counts.upload_bytes)
    assert.equal(0, counts.synchronizations)
    assert.equal(0, counts.allocations)
  end)
end)

describe("a copy from the CUDA device", function()
  helper.watch()

  it("of several tensors waits once, also of those that pinned memory has no room for", function()
    local short, long = from {1, 2, 3}, tensor.arange(20000, 5, 2, "f32", {context = device}) -- 80000 bytes
    local halves = from({0.5, -1.5}, "bf16")
    local columns = tensor.arange(12, 0, 1, "f64", {context = device}):view {shape = {3, 2}, stride = 4, offset = 1}
    local counts, read
    counts = emu.count(function() read = tensor.read_all {short, long, halves, columns, from {7}} end)
    assert.same({1, 7}, {counts.synchronizations, counts.downloads})
    assert.same({1, 2, 3}, {read[1][0], read[1][1], read[1][2]})
    for i = 0, 19999 do assert.equal(5 + 2 * i, read[2][i]) end
    assert.same({0.5, -1.5}, {read[3][0], read[3][1]})
    local values = {}
    for i = 0, 5 do values[i + 1] = read[4][i] end
    assert.same({1, 2, 5, 6, 9, 10}, values)
    assert.equal(7, read[5][0])
    local again = tensor.read_all({from {9}}, {read[5]})
    assert.same({9, 9}, {again[1][0], read[5][0]})
  end)

  it("is of one device at a time, and of tensors that are there", function()
    local gone = from {1}
    gone:free()
    for message, list in pairs {["tensors of two device contexts cannot be read together"] = {from {1}, tensor.ones {1}},
      ["was freed"] = {from {1}, gone}} do
      assert.matches(message, select(2, pcall(tensor.read_all, list)), 1, true)
    end
  end)
end)

describe("a recorded program on the CUDA device", function()
  helper.watch()
  after_each(emu.repair)

  local function result(own)
    return own.program.results[1]:totable()[1][1]
  end

  it("runs operation by operation once, then is captured, then launched as one", function()
    local own = emu.recorded(device)
    local first = emu.count(function() own.program:run() end)
    assert.equal(0, first.captures + first.graph_launches)
    assert.equal(2 * (2 + 2 * 3 + 3 * 4), result(own))
    local second = emu.count(function() own.program:run() end)
    assert.same({1, 1}, {second.captures, second.graph_launches})
    assert.equal(2 * (3 + 2 * 4 + 3 * 5), result(own))
    local third = emu.count(function() own.program:run() end)
    assert.same({0, 1, 0, 0}, {third.captures, third.graph_launches, third.launches, third.synchronizations})
    assert.equal(2 * (4 + 2 * 5 + 3 * 6), result(own))
    assert.equal("", own.program:remark())
    own.program:free()
  end)

  it("reads what is in its tensors when it is launched", function()
    local own = emu.recorded(device)
    for _ = 1, 3 do own.program:run() end
    own.input:write(ffi.new("double[3]", 10, 20, 30))
    own.program:run()
    assert.same({14, 25, 36}, own.state:totable())
    assert.equal(2 * (14 + 2 * 25 + 3 * 36), result(own))
    own.program:free()
  end)

  it("goes on operation by operation where it cannot be captured, and says why", function()
    for _, name in ipairs {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate"} do
      local own = emu.recorded(device)
      own.program:run()
      emu.fail(name, emu.errors.capture_invalidated)
      local shown = {}
      own.program.say = function(text) shown[#shown + 1] = text end
      for _ = 1, 3 do own.program:run() end
      assert.same({5, 6, 7}, own.state:totable(), name)
      assert.matches("a graph: an error of the emulated runtime (cudaErrorStreamCaptureInvalidated)",
        own.program:remark(), 1, true)
      assert.equal(1, #shown)
      own.program:free()
      emu.repair()
    end
  end)

  it("that fails while it is captured reports the failure when it is met again", function()
    local own = emu.recorded(device)
    own.program:run()
    emu.fail("cudaLaunchKernel", emu.errors.invalid_value, 2)
    own.program.say = function() end
    own.program:run()
    assert.same({3, 4, 5}, own.state:totable()) -- nothing of the capture was run
    assert.matches("operation 2 of a recorded program: ", own.program:remark(), 1, true)
    own.program:free()
  end)

  it("runs whole or not at all when it is interrupted", function()
    local own = emu.recorded(device)
    for _ = 1, 2 do own.program:run() end
    ffi.C.pk_interrupt_request()
    assert.is_false(pcall(own.program.run, own.program))
    assert.same({3, 4, 5}, own.state:totable())
    own.program:run()
    assert.same({4, 5, 6}, own.state:totable())
    own.program:free()
  end)
end)

describe("numbers over workers", function()
  it("are 0 where the workers have nothing", function()
    for _, dtype in ipairs {"f32", "f64"} do
      local nothing = tensor.zeros({2, 0}, dtype, {context = device})
      assert.same({0, 0}, numbers.flat(ops.gradient_norm(nothing, from({1, 3}, "f64"))), dtype)
      assert.same({0}, numbers.flat(ops.consensus_distance(nothing)), dtype)
    end
  end)
end)

describe("a kernel with both kinds of shared memory", function()
  after_each(check_usable)

  -- With 22 workers the columns and the mixing matrix are 49,104 bytes; what the kernel declares for itself, the
  -- hyperparameters, goes past 48 KiB.
  it("is launched where only both together are more than 48 KiB", function()
    local workers, width = 22, 64
    for _, dtype in ipairs {"f32", "f64"} do
      local weights, values, expected = {}, {}, {}
      for i = 1, workers do
        for j = 1, workers do weights[(i - 1) * workers + j] = j == i % workers + 1 and 1 or 0 end
        for c = 1, width do
          values[(i - 1) * width + c] = 100 * i + c
          expected[(i - 1) * width + c] = 100 * (i % workers + 1) + c
        end
      end
      local mixing, x = tensor.zeros({workers, workers}, "f64", {context = device}),
        tensor.zeros({workers, width}, dtype, {context = device})
      mixing:write_numbers(ffi.new("double[?]", #weights, weights), #weights)
      x:write_numbers(ffi.new("double[?]", #values, values), #values)
      ops.mix(x, mixing, from({0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, "f64"), from({0, 0, 0, 0, 0, 0, 0, 0}, "i32"))
      assert.same(expected, numbers.flat(x), dtype)
    end
  end)
end)
