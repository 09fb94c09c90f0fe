--- The emulated CUDA device for specs: opening it, and what its runtime lets a test see and spoil
-- (kernels/emu/control.h).
local context = require "pack.core.context"
local ffi = require "ffi"
local helper = require "spec.support.helper"
local ops = require "pack.core.ops"
local program = require "pack.core.program"
local tensor = require "pack.core.tensor"

ffi.cdef [[
  typedef struct pk_emu_counters {
    int64_t launches, graph_launches, captures, allocations, releases, uploads, downloads, copies, fills,
      upload_bytes, synchronizations, held_bytes;
  } pk_emu_counters;
  typedef struct pk_emu_machine {
    int64_t memory;
    int devices, driver, sm, cublas, cupti;
  } pk_emu_machine;
  void pk_emu_read_counters(pk_emu_counters *counters);
  void pk_emu_fail(const char *function, int64_t calls, int error);
  void pk_emu_pretend(const pk_emu_machine *machine);
  void pk_emu_lose_records(int64_t count);
  const char *pk_emu_ranges(void);
]]

local emu = {}

--- Numbers of cudaError_t.
emu.errors = {invalid_value = 1, memory = 2, no_kernel = 209, illegal_address = 700, launch_failure = 719,
  capture_invalidated = 901}

--- A context on the emulated device, or nil where it is not part of the build.
function emu.open(options)
  local settings = {device = "emu"}
  for key, value in pairs(options or {}) do settings[key] = value end
  local good, opened = pcall(context, settings)
  if good then return opened end
  if tostring(opened):find("this build has no", 1, true) then return nil end
  error(opened, 2)
end

--- A recorded program of three operations that launch, which changes a state from outside and gives a result; and its
-- tensors: {program, state, input, matrix}.
function emu.recorded(device)
  local function from(values)
    return tensor.from(values, "f64", {context = device})
  end
  local own = {state = from {1, 2, 3}, input = from {1, 1, 1}, matrix = from {{1, 2, 3}}}
  own.program = program.record(function()
    ops.copy(own.input, {out = own.state, accumulate = true})
    return ops.matmul(ops.affine(own.matrix, {scale = 2}), ops.reshape(own.state, {shape = {3, 1}}))
  end, {}, device)
  return own
end

-- The library that the device lives in, which is loaded already.
local function library()
  emu.loaded = emu.loaded or ffi.load(emu.file())
  return emu.loaded
end

--- What fn adds to the counters of the runtime's calls: a table of numbers.
function emu.count(fn)
  local before, after = ffi.new("pk_emu_counters"), ffi.new("pk_emu_counters")
  library().pk_emu_read_counters(before)
  fn()
  library().pk_emu_read_counters(after)
  local counts = {}
  for _, name in ipairs {"launches", "graph_launches", "captures", "allocations", "releases", "uploads", "downloads",
    "copies", "fills", "upload_bytes", "synchronizations"} do
    counts[name] = tonumber(after[name] - before[name])
  end
  return counts
end

--- Lets the calls-th next call (default: the next) of a function of the runtime fail with an error's number.
function emu.fail(name, error_number, calls)
  library().pk_emu_fail(name, calls or 1, error_number)
end

--- The file that the device lives in.
function emu.file()
  return (helper.program:gsub("[^/]*$", "") .. "libpackemu.so")
end

--- The ranges that a tool was told of, a line each; where NVTX_INJECTION64_PATH was emu.file() from the start.
function emu.ranges()
  return ffi.string(library().pk_emu_ranges())
end

--- Lets CUPTI lose the next records.
function emu.lose_records(count)
  library().pk_emu_lose_records(count)
end

--- Makes the machine look otherwise: left (bytes of memory that nobody holds), devices, driver, sm, cublas and cupti
-- (false: it is not installed).
function emu.pretend(machine)
  local counters = ffi.new("pk_emu_counters")
  library().pk_emu_read_counters(counters)
  local memory = machine.left and tonumber(counters.held_bytes) + machine.left or 2 ^ 33
  library().pk_emu_pretend(ffi.new("pk_emu_machine", {memory = memory,
    devices = machine.devices or 1, driver = machine.driver or 2 ^ 20, sm = machine.sm or 90,
    cublas = machine.cublas == false and 0 or 1, cupti = machine.cupti == false and 0 or 1}))
end

--- All as at first.
function emu.repair()
  library().pk_emu_fail(nil, 0, 0)
  library().pk_emu_pretend(nil)
end

return emu
