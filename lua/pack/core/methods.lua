--- Methods of tensors as they are written by hand: axes and extents one after the other instead of in a table.
--
-- Whatever counts within a tensor counts from 0, and from the end where it is negative: axes, indices, starts of slices.
local caller = require "pack.core.caller"
local dispatch = require "pack.core.dispatch"
local ops = require "pack.core.ops"

caller.register()

local methods = {}

-- Numbers one after the other, then perhaps a table of attributes, as one table of attributes.
local function attributes_of(name, ...)
  local count = select("#", ...)
  local last, given = count > 0 and select(count, ...), {}
  if type(last) == "table" then
    for key, value in pairs(last) do given[key] = value end
    count = count - 1
  end
  if count == 0 then return given end
  local list = {}
  for i = 1, count do
    local number = select(i, ...)
    if type(number) ~= "number" then
      caller.raise("%s: argument %d is a %s, not a number", name, i, type(number))
    end
    list[i] = number
  end
  return given, list
end

-- Runs an operation whose list attribute is given as numbers one after the other.
local function run(self, operation, list_name, ...)
  local given, list = attributes_of(operation, ...)
  if list then given[list_name] = list end
  return ops[operation](self, given)
end

--- The same elements in another shape: t:reshape(2, -1), where one extent may be -1 for what is left.
function methods:reshape(...)
  return run(self, "reshape", "shape", ...)
end

--- Repeated to a shape by broadcasting: t:expand(8, 3).
function methods:expand(...)
  return run(self, "expand", "shape", ...)
end

--- The sum over axes, over all without any: t:sum(), t:sum(-1), t:sum(0, 2, {keep = true}).
function methods:sum(...)
  return run(self, "sum", "axes", ...)
end

--- The mean over axes: t:mean(0).
function methods:mean(...)
  return run(self, "mean", "axes", ...)
end

--- The largest value over axes: t:max(-1).
function methods:max(...)
  return run(self, "max", "axes", ...)
end

--- Dimension i of the result is dimension axes[i] of this one: t:permute(1, 0, 2).
function methods:permute(...)
  return run(self, "transpose", "permutation", ...)
end

--- Two axes exchanged, t:transpose(0, 1); a table is the whole permutation, as in ops.transpose.
function methods:transpose(a, b)
  if type(a) == "table" then return ops.transpose(self, a) end
  local order, rank = {}, self.rank
  for d = 0, rank - 1 do order[d + 1] = d end
  for _, axis in ipairs {a or false, b or false} do
    if type(axis) ~= "number" or axis % 1 ~= 0 or axis < -rank or axis >= rank then
      caller.raise("transpose: axis %s of a tensor of rank %d", tostring(axis), rank)
    end
  end
  a, b = a % rank, b % rank
  order[a + 1], order[b + 1] = b, a
  return ops.transpose(self, {permutation = order})
end

--- count entries of an axis from start on: t:slice(0, 2, 3); without count, all to the end: t:slice(-1, -4).
function methods:slice(axis, start, count)
  if type(axis) == "table" then return ops.slice(self, axis) end
  local extent = self:size(axis)
  if type(start) ~= "number" or start % 1 ~= 0 or start < -extent or start > extent then
    caller.raise("slice: start %s of an axis with %d entries", tostring(start), extent)
  end
  start = start < 0 and start + extent or start
  return ops.slice(self, {axis = axis, start = start, count = count or extent - start})
end

-- A number as a tensor that broadcasts with one like self; tensors as they are.
local function spread(self, value)
  if type(value) ~= "number" then return value end
  return ops.fill {shape = {}, value = value, dtype = self.dtype, context = {handle = self.context}}
end

--- The smaller one of two, element by element: t:minimum(other), where other is a tensor or a number.
function methods:minimum(other)
  return ops.minimum(self, spread(self, other))
end

--- The larger one of two, element by element: t:maximum(0).
function methods:maximum(other)
  return ops.maximum(self, spread(self, other))
end

--- 1 where an element is less than the other's or a number, else 0: t:less(0.5).
function methods:less(other)
  return ops.less(self, spread(self, other))
end

--- Elements of a where this one's are not 0, else of b, which are tensors or numbers: t:less(0):where(-t, t).
function methods:where(a, b)
  return ops.where(self, spread(self, a), spread(self, b))
end

--- Each element to a power: whole powers by products, 0.5 by a square root, others as e^(power * log x).
function methods:pow(power)
  if type(power) ~= "number" then caller.raise("pow: the power is a %s, not a number", type(power)) end
  if power == 0.5 then return ops.sqrt(self) end
  if power == -0.5 then return ops.rsqrt(self) end
  if power % 1 ~= 0 or math.abs(power) > 64 then return ops.exp(ops.affine(ops.log(self), {scale = power})) end
  local result, square, left = nil, self, math.abs(power)
  while left > 0 do
    if left % 2 == 1 then result = result and ops.multiply(result, square) or square end
    left = math.floor(left / 2)
    if left > 0 then square = ops.multiply(square, square) end
  end
  local one = spread(self, 1)
  if not result then return ops.expand(one, {shape = self:sizes()}) end
  if power < 0 then return ops.divide(one, result) end
  return result == self and ops.copy(self) or result
end

for _, operation in ipairs(dispatch.list) do
  if operation.n_inputs > 0 and not methods[operation.name] then methods[operation.name] = ops[operation.name] end
end

return methods
