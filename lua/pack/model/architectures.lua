--- Which architectures of models there are, and how many parameters a model has.
--
-- pack.model.packed says what an architecture is. Nothing here makes a tensor, so that
-- configurations can ask.
local caller = require "pack.core.caller"

caller.register()

local architectures = {
  --- The values of model.architecture; each is a file beside this one. The first is the default.
  names = {"llama", "gpt2"},
}

--- The architecture of the model section of a configuration; of one that names none, the first.
function architectures.of(model)
  local wanted = model.architecture or architectures.names[1]
  for _, name in ipairs(architectures.names) do
    if name == wanted then return require("pack.model." .. name) end
  end
  caller.raise("there is no architecture '%s'; there are %s", tostring(wanted),
    table.concat(architectures.names, ", "))
end

-- The number of elements of the entries of a model's parameter list that are counted.
local function count(model, counted)
  local total = 0
  for _, entry in ipairs(architectures.of(model).parameter_list(model)) do
    local elements = 1
    for _, extent in ipairs(entry[2]) do elements = elements * extent end
    if not counted or counted(entry) then total = total + elements end
  end
  return total
end

--- The number of parameters of one model.
function architectures.parameters(model)
  return count(model)
end

--- How many of them each target is multiplied by: those of matrices, but not of tables that are
-- only looked up.
function architectures.multiplied(model)
  return count(model, function(entry) return #entry[2] > 1 and not entry.lookup end)
end

return architectures
