--- Device contexts: a device, its threads and its memory limit.
--
-- The module is callable: context {device =, threads =, memory_limit_mib =} makes one. Operations
-- without inputs and new tensors use the default context unless told otherwise.
local caller = require "pack.core.caller"
local ffi = require "ffi"
local native = require "pack.native"

caller.register()

local C = native.C
local Handle = ffi.typeof("pk_context *")
local MIB = 1024 * 1024

local context = {}

local Context = {}
Context.__index = Context

local default

local known = {device = "string", threads = "number", memory_limit_mib = "number", forecast = "boolean",
  deterministic = "boolean", attention = "string", without = "table"}

local attentions = {auto = C.PK_ATTENTION_AUTO, cudnn = C.PK_ATTENTION_CUDNN, flash = C.PK_ATTENTION_FLASH}

local function check_options(options)
  for name, value in pairs(options) do
    if not known[name] then
      caller.raise("context: unknown option '%s'; known: attention, deterministic, device, forecast, "
        .. "memory_limit_mib, threads, without", tostring(name))
    end
    if type(value) ~= known[name] then
      caller.raise("context: %s is a %s, not a %s", name, type(value), known[name])
    end
    if name == "attention" and not attentions[value] then
      caller.raise("context: attention is auto, cudnn or flash, not '%s'", value)
    end
    if type(value) == "number" and not (value >= 0 and value < 2 ^ 43) then
      caller.raise("context: %s is %s, which is not possible", name, tostring(value))
    end
  end
end

--- Opens a device. options: device ("cpu"), threads (0: one per core), memory_limit_mib (0: what is
-- available), forecast (true: account for memory without taking it; operations compute nothing), deterministic
-- (true: choose nothing by its speed, so that every run has the same bits), attention (what computes attention of bf16
-- operands: "auto", "cudnn" or "flash", the device's own kernels), without (a list of operations' names that are as if
-- the device had no kernel for them, to see what a fused one brings).
-- Errors: a device that is not there, a number out of range.
function context.create(options)
  options = options or {}
  check_options(options)
  local settings = C.pk_context_defaults()
  local device = options.device or "cpu" -- anchored here: settings holds only a pointer
  settings.device = device
  settings.threads = math.floor(options.threads or 0)
  settings.memory_limit = math.floor((options.memory_limit_mib or 0) * MIB)
  settings.forecast = options.forecast and 1 or 0
  settings.deterministic = options.deterministic and 1 or 0
  settings.attention = attentions[options.attention or "auto"]
  local without = table.concat(options.without or {}, " ")
  settings.without = without
  local made = ffi.new("pk_context *[1]")
  if C.pk_context_create(made, settings) ~= 0 then
    caller.raise("%s", ffi.string(C.pk_error_message()))
  end
  return setmetatable({handle = ffi.gc(made[0], C.pk_context_free)}, Context)
end

--- The context that is used where none is named; created at first use, on the device that the environment variable
-- PACKLUA_DEVICE names, else on the CPU.
function context.default()
  if not default then default = context.create {device = os.getenv "PACKLUA_DEVICE"} end
  return default
end

--- The default context if there is one already, else nil.
function context.opened()
  return default
end

--- Makes a context the default, and returns it.
function context.set_default(chosen)
  default = chosen
  return chosen
end

--- The pk_context of a context object, or of the default for nil.
function context.handle_of(chosen)
  chosen = chosen or context.default()
  if type(chosen) ~= "table" then
    caller.raise("context is a %s, not what pack.context returned", type(chosen))
  end
  local handle = chosen.handle
  if handle == nil then caller.raise("the device context was closed") end -- or its tensor freed: a null pointer
  if not ffi.istype(Handle, handle) then caller.raise("context is a table, but not what pack.context returned") end
  return handle
end

--- A line such as "cpu: AMD EPYC, 2 threads, avx2, limit 22.1 GiB".
function Context:describe()
  return ffi.string(C.pk_context_describe(context.handle_of(self)))
end

--- The device's name, such as "cpu".
function Context:device()
  return ffi.string(C.pk_context_device(context.handle_of(self)))
end

--- The instruction set in use.
function Context:isa()
  return ffi.string(C.pk_context_isa(context.handle_of(self)))
end

--- Number of threads.
function Context:threads()
  return tonumber(C.pk_context_threads(context.handle_of(self)))
end

--- Whether the device multiplies bf16 matrices faster than f32 ones.
function Context:has_bf16()
  return C.pk_context_has_bf16(context.handle_of(self)) ~= 0
end

--- What computes attention of bf16 operands: "cudnn", or "flash", the device's own kernels.
function Context:attention()
  return ffi.string(C.pk_context_attention(context.handle_of(self)))
end

--- Waits for everything launched so far; reports a device failure.
function Context:synchronize()
  if C.pk_context_synchronize(context.handle_of(self)) ~= 0 then
    caller.raise("%s", ffi.string(C.pk_error_message()))
  end
end

--- Memory in bytes: used and peak by category (tables), total, total_peak, reserved, limit, and the
-- counts allocations and live.
function Context:memory()
  local read = ffi.new("pk_memory")
  C.pk_memory_read(context.handle_of(self), read)
  local memory = {used = {}, peak = {}}
  for c = 0, C.PK_CATEGORIES - 1 do
    local name = ffi.string(C.pk_category_name(c))
    memory.used[name], memory.peak[name] = tonumber(read.used[c]), tonumber(read.peak[c])
  end
  for _, name in ipairs {"total", "total_peak", "reserved", "limit", "allocations", "live"} do
    memory[name] = tonumber(read[name])
  end
  return memory
end

local read_memory = ffi.new("pk_memory")

--- The most bytes that were in use at one time, total_peak of memory(), without the tables.
function Context:peak()
  C.pk_memory_read(context.handle_of(self), read_memory)
  return tonumber(read_memory.total_peak)
end

--- Starts a new high-water mark at the present use.
function Context:reset_peak()
  C.pk_memory_reset_peak(context.handle_of(self))
end

--- Gives cached blocks back to the system.
function Context:trim()
  C.pk_memory_trim(context.handle_of(self))
end

--- Closes the context; twice is harmless. Tensors that are alive keep the device until they are freed.
function Context:close()
  if not self.handle then return end
  C.pk_context_free(ffi.gc(self.handle, nil))
  self.handle = nil
  if default == self then default = nil end
end

return setmetatable(context, {__call = function(_, options) return context.create(options) end})
