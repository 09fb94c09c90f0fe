#!/usr/bin/env packlua
-- Writes weights as a folder that other programs load:
--   packlua recipes/export.lua --checkpoint FILE --output DIR [--format hf] [--dtype f32|bf16]
local pack = require "pack"

local options = pack.options.parse {
  recipe = "export",
  summary = "Writes weights as a folder that Hugging Face's from_pretrained loads.",
  arg = arg,
  config = false,
  extra = {
    {name = "checkpoint", value = "FILE", help = "a state (its workers' average), or safetensors of one model"},
    {name = "output", value = "DIR", help = "the new folder"},
    {name = "format", value = "hf", default = "hf", help = "hf: Hugging Face's names and files"},
    {name = "dtype", value = "f32|bf16", default = "f32", help = "of the weights in the file"},
    {name = "tokenizer", value = "FILE", help = "SentencePiece model that goes with it; that of the run if not given"},
    {name = "config", value = "FILE", help = "configuration, for files that do not hold one"},
  },
}
if options.format ~= "hf" then pack.failure.usage("--format %s: expected hf", options.format) end
local settings = {"runtime.device=cpu"}
if options.tokenizer then table.insert(settings, "data.tokenizer=" .. options.tokenizer) end
if not options.output then pack.failure.usage("no folder for the files: --output DIR") end

local weights = pack.weights.open(options.checkpoint, {config = options.config, set = settings})
local tokenizer, why = weights:tokenizer()
local context = pack.runtime.open(weights.config)
local model = weights:model(context)
pack.hf.write(options.output, model, {dtype = options.dtype, tokenizer = tokenizer})

print(("%s: %s"):format(weights.path, weights:describe()))
print(("%s: config.json, model.safetensors (%d parameters, %s)%s"):format(options.output,
  pack.config.parameters(weights.config.model), options.dtype,
  tokenizer and tokenizer.kind == "sentencepiece" and ", tokenizer.model, its forms in JSON" or ""))
if not tokenizer then
  print("no tokenizer: " .. why)
elseif tokenizer.kind == "bytes" then
  print("no tokenizer file: ids 0 .. 255 are bytes, 256 ends a document")
end
weights:close()
