--- Tensors: the C struct itself as a Lua object, with methods for every operation.
--
-- t.rank, t.numel, t.dtype ("f32"), t.stride (elements from one entry of dimension 0 to the next), t.offset (elements
-- from the start of its memory) and t.shape, a table of the extents whose dimensions count from 0, are for reading.
-- t:sizes() is the shape as a list, t:size(d) one extent and #t the first; t[i] is entry i along dimension 0. What counts
-- within a tensor counts from 0, and from the end where it is negative: t[-1], t:size(-1), t:sum(-1). The collector gives
-- memory back, t:free() does so at once. Requiring this module gives pk_tensor its methods.
local caller = require "pack.core.caller"
local context = require "pack.core.context"
local dispatch = require "pack.core.dispatch"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local named = require "pack.core.methods"
local native = require "pack.native"
local is_integer = require("pack.core.numbers").is_integer
local ops = require "pack.core.ops"

caller.register()

local C = native.C
local Tensor = ffi.typeof("pk_tensor")
local is_tensor = dispatch.is_tensor

local methods = {}
local tensor = {
  --- The methods of tensors by name.
  methods = methods,
}

--- dtype names by number, and numbers by name.
tensor.dtypes = dispatch.dtypes
tensor.dtype_names = {}
for name, number in pairs(dispatch.dtypes) do tensor.dtype_names[number] = name end

local array_types = {
  [0] = ffi.typeof("double[?]"), ffi.typeof("float[?]"), ffi.typeof("uint16_t[?]"),
  ffi.typeof("int32_t[?]"),
}

local F64, F32 = 0, 1

-- An array of count elements of a dtype, of one for none.
local function new_array(dtype, count)
  local good, array = pcall(native.array, array_types[dtype], math.max(count, 1))
  return good and array or caller.raise("%s", array)
end

--- Whether a value is a tensor.
tensor.is = is_tensor

local function dtype_number(dtype)
  if dtype == nil then return F32 end
  local number = dispatch.dtypes[dtype] or (tensor.dtype_names[dtype] and dtype)
  if not number then
    caller.raise("dtype '%s' is not one of f64, f32, bf16, i32", tostring(dtype))
  end
  return number
end

local function check_ok(status)
  if status ~= 0 then caller.raise("%s", ffi.string(C.pk_error_message())) end
end

-- Making -----------------------------------------------------------------------------------------

local shape_buffer = ffi.new("int64_t[?]", C.PK_MAX_RANK)
local pointer = ffi.new("pk_tensor *[1]")

local function put_shape(shape)
  if type(shape) ~= "table" then caller.raise("a shape is a list, not a %s", type(shape)) end
  local rank = #shape
  if rank > C.PK_MAX_RANK then
    caller.raise("a tensor of rank %d: the largest is %d", rank, C.PK_MAX_RANK)
  end
  for d = 1, rank do
    local extent = tonumber(shape[d])
    if not extent or extent % 1 ~= 0 or extent < 0 or extent >= 2 ^ 53 then
      caller.raise("extent %d of the shape is %s, not a whole number from 0 to below 2^53", d, tostring(shape[d]))
    end
    shape_buffer[d - 1] = extent
  end
  return rank
end

-- The object that owns what pointer[0] points to.
local function take()
  local made = Tensor()
  C.pk_tensor_move(pointer[0], made)
  return made
end

local function category_number(category)
  if category == nil then return C.PK_ACTIVATIONS end
  for c = 0, C.PK_CATEGORIES - 1 do
    if ffi.string(C.pk_category_name(c)) == category then return c end
  end
  caller.raise("memory category '%s' is not known", tostring(category))
end

--- Zeros of a shape. dtype: "f64", "f32" (default), "bf16", "i32". options: category (of the memory
-- statistics: parameters, gradients, moments, activations, data, workspace), context.
function tensor.zeros(shape, dtype, options)
  options = options or {}
  local number, category = dtype_number(dtype), category_number(options.category)
  local rank = put_shape(shape)
  local handle = context.handle_of(options.context)
  dispatch.attempt(handle, function()
    return C.pk_tensor_create(handle, pointer, number, rank, shape_buffer, category)
  end)
  local made = take()
  dispatch.relieve(handle)
  return made
