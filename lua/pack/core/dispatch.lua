--- Runs one operation: the description of each, its attributes, outputs, memory pressure, and the
-- hooks through which the tape sees operations.
--
-- The arrays handed to C are made once, so that a call leaves no garbage beyond its outputs.
local caller = require "pack.core.caller"
local context = require "pack.core.context"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local native = require "pack.native"

caller.register()

local C = native.C
local Tensor = ffi.typeof("pk_tensor")

local dispatch = {
  --- Descriptions by name: {number, name, inputs, outputs, attributes, flags...}.
  operations = {},
  --- The same, in the order of ops.def.
  list = {},
  --- Called as record(operation, attributes, inputs, outputs) after each operation, or nil.
  record = nil,
  --- A list to which every new output is appended, or nil.
  created = nil,
  --- While operations are noted in a program instead of running, the set of tensors that they were given; else false.
  recording = false,
  --- is_tracked(tensor): whether a gradient is being taken of it; nil where none is at all.
  is_tracked = nil,
}

--- Calls fn as if no gradient was being taken; what takes gradients puts its own in this place.
function dispatch.untracked(fn)
  return fn()
end

--- The number of each dtype by name.
dispatch.dtypes = {f64 = 0, f32 = 1, bf16 = 2, i32 = 3}

-- What an attribute is when it is not given; one that is not here must be given.
local common_defaults = {
  keep = 0, axes = {}, transpose_a = 0, transpose_b = 0, inverse = 0, before = 0, after = 0,
  start = 0, combine_last = 0, bf16 = 0, nesterov = 0, seed = 0, mean = 0, deviation = 1, shift = 0,
}
local defaults = {
  affine = {scale = 1},
  blend = {own = 0, scale = 1, lerp = 0},
  check_finite = {largest = math.huge},
  fill = {dtype = 1},
  random_columns = {dtype = 1},
  random_normal = {dtype = 1},
  random_uniform = {dtype = 1},
}

-- The Lua objects behind the pointers that C gets: nothing else need hold them while it runs.
local held = {} -- luacheck: ignore 241

local function let_go()
  for i = 1, C.PK_MAX_INPUTS do held[i] = nil end
end

local function refuse(format, ...)
  let_go()
  caller.raise(format, ...)
end

