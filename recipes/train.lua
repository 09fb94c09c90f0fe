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
  pack.llama.parameters(config.model), config.decentralized.topology,
  config.decentralized.scheme, trainer.total_steps, config.training.batch_tokens)

-- Training.
local every = config.training.log_every
local bar = pack.progress.create {total = trainer.total_steps, every = every, log = run}
for step = 1, trainer.total_steps do
  local row = trainer:step()
  if step % every == 0 then row.consensus_distance = trainer:consensus_distance() end
  run:metrics(row)
  bar:update(step, "loss %.3f, %s tok/s", row.loss, pack.progress.count(row.tokens_per_second))
  if trainer.schedule:ends_epoch(row.step) and step < trainer.total_steps then
    local held_out = run:metrics(trainer:evaluate {blocks = config.evaluation.subset_blocks})
    bar:print("epoch %d: validation loss %.3f", row.epoch, held_out.loss)
  end
end
bar:finish()

-- What came of it: the average of the workers, and each of them, on all that was held out.
local final = run:metrics(trainer:evaluate {workers = true})
local each = {}
for i, loss in ipairs(final.loss_worker) do each[i] = ("%.4f"):format(loss) end
run:log("validation loss %.4f of the average (perplexity %.2f), %s of the workers", final.loss,
  final.perplexity, table.concat(each, " "))
run:log("consensus distance %.4g%s", final.consensus_distance, data.unigram_entropy
  and ("; entropy of single tokens %.4f"):format(data.unigram_entropy) or "")
run:log("weights: %s", run:save_average(trainer))
run:result {loss = final.loss, perplexity = final.perplexity, loss_worker = final.loss_worker,
  consensus_distance = final.consensus_distance, unigram_entropy = data.unigram_entropy,
  steps = trainer.total_steps}

if options.sample > 0 and not data.tokenizer then
  run:log("no sample: %s", data.no_tokenizer)
elseif options.sample > 0 then
  local continued = pack.generate.text(trainer.model:average(), data.tokenizer, options.prompt,
    {tokens = options.sample, seed = config.runtime.seed})
  print("\n" .. options.prompt .. pack.generate.printable(continued))
end
run:close()
