#!/usr/bin/env packlua
-- Times the updates of algorithms and optimizers, without forward and backward, beside what their memory traffic costs:
--   packlua scripts/bench_algorithms.lua [--config FILE] [--workers N] [--set KEY=VALUE]...
-- Prints for each the milliseconds of a step's update (mean over a round of 12 steps, median of 3 rounds), the bytes that its
-- operations read and write at least, the milliseconds that these take at the speed of copying memory, measured around each
-- round, and the ratio.
local algorithms = require "pack.algorithms"
local ceiling = require "pack.measure.ceiling"
local config_module = require "pack.config"
local optim = require "pack.optim"
local options = require "pack.run.options"
local runtime = require "pack.config.runtime"
local statistics = require "pack.measure.statistics"
local tensor = require "pack.core.tensor"
local trace = require "pack.measure.trace"
local trainer = require "pack.train.trainer"

local given = options.parse {
  recipe = "bench_algorithms", summary = "Times the updates of algorithms and optimizers.", arg = arg, config = false,
  extra = {
    {name = "config", value = "FILE", default = "configs/20m.lua", help = "configuration"},
    {name = "set", value = "KEY=VALUE", repeated = true, help = "changes a key; may be repeated"},
    {name = "workers", value = "N", type = "integer", minimum = 1, default = 4, help = "number of workers"},
  },
}

local ROUND, ROUNDS = 12, 3

-- A trainer whose gradients are there already.
local function open(settings)
  local list = {"training.max_tokens=1073741824", "runtime.amp=false", "decentralized.topology=ring",
    "decentralized.num_models=" .. given.workers, "training.micro_batch_size=1", unpack(given.set or {})}
  for _, setting in ipairs(settings) do list[#list + 1] = setting end
  local base = config_module.load(given.config, {"training.micro_batch_size=1"})
  list[#list + 1] = "training.batch_tokens=" .. given.workers * base.model.context_length
  local config = config_module.load(given.config, list)
  local function nothing() return 0 end
  return trainer.create(config, {context = runtime.open(config),
    batches = {next = nothing, close = nothing, cursor = nothing, set_cursor = nothing},
    compute = function(one)
      local losses = tensor.ones({given.workers}, "f32", {context = one.context})
      local counts = tensor.ones({given.workers}, "f64", {context = one.context})
      one.updater.gradients.tensor:seed_normal(1, "gradients", 0, 1e-3)
      return function() return losses, counts end
    end})
end

local function measure(name, settings)
  local one = open(settings)
  local clock = require("pack.native").C.pk_clock
  for _ = 1, ROUND do one:step() end
  local times, ideal = {}, {}
  local captured = trace.capture(one.context, function(capture)
    capture:step()
    for _ = 1, ROUND do one:step() end
  end)
  local bytes = captured:totals().bytes / ROUND
  captured:free()
  for i = 1, ROUNDS do
    local bandwidth = ceiling.copy(one.context, 0.2)
    local began = clock()
    for _ = 1, ROUND do one:step() end
    times[i] = (clock() - began) / ROUND
    ideal[i] = bytes / bandwidth
  end
  local own, least = statistics.median(times), statistics.median(ideal)
  print(("| %s | %.1f | %.0f | %.1f | %.2f |"):format(name, own * 1e3, bytes / 2 ^ 20, least * 1e3, own / least))
  one:free()
  collectgarbage()
end

print("| update | ms | MiB read and written | ms at the speed of copying | ratio |\n|---|---|---|---|---|")
for _, name in ipairs(optim.names) do measure("gossip, " .. name, {"optimizer.name=" .. name}) end
local needs = {
  quasi_global_momentum = {"optimizer.name=sgd", "optimizer.momentum=0"},
  diloco = {"decentralized.algorithm.every=12"}, slowmo = {"decentralized.algorithm.every=12"},
}
for _, name in ipairs(algorithms.names) do
  if name ~= "gossip" then measure(name, {"decentralized.algorithm=" .. name, unpack(needs[name] or {})}) end
end
