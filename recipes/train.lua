#!/usr/bin/env packlua
-- Trains packed models on text and continues a prompt with their average:
--   packlua recipes/train.lua [--config FILE] [--set key=value]... [--output DIR]
--   packlua recipes/train.lua --resume RUN
local pack = require "pack"

local options = pack.options.parse {
  recipe = "train",
  summary = "Trains N packed language models on text, mixing their weights over a topology.",
  arg = arg,
  resume = true,
  extra = {
    {name = "prompt", value = "TEXT", default = "local function ",
      help = "what the averaged model continues at the end"},
    {name = "sample", value = "TOKENS", type = "integer", minimum = 0, default = 200,
      help = "length of that continuation"},
  },
}

-- The data, the device, the run's folder and the trainer, new or from a state.
local study = pack.study.open(options)

-- Training. An experiment adds its own measurements to a row here, and they are recorded with it, such as
--   row.spread = study.trainer:consensus_distance()
for row, held_out in study:steps() do -- luacheck: ignore
end

-- What came of it: the average and each worker on all that was held out.
study:conclude()

if options.sample > 0 and not study.data.tokenizer then
  study.run:log("no sample: %s", study.data.no_tokenizer)
elseif options.sample > 0 then
  local continued = pack.generate.text(study.trainer.model:average(), study.data.tokenizer, options.prompt,
    {tokens = options.sample, seed = study.config.runtime.seed})
  print("\n" .. options.prompt .. pack.generate.printable(continued))
end
study:close()
