-- recipes/evaluate.lua as users run it: losses of states, averages and workers, on the run's data and other.
local cache = require "spec.support.cache"
local files = require "pack.io.files"
local json = require "pack.io.json"
local prepare = require "pack.data.prepare"
local support = require "spec.support.helper"

local settings = {
  "model.vocab_size=257", "model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24",
  "model.context_length=16", "training.batch_tokens=96", "training.micro_batch_size=2", "training.max_tokens=480",
  "training.epoch_tokens=480", "optimizer.lr=0.02", "evaluation.subset_blocks=5", "evaluation.batch_size=4",
  "decentralized.num_models=3", "decentralized.topology=one_peer_ring",
}

describe("recipes/evaluate.lua", function()
  local folder, run, result

  setup(function()
    folder = support.temporary()
    run = folder .. "/run"
    local lines = {}
    for i = 1, 300 do lines[i] = ("the %d workers of the ring mix, line %d\n"):format(i % 7, i) end
    support.write(folder .. "/text.txt", table.concat(lines))
    support.write(folder .. "/other.txt", ("quite another text, of few words\n"):rep(60))
    prepare.run {tokenizer = "bytes", train = {folder .. "/text.txt"}, validation = {folder .. "/other.txt"},
      output = folder .. "/cache", max_validation_tokens = 500, txt_documents = "line"}
    local code, _, err = support.run(("packlua recipes/train.lua --sample 0 --output %s --set data.text=%s/text.txt --set %s")
      :format(run, folder, table.concat(settings, " --set ")))
    assert.equal("", err)
    assert.equal(0, code)
    result = json.decode(files.read(run .. "/result.json"))
  end)
  teardown(function() support.remove(folder) end)

  -- The JSON that evaluating a file of the run gives, and what was printed.
  local function evaluate(name, arguments)
    local code, out, err = support.run(("packlua recipes/evaluate.lua --checkpoint %s/%s %s --output %s/out.json")
      :format(run, name, arguments or "", folder))
    assert.equal("", err)
    assert.equal(0, code, out)
    return assert(json.decode(files.read(folder .. "/out.json"))), out
  end

  local function assert_row_of_result(row)
    assert.equal(result.loss, row.loss)
    assert.equal(math.exp(row.loss), row.perplexity)
    assert.equal("average", row.weights)
    assert.equal(result.best.targets, row.targets)
    assert.is_true(row.validation_complete)
    assert.equal(5, row.step)
  end

  it("gives of the averaged weights the loss that the run had, from the file alone", function()
    local row, out = evaluate("epoch-001.safetensors", "--full")
    assert_row_of_result(row)
    assert.equal("average", row.content)
    assert.is_nil(row.workers)
    assert.is_truthy(out:find("the average of 3 workers after 5 steps", 1, true), out)
    assert.is_truthy(out:find(("average    loss %.4f"):format(result.loss), 1, true), out)
  end)

  it("gives of a state the same, as it averages the workers", function()
    local row = evaluate("epoch-001.state.safetensors.zst", "--full")
    assert_row_of_result(row)
    assert.equal("state", row.content)
  end)

  it("reads a state that was decompressed, too", function()
    local plain = run .. "/plain.safetensors"
    if os.execute(("zstd -q -d -o %s %s/epoch-001.state.safetensors.zst 2> /dev/null"):format(plain, run)) ~= 0 then
      return pending("there is no zstd program")
    end
    assert_row_of_result(evaluate("plain.safetensors", "--full"))
    os.remove(plain)
  end)

  it("evaluates each worker on the same data, from a state and from the files", function()
    for _, name in ipairs {"epoch-001.state.safetensors.zst", "epoch-001.safetensors"} do
      local row, out = evaluate(name, "--full --per-worker")
      assert_row_of_result(row)
      assert.equal(3, #row.workers)
      for i, worker in ipairs(row.workers) do
        assert.equal("worker", worker.weights)
        assert.equal(i - 1, worker.worker)
        assert.equal(result.loss_worker[i], worker.loss)
        assert.equal(row.targets, worker.targets)
        assert.is_truthy(out:find(("worker %d   loss %.4f"):format(i - 1, worker.loss), 1, true), out)
      end
      assert.equal(result.consensus_distance, row.consensus_distance)
    end
  end)

  it("evaluates one worker's file as that worker", function()
    local row = evaluate("node-002/epoch-001.safetensors", "--full")
    assert.equal("worker", row.weights)
    assert.equal(2, row.worker)
    assert.equal(result.loss_worker[3], row.loss)
    local same, out = evaluate("node-002/epoch-001.safetensors", "--full --per-worker")
    assert.is_nil(same.workers)
    assert.is_truthy(out:find("no workers are beside it", 1, true), out)
  end)

  it("takes the configuration's subset without --full, the same each time", function()
    local row = evaluate "epoch-001.safetensors"
    assert.equal(5, row.blocks)
    assert.is_true(row.targets > 4 * 16 and row.targets <= 5 * 16)
    assert.is_false(row.validation_complete)
    assert.equal(row.loss, evaluate("epoch-001.state.safetensors.zst").loss)
    assert.equal(3, evaluate("epoch-001.safetensors", "--set evaluation.subset_blocks=3").blocks)
  end)

  it("evaluates on other data when asked, and says so of a state", function()
    local row, out = evaluate("epoch-001.state.safetensors.zst", ("--full --text %s/other.txt"):format(folder))
    assert.is_true(math.abs(row.loss - result.loss) > 0.01)
    assert.is_truthy(out:find("this is not the data of the run", 1, true), out)
    assert.is_truthy(row.data:find("^text "))
  end)

  it("evaluates on a cache, whose cut-off validation is never complete", function()
    local row, out = evaluate("epoch-001.safetensors", ("--full --cache %s/cache"):format(folder))
    assert.equal("cache " .. cache.manifest(folder .. "/cache").identity, row.data)
    assert.equal(499, row.targets)
    assert.is_false(row.validation_complete)
    assert.is_truthy(out:find("500 tokens held out (cut off by the cache)", 1, true), out)
  end)

  it("writes beside the checkpoint by default, and leaves everything else as it is", function()
    local name = "epoch-001.state.safetensors.zst"
    local before, state = files.list(run), files.read(run .. "/" .. name)
    assert.equal(0, (support.run(("packlua recipes/evaluate.lua --checkpoint %s/%s"):format(run, name))))
    local after = files.list(run)
    table.insert(before, "epoch-001.state.evaluation.json")
    table.sort(before)
    assert.same(before, after)
    assert.is_true(state == files.read(run .. "/" .. name))
    os.remove(run .. "/epoch-001.state.evaluation.json")
  end)

  it("reads safetensors of other programs with a configuration of its own", function()
    local plain = folder .. "/plain.safetensors"
    local safetensors = require "pack.io.safetensors"
    local file, list = safetensors.open(run .. "/epoch-001.safetensors"), {}
    for i, name in ipairs(file:names()) do list[i] = {name = name, tensor = file:read_tensor(name)} end
    safetensors.write(plain, list)
    file:close()
    local code, _, err = support.run(("packlua recipes/evaluate.lua --checkpoint %s"):format(plain))
    assert.equal(2, code)
    assert.is_truthy(err:find("does not say what model it is of; --config FILE does", 1, true), err)
    local row = evaluate("../plain.safetensors", ("--full --config %s/resolved.json"):format(run))
    assert.equal(result.loss, row.loss)
    assert.equal("model", row.weights)
  end)

  describe("refuses", function()
    local function refused(expected, arguments, ...)
      local code, _, err = support.run("packlua recipes/evaluate.lua " .. arguments)
      assert.equal(expected, code, err)
      assert.is_falsy(err:find("traceback", 1, true), err)
      for _, word in ipairs {...} do assert.is_truthy(err:find(word, 1, true), ("%q is not in: %s"):format(word, err)) end
    end

    it("no checkpoint, one that is not there, and a folder", function()
      refused(2, "", "--checkpoint FILE")
      refused(2, "--checkpoint " .. folder .. "/nothing", folder .. "/nothing", "no such file")
      refused(2, "--checkpoint " .. run, run, "name one of its files")
    end)

    it("a damaged state and a damaged file, by name", function()
      local name = "epoch-001.state.safetensors.zst"
      local text = files.read(run .. "/" .. name)
      support.write(folder .. "/bad.state.safetensors.zst", text:sub(1, -2))
      refused(1, ("--checkpoint %s/bad.state.safetensors.zst"):format(folder), "/bad.state.safetensors.zst")
      support.write(folder .. "/bad.safetensors", files.read(run .. "/epoch-001.safetensors"):sub(1, -2))
      refused(1, ("--checkpoint %s/bad.safetensors"):format(folder), "/bad.safetensors")
    end)

    it("settings that change the model, naming both values", function()
      refused(2, ("--checkpoint %s/epoch-001.safetensors --set model.rope_theta=5"):format(run),
        "model.rope_theta = 10000", "5 is wanted")
      refused(2, ("--checkpoint %s/epoch-001.safetensors --config configs/20m.lua"):format(run), "model.")
    end)

    it("weights of other shapes than the configuration's", function()
      refused(2, ("--checkpoint %s/plain.safetensors --config %s/resolved.json --set model.ffn_width=32"):format(folder, run),
        "'blocks.0.ffn.gate_proj.weight' is [24, 16]", "[32, 16]")
    end)

    it("a run of which a worker's file is missing", function()
      os.rename(run .. "/node-001/epoch-001.safetensors", run .. "/node-001/away")
      refused(2, ("--checkpoint %s/epoch-001.safetensors --per-worker"):format(run), "of worker 1", "node-001")
      os.rename(run .. "/node-001/away", run .. "/node-001/epoch-001.safetensors")
    end)

    it("a cache and a text at once", function()
      refused(2, ("--checkpoint %s/epoch-001.safetensors --cache a --text b"):format(run), "one of them")
    end)
  end)
end)

describe("The recipes of finished weights", function()
  it("show their help, options and defaults without touching a device", function()
    local shown = {
      evaluate = "--per-worker", export = "--dtype f32|bf16", generate = "--top-p P", smoke = "(default configs/smoke-20m.lua)",
    }
    for recipe, text in pairs(shown) do
      local forbidden = 'package.preload["pack.core.context"] = function() error("a context was made") end'
      local code, out, err = support.run("packlua -e '" .. forbidden .. "' "
        .. ("recipes/%s.lua --help"):format(recipe))
      assert.equal("", err)
      assert.equal(0, code)
      assert.is_truthy(out:find(("usage: packlua recipes/%s.lua [options]\n"):format(recipe), 1, true), out)
      assert.is_truthy(out:find(text, 1, true), out)
    end
  end)
end)
