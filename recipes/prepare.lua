#!/usr/bin/env packlua
-- Turns text files into a token cache:
--   packlua recipes/prepare.lua --tokenizer FILE|bytes --train FILE... --validation FILE... --output DIR
local pack = require "pack"

local options = pack.options.parse {
  recipe = "prepare",
  summary = "Turn text files into a token cache, or check one that is finished.",
  arg = arg,
  default_config = "configs/20m.lua",
  extra = {
    {name = "tokenizer", value = "FILE", help = "a SentencePiece model, or the word bytes; data.tokenizer if not given"},
    {name = "train", value = "FILE", many = true, help = ".txt, .json, .jsonl, also .gz and .zst; patterns; data.text if not given"},
    {name = "validation", value = "FILE", many = true, help = "files of the validation split"},
    {name = "output", value = "DIR", help = "folder of the cache; data.cache_dir if not given"},
    {name = "field", value = "NAME", default = "text", help = "key of the text in JSON objects"},
    {name = "format", value = "text|json", help = "what all files hold, where their names do not say it"},
    {name = "txt-documents", value = "file|line|paragraph", default = "file", help = "what a document of a .txt file is"},
    {name = "on-error", value = "stop|skip", default = "stop", help = "what a bad document does"},
    {name = "workers", value = "N", type = "integer", minimum = 1, help = "threads; the tokens are the same for any number"},
    {name = "zstd", value = "LEVEL", type = "integer", minimum = 1, help = "compresses the shards"},
    {name = "max-train-tokens", value = "N", type = "integer", minimum = 1, help = "cuts the training split off"},
    {name = "max-validation-tokens", value = "N", type = "integer", minimum = 1, help = "cuts the validation split off"},
    {name = "verify", help = "checks a finished cache against its checksums"},
  },
}
local data = options.config.data
local count, progress = pack.progress.count, pack.progress

local output = options.output or data.cache_dir
if not output then pack.failure.usage("no folder for the cache: --output DIR") end
local job = {
  output = output,
  tokenizer = options.tokenizer or data.tokenizer or nil,
  train = pack.prepare.expand(options.train or data.text or {}),
  validation = pack.prepare.expand(options.validation),
  field = options.field,
  format = options.format,
  txt_documents = options.txt_documents,
  on_error = options.on_error,
  workers = options.workers or data.prepare_workers or nil,
  zstd = options.zstd,
  shuffle_seed = data.shuffle_seed,
  shuffle_buffer = data.shuffle_buffer,
  shard_tokens = data.shard_tokens,
  max_train_tokens = options.max_train_tokens or data.prepare_train_tokens or nil,
  max_validation_tokens = options.max_validation_tokens or data.prepare_validation_tokens or nil,
}

-- A finished cache is never changed: it is checked instead.
if options.verify or pack.prepare.is_cache(output) then
  local manifest = pack.prepare.verify(output)
  if not options.verify then pack.prepare.compare(output, manifest, job) end
  print(("%s: a finished cache; every checksum agrees (identity %s)"):format(output, manifest.identity))
  return
end
if not job.tokenizer then pack.failure.usage("no tokenizer: --tokenizer FILE, or --tokenizer bytes") end
if #job.train == 0 then pack.failure.usage("no training files: --train FILE...") end

-- The bar counts what is read of the stored files; elsewhere than on a terminal a line comes every ten seconds.
local bar, last
function job.progress(row)
  local unit = row.total_bytes < 1e8 and {"kB", 1e3} or {"MB", 1e6}
  bar = bar or progress.create {total = math.ceil(row.total_bytes / unit[2]), unit = unit[1]}
  if not (bar.terminal or row.finished or row.seconds - (last or 0) >= 10) then return end
  last = row.seconds
  bar:update(math.ceil(row.done_bytes / unit[2]), "%s: %s tokens  %s tok/s", row.split, count(row.tokens), count(row.tokens_per_second))
end
function job.note(message) print("skipped: " .. pack.utf8.printable(message)) end

local result = pack.prepare.run(job)
if bar then bar:finish() end

for _, name in ipairs {"train", "validation"} do
  local row = result[name]
  print(("%s: %d documents, %d tokens, %.1f MB of text%s"):format(name, row.documents, row.tokens, row.text_bytes / 1e6,
    row.complete and "" or " (cut off by the limit)"))
  print(("  skipped %d bad and %d empty documents; %d lone surrogates replaced; %d unknown pieces")
    :format(row.skipped, row.empty, row.replaced, row.unknown))
  local note = pack.prepare.unknown_note(name, row)
  if note then print("note: " .. pack.utf8.printable(note)) end
end
if result.train.skipped + result.validation.skipped > 0 then
  print(("%s/skipped.txt names the bad documents that were skipped"):format(output))
end
for _, remark in ipairs(pack.files.remarks()) do print("note: " .. pack.utf8.printable(remark)) end
print(("%s: done in %s, %s tok/s, %.2f MB/s"):format(output, progress.duration(result.seconds), count(result.tokens_per_second),
  (result.train.text_bytes + result.validation.text_bytes) / 1e6 / result.seconds))