local function words(text)
  local list = {}
  for word in text:gmatch("%S+") do list[#list + 1] = word end
  return list
end

local function describe_inputs(text)
  local list = {}
  for i, word in ipairs(words(text)) do
    list[i] = {
      name = word:match("^[%w_]+"),
      optional = word:find("?", 1, true) ~= nil,
      written = word:find("!", 1, true) ~= nil,
    }
  end
  return list
end

local function describe_attributes(operation, text)
  local counts = {i = 0, d = 0, l = 0}
  local own = defaults[operation.name] or {}
  operation.attributes, operation.known = {}, {out = true, accumulate = true, context = true}
  for i, word in ipairs(words(text)) do
    local name, kind = word:match("^([%w_]+):(%a)$")
    local default = own[name]
    if default == nil then default = common_defaults[name] end
    operation.attributes[i] = {name = name, kind = kind, place = counts[kind], default = default}
    operation.known[name] = true
    counts[kind] = counts[kind] + 1
    if kind == "l" then operation.list_name = name end
  end
end

for number = 0, C.pk_op_count() - 1 do
  local info = C.pk_op_describe(number)
  local function has(flag)
    return bit.band(info.flags, flag) ~= 0
  end
  local operation = {
    number = number,
    name = ffi.string(info.name),
    summary = ffi.string(info.summary),
    inputs = describe_inputs(ffi.string(info.inputs)),
    outputs = words(ffi.string(info.outputs)),
    n_inputs = info.n_inputs,
    n_outputs = info.n_outputs,
    differentiable = has(C.PK_OP_DIFFERENTIABLE),
    accumulates = has(C.PK_OP_ACCUMULATES),
    in_place = has(C.PK_OP_IN_PLACE),
    variadic = has(C.PK_OP_VARIADIC),
  }
  describe_attributes(operation, ffi.string(info.attributes))
  operation.axes_name = operation.known.axes and "axes" or operation.known.permutation and "permutation" or nil
  operation.takes_axes = operation.axes_name ~= nil or operation.known.axis ~= nil
  dispatch.operations[operation.name] = operation
  dispatch.list[number + 1] = operation
end

-- Memory pressure -------------------------------------------------------------------------------

local function collect(handle)
  collectgarbage()
  C.pk_memory_collected(handle)
end

--- Runs Lua's collector if much device memory was handed out since it last ran.
function dispatch.relieve(handle)
  if C.pk_memory_presses(handle) ~= 0 then collect(handle) end
end

--- Calls attempt(), which returns a pk_status; once more after a collection if memory ran out.
-- Raises the message of a failure at the caller's line.
function dispatch.attempt(handle, attempt)
  local status = attempt()
  if status == C.PK_NO_MEMORY then
    collect(handle)
    status = attempt()
  end
  if status ~= 0 then refuse("%s", ffi.string(C.pk_error_message())) end
end

-- Attributes ------------------------------------------------------------------------------------

local attributes = ffi.new("pk_attributes")
local attributes_size = ffi.sizeof(attributes)

local function refuse_unknown(operation, name)
  local names = {}
  for _, attribute in ipairs(operation.attributes) do names[#names + 1] = attribute.name end
  names[#names + 1] = "out"
  if operation.accumulates then names[#names + 1] = "accumulate" end
  refuse("%s: unknown attribute '%s'; known: %s", operation.name, tostring(name),
    table.concat(names, ", "))
end

local is_integer = require("pack.core.numbers").is_integer

local function write_integer(operation, attribute, value)
  if value == true then
    value = 1
  elseif value == false then
    value = 0
  elseif attribute.name == "dtype" and type(value) == "string" then
    value = dispatch.dtypes[value]
      or refuse("%s: dtype '%s' is not one of f64, f32, bf16, i32", operation.name, value)
  elseif not is_integer(value) then
    refuse("%s: attribute %s is %s, not an integer", operation.name, attribute.name,
      tostring(value))
  end
  attributes.integers[attribute.place] = value
end

local function write_list(operation, attribute, value)
  if type(value) ~= "table" then
    refuse("%s: attribute %s is a %s, not a list", operation.name, attribute.name, type(value))
  end
  local count = #value
  if count > C.PK_MAX_RANK then
    refuse("%s: attribute %s has %d entries; the most is %d", operation.name, attribute.name,
      count, C.PK_MAX_RANK)
  end
  for i = 1, count do
    local entry = tonumber(value[i])
    if not is_integer(entry) then
      refuse("%s: entry %d of attribute %s is %s, not an integer", operation.name, i,
        attribute.name, tostring(value[i]))
    end
    attributes.list[i - 1] = entry
  end
  attributes.list_count = count
end

local function write_attribute(operation, attribute, value)
  if attribute.kind == "l" then
    write_list(operation, attribute, value)
  elseif attribute.kind == "i" then
    write_integer(operation, attribute, value)
  else
    if type(value) ~= "number" then
      refuse("%s: attribute %s is a %s, not a number", operation.name, attribute.name,
        type(value))
    end
    attributes.numbers[attribute.place] = value
  end
end

-- Fills the C attributes from a table. The list attribute may be the table's own array part, so
-- that t:reshape {2, 3} reads well.
local function write_attributes(operation, given)
  ffi.fill(attributes, attributes_size)
  local list = operation.attributes
  for i = 1, #list do
    local attribute = list[i]
    local value = given[attribute.name]
    if value == nil and attribute.kind == "l" and given[1] ~= nil then value = given end
    if value == nil then value = attribute.default end
    if value == nil then
      refuse("%s: attribute %s is missing", operation.name, attribute.name)
    end
    write_attribute(operation, attribute, value)
  end
  for name in pairs(given) do
    if not operation.known[name] and not (type(name) == "number" and operation.list_name) then
      refuse_unknown(operation, name)
    end
  end
end

-- The axis that a negative one means: -1 is the last. Others are as they are; the shape rule checks them.
local function from_end(axis, rank)
  return type(axis) == "number" and axis < 0 and axis >= -rank and axis + rank or axis
end

-- The attributes with axes counted from 0: the same table where none is negative.
local function with_positive_axes(operation, given, rank)
  local name = operation.axes_name
  local list = name and (given[name] or given[1] and given)
  local negative = type(given.axis) == "number" and given.axis < 0
  for i = 1, type(list) == "table" and #list or 0 do
    negative = negative or type(list[i]) == "number" and list[i] < 0
  end
  if not negative then return given end
  local copy = {}
  for key, value in pairs(given) do copy[key] = value end
  copy.axis = from_end(given.axis, rank)
  if type(list) == "table" then
    local axes = {}
    for i = 1, #list do
      axes[i] = from_end(list[i], rank)
      copy[i] = nil
    end
    copy[name] = axes
  end
  return copy
end

-- Running ---------------------------------------------------------------------------------------

local inputs = ffi.new("const pk_tensor *[?]", C.PK_MAX_INPUTS)
local outputs = ffi.new("pk_tensor *[?]", C.PK_MAX_OUTPUTS)
local nothing = {}

--- Whether a value is a tensor.
function dispatch.is_tensor(value)
  return ffi.istype(Tensor, value)
end

local is_tensor = dispatch.is_tensor

-- Puts a tensor where C reads it.
local function put_input(operation, i, value)
  if is_tensor(value) then
    inputs[i - 1] = value
    held[i] = value
    if dispatch.recording then dispatch.recording[value] = true end
    return
  end
  local input = operation.inputs[operation.variadic and 1 or i]
  if value == nil and input.optional then
    inputs[i - 1] = nil
    return
  end
  local what = value == nil and "missing" or ("a " .. type(value) .. ", not a tensor")
  refuse("%s: input %d (%s) is %s", operation.name, i, input.name, what)
end

-- Puts the outputs that the caller gave; returns them as a list (false: a new one).
local function put_outputs(operation, given)
  local out = given.out
  for o = 0, operation.n_outputs - 1 do outputs[o] = nil end
  if out == nil then
    if given.accumulate then refuse("%s: accumulate needs out", operation.name) end
    return nil
  end
  if type(out) ~= "table" then out = {out} end
  for o = 1, operation.n_outputs do
    if out[o] then
      if not is_tensor(out[o]) then
        refuse("%s: out %d is a %s, not a tensor", operation.name, o, type(out[o]))
      end
      outputs[o - 1] = out[o]
      if dispatch.recording then dispatch.recording[out[o]] = true end
    end
  end
  local accumulate, mask = given.accumulate, 0
  if accumulate == true then
    mask = 2 ^ operation.n_outputs - 1
  elseif accumulate then
    if type(accumulate) ~= "table" then
      refuse("%s: accumulate is a %s, not true or a list", operation.name, type(accumulate))
    end
    for o = 1, operation.n_outputs do
      if accumulate[o] then mask = mask + 2 ^ (o - 1) end
    end
  end
  attributes.accumulate = mask
  return out
end

-- Takes output o (from 1) over into a Lua object, or returns the one that the caller gave.
local function take_output(out, o)
  if out and out[o] then return out[o] end
  local made = Tensor()
  C.pk_tensor_move(outputs[o - 1], made)
  local created = dispatch.created
  if created then created[#created + 1] = made end
  return made
end

local function fail(operation, handle, status, n_inputs, pointer)
  if status == C.PK_NO_MEMORY then
    collect(handle)
    status = C.pk_op_run(handle, operation.number, inputs, n_inputs, outputs, operation.n_outputs,
      pointer)
  end
  if status == C.PK_INTERRUPTED then
    let_go()
    failure.interrupted()
  end
  if status ~= 0 then refuse("%s", ffi.string(C.pk_error_message())) end
end

-- Runs an operation whose inputs are put. list makes the table of its inputs for the tape.
local function run(operation, handle, n_inputs, given, list)
  local pointer, out
  local n_outputs = operation.n_outputs
  if given or operation.attributes[1] then
    given = given or nothing
    if type(given) ~= "table" then
      refuse("%s: after %d inputs comes a table of attributes, not a %s", operation.name, n_inputs,
        is_tensor(given) and "tensor" or type(given))
    end
    if operation.takes_axes then given = with_positive_axes(operation, given, inputs[0].rank) end
    write_attributes(operation, given)
    out = put_outputs(operation, given)
    pointer = attributes
  else
    for o = 0, n_outputs - 1 do outputs[o] = nil end
  end
  local status = C.pk_op_run(handle, operation.number, inputs, n_inputs, outputs, n_outputs, pointer)
  if status ~= 0 then fail(operation, handle, status, n_inputs, pointer) end
  for i = 1, n_inputs do held[i] = nil end
  local first, second, third, fourth, fifth
  if n_outputs > 0 then first = take_output(out, 1) end
  if n_outputs > 1 then second = take_output(out, 2) end
  if n_outputs > 2 then third = take_output(out, 3) end
  if n_outputs > 3 then fourth, fifth = take_output(out, 4), take_output(out, 5) end
  if C.pk_memory_presses(handle) ~= 0 then collect(handle) end
  if dispatch.record then
    dispatch.record(operation, given or nothing, list, {first, second, third, fourth, fifth})
  end
  if n_outputs == 1 then return first end
  if n_outputs > 1 then return first, second, third, fourth, fifth end
end

local function of_none(operation)
  return function(given)
    require "pack.core.tensor" -- gives new tensors their finaliser; inputs imply it elsewhere
    local named = type(given) == "table" and given or nothing
    local out = named.out
    if type(out) == "table" then out = out[1] end
    local handle = is_tensor(out) and out.context or context.handle_of(named.context)
    return run(operation, handle, 0, given, nothing)
  end
end

local function of_one(operation)
  return function(a, given)
    put_input(operation, 1, a)
    return run(operation, a.context, 1, given, dispatch.record and {a})
  end
end

local function of_two(operation)
  return function(a, b, given)
    put_input(operation, 1, a)
    put_input(operation, 2, b)
    return run(operation, a.context, 2, given, dispatch.record and {a, b})
  end
end

-- Splits the arguments of an operation with many inputs into inputs and attributes.
local function split(operation, ...)
  local count, list = select("#", ...), {...}
  local given
  if type(list[count]) == "table" then
    list[count], given, count = nil, list[count], count - 1
  end
  if operation.variadic and type(list[1]) == "table" then
    list = list[1]
    count = #list
  end
  return list, count, given
end

local function of_many(operation)
  return function(...)
    local list, count, given = split(operation, ...)
    local n = operation.variadic and math.max(count, 1) or operation.n_inputs
    if count > (operation.variadic and C.PK_MAX_INPUTS or n) then
      refuse("%s: %d inputs, more than %d", operation.name, count, operation.n_inputs)
    end
    for i = 1, n do put_input(operation, i, list[i]) end
    return run(operation, list[1].context, n, given, list)
  end
end

--- The Lua function that runs an operation: inputs, then a table of attributes, gives the outputs.
function dispatch.callable(operation)
  if operation.variadic or operation.n_inputs > 2 then return of_many(operation) end
  if operation.n_inputs == 0 then return of_none(operation) end
  return operation.n_inputs == 1 and of_one(operation) or of_two(operation)
end

--- The attributes of a call as the tape keeps them: a copy, with the list under its name.
function dispatch.copy_attributes(operation, given)
  local copy = {}
  for _, attribute in ipairs(operation.attributes) do
    local value = given[attribute.name]
    if value == nil and attribute.kind == "l" and given[1] ~= nil then value = given end
    if value == nil then value = attribute.default end
    if type(value) == "table" then
      local list = {}
      for i = 1, #value do list[i] = tonumber(value[i]) end
      value = list
    end
    copy[attribute.name] = value
  end
  return copy
end

return dispatch
