-- What a recipe can add: a toy algorithm, optimizer and topology, at work together.
local algorithms = require "pack.algorithms"
local config = require "pack.config"
local context = require "pack.core.context"
local helper = require "spec.support.helper"
local ops = require "pack.core.ops"
local optim = require "pack.optim"
local topology = require "pack.mixing.topology"
local trainer = require "pack.train.trainer"

describe("a toy algorithm, optimizer and topology", function()
  helper.watch()

  algorithms.define {name = "toy_algorithm", options = {{name = "often", type = "integer", default = 2, minimum = 1}},
    form = function(self, t) return (t + 1) % self.options.often == 0 and "mixes" or "waits" end,
    step = function(_, s)
      s:optimize()
      if s.form == "mixes" then s:mix(s.x) end
    end}

  -- x <- x - lr sign(g)
  local Signs = {name = "toy_optimizer"}
  Signs.__index = Signs
  function Signs.create() return setmetatable({state = {}}, Signs) end
  function Signs.coefficients() return 0, 0, 1, 1 end
  function Signs.apply(_, x, g, inputs)
    ops.sgd(x, ops.sign(g), nil, inputs.blocks, inputs.scalars, inputs.guard)
  end
  optim.define("toy_optimizer", Signs)

  topology.define("toy_topology", function(n)
    local rows = {}
    for i = 1, n do
      rows[i] = {}
      for j = 1, n do rows[i][j] = 1 / n end
    end
    return rows
  end, 1)

  local function open(settings)
    local resolved = config.load("configs/tiny.lua", {"model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24",
      "model.context_length=8", "training.micro_batch_size=2", "training.batch_tokens=64", "training.max_tokens=640",
      "decentralized.num_models=4", "optimizer.warmup_fraction=0", "optimizer.schedule=constant", "optimizer.weight_decay=0",
      "optimizer.lr=0.01", "runtime.amp=false", "decentralized.algorithm=toy_algorithm", "optimizer.name=toy_optimizer",
      "decentralized.topology=toy_topology", unpack(settings or {})})
    local tokens = require("ffi").new("uint16_t[800]")
    for i = 0, 799 do tokens[i] = (i * i + 3 * i) % 251 end
    return trainer.create(resolved, {context = context.default(), train = {tokens = tokens, count = 800}})
  end

  it("take steps as they say", function()
    local one = open()
    local before = one.model.arena.tensor:read_numbers()
    one:step()
    local after, count = one.model.arena.tensor:read_numbers()
    for i = 0, count - 1 do
      local moved = math.abs(after[i] - before[i])
      assert.is_true(moved == 0 or math.abs(moved - 0.01) < 1e-7)
    end
    assert.is_true(one:consensus_distance() > 0)
    one:step() -- which mixes
    assert.is_true(one:consensus_distance() < 1e-6)
    one:free()
  end)

  it("have options in configurations, and are refused by name where they are not known", function()
    local one = open {"decentralized.algorithm.often=1"}
    one:step()
    assert.is_true(one:consensus_distance() < 1e-6)
    one:free()
    local function refused(setting, message)
      local good, problem = pcall(open, {setting})
      assert.is_false(good)
      assert.is_truthy(tostring(problem):find(message, 1, true), tostring(problem))
    end
    refused("decentralized.algorithm=toy", "it must be one of gossip, diloco")
    refused("optimizer.name=toy", "adamw, accumadamw, sgd, muon, toy_optimizer")
    refused("decentralized.topology=toy", "toy_topology")
    refused("decentralized.algorithm.seldom=1", "algorithm toy_algorithm has no option seldom; it has often")
    refused("decentralized.algorithm.often=0", "at least 1")
  end)

  it("cannot take the names of those that are there", function()
    assert.has_error(function() algorithms.define {name = "gossip", step = function() end} end)
    assert.has_error(function() optim.define("adamw", Signs) end)
    assert.has_error(function() topology.define("ring", function() end) end)
  end)
end)
