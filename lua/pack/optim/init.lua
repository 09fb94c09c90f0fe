--- Optimizers: what a worker's weights become from its gradient. Each is a file of its own, with only the state it has.
--
-- An optimizer is made with create(model, settings): the model's layout says which columns are what, and settings is the
-- optimizer section of a configuration. It has
--   state                  a list of {name, arena}: what a training state has to keep, in order
--   coefficients(t)        beta1, beta2, 1 - beta1^t and 1 - beta2^t of update t (from 1), as the operations take them
--   form(t)                where updates differ in more than numbers, a name for what update t does; else nil
--   apply(x, g, inputs)    x <- U(x, g) in place, for arenas [N, D]; inputs has scalars, blocks, guard and form
local caller = require "pack.core.caller"
local names = require "pack.core.names"

caller.register()

local optim = {}

--- The names of the optimizers; those that were defined are last.
optim.names = {"adamw", "accumadamw", "sgd", "muon"}

local built_in, defined = {}, {}
for _, name in ipairs(optim.names) do built_in[name] = true end

--- Makes an optimizer of a recipe's own known by a name, for configurations: a table with create, as above.
function optim.define(name, optimizer)
  if not names.is_word(name) or built_in[name] then
    caller.raise("optim.define: %s is not a new word", tostring(name))
  end
  if type(optimizer) ~= "table" or type(optimizer.create) ~= "function" then
    caller.raise("optimizer %s: it has no function create", name)
  end
  if not defined[name] then optim.names[#optim.names + 1] = name end
  defined[name] = optimizer
end

--- The optimizer that settings.name says, default "adamw".
function optim.create(model, settings)
  local name = settings.name or "adamw"
  return (defined[name] or require("pack.optim." .. name)).create(model, settings)
end

return optim
