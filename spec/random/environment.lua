--- What the text of a random program sees (t), in one way of running it: values of a seed, tensors on a device, and
-- gradients that can be looked into.
local ffi = require "ffi"
local grad = require "pack.grad"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local environment = {}

local Environment = {}
Environment.__index = Environment

local single = ffi.new("float[1]")

--- An environment. options: device (a context), F and H (the dtypes of floats and of halves; "f64" in the twin), plain
-- (true: f64 stands for f32, so that values are rounded as they are there).
function environment.create(options)
  local self = setmetatable({ops = ops, tensor = tensor, device = options.device, F = options.F, H = options.H,
    half = options.H == "bf16", rounded = options.rounded, outsides = {}, escaped = {}, results = {}}, Environment)
  self.watch = options.watch
  return self
end

-- count numbers in low .. high from a seed. Those of halves have seven bits, others those of f32 where that is the
-- dtype of the program.
local function values(self, count, dtype, seed, low, high)
  local list, state = ffi.new("double[?]", math.max(count, 1)), (seed * 7919 + 3) % 2147483647
  for i = 0, count - 1 do
    state = state * 48271 % 2147483647
    local value = low + (high - low) * state / 2147483647
    if dtype == "half" then
      value = math.floor(value * 64 + 0.5) / 64
    elseif self.rounded then
      single[0] = value
      value = tonumber(single[0])
    end
    list[i] = value
  end
  return list
end

local special = {0, -0.0, math.huge, -math.huge, 0 / 0, 1e-42, 3e38}

local function count_of(shape)
  local count = 1
  for _, extent in ipairs(shape) do count = count * extent end
  return count
end

-- A tensor that is compared after every run.
local function keep(self, made)
  self.outsides[#self.outsides + 1] = made
  return made
end

--- Floats ("F") or halves ("H") of a shape, from a seed. odd: some are infinite, NaN, tiny or zeros.
function Environment:floats(shape, kind, seed, low, high, odd)
  local made = tensor.zeros(shape, kind == "H" and self.H or self.F, {context = self.device})
  local count = count_of(shape)
  local list = values(self, count, kind == "H" and "half", seed, low, high)
  if odd then
    for i = seed % 5, count - 1, 5 do list[i] = special[(seed + i) % #special + 1] end
  end
  return keep(self, made:write_numbers(list, count))
end

--- f64 whatever the program's dtype.
function Environment:doubles(shape, seed, low, high)
  local count = count_of(shape)
  local list = ffi.new("double[?]", math.max(count, 1))
  local state = (seed * 7919 + 3) % 2147483647
  for i = 0, count - 1 do
    state = state * 48271 % 2147483647
    list[i] = low + (high - low) * state / 2147483647
  end
  return keep(self, tensor.zeros(shape, "f64", {context = self.device}):write_numbers(list, count))
end

--- i32 in 0 .. below - 1; ignored: every fourth or so is -100.
function Environment:indices(shape, seed, below, ignored)
  local count, state = count_of(shape), (seed * 7919 + 3) % 2147483647
  local list = ffi.new("int32_t[?]", math.max(count, 1))
  for i = 0, count - 1 do
    state = state * 48271 % 2147483647
    list[i] = ignored and state % 4 == 1 and -100 or math.floor(state / 2147483647 * below)
  end
  return keep(self, tensor.zeros(shape, "i32", {context = self.device}):write(list))
end

--- An f64 or i32 tensor of these values.
function Environment:given(list, dtype, shape)
  local made = tensor.zeros(shape or {#list}, dtype, {context = self.device})
  return keep(self, made:write_numbers(ffi.new("double[?]", math.max(#list, 1), list), #list))
end

--- i32 for an arena of that many columns: which blocks of 64 weight decay applies to.
function Environment:blocks(columns, seed)
  return self:indices({columns / 64}, seed, 2)
end

--- Notes a tensor that leaves the function without being a result.
function Environment:escape(escaped)
  self.escaped[#self.escaped + 1] = escaped
end

--- pack.grad, after which what watches gradients sees them.
function Environment:differentiate(fn, leaves, options)
  if not self.watch then return grad.grad(fn, leaves, options) end
  local before = self.watch.before(leaves, options)
  return self.watch.after(before, fn, leaves, options, grad.grad(fn, leaves, options))
end

--- The products of the second derivatives with directions.
function Environment.hvp(_, fn, leaves, directions)
  return grad.hvp(fn, leaves, directions)
end

return environment
