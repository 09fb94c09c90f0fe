#!/usr/bin/env packlua
-- Re-runs golden cases, of training steps and of algorithms, and prints how far packlua is from them:
--   packlua recipes/verify.lua [--dtype f64|f32|amp] [--device D] FILE...
local pack = require "pack"

local options = pack.options.parse {
  recipe = "verify",
  summary = "Re-run golden cases: training steps that an independent program computed in f64.",
  arg = arg,
  config = false,
  extra = {
    {name = "dtype", value = "f64|f32|amp", default = "f64", help = "precision to run in"},
    {name = "device", value = "DEVICE", default = "cpu", help = "device to run on"},
  },
  positional = {name = "FILE", min = 1, help = "golden case: safetensors, or JSON of an algorithm"},
}

local context = pack.runtime.context {device = options.device}
local failed = false

-- Prints a line of what was compared, with the bound it is held to, if there is one.
local function report(quantity, worst, bound)
  local verdict = not bound and "reported only" or worst.value <= bound and "ok" or "FAILED"
  failed = failed or verdict == "FAILED"
  print(("  %-12s %.3e  %-14s %s"):format(quantity, worst.value, verdict, worst.name))
end

-- A case of training steps of a model.
local function verify_model(path)
  local result = pack.golden.run(path, {dtype = options.dtype, context = context})
  for _, quantity in ipairs(pack.golden.quantities) do
    report(quantity, result[quantity], pack.golden.tolerance(options.dtype, quantity))
  end
end

-- A case of an algorithm on given gradients, operation by operation and recorded.
local function verify_algorithm(path)
  local result, bytes = pack.golden_algorithm.run(path, {dtype = options.dtype, context = context})
  local _, recorded = pack.golden_algorithm.run(path, {dtype = options.dtype, context = context, compile = true})
  local quantities = {}
  for quantity in pairs(result) do quantities[#quantities + 1] = quantity end
  table.sort(quantities)
  for _, quantity in ipairs(quantities) do
    report(quantity, result[quantity], pack.golden_algorithm.tolerances[options.dtype])
  end
  report("recorded", {value = bytes == recorded and 0 or math.huge, name = "the same bits"}, 0)
end

for _, path in ipairs(options.positional) do
  print(("%s (%s on %s)"):format(path, options.dtype, options.device))
  local verify = pack.golden_algorithm.is_case(path) and verify_algorithm or verify_model
  verify(path)
end
if failed then pack.failure.raise(1, "") end
