--- Gradients against central differences: pack.gradcheck(fn, inputs, options), and of second order
-- pack.gradgradcheck. Both ask for f64.
local caller = require "pack.core.caller"
local grad = require "pack.grad"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

caller.register()

local gradcheck = {}

-- Weights of no symmetry, so that errors which cancel in a plain sum are seen. Fixed.
local function weights_like(t, salt)
  local count = t.numel
  local weights = {}
  for i = 1, count do weights[i] = 1 + 0.5 * math.sin(1.7 * i + salt) end
  local flat = tensor.from(weights, t.dtype, {context = {handle = t.context}})
  return ops.reshape(flat, {shape = t:sizes()})
end

local function check_inputs(inputs)
  for i, input in ipairs(inputs) do
    if not tensor.is(input) or input.dtype ~= "f64" then
      caller.raise("gradcheck: input %d is not an f64 tensor", i)
    end
  end
end

-- The weighted sum of fn's first result.
local function scalar_of(fn, weights)
  return function(...)
    local result = fn(...)
    weights[1] = weights[1] or weights_like(result, 0)
    return ops.sum(ops.multiply(result, weights[1]))
  end
end

-- (f(x + eps) - f(x - eps)) / 2 eps for element e (from 0) of input i.
local function difference(scalar, inputs, i, values, e, eps)
  local input, center = inputs[i], values[e]
  values[e] = center + eps
  input:write(values)
  local above = scalar(unpack(inputs)):item()
  values[e] = center - eps
  input:write(values)
  local below = scalar(unpack(inputs)):item()
  values[e] = center
  input:write(values)
  return (above - below) / (2 * eps)
end

-- The index of flat element e as "[i, j]", from 1.
local function index_text(shape, e)
  local index = {}
  for d = #shape, 1, -1 do
    index[d] = e % shape[d] + 1
    e = math.floor(e / shape[d])
  end
  return "[" .. table.concat(index, ", ") .. "]"
end

local function check(fn, inputs, options, what)
  check_inputs(inputs)
  local eps, tolerance = options.eps or 1e-6, options.tolerance or 1e-7
  local name = (options.name and options.name .. ": " or "") .. what
  local scalar = scalar_of(fn, {})
  local _, gradients = grad.grad(scalar, inputs)
  local worst = {error = 0}
  for i, input in ipairs(inputs) do
    local slopes, values = gradients[i]:read_numbers(), input:read()
    for e = 0, input.numel - 1 do
      local numeric = difference(scalar, inputs, i, values, e, eps)
      local err = math.abs(slopes[e] - numeric) / math.max(1, math.abs(numeric))
      if not (err <= worst.error) then
        worst = {error = err, input = i, index = index_text(input:sizes(), e), analytic = slopes[e],
          numeric = numeric}
      end
      if not (err <= tolerance) then
        caller.raise("%s of input %d at %s is %.12g, by differences %.12g (error %.3g, tolerance %.3g)",
          name, i, worst.index, slopes[e], numeric, err, tolerance)
      end
    end
  end
  return worst
end

--- Compares the gradients of a fixed weighted sum of fn(inputs...) with central differences.
-- inputs are f64 tensors, which are changed and put back element by element. options: eps (1e-6),
-- tolerance (1e-7, relative to max(1, |value|)), name (for the message). Returns the worst case:
-- {error, input, index, analytic, numeric}. Raises with input, index and both values beyond tolerance.
function gradcheck.gradcheck(fn, inputs, options)
  return check(fn, inputs, options or {}, "gradient")
end

--- The same for second derivatives: checks the gradients of a weighted sum of fn's gradients.
function gradcheck.gradgradcheck(fn, inputs, options)
  options = options or {}
  check_inputs(inputs)
  local outer = {}
  local function slopes(...)
    local leaves = {...}
    local weights = {outer[0]}
    local _, gradients = grad.grad(scalar_of(fn, weights), leaves)
    outer[0] = weights[1]
    local total
    for i, gradient in ipairs(gradients) do
      outer[i] = outer[i] or weights_like(gradient, i)
      local part = ops.sum(ops.multiply(gradient, outer[i]))
      total = total and ops.add(total, part) or part
    end
    return total
  end
  return check(slopes, inputs, options, "second derivative")
end

return setmetatable(gradcheck, {
  __call = function(_, fn, inputs, options)
    return gradcheck.gradcheck(fn, inputs, options)
  end,
})
