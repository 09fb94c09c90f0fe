#!/usr/bin/env packlua
-- Trains packed models on text and continues a prompt with their average:
--   packlua recipes/train.lua [--config FILE] [--set key=value]... [--output DIR]
local pack = require "pack"

local options = pack.options.parse {
  recipe = "train",
  summary = "Train N packed language models on text, mixing their weights over a topology.",
  arg = arg,
  extra = {
    {name = "prompt", value = "TEXT", default = "local function ", help = "text that the trained average continues"},
    {name = "sample", value = "TOKENS", default = 200, help = "length of the continuation; 0 for none"},
  },
}
local config = options.config

-- What to train on.
local tokenizer = pack.tokenizer.open(config.data.tokenizer)
local text = pack.text.load {files = config.data.text, tokenizer = tokenizer}

-- Where to train, and what is written down about it.
local context = pack.context.from_config(config)
local run = pack.run.create {recipe = "train", output = options.output, config = config, context = context}
run:log("%s", context:describe())
run:log("text: %d files, %d training tokens, %d held out, unigram entropy %.3f nats",
  text.files, text.train.count, text.validation.count, text.unigram_entropy)

local trainer = pack.trainer.create(config, {context = context, train = text.train, validation = text.validation})
run:log("%d workers of %d parameters, %s %s, %d steps of %d tokens", trainer.num_models,
  pack.llama.parameters(config.model), config.decentralized.topology, config.decentralized.scheme,
  trainer.total_steps, config.training.batch_tokens)

-- Training.
local bar = pack.progress.create {total = trainer.total_steps, unit = "step", log = run, every = config.training.log_every}
for step = 1, trainer.total_steps do
  local row = trainer:step()
  if step % config.training.log_every == 0 then row.consensus_distance = trainer:consensus_distance() end
  run:metrics(row)
  bar:update(step, "loss %.3f  %s tok/s", row.loss, pack.progress.count(row.tokens_per_second))
  if trainer:epoch_ends() and step < trainer.total_steps then
    local epoch = run:metrics(trainer:evaluate {blocks = config.evaluation.subset_blocks})
    bar:print("epoch %d: validation loss %.3f", row.epoch, epoch.loss)
  end
end
bar:finish()

-- The result: the average of the workers on everything that was held out.
local final = run:metrics(trainer:evaluate {workers = true})
run:log("averaged model: validation loss %.4f, perplexity %.2f (unigram entropy %.4f)", final.loss, final.perplexity, text.unigram_entropy)
run:log("workers: %s; consensus distance %.4g", pack.report.numbers(final.loss_worker, "%.4f"), final.consensus_distance)
run:save_average(trainer)
run:result {loss = final.loss, perplexity = final.perplexity}
if options.sample > 0 then
  print(options.prompt .. pack.generate.text(trainer.model:average(), tokenizer, options.prompt,
    {tokens = options.sample, seed = config.runtime.seed}))
end
run:close()
