--- Gradients by central differences, beside those that a program takes.
local ffi = require "ffi"
local ops = require "pack.core.ops"

local differences = {}

local STEP, TOLERANCE, ELEMENTS = 1e-5, 2e-5, 2

local function sum_of(fn)
  return ops.sum((fn())):item()
end

-- The slope along element e (from 0) of a leaf.
local function slope(fn, leaf, values, e, count)
  local center = values[e]
  values[e] = center + STEP
  leaf:write_numbers(values, count)
  local above = sum_of(fn)
  values[e] = center - STEP
  leaf:write_numbers(values, count)
  local below = sum_of(fn)
  values[e] = center
  leaf:write_numbers(values, count)
  return (above - below) / (2 * STEP), math.max(math.abs(above), math.abs(below))
end

local function check(fn, leaf, gradient, before, salt)
  local values, count = leaf:read_numbers()
  local slopes = gradient:read_numbers()
  local largest = 1
  for e = 0, count - 1 do
    if before then slopes[e] = slopes[e] - before[e] end
    largest = math.max(largest, math.abs(slopes[e]))
  end
  for k = 1, math.min(ELEMENTS, count) do
    local e = (salt * 7 + k * 13) % count
    local numeric, size = slope(fn, leaf, values, e, count)
    local allowed = TOLERANCE * largest + 1e-14 * size / STEP
    if numeric == numeric and not (math.abs(slopes[e] - numeric) <= allowed) then
      return ("element %d of %d is %.9g, and %.9g by differences"):format(e + 1, count, slopes[e], numeric)
    end
  end
end

--- What watches the gradients of one run; failure is the first that is wrong, as text.
function differences.watch()
  local watch = {}

  function watch.before(_, options)
    if not options.accumulate then return {} end
    local before = {}
    for i, into in ipairs(options.into) do
      local values, count = into:read_numbers()
      before[i] = ffi.new("double[?]", math.max(count, 1))
      ffi.copy(before[i], values, 8 * count)
    end
    return before
  end

  function watch.after(before, fn, leaves, _, ...)
    local returned = {...}
    local gradients = returned[select("#", ...)]
    for i, leaf in ipairs(leaves) do
      local wrong = not watch.failure and check(fn, leaf, gradients[i], before[i], i)
      if wrong then watch.failure = ("the gradient of leaf %d: "):format(i) .. wrong end
    end
    return ...
  end

  return watch
end

return differences
