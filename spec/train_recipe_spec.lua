-- recipes/train.lua as users run it: what a run prints and leaves, and what it refuses.
local files = require "pack.io.files"
local json = require "pack.io.json"
local packed_model = require "pack.model.packed"
local loader = require "pack.data.loader"
local safetensors = require "pack.io.safetensors"
local support = require "spec.support.helper"
local text = require "pack.data.text"
local tokenizer = require "pack.data.tokenizer"

local STEPS, WORKERS, WIDTH, FFN, CONTEXT = 12, 4, 16, 24, 16

local settings = {
  "model.layers=1", "model.width=" .. WIDTH, "model.heads=2", "model.ffn_width=" .. FFN,
  "model.context_length=" .. CONTEXT, "training.batch_tokens=128", "training.micro_batch_size=2",
  "training.max_tokens=" .. STEPS * 128, "training.epoch_tokens=512", "training.log_every=5",
  "optimizer.lr=0.02", "evaluation.subset_blocks=8", "evaluation.batch_size=8",
}

-- The command line of a run of the tiny settings with more arguments.
local function command(output, arguments)
  local words = {"packlua recipes/train.lua --output", support.quote(output)}
  for _, setting in ipairs(settings) do words[#words + 1] = "--set " .. setting end
  words[#words + 1] = arguments or ""
  return table.concat(words, " ")
end

-- Text of about so many lines that is easy to learn.
local function lines_of_text(count)
  local lines = {}
  for i = 1, count do lines[i] = ("the %d workers of the ring mix, line %d\n"):format(i % 7, i) end
  return table.concat(lines)
end

local function rows_of(path)
  local rows = {}
  for line in files.read(path):gmatch("([^\n]*)\n") do rows[#rows + 1] = json.decode(line) end
  return rows
end

describe("recipes/train.lua", function()
  local folder, output, source, code, out, err, result
  setup(function()
    folder = support.temporary()
    output, source = folder .. "/run", folder .. "/text.txt"
    support.write(source, lines_of_text(300))
    code, out, err = support.run(command(output, "--sample 12 --prompt 'the ' --set data.text=" .. source))
    result = code == 0 and json.decode(files.read(output .. "/result.json"))
  end)
  teardown(function() support.remove(folder) end)

  it("trains and ends with exit code 0 and nothing on standard error", function()
    assert.equal("", err)
    assert.equal(0, code)
  end)

  it("prints plain lines when its output is no terminal", function()
    assert.is_truthy(out:find("run: " .. output, 1, true))
    assert.is_truthy(out:find(("model: 4 workers of %d parameters, one_peer_exponential, awc; 12 steps of 128 tokens")
      :format(257 * WIDTH + 4 * WIDTH * WIDTH + 3 * WIDTH * FFN + 3 * WIDTH), 1, true), out)
    for _, step in ipairs {1, 5, 10, 12} do
      assert.is_truthy(out:find(("\nstep %d/12 (%d%%)  loss "):format(step, math.floor(step / 12 * 100)), 1, true))
    end
    assert.is_falsy(out:find("\nstep 2/12", 1, true))
    assert.is_truthy(out:find("\nepoch 1: validation loss %d"))
    assert.is_truthy(out:find("\nvalidation loss [%d.]+ of the average %(perplexity [%d.]+%), "
      .. "[%d.]+ [%d.]+ [%d.]+ [%d.]+ of the workers\n"))
    assert.is_truthy(out:find("\nconsensus distance [%d.e-]+; unigram entropy [%d.]+\n"))
    assert.is_truthy(out:find("tok/s", 1, true))
    -- The model's bytes may be anything; what is printed of them has no controls.
    assert.is_falsy(out:find("[%z\1-\8\11-\31\127]"))
  end)

  it("ends with the prompt and what the averaged model continues it with", function()
    assert.is_truthy(out:find("\n\nthe ", 1, true))
  end)

  it("leaves exactly the files of a run", function()
    local names = files.list(output)
    table.sort(names)
    assert.same({"best.json", "environment.json", "epoch-003.safetensors", "epoch-003.state.safetensors.zst",
      "metrics.jsonl", "node-000", "node-001", "node-002", "node-003", "resolved.json", "result.json",
      "run.lock", "run.log"}, names)
  end)

  it("resolves what was left to it in resolved.json", function()
    local resolved = json.decode(files.read(output .. "/resolved.json"))
    assert.equal("cpu", resolved.runtime.device)
    assert.equal("boolean", type(resolved.runtime.amp))
    assert.equal("boolean", type(resolved.runtime.compile))
    assert.not_equal("auto", resolved.runtime.attention)
    assert.equal(CONTEXT, resolved.model.context_length)
    assert.equal(0.02, resolved.optimizer.lr)
    assert.same({source}, resolved.data.text)
  end)

  it("names device and command in environment.json", function()
    local environment = json.decode(files.read(output .. "/environment.json"))
    assert.equal("cpu", environment.device)
    assert.equal("recipes/train.lua", environment.command[2])
    assert.equal(require("pack.version"), environment.packlua)
  end)

  it("writes one line per step into metrics.jsonl", function()
    local steps = {}
    for _, row in ipairs(rows_of(output .. "/metrics.jsonl")) do
      if not row.split then steps[#steps + 1] = row end
    end
    assert.equal(STEPS, #steps)
    for i, row in ipairs(steps) do
      assert.equal(i - 1, row.step)
      assert.equal(i * 128, row.tokens)
      assert.equal(math.ceil(i / 4), row.epoch)
      assert.equal(i - 1, row.topology_phase)
      assert.equal(1, row.gamma)
      assert.equal(WORKERS, #row.loss_worker)
      assert.equal(WORKERS, #row.grad_norm_worker)
      for _, name in ipairs {"loss", "lr", "step_seconds", "tokens_per_second", "memory_bytes"} do
        assert.is_true(row[name] > 0, name)
      end
      assert.equal(i % 5 == 0, row.consensus_distance ~= nil)
    end
    assert.is_true(math.abs(steps[1].loss - math.log(257)) < 0.1)
    assert.is_true(steps[STEPS].loss < steps[1].loss - 0.5)
  end)

  it("evaluates after each epoch and at the end", function()
    local evaluations = {}
    for _, row in ipairs(rows_of(output .. "/metrics.jsonl")) do
      if row.split then evaluations[#evaluations + 1] = row end
    end
    assert.equal(3, #evaluations)
    for i, step in ipairs {4, 8, 12} do
      local row = evaluations[i]
      assert.equal(step, row.step)
      assert.equal("validation", row.split)
      assert.equal(i == 3, row.validation_complete)
      assert.is_true(math.abs(row.perplexity - math.exp(row.loss)) < 1e-9 * row.perplexity)
      assert.is_true(row.targets > 0 and row.tokens == step * 128)
    end
    -- Of the eight blocks the stream's last one may be short.
    assert.is_true(evaluations[1].targets > 7 * CONTEXT and evaluations[1].targets <= 8 * CONTEXT)
    assert.is_true(evaluations[3].targets > 8 * CONTEXT)
  end)

  it("states the outcome in result.json and the best evaluation in best.json", function()
    local rows = rows_of(output .. "/metrics.jsonl")
    assert.equal(rows[#rows].loss, result.loss)
    assert.equal(STEPS, result.steps)
    assert.equal("train", result.recipe)
    assert.equal(WORKERS, #result.loss_worker)
    assert.is_true(result.unigram_entropy > 2 and result.unigram_entropy < math.log(257))
    local best = json.decode(files.read(output .. "/best.json"))
    for _, row in ipairs(rows) do assert.is_true(not row.split or best.loss <= row.loss) end
    assert.same(best, result.best)
  end)

  it("repeats in run.log, with the time, what it printed", function()
    local log = files.read(output .. "/run.log")
    assert.is_truthy(log:find("%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%dZ step 10/12 "))
    assert.is_truthy(log:find("validation loss", 1, true))
    for line in out:match("^(.-)\n\n"):gmatch("[^\n]+") do
      assert.is_truthy(log:find(" " .. line .. "\n", 1, true), line)
    end
  end)

  it("leaves the average's weights, with names and shapes of one model, which give result.json's loss", function()
    local resolved = json.decode(files.read(output .. "/resolved.json"))
    local file = safetensors.open(output .. "/epoch-003.safetensors")
    assert.same({"embedding.weight", "blocks.0.attention_norm.weight", "blocks.0.attention.q_proj.weight",
      "blocks.0.attention.k_proj.weight", "blocks.0.attention.v_proj.weight",
      "blocks.0.attention.out_proj.weight", "blocks.0.ffn_norm.weight", "blocks.0.ffn.gate_proj.weight",
      "blocks.0.ffn.up_proj.weight", "blocks.0.ffn.down_proj.weight", "norm.weight"}, file:names())
    assert.same({257, WIDTH}, file:entry("embedding.weight").shape)
    assert.same({FFN, WIDTH}, file:entry("blocks.0.ffn.up_proj.weight").shape)
    assert.same({WIDTH, FFN}, file:entry("blocks.0.ffn.down_proj.weight").shape)
    assert.same({WIDTH}, file:entry("norm.weight").shape)
    assert.equal("F32", file:entry("norm.weight").dtype)
    local model = packed_model.create(resolved.model, {num_models = 1})
    for _, name in ipairs(model.names) do file:read_into(name, model.weight[name]) end
    file:close()
    local held_out = text.load({files = {source}, tokenizer = tokenizer.open "bytes"}).validation
    local blocks = loader.validation {tokens = held_out, context_length = CONTEXT, batch_size = 7}
    local sum, count = 0, 0
    for tokens, targets in blocks:each() do
      local loss, valid = model:loss(tokens, targets)
      sum, count = sum + loss:item(), count + valid:item()
    end
    model:free()
    assert.is_true(math.abs(sum / count - result.loss) < 1e-5, sum / count .. " is not " .. result.loss)
  end)

  it("gives the same numbers when it is run again", function()
    assert.equal(0, (support.run(command(folder .. "/again", "--sample 0 --set data.text=" .. source))))
    local again = json.decode(files.read(folder .. "/again/result.json"))
    assert.equal(result.loss, again.loss)
    assert.same(result.loss_worker, again.loss_worker)
    assert.equal(result.consensus_distance, again.consensus_distance)
    assert.is_true(files.read(output .. "/epoch-003.safetensors"):sub(-4096)
      == files.read(folder .. "/again/epoch-003.safetensors"):sub(-4096))
  end)

  it("refuses a folder that holds a run, and changes nothing in it", function()
    local before = files.read(output .. "/result.json")
    local again, _, message = support.run(command(output, "--set data.text=" .. source))
    assert.equal(2, again)
    assert.is_truthy(message:find(output, 1, true))
    assert.is_truthy(message:find("holds another run", 1, true), message)
    assert.equal(before, files.read(output .. "/result.json"))
    assert.is_falsy(message:find("traceback", 1, true))
  end)

  it("draws a bar on a terminal", function()
    if os.execute("command -v script > /dev/null 2>&1") ~= 0 then return pending("there is no script(1)") end
    local line = command(folder .. "/terminal", "--sample 0 --set data.text=" .. source)
      :gsub("^packlua", (support.quote(support.program):gsub("%%", "%%%%")))
    support.write(folder .. "/line.sh", "stty cols 120\n" .. line .. "\n")
    local status, screen = support.run(("TERM=xterm script -qec 'sh %s/line.sh' /dev/null"):format(folder))
    assert.equal(0, status, screen)
    assert.is_truthy(screen:find("\r\27[K", 1, true))
    assert.is_truthy(screen:find("100%% %[#+%] step 12/12  loss [%d.]+, [%d.]+k? tok/s"), screen)
    assert.is_truthy(files.read(folder .. "/terminal/run.log"):find("step 10/12", 1, true))
  end)
end)

describe("recipes/train.lua refuses", function()
  local folder, source
  setup(function()
    folder = support.temporary()
    source = folder .. "/text.txt"
    support.write(source, lines_of_text(100))
  end)
  teardown(function() support.remove(folder) end)

  -- Fails unless the run ends with the code and the words in its message, and, for a usage error, says
  -- nothing else and leaves no folder.
  local function refused(expected, words, arguments)
    local output = folder .. "/refused"
    local code, out, err = support.run(command(output, "--set data.text=" .. source .. " " .. arguments))
    assert.equal(expected, code, err)
    for _, word in ipairs(words) do
      assert.is_truthy(err:find(word, 1, true), ("%q is not in: %s"):format(word, err))
    end
    if expected == 2 then
      assert.is_falsy(err:find("traceback", 1, true), err)
      assert.equal("", out)
      assert.is_false(files.exists(output))
    end
    os.execute("rm -rf " .. support.quote(output))
  end

  local function text_refused(name, content, words)
    local path = folder .. "/" .. name
    if content then support.write(path, content) end
    words[#words + 1] = path
    refused(2, words, "--set data.text=" .. path)
  end

  it("text that is missing, empty, binary, a folder or a pipe", function()
    text_refused("missing.txt", nil, {"there is no such file"})
    text_refused("empty.txt", "", {"the file is empty"})
    text_refused("binary.txt", "abc\0def", {"not a text file", "byte 3 is NUL"})
    text_refused(".", nil, {"a directory, not a text file"})
    assert.equal(0, os.execute("mkfifo '" .. folder .. "/pipe'"))
    text_refused("pipe", nil, {"not a regular file"})
  end)

  it("the missing one of several texts", function()
    refused(2, {"/none.txt: there is no such file"}, ("--set data.text=%s,%s/none.txt"):format(source, folder))
  end)

  it("text too short for a sample, and with nothing held out", function()
    support.write(folder .. "/short.txt", "short")
    refused(2, {"the text is too short", "5 tokens to train on", "one sample takes 17"},
      "--set data.text=" .. folder .. "/short.txt")
  end)

  it("a width that the heads do not divide", function()
    refused(2, {"model.width 16 is not divisible by model.heads 3"}, "--set model.heads=3")
  end)

  it("a batch that is not made of whole micro-steps", function()
    refused(2, {"training.batch_tokens 130", "decentralized.num_models 4", "training.micro_batch_size 2",
      "model.context_length 16 = 128"}, "--set training.batch_tokens=130")
  end)

  it("an unknown topology, naming the known ones", function()
    refused(2, {'decentralized.topology = "rong"', "one_peer_exponential", "hypercube"},
      "--set decentralized.topology=rong")
  end)

  it("a number of workers that the topology cannot have, naming valid ones", function()
    refused(2, {"hypercube", "N = 3", "1, 2, 4, 8, 16"}, "--set decentralized.topology=hypercube "
      .. "--set decentralized.num_models=3 --set training.batch_tokens=96 --set training.max_tokens=960")
    refused(2, {"hierarchical", "N = 4", "3"}, "--set decentralized.topology=hierarchical --set decentralized.group=3")
  end)

  it("an unknown key or option, suggesting the nearest", function()
    refused(2, {"there is no key model.widht; did you mean model.width?"}, "--set model.widht=3")
    refused(2, {"there is no option --promt; did you mean --prompt?"}, "--promt x")
  end)

  it("values of a wrong type or out of range", function()
    refused(2, {"optimizer.lr", "fast"}, "--set optimizer.lr=fast")
    refused(2, {"model.layers", "0"}, "--set model.layers=0")
    refused(2, {"--sample -1"}, "--sample=-1")
  end)

  it("a vocabulary smaller than the tokenizer's", function()
    refused(2, {"model.vocab_size 200", "257"}, "--set model.vocab_size=200")
  end)

  it("a device that is not there", function()
    refused(2, {"gpu", "runtime.device"}, "--device gpu")
  end)

  it("a tokenizer that is not there", function()
    local code, _, err = support.run(command(folder .. "/refused", "--set data.tokenizer=" .. folder .. "/none.model"))
    assert.is_true(code == 1 or code == 2)
    assert.is_truthy(err:find("none.model", 1, true), err)
  end)

  it("a configuration file that is missing or broken, by name and line", function()
    support.write(folder .. "/broken.lua", "return {\n  model = {,\n}\n")
    refused(2, {"nothing.lua"}, "--config " .. folder .. "/nothing.lua")
    refused(2, {"broken.lua:2:"}, "--config " .. folder .. "/broken.lua")
  end)

  it("a folder that holds something else", function()
    local output = folder .. "/mine"
    os.execute("mkdir " .. output)
    support.write(output .. "/thesis.tex", "x")
    local code, _, err = support.run(command(output, "--set data.text=" .. source))
    assert.equal(2, code)
    assert.is_truthy(err:find("the folder is not empty", 1, true), err)
    assert.same({"thesis.tex"}, files.list(output))
  end)

  it("to go on when memory runs out, naming the request and what is in use", function()
    refused(1, {"out of memory", "for parameters would pass the limit of 1.0 MiB", "in use:",
      "runtime.memory_limit_mib"}, "--set runtime.memory_limit_mib=1 --set model.width=128 --set model.heads=4")
    refused(1, {"out of memory", "would pass the limit of 4.0 MiB", "in use: parameters ", "gradients ", "moments "},
      "--set runtime.memory_limit_mib=4 --set model.width=64 --set model.ffn_width=128")
  end)
end)

describe("Start-up", function()
  -- Opening a context loads this module and starts threads.
  local forbid = "packlua -e 'package.preload[\"pack.core.context\"] = function() error(\"a context was made\") end' "

  it("of an empty program loads no part of the library", function()
    local code, out = support.run("packlua -e 'print(package.loaded[\"pack.native\"], package.loaded[\"pack.core.context\"])'")
    assert.equal(0, code)
    assert.equal("nil\tnil\n", out)
    assert.equal(0, (support.run("packlua -e ''")))
  end)

  it("of --help makes no context", function()
    for _, recipe in ipairs {"train", "verify"} do
      local code, out, err = support.run(forbid .. "recipes/" .. recipe .. ".lua --help")
      assert.equal("", err)
      assert.equal(0, code)
      assert.is_truthy(out:find(("usage: packlua recipes/%s.lua [options]"):format(recipe), 1, true))
    end
  end)

  it("of a run makes one", function()
    local code, _, err = support.run(forbid .. "recipes/verify.lua x")
    assert.equal(1, code)
    assert.is_truthy(err:find("a context was made", 1, true))
  end)
end)
