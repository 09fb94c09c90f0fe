-- Data per worker: a source for each, and labelled sources shared out by a Dirichlet split.
local cache = require "pack.data.cache"
local config = require "pack.config"
local data = require "pack.data.source"
local ffi = require "ffi"
local helper = require "spec.support.helper"
local native = require "pack.native"
local workers = require "pack.data.workers"

local function stream(first, count)
  local ids = ffi.new("uint16_t[?]", count)
  for i = 0, count - 1 do ids[i] = first + i end
  return {tokens = ids, count = count}
end

local function read(one, first, count)
  local ids = ffi.new("int32_t[?]", count)
  native.check(native.C.pk_tokens_read(cache.tokens_of(one), first, count, ids))
  local list = {}
  for i = 1, count do list[i] = ids[i - 1] end
  return list
end

describe("token streams that are joined", function()
  it("give the parts' ids one after the other, across their borders", function()
    local one = workers.join {{stream(0, 10), 2, 3}, {stream(100, 10), 0, 0}, {stream(200, 10), 7, 3}}
    assert.equal(6, one.count)
    assert.same({2, 3, 4, 207, 208, 209}, read(one, 0, 6))
    assert.same({4, 207}, read(one, 2, 2))
    assert.same({209}, read(one, 5, 1))
  end)

  it("refuse parts that are not there", function()
    local good, message = pcall(workers.join, {{stream(0, 10), 8, 3}})
    assert.is_false(good)
    assert.is_truthy(tostring(message):find("part 1: 3 tokens from 8 on of a sequence of 10", 1, true), tostring(message))
    assert.is_false((pcall(workers.join, {})))
  end)
end)

describe("Dirichlet's shares", function()
  it("sum to 1, are the same for the same seed, and differ between labels", function()
    local a, b = workers.shares(8, 0.5, 7, 1), workers.shares(8, 0.5, 7, 1)
    local sum = 0
    for _, share in ipairs(a) do sum = sum + share end
    assert.is_near(1, sum, 1e-12)
    assert.same(a, b)
    assert.is_false(a[1] == workers.shares(8, 0.5, 7, 2)[1])
    assert.is_false(a[1] == workers.shares(8, 0.5, 8, 1)[1])
  end)

  it("have the mean and variance of the distribution", function()
    for _, alpha in ipairs {0.3, 2} do
      local n, draws, sum, squares = 4, 4000, 0, 0
      for label = 1, draws do
        local share = workers.shares(n, alpha, 1, label)[2]
        sum, squares = sum + share, squares + share * share
      end
      local mean = sum / draws
      local variance = (n - 1) / (n * n * (n * alpha + 1))
      assert.is_near(1 / n, mean, 4 * math.sqrt(variance / draws))
      assert.is_near(variance, squares / draws - mean * mean, 0.15 * variance)
    end
  end)

  it("become whole numbers of samples that sum to all", function()
    for seed = 1, 20 do
      local counts, sum = workers.counts(workers.shares(5, 0.2, seed, 1), 1003), 0
      for _, count in ipairs(counts) do
        assert.is_true(count >= 0)
        sum = sum + count
      end
      assert.equal(1003, sum)
    end
  end)
end)

describe("batches of workers' own data", function()
  helper.watch()

  local streams = {stream(0, 41), stream(1000, 41), stream(2000, 41)}
  local function open()
    return workers.batches {streams = streams, context_length = 4, micro_batch_size = 2, accumulation = 2, seed = 3}
  end

  local function next_batch(one)
    local tokens, targets = ffi.new("int32_t[48]"), ffi.new("int32_t[48]")
    one:next(tokens, targets)
    return tokens, targets
  end

  it("give each worker samples of its stream, each once in a pass", function()
    local one, seen = open(), {}
    for _ = 1, 5 do -- 10 samples of 4 tokens in each stream are 2.5 batches: two passes
      local tokens, targets = next_batch(one)
      for i = 0, 47 do
        local worker = math.floor(i / 8) % 3
        assert.equal(worker, math.floor(tokens[i] / 1000))
        assert.equal(tokens[i] + 1, targets[i])
        seen[tokens[i]] = (seen[tokens[i]] or 0) + 1
      end
    end
    for w = 0, 2 do
      for c = 0, 39 do assert.equal(2, seen[1000 * w + c]) end
    end
    one:close()
  end)

  it("go on from a cursor", function()
    local one, again = open(), open()
    next_batch(one)
    next_batch(one)
    assert.equal(24, one:cursor())
    again:set_cursor(24)
    assert.equal(ffi.string((next_batch(one)), 192), ffi.string((next_batch(again)), 192))
    one:close()
    again:close()
  end)
end)

describe("sources", function()
  local folder
  setup(function()
    folder = helper.temporary()
    for i = 1, 3 do
      local lines = {}
      for j = 1, 200 do lines[j] = ("source %d, line %d\n"):format(i, j * j % 17) end
      helper.write(("%s/%d.txt"):format(folder, i), table.concat(lines))
    end
  end)
  teardown(function() helper.remove(folder) end)

  local function resolve(settings)
    return config.load("configs/tiny.lua", {"decentralized.num_models=2", "training.micro_batch_size=2", "model.context_length=8",
      "training.batch_tokens=32", ("data.sources=%s/1.txt,%s/2.txt"):format(folder, folder), unpack(settings or {})})
  end

  it("are one for each worker, with what was held out of each and of all", function()
    local opened = data.open(resolve())
    assert.equal(2, #opened.workers)
    assert.equal(opened.workers[1].train.count + opened.workers[2].train.count, opened.train.count)
    assert.equal(opened.workers[1].validation.count + opened.workers[2].validation.count, opened.validation.count)
  end)

  it("are shared out with every sample going to one worker", function()
    local opened = data.open(resolve {"data.dirichlet.alpha=0.5"})
    local total, samples = 0, 0
    for _, worker in ipairs(opened.workers) do total = total + worker.train.count end
    for _, source in ipairs(opened.sources) do samples = samples + math.floor((source.train.count - 1) / 8) end
    assert.equal(8 * samples, total)
    assert.is_nil(opened.workers[1].validation)
  end)

  it("are refused where they do not fit", function()
    local function refused(message, f, ...)
      local good, problem = pcall(f, ...)
      assert.is_false(good)
      assert.is_truthy(tostring(problem):find(message, 1, true), tostring(problem))
    end
    refused("data.sources has 2 sources for decentralized.num_models 4", data.open, resolve {"decentralized.num_models=4",
      "training.micro_batch_size=1"})
    refused("data.sources and data.text are both given", resolve, {"data.text=x.txt"})
    refused("there are none", config.load, "configs/tiny.lua", {"data.dirichlet.alpha=1"})
    refused("a larger alpha", data.open, resolve {"data.dirichlet.alpha=0.0001", "data.dirichlet.seed=3"})
  end)
end)
