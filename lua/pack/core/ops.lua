--- Every operation of ops.def as a function: ops.NAME(inputs..., attributes) -> outputs...
--
-- attributes is a table: the operation's own attributes by name (booleans and dtype names are fine;
-- a list may be the table's array part), out = tensor or list of tensors to write into, and
-- accumulate = true or a list of booleans to add to them where the operation can. Operations without
-- inputs take context = too. Shapes and meanings: host/ops.def, or ops.help(name).
local caller = require "pack.core.caller"
local dispatch = require "pack.core.dispatch"

caller.register()

local ops = {}

for _, operation in ipairs(dispatch.list) do
  ops[operation.name] = dispatch.callable(operation)
end

local function attribute_text(operation)
  local names = {}
  for i, attribute in ipairs(operation.attributes) do names[i] = attribute.name end
  return #names > 0 and ", {" .. table.concat(names, ", ") .. "}" or ""
end

--- One line about an operation: its inputs, attributes, outputs and what it computes.
function ops.help(name)
  local operation = dispatch.operations[name]
  if not operation then caller.raise("ops.help: there is no operation '%s'", tostring(name)) end
  local names = {}
  for i, input in ipairs(operation.inputs) do names[i] = input.name end
  return ("ops.%s(%s%s) -> %s: %s"):format(name, table.concat(names, ", "),
    attribute_text(operation), table.concat(operation.outputs, ", "), operation.summary)
end

return setmetatable(ops, {
  __index = function(_, name)
    caller.raise("ops: there is no operation '%s'", tostring(name))
  end,
})
