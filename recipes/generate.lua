#!/usr/bin/env packlua
-- Continues a text with finished weights:
--   packlua recipes/generate.lua --checkpoint FILE --prompt TEXT [--temperature T] [--top-p P] [--seed S]
local pack = require "pack"

local options = pack.options.parse {
  recipe = "generate",
  summary = "Continues a text with weights: of a state the workers' average, of safetensors what they hold.",
  arg = arg,
  config = false,
  extra = {
    {name = "checkpoint", value = "FILE", help = "a state, or safetensors of the average or of a worker"},
    {name = "prompt", value = "TEXT", default = "", help = "what is continued; nothing: the beginning of a document"},
    {name = "tokens", value = "N", type = "integer", minimum = 0, default = 200, help = "length of the continuation at most"},
    {name = "temperature", value = "T", type = "number", minimum = 0, default = 0.8, help = "0 takes the likeliest token"},
    {name = "top-p", value = "P", type = "number", minimum = 0, maximum = 1, default = 0.95,
      help = "draws from the likeliest tokens that together have this probability"},
    {name = "seed", value = "S", type = "integer", minimum = 0, default = 0, help = "the same seed, the same text"},
    {name = "tokenizer", value = "FILE", help = "a SentencePiece model, or bytes; that of the run if not given"},
    {name = "config", value = "FILE", help = "configuration, for files that do not hold one"},
    {name = "set", value = "KEY=VALUE", repeated = true, help = "changes a key, such as runtime.threads"},
    {name = "device", value = "DEVICE", help = "the same as --set runtime.device=DEVICE"},
  },
}
local settings = options.set or {}
if options.tokenizer then table.insert(settings, "data.tokenizer=" .. options.tokenizer) end
if options.device then table.insert(settings, "runtime.device=" .. options.device) end

local weights = pack.weights.open(options.checkpoint, {config = options.config, set = settings})
local tokenizer, why = weights:tokenizer()
if not tokenizer then pack.failure.usage("no tokenizer: %s (--tokenizer FILE)", why) end
local model = weights:model((pack.runtime.open(weights.config)))

local text = pack.generate.text(model, tokenizer, options.prompt, {tokens = options.tokens,
  temperature = options.temperature, top_p = options.top_p, seed = options.seed})
print(options.prompt .. pack.generate.printable(text))
weights:close()
