--- Algorithms of decentralized training: what a step does once every worker has its gradient. One file each, and nothing in
-- them that a recipe's own could not use.
--
-- An algorithm is a table for algorithms.define:
--   name, summary        a word, and a line for --help
--   options              rows as in pack.schema: name, type, default, bounds and help. They become keys
--                        decentralized.algorithm.NAME, and self.options.NAME in the functions below
--   refuse(config)       (optional) what in a resolved configuration does not go with it, as text, or nil
--   start(self, s)       (optional) its state before the first step, s:keep("name", tensor)
--   form(self, t, k)     (optional) a name for what step t (from 0) does where steps differ in more than numbers; k mixings
--                        precede it. Steps of each form are recorded once, and s.form tells which one runs
--   matrix(self, w, k)   (optional) the matrix of mixing k in place of the topology's, w
--   column_stochastic    true: the topology's columns alone must sum to 1
--   step(self, s)        the step: see pack.step for what s offers. It changes tensors through s alone, so that a step whose
--                        gradients are not finite leaves everything as it was
-- An instance has these functions and options. docs/algorithms.md has one written out.
local caller = require "pack.core.caller"
local names = require "pack.core.names"

caller.register()

local algorithms = {}

--- The names of those that are built in.
algorithms.names = {"gossip", "diloco", "slowmo", "gradient_tracking", "exact_diffusion", "quasi_global_momentum", "choco",
  "sparta", "push_sum"}

local built_in, defined = {}, {}
for _, name in ipairs(algorithms.names) do built_in[name] = true end

--- Makes an algorithm known by its name, for configurations and recipes; returns it.
function algorithms.define(algorithm)
  if type(algorithm) ~= "table" or not names.is_word(algorithm.name) then
    caller.raise("algorithms.define: a table with a name, which is a word, is wanted")
  end
  if type(algorithm.step) ~= "function" then
    caller.raise("algorithm %s: step is a %s, not a function", algorithm.name, type(algorithm.step))
  end
  if built_in[algorithm.name] and not algorithm.built_in then
    caller.raise("algorithm %s: there is one of this name in packlua", algorithm.name)
  end
  algorithm.options = algorithm.options or {}
  if not algorithm.built_in then
    local source = debug.getinfo(2, "S").source
    algorithm.defined_by = source:match("([^/@]+)$")
  end
  for _, row in ipairs(algorithm.options) do row.key = "decentralized.algorithm." .. row.name end
  defined[algorithm.name] = algorithm
  return algorithm
end

--- The algorithm of a name, or nil.
function algorithms.find(name)
  if built_in[name] and not defined[name] then
    local algorithm = require("pack.algorithms." .. name)
    algorithm.name, algorithm.built_in = name, true
    algorithms.define(algorithm)
  end
  return defined[name]
end

--- All names: those that are built in, then those that were defined.
function algorithms.list()
  return names.all(algorithms.names, defined)
end

--- An instance of an algorithm with its options, those that are missing at their defaults.
function algorithms.create(algorithm, options)
  local own = {}
  for _, row in ipairs(algorithm.options or {}) do
    local given = options and options[row.name]
    if given == nil then given = row.default end
    own[row.name] = given
  end
  return setmetatable({options = own}, {__index = algorithm})
end

return algorithms
