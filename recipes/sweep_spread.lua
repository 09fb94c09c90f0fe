#!/usr/bin/env packlua
-- How far do workers drift apart between mixings? A sweep with axes and a measurement of its own:
--   packlua recipes/sweep_spread.lua [--config FILE] [--output DIR] [--jobs J]
local pack = require "pack"

pack.sweep {
  recipe = "sweep_spread",
  summary = "Trains with several topologies and mixing intervals, and records the largest consensus distance.",
  arg = arg,
  over = {
    "decentralized.topology=complete,one_peer_exponential,ring",
    "decentralized.mix_every=1,4",
  },
  run = function(task)
    local study = task:study()
    for row in study:steps() do
      row.consensus_distance = row.consensus_distance or study.trainer:consensus_distance()
    end
    study:conclude()
    study:close()
    -- From the run's folder, which also has the steps before an interruption.
    local largest = 0
    for _, distance in ipairs(pack.runs.read(task.folder).consensus.distance) do
      largest = math.max(largest, distance)
    end
    return {largest_consensus_distance = largest}
  end,
}
