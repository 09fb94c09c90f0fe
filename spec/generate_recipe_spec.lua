-- recipes/generate.lua as users run it: what finished weights make of a prompt.
local cache = require "spec.support.cache"
local files = require "pack.io.files"
local generate = require "pack.model.generate"
local prepare = require "pack.data.prepare"
local support = require "spec.support.helper"
local tokenizer = require "pack.data.tokenizer"
local weights = require "pack.run.weights"

local settings = {
  "model.layers=1", "model.width=32", "model.heads=2", "model.ffn_width=48", "model.context_length=32",
  "training.batch_tokens=256", "training.micro_batch_size=4", "training.max_tokens=40960",
  "training.epoch_tokens=40960", "optimizer.lr=0.02", "decentralized.num_models=2",
}

describe("recipes/generate.lua", function()
  local folder, average

  local function train(output, arguments)
    local code, _, err = support.run(("packlua recipes/train.lua --sample 0 --output %s/%s --set %s %s")
      :format(folder, output, table.concat(settings, " --set "), arguments))
    assert.equal("", err)
    assert.equal(0, code)
    return ("%s/%s/epoch-001.safetensors"):format(folder, output)
  end

  setup(function()
    folder = support.temporary()
    support.write(folder .. "/text.txt", ("ring "):rep(4000))
    average = train("run", ("--set data.text=%s/text.txt"):format(folder))
  end)
  teardown(function() support.remove(folder) end)

  -- What is printed for a checkpoint and more arguments.
  local function made(checkpoint, arguments)
    local code, out, err = support.run(("packlua recipes/generate.lua --checkpoint %s %s"):format(checkpoint, arguments))
    assert.equal("", err)
    assert.equal(0, code, out)
    return out
  end

  it("continues the prompt by what the model has learned", function()
    assert.equal("ring ring ring ring ring \n", made(average, "--prompt 'ring ri' --tokens 18 --temperature 0"))
  end)

  it("gives of a state what the averaged weights give", function()
    local state = average:gsub("%.safetensors$", ".state.safetensors.zst")
    assert.equal(made(average, "--prompt ri --tokens 12 --seed 4"), made(state, "--prompt ri --tokens 12 --seed 4"))
  end)

  it("passes temperature, top-p, seed and length on", function()
    local opened = weights.open(average)
    local model, bytes = opened:model(), tokenizer.open "bytes"
    local expected = generate.text(model, bytes, "x", {tokens = 30, temperature = 2.5, top_p = 0.9, seed = 3})
    opened:close()
    model:free()
    bytes:close()
    local arguments = "--prompt x --tokens 30 --temperature 2.5 --top-p 0.9 --seed "
    assert.equal("x" .. generate.printable(expected) .. "\n", made(average, arguments .. 3))
    assert.equal(made(average, arguments .. 3), made(average, arguments .. 3))
    assert.not_equal(made(average, arguments .. 3), made(average, arguments .. 4))
    assert.equal("x\n", made(average, "--prompt x --tokens 0"))
  end)

  it("stops at the end of a document", function()
    support.write(folder .. "/short.txt", ("ab\n"):rep(3000))
    prepare.run {tokenizer = "bytes", train = {folder .. "/short.txt"}, validation = {folder .. "/short.txt"},
      txt_documents = "line", output = folder .. "/cache"}
    local own = train("documents", ("--set data.tokenizer=off --set data.cache_dir=%s/cache"):format(folder))
    assert.equal("ab\n", made(own, "--prompt a --tokens 20 --temperature 0"))
    -- An empty prompt is the beginning of a document.
    assert.equal("ab\n", made(own, "--tokens 20 --temperature 0"))
  end)

  it("makes only what the tokenizer has, though the model knows more ids", function()
    local wide = train("wide", ("--set model.vocab_size=3000 --set training.max_tokens=512 --set data.text=%s/text.txt")
      :format(folder))
    -- Nearly nothing is learned: nine of ten likely ids would be none of the 257.
    local out = made(wide, "--prompt ring --tokens 40 --temperature 3 --top-p 1 --seed 1")
    assert.equal("ring", out:sub(1, 4))
    assert.is_true(#out >= 40)
  end)

  it("takes prompts of many more tokens than the context", function()
    support.write(folder .. "/prompt", ("ring "):rep(2500))
    local out = made(average, ('--prompt "$(cat %s/prompt)" --tokens 5 --temperature 0'):format(folder))
    assert.equal(("ring "):rep(2499) .. "ring ring\n", (out:gsub(" \n$", "\n")))
  end)

  describe("with a SentencePiece tokenizer", function()
    local own
    setup(function()
      support.write(folder .. "/small.model", cache.model({"\226\150\129ring", "\226\150\129mix"},
        {type = "unigram", byte_fallback = true}))
      support.write(folder .. "/words.txt", ("ring mix "):rep(3000) .. "\n")
      prepare.run {tokenizer = folder .. "/small.model", train = {folder .. "/words.txt"},
        validation = {folder .. "/words.txt"}, output = folder .. "/pieces"}
      own = train("pieces-run", ("--set model.vocab_size=300 --set data.tokenizer=off --set data.cache_dir=%s/pieces")
        :format(folder))
    end)

    it("asks for its file if the run did not name it", function()
      local code, _, err = support.run("packlua recipes/generate.lua --prompt ring --checkpoint " .. own)
      assert.equal(2, code)
      assert.is_truthy(err:find("the cache was made with small.model", 1, true), err)
      assert.is_truthy(err:find("--tokenizer FILE", 1, true), err)
    end)

    it("continues with its pieces", function()
      assert.equal("ring mix ring mix\n", made(own, ("--prompt ring --tokens 3 --temperature 0 --tokenizer %s/small.model")
        :format(folder)))
    end)

    it("refuses one that the cache was not made with", function()
      local code, _, err = support.run(("packlua recipes/generate.lua --prompt ring --tokenizer bytes --checkpoint %s"):format(own))
      assert.equal(2, code)
      assert.is_truthy(err:find("was made with sentencepiece", 1, true), err)
    end)

    it("believes the given one when the cache is gone", function()
      os.rename(folder .. "/pieces", folder .. "/moved")
      local out = made(own, ("--prompt ring --tokens 1 --temperature 0 --tokenizer %s/small.model"):format(folder))
      local code, _, err = support.run("packlua recipes/generate.lua --prompt ring --checkpoint " .. own)
      os.rename(folder .. "/moved", folder .. "/pieces")
      assert.equal("ring mix\n", out)
      assert.equal(2, code)
      assert.is_truthy(err:find("/pieces", 1, true), err)
    end)
  end)

  it("refuses values out of range, and a tokenizer that is not there", function()
    for arguments, word in pairs {["--top-p 1.5"] = "--top-p 1.5", ["--temperature=-1"] = "--temperature -1",
      ["--tokens x"] = "--tokens x", ["--tokenizer " .. folder .. "/no.model"] = "no.model"} do
      local code, _, err = support.run(("packlua recipes/generate.lua --checkpoint %s %s"):format(average, arguments))
      assert.equal(2, code, err)
      assert.is_truthy(err:find(word, 1, true), err)
      assert.is_falsy(err:find("traceback", 1, true), err)
    end
  end)

  it("leaves no file", function()
    local before = files.list(folder .. "/run")
    made(average, "--prompt ring --tokens 1")
    assert.same(before, files.list(folder .. "/run"))
  end)
end)
