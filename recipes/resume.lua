#!/usr/bin/env packlua
-- Continues an interrupted run, to the same bits as if it had not been interrupted:
--   packlua recipes/resume.lua RUN|STATE [--output DIR] [--set key=value]...
local pack = require "pack"

local options = pack.options.parse {
  recipe = "resume",
  summary = "Continues a run from the newest state in its folder, or from a given state.",
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
local settings = options.set or {}
if options.device then table.insert(settings, "runtime.device=" .. options.device) end

-- Where to go on, on what data, and whether this is still the same experiment.
local state, skipped = pack.checkpoint.find(options.positional[1], {fallback = options.fallback})
if not options.allow_recipe then state:check_recipe() end
local config = state:config(settings)
local data = pack.data.open(config)
local identity = pack.checkpoint.data_identity(data)
local context, remarks = pack.runtime.open(config)
state:check(config, {data = identity, conversion = options.allow_conversion})

local run = pack.run.resume {recipe = state.info.recipe, state = state, output = options.output,
  config = config, context = context, skipped = skipped}
run:log("%s", context:describe())
for _, one in ipairs(skipped) do run:log("passed over: %s", one.message) end
for _, remark in ipairs(remarks) do run:log("%s", remark) end
for _, remark in ipairs(state:remarks(context)) do run:log("%s", remark) end

local trainer = pack.trainer.create(config, {context = context, train = data.train,
  validation = data.validation, validation_complete = data.validation_complete})
state:restore(trainer, options.allow_conversion)
state:close()

-- The rest of the training, and what came of it.
pack.training.run(trainer, run, {data = identity})
pack.training.conclude(trainer, run, data)
run:close()
