#!/usr/bin/env packlua
-- Trains every combination of some settings, each in a process and a folder of its own:
--   packlua recipes/sweep.lua --config FILE --over decentralized.num_models=2,4,8
--     --over decentralized.topology=complete,one_peer_ring --over runtime.seed=42,43 --output DIR [--jobs J]
-- The same command goes on with what is not complete. recipes/sweep_spread.lua is one with a measurement of its own.
local pack = require "pack"

pack.sweep {
  recipe = "sweep",
  summary = "Trains every combination of the values of some keys, and compares what came of them.",
  arg = arg,
  run = function(task) task:train() end,
}
