--- The ceilings of this machine: how fast it multiplies large square matrices and copies memory, measured by the same
--- library, threads and session as what is compared with them.
local context = require "pack.core.context"
local native = require "pack.native"
local ops = require "pack.core.ops"

local C = native.C
local ceiling = {}

--- Sides of the square matrices of which the best counts, by device: large enough that packing operands costs
-- little, small enough to take a second or so. The emulated device has no speed worth knowing.
ceiling.sides = {cpu = {1024, 2048}, cuda = {4096, 8192}, emu = {128}}

--- Elements of the f32 tensor that is copied, by device: 128 MiB, beyond caches.
ceiling.copied = {cpu = 2 ^ 25, cuda = 2 ^ 25, emu = 2 ^ 16}

-- "cpu", "cuda" or "emu" of a context on one such device.
local function kind_of(device)
  return device:device():match "^%a+"
end

--- The least seconds that f() takes, after a first call that does not count: of at least two calls, and as many as
-- begin within `seconds` (1). A device is waited for.
function ceiling.best_of(device, f, seconds)
  local began
  local function timed()
    local before = C.pk_clock()
    f()
    device:synchronize()
    return C.pk_clock() - before
  end
  timed()
  local best, runs = math.huge, 0
  began = C.pk_clock()
  repeat
    best, runs = math.min(best, timed()), runs + 1
  until runs >= 2 and C.pk_clock() - began > (seconds or 1)
  return best
end

local function random(device, shape, dtype)
  local made = ops.random_normal {shape = shape, dtype = dtype == "f64" and "f64" or "f32", seed = 1, context = device}
  if dtype ~= "bf16" then return made end
  local rounded = ops.cast(made, {dtype = dtype})
  made:free()
  return rounded
end

--- FLOP/s of the best large square product of dtype "f32", "bf16" or "f64".
function ceiling.product(device, dtype, seconds)
  local best = 0
  for _, side in ipairs(ceiling.sides[kind_of(device)]) do
    local a, b = random(device, {side, side}, dtype), random(device, {side, side}, dtype)
    local y = ops.matmul(a, b)
    local taken = ceiling.best_of(device, function() ops.matmul(a, b, {out = y}) end, seconds)
    best = math.max(best, 2 * side ^ 3 / taken)
    for _, t in ipairs {a, b, y} do t:free() end
  end
  return best
end

--- Bytes per second, read and written, of copying a large tensor.
function ceiling.copy(device, seconds)
  local count = ceiling.copied[kind_of(device)]
  local x = ops.fill {shape = {count}, value = 1, context = device}
  local y = ops.copy(x)
  local taken = ceiling.best_of(device, function() ops.copy(x, {out = y}) end, seconds)
  x:free()
  y:free()
  return 8 * count / taken
end

--- All ceilings of a device context (nil: the default): {flops_per_second = {f32 =, bf16 =}, bytes_per_second =,
-- sides = (of the products)}. options: dtypes (a list; default f32 and bf16), seconds (for each measurement; 1),
-- copy (false leaves out the copying).
function ceiling.measure(device, options)
  device, options = device or context.default(), options or {}
  local found = {flops_per_second = {}, sides = ceiling.sides[kind_of(device)]}
  for _, dtype in ipairs(options.dtypes or {"f32", "bf16"}) do
    found.flops_per_second[dtype] = ceiling.product(device, dtype, options.seconds)
  end
  if options.copy ~= false then found.bytes_per_second = ceiling.copy(device, options.seconds) end
  device:trim()
  return found
end

return ceiling
