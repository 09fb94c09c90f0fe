--- Running the text of a random program in one way, and what can be seen of it afterwards.
local environment = require "spec.random.environment"
local ffi = require "ffi"
local native = require "pack.native"
local program = require "pack.core.program"

local execute = {}

local function bytes_of(t)
  return ffi.string(t:read(), tonumber(t.numel * native.C.pk_dtype_size(t.raw_dtype)))
end

local types = {f64 = ffi.typeof "const double *", f32 = ffi.typeof "const float *", i32 = ffi.typeof "const int32_t *",
  bf16 = ffi.typeof "const uint16_t *"}
local words = ffi.typeof "const uint32_t *"
local word = ffi.new("union { uint32_t bits; float value; }")

-- Whether element i is a NaN: its bits could be anything, and not every NaN can be a Lua value.
local function is_nan(dtype, bytes, i)
  if dtype == "i32" then return false end
  if dtype == "bf16" then return bit.band(ffi.cast(types.bf16, bytes)[i], 0x7fff) > 0x7f80 end
  if dtype == "f32" then return bit.band(ffi.cast(words, bytes)[i], 0x7fffffff) > 0x7f800000 end
  local low, high = ffi.cast(words, bytes)[2 * i], bit.band(ffi.cast(words, bytes)[2 * i + 1], 0x7fffffff)
  return high > 0x7ff00000 or high == 0x7ff00000 and low ~= 0
end

--- The values of what was seen of a tensor: an array of doubles, and their number.
function execute.numbers(seen)
  local count, dtype = seen.count, seen.dtype
  local values, from = ffi.new("double[?]", math.max(count, 1)), ffi.cast(types[dtype], seen.bytes)
  for i = 0, count - 1 do
    if is_nan(dtype, seen.bytes, i) then
      values[i] = 0 / 0
    elseif dtype == "bf16" then
      word.bits = from[i] * 65536
      values[i] = word.value
    else
      values[i] = from[i]
    end
  end
  return values, count
end

-- What tensors hold: a list of {name, bytes, dtype, count, text}.
local function look(list, name, into)
  for i, t in ipairs(list) do
    into[#into + 1] = {name = name .. " " .. i, bytes = bytes_of(t), dtype = t.dtype, count = tonumber(t.numel),
      text = t.dtype .. " [" .. table.concat(t:sizes(), ", ") .. "]"}
  end
end

-- Tensors that escaped a recorded function: reading them, or running an operation with them, is refused, or right.
local function look_at_escaped(list, into)
  for i, t in ipairs(list) do
    local good, bytes = pcall(bytes_of, t)
    into[i] = good and bytes or false
  end
end

-- Calls a function, recorded at a level or at once.
local function caller(body, arguments, way)
  if not way.level then
    return function(given) return {body(unpack(given))} end, function() end
  end
  if #arguments > 0 then
    local compiled = program.compile(body, {recompute = way.level})
    return function(given) return {compiled(unpack(given))} end, function() compiled:free() end
  end
  local one
  return function()
    one = one or program.record(body, {}, way.device, {recompute = way.level})
    one:run()
    return one.results
  end, function()
    if one then one:free() end
  end
end

-- The second function's caller: recorded, it finds the first one's results where they always are.
local function second_caller(second, results, way)
  if not way.level then return caller(second, {}, way) end
  return caller(function() return second(unpack(results)) end, {}, way)
end

-- All runs; returns what was seen after each.
local function run_all(text, way)
  local chunk = assert(loadstring(text, "=program"))()
  local t = environment.create {device = way.device, F = way.F, H = way.H, rounded = way.rounded, watch = way.watch}
  local body, arguments, second = chunk(t)
  local given, seen = arguments(0), {}
  local call, free = caller(body, given, way)
  local call_second, free_second
  for run = 1, way.runs or 2 do
    if run > 1 then given = arguments(1000 * run) end
    t.escaped = {}
    local results = call(given)
    local now, all = {escaped = {}}, {unpack(results)}
    if second and not call_second then call_second, free_second = second_caller(second, results, way) end
    for _, one in ipairs(second and call_second(results) or {}) do all[#all + 1] = one end
    look(all, "result", now)
    look(t.outsides, "tensor from outside", now)
    look_at_escaped(t.escaped, now.escaped)
    seen[run] = now
  end
  free()
  if free_second then free_second() end
  return seen
end

--- Runs a program's text. way: name, device, F, H (dtypes of floats and halves), rounded (values are rounded to f32), level
-- (of recomputation; nil: eager), runs (2), watch (environment.lua). Returns a list with what was seen after each run, or
-- nil and the error.
function execute.run(text, way)
  local good, seen = pcall(run_all, text, way)
  if good then return seen end
  return nil, tostring(seen)
end

return execute
