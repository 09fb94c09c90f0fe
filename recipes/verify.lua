#!/usr/bin/env packlua
-- Re-runs golden cases and prints how far packlua is from them:
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
  positional = {name = "FILE", min = 1, help = "golden case (safetensors)"},
}

local context = pack.runtime.context {device = options.device}
local failed = false
for _, path in ipairs(options.positional) do
  print(("%s (%s on %s)"):format(path, options.dtype, options.device))
  local result = pack.golden.run(path, {dtype = options.dtype, context = context})
  for _, quantity in ipairs(pack.golden.quantities) do
    local worst = result[quantity]
    local bound = pack.golden.tolerance(options.dtype, quantity)
    local verdict = not bound and "reported only" or worst.value <= bound and "ok" or "FAILED"
    failed = failed or verdict == "FAILED"
    print(("  %-12s %.3e  %-14s %s"):format(quantity, worst.value, verdict, worst.name))
  end
end
if failed then pack.failure.raise(1, "") end
