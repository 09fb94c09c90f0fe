--- Optimizers: what a worker's weights become from its gradient. Each is a file of its own, with only the state it has.
--
-- An optimizer is made with create(model, settings): the model's layout says which columns are what, and settings is the
-- optimizer section of a configuration. It has
--   state                  a list of {name, arena}: what a training state has to keep, in order
--   coefficients(t)        beta1, beta2, 1 - beta1^t and 1 - beta2^t of update t (from 1), as the operations take them
--   form(t)                where updates differ in more than numbers, a name for what update t does; else nil
--   apply(x, g, inputs)    x <- U(x, g) in place, for arenas [N, D]; inputs has scalars, blocks, guard and form
local optim = {}

--- The names of the optimizers.
optim.names = {"adamw", "accumadamw", "sgd", "muon"}

--- The optimizer that settings.name says, default "adamw".
function optim.create(model, settings)
  return require("pack.optim." .. (settings.name or "adamw")).create(model, settings)
end

return optim