end

--- A tensor whose values have yet to be written; it reads as zeros until then.
tensor.empty = tensor.zeros

--- value everywhere. Arguments else as zeros.
function tensor.full(shape, value, dtype, options)
  local made = tensor.zeros(shape, dtype, options)
  ops.fill {shape = shape, value = value, dtype = made.dtype, out = made}
  return made
end

--- Ones. Arguments as zeros.
function tensor.ones(shape, dtype, options)
  return tensor.full(shape, 1, dtype, options)
end

-- The shape of nested tables, refusing ragged ones.
local function shape_of(value, shape, depth)
  if type(value) ~= "table" then return shape end
  if depth > C.PK_MAX_RANK then
    caller.raise("tables nested %d deep: the largest rank is %d", depth, C.PK_MAX_RANK)
  end
  shape[depth] = #value
  return shape_of(value[1], shape, depth + 1)
end

local function flatten(value, shape, depth, array, at)
  if depth > #shape then
    if type(value) ~= "number" then
      caller.raise("element %d is a %s, not a number", at + 1, type(value))
    end
    array[at] = value
    return at + 1
  end
  if type(value) ~= "table" or #value ~= shape[depth] then
    caller.raise("the tables are ragged: %s entries where others have %d",
      type(value) == "table" and #value or "no", shape[depth])
  end
  for i = 1, shape[depth] do at = flatten(value[i], shape, depth + 1, array, at) end
  return at
end

--- A tensor from a number (rank 0) or tables nested as deep as its rank. dtype and options as zeros.
function tensor.from(value, dtype, options)
  local shape, numel = shape_of(value, {}, 1), 1
  for d = 1, #shape do numel = numel * shape[d] end
  local numbers = new_array(F64, numel)
  flatten(value, shape, 1, numbers, 0)
  return tensor.zeros(shape, dtype, options):write_numbers(numbers)
end

--- The numbers first, first + step, ..., count of them. dtype and options as zeros.
function tensor.arange(count, first, step, dtype, options)
  if count == nil then caller.raise "arange: the count is missing" end
  first, step = first or 0, step or 1
  for name, value in pairs {count = count, first = first, step = step} do
    if type(value) ~= "number" then caller.raise("arange: %s is a %s, not a number", name, type(value)) end
  end
  if not (count >= 0 and count % 1 == 0) then caller.raise("arange: a count of %s", tostring(count)) end
  local numbers = new_array(F64, count)
  for i = 0, count - 1 do numbers[i] = first + step * i end
  return tensor.zeros({count}, dtype, options):write_numbers(numbers)
end

-- random_normal and random_uniform: shape, seed, then options with dtype and context.
local function random(operation, shape, seed, options, attributes)
  options = options or {}
  attributes.shape, attributes.seed = shape, seed or 0
  attributes.dtype, attributes.context = dtype_number(options.dtype), options.context
  return operation(attributes)
end

--- Normal values of the stream of seed. options: mean (0), deviation (1), dtype ("f32"), context.
function tensor.normal(shape, seed, options)
  return random(ops.random_normal, shape, seed, options,
    {mean = options and options.mean, deviation = options and options.deviation})
end

--- Uniform values in [0, 1) of the stream of seed. options: dtype ("f32"), context.
function tensor.uniform(shape, seed, options)
  return random(ops.random_uniform, shape, seed, options, {})
end

-- Reading and writing ----------------------------------------------------------------------------

local is_array = {} -- by the number of a C type

-- Refuses what is no C array, and one of fewer bytes than are read or written; of a pointer nobody knows.
local function check_array(what, data, bytes)
  local room
  if type(data) == "string" then
    room = #data
  elseif type(data) ~= "cdata" then
    caller.raise("%s: the values are a %s, not a C array", what, type(data))
  else
    local id = tonumber(ffi.typeof(data))
    if is_array[id] == nil then is_array[id] = tostring(ffi.typeof(data)):find "%[[%d?]*%]>$" ~= nil end
    room = is_array[id] and ffi.sizeof(data) or data ~= nil and math.huge or 0
  end
  if room < bytes then caller.raise("%s: the array has %d bytes, not %d", what, room, bytes) end
end

local function bytes_of(self)
  return tonumber(self.raw_numel * C.pk_dtype_size(self.raw_dtype))
end

local function refuse_other(self, name)
  if not is_tensor(self) then
    caller.raise("%s: called on a %s, not on a tensor; methods are called with a colon, t:%s(...)", name, type(self), name)
  end
end

--- Copies numel elements of the tensor's dtype from a C array (dense, row by row).
-- bytes, if given, must be the tensor's size.
function methods:write(data, bytes)
  local size = bytes_of(self)
  check_array("write", data, bytes or size)
  check_ok(C.pk_tensor_write(self, data, bytes or size))
  return self
end

--- Copies the elements into data, a C array that holds bytes, or into a new one. Returns the array.
-- It may hold NaNs that Lua cannot take as numbers; t:read_numbers() has plain ones.
function methods:read(data, bytes)
  local size = bytes_of(self)
  data = data or new_array(self.raw_dtype, self.numel)
  check_array("read", data, bytes or size)
  check_ok(C.pk_tensor_read(self, data, bytes or size))
  return data
end

--- Writes count doubles from a C array, rounded once to the tensor's dtype.
function methods:write_numbers(values, count)
  local numel = self.numel
  if count and count ~= numel then
    caller.raise("writing %s values to a tensor of %d elements", tostring(count), numel)
  end
  check_array("write_numbers", values, 8 * numel)
  check_ok(C.pk_tensor_write_numbers(self, values))
  return self
end

--- The elements as doubles in a new C array, whatever the dtype; and their number.
function methods:read_numbers()
  local numel = self.numel
  local values = new_array(F64, numel)
  check_ok(C.pk_tensor_read_numbers(self, values))
  return values, numel
end

--- The elements of several tensors of one context as doubles, with one wait for the device: a list of C arrays, the
-- given ones, which must have room, or new ones.
function tensor.read_all(tensors, arrays)
  local pointers, places = ffi.new("const pk_tensor *[?]", #tensors), ffi.new("double *[?]", #tensors)
  arrays = arrays or {}
  for i = 1, #tensors do
    local one = tensors[i]
    if not is_tensor(one) then caller.raise("read_all: entry %d is a %s, not a tensor", i, type(one)) end
    arrays[i] = arrays[i] or new_array(F64, one.numel)
    check_array("read_all", arrays[i], 8 * one.numel)
    pointers[i - 1], places[i - 1] = one, arrays[i]
  end
  check_ok(C.pk_tensors_read_numbers(pointers, #tensors, places))
  return arrays
end

--- Fills every entry of dimension 0 with the same normal values: those of the stream named by (seed, name),
-- the same bits on every machine.
function methods:seed_normal(seed, name, mean, deviation)
  refuse_other(self, "seed_normal")
  if type(name) ~= "string" then caller.raise("seed_normal: the stream's name is a %s, not a string", type(name)) end
  if not is_integer(seed) then caller.raise("seed_normal: the seed %s is not a whole number below 2^53", tostring(seed)) end
  check_ok(C.pk_tensor_seed_normal(self, seed, name, mean, deviation))
  return self
end

local function nest(values, shape, depth, at)
  if depth > #shape then return values[at], at + 1 end
  local list = {}
  for i = 1, shape[depth] do list[i], at = nest(values, shape, depth + 1, at) end
  return list, at
end

--- The values as tables nested as deep as the rank; a number for rank 0.
function methods:totable()
  local values, shape, tables = self:read_numbers(), self:sizes(), 1
  for d = 1, #shape do -- a tensor without elements may still be many empty tables
    tables = tables * shape[d]
    if tables >= 2 ^ 28 then caller.raise("totable: [%s] is too large for tables", table.concat(shape, ", ")) end
  end
  return (nest(values, shape, 1, 0))
end

--- The value of a tensor with one element.
function methods:item()
  if self.numel ~= 1 then
    caller.raise("item: the tensor has %d elements, not one", self.numel)
  end
  return self:read_numbers()[0]
end

--- What the values are like: a table with count, finite (how many are neither infinite nor NaN) and, of the
-- finite ones, minimum, maximum, mean and deviation (divided by their number); nil for these if there are none.
function methods:statistics()
  refuse_other(self, "statistics")
  local read = ffi.new("pk_statistics")
  check_ok(C.pk_tensor_statistics(self, read))
  local statistics = {count = tonumber(read.count), finite = tonumber(read.finite)}
  if statistics.finite == 0 then return statistics end
  for _, name in ipairs {"minimum", "maximum", "mean", "deviation"} do statistics[name] = read[name] end
  return statistics
end

-- Shape ------------------------------------------------------------------------------------------

--- The extent of dimension d; -1 is the last.
function methods:size(d)
  local rank = self.rank
  if type(d) ~= "number" or d % 1 ~= 0 or d < -rank or d >= rank then
    caller.raise("size: dimension %s of a tensor of rank %d", tostring(d), rank)
  end
  return tonumber(self.raw_shape[d < 0 and d + rank or d])
end

--- The shape as a Lua table.
function methods:sizes()
  local sizes = {}
  for d = 0, self.rank - 1 do sizes[d + 1] = tonumber(self.raw_shape[d]) end
  return sizes
end

local function refuse_tracked(self, what)
  if dispatch.is_tracked and dispatch.is_tracked(self) then
    caller.raise("%s of a tensor that a gradient is taken of; use ops.slice, ops.reshape or detach",
      what)
  end
end

local function view(self, shape, stride, offset)
  local rank = put_shape(shape)
  for name, value in pairs {stride = stride, offset = offset} do
    if not is_integer(value) then
      caller.raise("view: %s is %s, not a whole number", name, tostring(value))
    end
  end
  check_ok(C.pk_tensor_view(self, pointer, rank, shape_buffer, stride, offset))
  return take()
end

local function inner_of(shape)
  local inner = 1
  for d = 2, #shape do inner = inner * shape[d] end
  return inner
end

--- A view of the same memory: shape, stride (elements from one entry of dimension 0 to the next;
-- default dense) and offset (elements from this tensor's first). Edits are seen by both.
function methods:view(options)
  if type(options) ~= "table" then caller.raise("view: a %s, not a table with shape, stride or offset", type(options)) end
  refuse_tracked(self, "a view")
  local shape = options.shape or self:sizes()
  return view(self, shape, options.stride or inner_of(shape), options.offset or 0)
end

--- The same memory as another tensor, which no gradient is taken of.
function methods:detach()
  return view(self, self:sizes(), self.stride, 0)
end

-- Entry i along dimension 0: a view, or operations where a gradient is taken.
local function entry(self, i)
  local count = self.rank > 0 and self:size(0) or 0
  if i % 1 ~= 0 or i < -count or i >= count then
    caller.raise("index %s of a tensor with %d entries along dimension 0", tostring(i), count)
  end
  if i < 0 then i = i + count end
  local shape = self:sizes()
  table.remove(shape, 1)
  if dispatch.is_tracked and dispatch.is_tracked(self) then
    return ops.reshape(ops.slice(self, {axis = 0, start = i, count = 1}), {shape = shape})
  end
  return view(self, shape, inner_of(shape), self.stride * i)
end

--- Gives the memory back now (a view gives back its share). Twice is harmless; any other use of the
-- tensor is an error from then on.
function methods:free()
  refuse_other(self, "free")
  C.pk_tensor_release(self)
end

--- The same values in a new tensor of dtype.
function methods:to(dtype)
  return ops.cast(self, {dtype = dtype_number(dtype)})
end

for name, method in pairs(named) do methods[name] = methods[name] or method end

-- Operators --------------------------------------------------------------------------------------

local function scalar(number, like)
  return ops.fill {shape = {}, value = number, dtype = like.dtype, context = {handle = like.context}}
end

local function refuse_operand(value)
  caller.raise("arithmetic of a tensor and a %s", type(value))
end

-- An operator from the operation on tensors and what a number at the right or the left means.
local function operator(operation, number_right, number_left)
  return function(a, b)
    if not is_tensor(b) then
      if type(b) ~= "number" then refuse_operand(b) end
      return number_right(a, b)
    elseif not is_tensor(a) then
      if type(a) ~= "number" then refuse_operand(a) end
      return number_left(a, b)
    end
    return operation(a, b)
  end
end

local function affine(x, scale, shift)
  return ops.affine(x, {scale = scale, shift = shift})
end

local metatable = {}

metatable.__add = operator(ops.add, function(a, n) return affine(a, 1, n) end,
  function(n, b) return affine(b, 1, n) end)
metatable.__sub = operator(ops.subtract, function(a, n) return affine(a, 1, -n) end,
  function(n, b) return affine(b, -1, n) end)
metatable.__mul = operator(ops.multiply, function(a, n) return affine(a, n, 0) end,
  function(n, b) return affine(b, n, 0) end)
metatable.__div = operator(ops.divide, function(a, n) return ops.divide(a, scalar(n, a)) end,
  function(n, b) return ops.divide(scalar(n, b), b) end)
function metatable.__pow(a, power)
  if not is_tensor(a) then caller.raise("a number to the power of a tensor; ops.exp(x * math.log(base)) is that") end
  return named.pow(a, power)
end
-- Lua hands the operand over twice.
function metatable.__unm(a)
  return ops.negate(a)
end
metatable.__eq = rawequal

function metatable.__len(self)
  if self.rank == 0 then caller.raise("# of a tensor of rank 0") end
  return self:size(0)
end

-- What a tensor has besides methods, rank and dtype.
local fields = {}

function fields.dtype(self)
  return tensor.dtype_names[self.raw_dtype]
end

function fields.numel(self)
  return tonumber(self.raw_numel)
end

function fields.stride(self)
  return tonumber(self.raw_stride)
end

function fields.offset(self)
  return tonumber(self.raw_offset)
end

function fields.shape(self)
  local shape = {}
  for d = 0, self.rank - 1 do shape[d] = tonumber(self.raw_shape[d]) end
  return shape
end

function metatable.__index(self, key)
  local method = methods[key]
  if method then return method end
  local field = fields[key]
  if field then return field(self) end
  if type(key) == "number" then return entry(self, key) end
  caller.raise("a tensor has no field or method '%s'", tostring(key))
end

function metatable.__newindex(_, key)
  caller.raise("a tensor's '%s' cannot be assigned; write to its memory instead", tostring(key))
end

metatable.__gc = C.pk_tensor_release

-- Printing ---------------------------------------------------------------------------------------

local EDGE, OUTER_EDGE = 6, 2 -- entries shown along the last two dimensions, and along those before

local function number_text(number)
  return ("%.6g"):format(number)
end

-- The first entries of each dimension, fewer of those before the last two, read one by one so that a large
-- tensor prints at once.
local function corner(self, shape, depth, at)
  if depth > #shape then
    local value = ffi.new("double[1]")
    check_ok(C.pk_tensor_get(self, at, value))
    return number_text(value[0])
  end
  local inner = 1
  for d = depth + 1, #shape do inner = inner * shape[d] end
  local parts, edge = {}, depth < #shape - 1 and OUTER_EDGE or EDGE
  for i = 0, math.min(shape[depth], edge) - 1 do
    parts[#parts + 1] = corner(self, shape, depth + 1, at + i * inner)
  end
  if shape[depth] > edge then parts[#parts + 1] = "..." end
  local separator = depth < #shape and ",\n" .. (" "):rep(depth) or ", "
  return "{" .. table.concat(parts, separator) .. "}"
end

--- dtype, shape and device of a tensor: "f32 {2, 3} on cpu", or "f32 on cpu" of rank 0.
function tensor.heading(self)
  local shape = self.rank > 0 and (" {%s}"):format(table.concat(self:sizes(), ", ")) or ""
  local head = self.dtype .. shape
  if self.storage == nil then return head .. " (freed)" end
  return head .. " on " .. ffi.string(C.pk_context_device(self.context))
end

--- Text with a tensor's first entries; numbers are rounded to six digits.
function tensor.corner(one)
  return corner(one, one:sizes(), 1, 0)
end

function metatable.__tostring(self)
  local head = tensor.heading(self)
  if self.storage == nil then return head end
  local good, text = failure.pcall(tensor.corner, self)
  if not good then return head .. "\n(" .. text:gsub("^.-:%d+: ", "") .. ")" end
  return self.rank == 0 and ("%s (%s)"):format(text, head) or head .. "\n" .. text
end

ffi.metatype(Tensor, metatable)

return tensor
