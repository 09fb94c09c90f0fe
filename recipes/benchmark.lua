#!/usr/bin/env packlua
-- How fast are N models packed on one device, and how fast one after the other?
--   packlua recipes/benchmark.lua
--   packlua recipes/benchmark.lua --config configs/20m.lua --num-models 4 8 --warmup 10 --steps 50 --output DIR
-- docs/benchmarking.md says what is measured and how to read it.
local pack = require "pack"

local options = pack.options.parse {
  recipe = "benchmark",
  summary = "Measures packed training against the same models one after the other, eager and compiled.",
  arg = arg,
  extra = pack.benchmark.options,
}

-- Instead of a comparison: the micro-batch, threads and recomputation that are fastest here, as a configuration.
if options.tune then
  pack.tune.run(options)
  return
end

-- For each number of workers N: its configuration at the same global batch, and a candidate for each mode (sequential:
-- the N ordinary models one after the other; packed) and execution (eager; compiled: the recorded step).
local benchmark = pack.benchmark.open(options)
print(("%d candidates, %d turns; results in %s"):format(#benchmark.plan.candidates, #benchmark.turns, benchmark.folder))

-- Each turn is one candidate in a process of its own: set up, warmed up, timed. All take turns, so that a machine that
-- drifts does so under all alike. What fails becomes a row that says why.
benchmark:run()

-- Medians and spread, packed against sequential, in a table, files and plots.
benchmark:conclude()
