--- What the specs of operations share: made-up values, plain arrays, and comparisons to the bit.
local assert = require "luassert"
local context = require "pack.core.context"
local ffi = require "ffi"
local native = require "pack.native"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local numbers = {}

local single = ffi.new("float[1]")

--- A number rounded to f32.
function numbers.f32(value)
  single[0] = value
  return tonumber(single[0])
end

--- A number rounded to a dtype that is "f32" or "f64".
function numbers.round(dtype, value)
  return dtype == "f32" and numbers.f32(value) or value
end

--- count numbers in low .. high (default -1 .. 1), the same for the same seed (Park and Miller 1988).
function numbers.list(count, seed, low, high)
  low, high = low or -1, high or 1
  local list, state = {}, seed * 7919 + 1
  for i = 1, count do
    state = state * 48271 % 2147483647
    list[i] = low + (high - low) * state / 2147483647
  end
  return list
end

--- How many elements a shape has.
function numbers.count(shape)
  local count = 1
  for _, extent in ipairs(shape) do count = count * extent end
  return count
end

--- A tensor of a shape from a flat list.
function numbers.tensor(shape, dtype, list, options)
  local made = tensor.zeros(shape, dtype, options)
  return made:write_numbers(ffi.new("double[?]", math.max(#list, 1), list), #list)
end

--- The same with a worker stride of its own: the middle columns of a wider tensor.
function numbers.strided(shape, dtype, list, options)
  local inner = 1
  for d = 2, #shape do inner = inner * shape[d] end
  local base = tensor.full({shape[1], inner + 5}, 77, dtype, options)
  local view = base:view {shape = shape, stride = inner + 5, offset = 2}
  view:write_numbers(ffi.new("double[?]", math.max(#list, 1), list), #list)
  return view, base
end

--- Writes value over the elements of a dense tensor from index first (from 1) to last (default first).
function numbers.put(t, value, first, last)
  local count = (last or first) - first + 1
  local part = t:view {shape = {count}, offset = first - 1}
  ops.fill {shape = {count}, value = value, dtype = t.dtype, out = part, context = {handle = t.context}}
end

--- The elements as a flat list.
function numbers.flat(t)
  local values, count = t:read_numbers()
  local list = {}
  for i = 1, count do list[i] = values[i - 1] end
  return list
end

--- The bytes of the elements, for comparisons to the bit.
function numbers.bytes(t)
  return ffi.string(t:read(), tonumber(t.numel * native.C.pk_dtype_size(t.raw_dtype)))
end

--- Fails unless every element of t is within tolerance of the list, relative to its largest magnitude or
-- floor (default 1).
function numbers.assert_close(expected, t, tolerance, floor)
  local got = numbers.flat(t)
  assert.equal(#expected, #got)
  local scale = floor or 1
  for i = 1, #expected do scale = math.max(scale, math.abs(expected[i])) end
  for i = 1, #expected do
    local difference = math.abs(expected[i] - got[i])
    if not (difference <= tolerance * scale) then
      error(("element %d is %.17g, not %.17g"):format(i, got[i], expected[i]), 2)
    end
  end
end

--- Fails unless every element of t is exactly as in the list (NaN equals NaN).
function numbers.assert_same(expected, t)
  local got = numbers.flat(t)
  assert.equal(#expected, #got)
  for i = 1, #expected do
    local both_nan = expected[i] ~= expected[i] and got[i] ~= got[i]
    if not both_nan and expected[i] ~= got[i] then
      error(("element %d is %.17g, not %.17g"):format(i, got[i], expected[i]), 2)
    end
  end
end

--- Calls f(options) with a context of one thread, then with one of two, and fails unless the tensors that
-- it returns have the same bytes.
function numbers.assert_same_at_threads(f)
  local first
  for threads = 1, 2 do
    local chosen = context {threads = threads}
    local results = {f({context = chosen})}
    local bytes = {}
    for i, result in ipairs(results) do bytes[i] = numbers.bytes(result) end
    if first then
      for i = 1, #bytes do
        if bytes[i] ~= first[i] then error(("result %d differs between 1 and 2 threads"):format(i), 2) end
      end
    end
    first = bytes
  end
end

--- Fails unless f(...) raises an error that contains text.
function numbers.assert_refused(text, f, ...)
  local good, message = pcall(f, ...)
  if good then error("not refused: " .. text, 2) end
  if not tostring(message):find(text, 1, true) then
    error(("%q does not contain %q"):format(tostring(message), text), 2)
  end
end

return numbers
