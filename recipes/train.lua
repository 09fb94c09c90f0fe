#!/usr/bin/env packlua
-- Trains packed models on text and continues a prompt with their average:
--   packlua recipes/train.lua [--config FILE] [--set key=value]... [--output DIR]
local pack = require "pack"

local options = pack.options.parse {
  recipe = "train",
  summary = "Trains N packed language models on text, mixing their weights over a topology.",
  arg = arg,
  extra = {
    {name = "output", value = "DIR", help = "folder of the run (default runs/train-UTCTIME)"},
    {name = "prompt", value = "TEXT", default = "local function ",
      help = "what the averaged model continues at the end"},
    {name = "sample", value = "TOKENS", type = "integer", minimum = 0, default = 200,
      help = "length of that continuation"},
  },
}
local config = options.config

-- What to train on.
local data = pack.data.open(config)

-- Where to train, and the folder that keeps a record of it.
local context, remarks = pack.runtime.open(config)
local run = pack.run.create {recipe = "train", output = config.runtime.output_dir or nil,
  config = config, context = context}
run:log("run: %s", run.folder)
run:log("%s", context:describe())
for _, remark in ipairs(remarks) do run:log("%s", remark) end
run:log("%s, %d tokens to train on, %d held out", data.description, data.train.count,
  data.validation.count)

local trainer = pack.trainer.create(config,
  {context = context, train = data.train, validation = data.validation,
    validation_complete = data.validation_complete})
run:log("model: %d workers of %d parameters, %s, %s; %d steps of %d tokens", trainer.num_models,
  pack.config.parameters(config.model), config.decentralized.topology,
  config.decentralized.scheme, trainer.total_steps, config.training.batch_tokens)
local unread = pack.data.unread_note(data, trainer.total_steps, config.training.batch_tokens)
if unread then run:log("%s", unread) end

-- Training, and what came of it. A study adds its measurement to what is recorded of a step, such as
--   on_step = function(row, trainer) row.spread = trainer:consensus_distance() end
pack.training.run(trainer, run, {data = pack.checkpoint.data_identity(data)})
pack.training.conclude(trainer, run, data)

if options.sample > 0 and not data.tokenizer then
  run:log("no sample: %s", data.no_tokenizer)
elseif options.sample > 0 then
  local continued = pack.generate.text(trainer.model:average(), data.tokenizer, options.prompt,
    {tokens = options.sample, seed = config.runtime.seed})
  print("\n" .. options.prompt .. pack.generate.printable(continued))
end
run:close()
