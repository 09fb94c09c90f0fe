-- Seeds and counts at every entry point of the library: whole numbers that Lua can hold, or an error.
local pack = require "pack"
local support = require "spec.support.helper"

describe("a seed that is no whole number below 2^53", function()
  support.watch()

  local bad = {2 ^ 53, 2 ^ 53 + 2, -2 ^ 53, 0.5, 0 / 0, math.huge, "7", {}}

  local function refuses(name, call)
    it("is refused by " .. name, function()
      for _, seed in ipairs(bad) do
        local good, message = pcall(call, seed)
        assert.is_false(good, name .. " took " .. tostring(seed))
        assert.is_truthy(tostring(message):find("seed", 1, true) or tostring(message):find("whole", 1, true), message)
      end
    end)
  end

  local folder = support.temporary()
  support.write(folder .. "/text", ("some words, "):rep(200))
  local tokenizer = pack.tokenizer.open "bytes"
  local loaded = pack.text.load {tokenizer = tokenizer, files = {folder .. "/text"}}
  teardown(function() support.remove(folder) end)

  local function model()
    return pack.llama.create({vocab_size = 31, layers = 1, width = 16, heads = 2, ffn_width = 24, context_length = 8,
      rope_theta = 1e4, norm_eps = 1e-5, init_std = 0.02}, {num_models = 1})
  end

  refuses("a loader", function(seed)
    pack.loader.create {tokens = loaded.train, context_length = 16, num_models = 1, micro_batch_size = 1, seed = seed}
  end)
  refuses("text", function(seed)
    pack.text.load {tokenizer = tokenizer, files = {folder .. "/text"}, seed = seed}
  end)
  refuses("a model", function(seed) model():initialize(seed) end)
  refuses("a tensor", function(seed) pack.zeros({1, 2}):seed_normal(seed, "x", 0, 1) end)
  refuses("normal numbers", function(seed) pack.normal({2}, seed) end)
  refuses("uniform numbers", function(seed) pack.uniform({2}, seed) end)
  refuses("a topology", function(seed) pack.topology.create("random_matching", 4, {seed = seed}) end)
  refuses("generation", function(seed) pack.generate.ids(model(), {1}, {tokens = 1, seed = seed}) end)
  refuses("prepare", function(seed)
    pack.prepare.run {train = {folder .. "/text"}, output = folder .. "/cache", shuffle_seed = seed}
  end)
end)
