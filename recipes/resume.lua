#!/usr/bin/env packlua
-- Continues an interrupted run, to the same bits as if it had not been interrupted:
--   packlua recipes/resume.lua RUN|STATE [--output DIR] [--set key=value]...
-- A run of a recipe that adds to training is continued by that recipe, which the state names.
local pack = require "pack"

local options = pack.options.parse {
  recipe = "resume",
  summary = "Continues a run from the newest state in its folder, or from a given state, by the recipe that made it.",
  arg = arg,
  config = false,
  positional = {name = "RUN|STATE", help = "a run's folder, or a .state.safetensors.zst file", min = 1, max = 1},
  extra = {
    {name = "output", value = "DIR", help = "goes on in a folder of its own, as a branch"},
    {name = "set", value = "KEY=VALUE", repeated = true,
      help = "changes a key that a resumed run may change (docs/runs.md)"},
    {name = "device", value = "DEVICE", help = "the same as --set runtime.device=DEVICE"},
    {name = "fallback", help = "passes over damaged states, to the newest good one"},
    {name = "allow-recipe", help = "goes on as recipes/train.lua does from a state that another recipe made"},
    {name = "allow-conversion", value = "average|tile",
      help = "makes another number of workers of the state's"},
  },
}

-- The recipe that made the state, where it is the same file still, does it.
local state, skipped = pack.checkpoint.find(options.positional[1], {fallback = options.fallback})
local recipe = not options.allow_recipe and state:recipe()
if recipe and recipe.path and pack.files.exists(recipe.path) and pack.files.sha256(recipe.path) == recipe.sha256 then
  state:close()
  local arguments, left_out = {[0] = recipe.path, "--resume", options.positional[1]}, false
  for _, argument in ipairs(arg) do
    if argument == options.positional[1] and not left_out then
      left_out = true
    else
      arguments[#arguments + 1] = argument
    end
  end
  arg = arguments -- luacheck: ignore
  return dofile(recipe.path)
end

if recipe then state:check_recipe() end -- which refuses it

options.settings = options.set or {}
if options.device then table.insert(options.settings, "runtime.device=" .. options.device) end
local study = pack.study.resume(state, skipped, options)
study:train()
study:conclude()
study:close()
