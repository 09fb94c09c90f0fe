--- What a run trains on: a token cache, or text files that are read into memory.
local cache = require "pack.data.cache"
local failure = require "pack.core.failure"
local native = require "pack.native"
local text = require "pack.data.text"
local tokenizers = require "pack.data.tokenizer"

local data = {}

-- An empty split, where a cache has none.
local nothing = {count = 0}

--- Refuses a vocabulary smaller than vocab_size, which `owner` has.
function data.check_vocabulary(config, owner, vocab_size)
  if config.model.vocab_size < vocab_size then
    failure.usage("model.vocab_size %d is smaller than the %d pieces of %s", config.model.vocab_size,
      vocab_size, owner)
  end
end

--- Refuses data (see data.open) without a whole sample to train on or without a held-out target.
function data.check_size(config, opened)
  local length = config.model.context_length
  if opened.train.count <= length then
    failure.usage("%s is too short: it has %d tokens to train on, and one sample takes %d, "
      .. "model.context_length %d and one more", opened.name, opened.train.count, length + 1, length)
  end
  if opened.validation.count < 2 then
    failure.usage("%s is too short: it has %d held-out tokens, and predicting one takes 2", opened.name,
      opened.validation.count)
  end
end

local function from_text(config)
  local tokenizer = tokenizers.open(config.data.tokenizer)
  data.check_vocabulary(config, "the tokenizer", tokenizer.vocab_size)
  local read = text.load {files = config.data.text or nil, tokenizer = tokenizer,
    seed = config.data.shuffle_seed}
  return {
    name = "the text", tokenizer = tokenizer,
    description = ("text: %d files"):format(read.files)
      .. (read.documents > read.files and (", %d documents"):format(read.documents) or ""),
    train = read.train, validation = read.validation, validation_complete = true,
    unigram_entropy = read.unigram_entropy,
  }
end

local function from_cache(config)
  local good, opened = failure.pcall(cache.open, config.data.cache_dir)
  if not good then failure.usage("data.cache_dir: %s", (tostring(opened):gsub("^[^ ]*%.lua:%d+: ", ""))) end
  data.check_vocabulary(config, "the cache " .. opened.folder, opened.vocab_size)
  local tokenizer, problem = opened:tokenizer(config.data.tokenizer or nil)
  if not tokenizer and config.data.tokenizer then failure.usage("%s", problem) end
  return {
    name = "the cache " .. opened.folder, description = ("cache: %s, identity %s"):format(opened.folder, opened.identity),
    tokenizer = tokenizer, no_tokenizer = problem, identity = opened.identity,
    train = opened.splits.train or nothing, validation = opened.splits.validation or nothing,
    validation_complete = opened.validation_complete,
  }
end

-- One of data.sources: a folder is a token cache, a file is text.
local function open_source(config, path)
  local is_folder = native.C.pk_path_kind(path) == ("d"):byte()
  local own = {}
  for key, value in pairs(config.data) do own[key] = value end
  own.cache_dir, own.text, own.sources = is_folder and path or false, not is_folder and {path} or false, false
  local opened = (is_folder and from_cache or from_text) {data = own, model = config.model}
  opened.name = ("the source %s"):format(path)
  data.check_size(config, opened)
  return opened
end

--- Opens the data of a configuration: data.sources (see pack.data.workers), data.cache_dir, or else data.text (by default
-- packlua's own text).
-- Returns {train, validation = token streams for pack.loader, validation_complete, tokenizer (nil with
-- no_tokenizer, the reason, where a cache has none at hand), name, description, identity (of a cache),
-- unigram_entropy (of a text)}. Raises usage errors: a vocabulary smaller than the data's, too few tokens.
function data.open(config)
  local opened
  if config.data.sources then
    opened = require("pack.data.workers").open(config, function(path) return open_source(config, path) end)
  else
    opened = config.data.cache_dir and from_cache(config) or from_text(config)
  end
  data.check_size(config, opened)
  return opened
end

--- What a run of so many steps of batch_tokens leaves unread of its training tokens, as a sentence, or nil if it
-- reads all.
function data.unread_note(opened, steps, batch_tokens)
  local count, read = opened.train.count, steps * batch_tokens + 1
  if read >= count then return nil end
  return ("training reads the first %d of these tokens (%.3g%%) and nothing after them: its steps take no more")
    :format(read, 100 * read / count)
end

--- Made-up data for a configuration, as data.open returns it, without anything held out: seeded random ids of its
-- vocabulary, all equally likely, enough for one batch, over which the loader then goes again and again.
function data.synthetic(config)
  local count, vocabulary = config.training.batch_tokens + 1, config.model.vocab_size
  local numbers, ids = native.array("double[?]", count), native.array("uint32_t[?]", count)
  native.C.pk_random_uniform(config.data.shuffle_seed, "synthetic tokens", 0, count, numbers)
  for i = 0, count - 1 do ids[i] = math.floor(numbers[i] * vocabulary) end
  return {
    name = "made-up tokens", description = ("made-up tokens: %d, seed %d"):format(count, config.data.shuffle_seed),
    train = {tokens = ids, count = count, vocab_size = vocabulary}, validation = nothing, validation_complete = false,
    no_tokenizer = "the tokens are made up",
  }
end

return data
