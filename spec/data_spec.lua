-- What a run trains on: a cache or text, and what is refused before the first step.
local config = require "pack.config"
local data = require "pack.data.source"
local files = require "pack.io.files"
local json = require "pack.io.json"
local prepare = require "pack.data.prepare"
local support = require "spec.support.helper"

local settings = {"model.context_length=8", "training.batch_tokens=64", "training.micro_batch_size=2"}

local function load(more)
  local all = {unpack(settings)}
  for _, setting in ipairs(more or {}) do all[#all + 1] = setting end
  return config.load("configs/tiny.lua", all)
end

local function refused(text, f, ...)
  local good, problem = pcall(f, ...)
  assert.is_false(good)
  assert.equal(2, problem.exit)
  assert.is_truthy(tostring(problem):find(text, 1, true), tostring(problem))
end

describe("Data", function()
  it("without a sample or a held-out target are refused", function()
    local function check(train, validation)
      data.check_size(load(), {name = "the text", train = {count = train}, validation = {count = validation}})
    end
    refused("the text is too short: it has 8 tokens to train on, and one sample takes 9, model.context_length 8",
      check, 8, 10)
    refused("1 held-out tokens", check, 9, 1)
    check(9, 2)
  end)

  it("that a run does not read to their end are told with its part", function()
    local opened = {train = {count = 4001}}
    assert.is_nil(data.unread_note(opened, 10, 400))
    assert.equal("training reads the first 1001 of these tokens (25%) and nothing after them: its steps take no more",
      data.unread_note(opened, 10, 100))
  end)

  it("with more pieces than the model's vocabulary are refused", function()
    data.check_vocabulary(load(), "the tokenizer", 257)
    refused("model.vocab_size 257 is smaller than the 258 pieces of the tokenizer", data.check_vocabulary, load(),
      "the tokenizer", 258)
  end)
end)

describe("Training from a cache", function()
  local folder, cache, source
  setup(function()
    folder = support.temporary()
    cache, source = folder .. "/cache", folder .. "/text.txt"
    local lines = {}
    for i = 1, 300 do lines[i] = ("the %d workers of the ring mix, line %d\n"):format(i % 7, i) end
    support.write(source, table.concat(lines))
    prepare.run {tokenizer = "bytes", train = {source}, validation = {source}, output = cache,
      max_validation_tokens = 500}
  end)
  teardown(function() support.remove(folder) end)

  local function train(output, more)
    return support.run(("packlua recipes/train.lua --output %s/%s --sample 4 --prompt t"):format(folder, output)
      .. " --set model.layers=1 --set model.width=16 --set model.heads=2 --set model.ffn_width=24"
      .. " --set model.context_length=16 --set training.batch_tokens=128 --set training.micro_batch_size=2"
      .. " --set training.max_tokens=512 --set data.cache_dir=" .. cache .. " " .. (more or ""))
  end

  it("opens its splits, its byte tokenizer and what it says of the validation split", function()
    local opened = data.open(load {"data.cache_dir=" .. cache})
    assert.equal(#support.read(source) + 1, opened.train.count)
    assert.equal(500, opened.validation.count)
    assert.is_false(opened.validation_complete)
    assert.equal("bytes", opened.tokenizer.kind)
    assert.equal(json.decode(support.read(cache .. "/manifest.json")).identity, opened.identity)
  end)

  it("runs, and every evaluation says that the validation split was cut off", function()
    local code, out, err = train("run")
    assert.equal("", err)
    assert.equal(0, code)
    assert.is_truthy(out:find("cache: " .. cache .. ", identity ", 1, true))
    local evaluations = 0
    for line in files.read(folder .. "/run/metrics.jsonl"):gmatch("[^\n]+") do
      local row = json.decode(line)
      if row.split then
        evaluations = evaluations + 1
        assert.is_false(row.validation_complete)
        assert.equal(499, row.targets)
      end
    end
    assert.equal(1, evaluations)
  end)

  it("gives the same numbers with prefetch on and off", function()
    assert.equal(0, (train("on")))
    assert.equal(0, (train("off", "--set data.prefetch=false")))
    assert.equal(json.decode(files.read(folder .. "/on/result.json")).loss,
      json.decode(files.read(folder .. "/off/result.json")).loss)
  end)

  it("refuses a smaller vocabulary, a missing cache and another tokenizer, before anything is written", function()
    for more, words in pairs {
      ["--set data.tokenizer=off --set model.vocab_size=200"] =
        "model.vocab_size 200 is smaller than the 257 pieces of the cache " .. cache,
      ["--set data.cache_dir=" .. folder] = "data.cache_dir: " .. folder .. ": not a token cache",
      ["--set data.cache_dir=/nowhere"] = "data.cache_dir: /nowhere: not a token cache",
    } do
      local code, out, err = train("refused", more)
      assert.equal(2, code)
      assert.equal("", out)
      assert.is_truthy(err:find(words, 1, true), err)
      assert.is_falsy(err:find("traceback", 1, true), err)
      assert.is_false(files.exists(folder .. "/refused"))
    end
  end)
end)
