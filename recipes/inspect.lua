#!/usr/bin/env packlua
-- Shows what is in a token cache or a safetensors file, and checks it:
--   packlua recipes/inspect.lua [--verify] [--tokenizer FILE] PATH...
local pack = require "pack"

local options = pack.options.parse {
  recipe = "inspect",
  summary = "Shows what is in token caches and safetensors files: facts, statistics, examples, and checks them.",
  arg = arg,
  config = false,
  extra = {
    {name = "tokenizer", value = "FILE", help = "the SentencePiece model of a cache, to show its documents as text"},
    {name = "documents", value = "K", type = "integer", minimum = 0, default = 3, help = "examples of each split"},
    {name = "example-tokens", value = "N", type = "integer", minimum = 1, default = 64, help = "length of an example"},
    {name = "top", value = "K", type = "integer", minimum = 0, default = 20, help = "commonest ids that are shown"},
    {name = "limit", value = "N", type = "integer", minimum = 1, help = "looks at the first N tokens of a split only"},
    {name = "verify", help = "compares checksums too"},
  },
  positional = {name = "PATH", min = 1, help = "folder of a cache, or a safetensors file"},
}

local function write(format, ...)
  print(pack.utf8.printable(format:format(...)))
end

local failed = false
for _, path in ipairs(options.positional) do
  local kind = pack.files.kind(path)
  if not kind then pack.failure.usage("%s: there is nothing", path) end
  local good, problems = pack.failure.pcall(function()
    if kind == "directory" then return pack.inspect.cache(path, options, write) end
    return pack.inspect.safetensors(path, write)
  end)
  if not good then problems = {(tostring(problems):gsub("^[^ ]*%.lua:%d+: ", ""))} end
  for _, problem in ipairs(problems) do
    failed = true
    io.stderr:write(pack.utf8.printable(problem), "\n")
  end
end
if failed then pack.failure.raise(1, "") end
