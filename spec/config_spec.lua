-- Configurations: presets, three file formats with one meaning, --set, and every refusal.
local config = require "pack.config"
local json = require "pack.io.json"
local schema = require "pack.config.schema"

-- Writes text to a temporary file with the given extension and calls f with its path.
local function with_file(extension, text, f)
  local stem = os.tmpname()
  local path = stem .. extension
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
  local good, message = pcall(f, path)
  os.remove(path)
  os.remove(stem)
  if not good then error(message, 0) end
end

-- The message of a usage error, which must end the program with code 2.
local function usage_error(f, ...)
  local good, object = pcall(f, ...)
  assert.is_false(good)
  assert.equal("table", type(object), tostring(object))
  assert.equal(2, object.exit)
  return tostring(object)
end

local function refused(overrides, message)
  local got = usage_error(config.resolve, {table = overrides, source = "case"})
  assert.is_truthy(got:find(message, 1, true), ("%q does not contain %q"):format(got, message))
end

local function set_refused(setting, message)
  local got = usage_error(config.resolve, {set = {setting}})
  assert.is_truthy(got:find(message, 1, true), ("%q does not contain %q"):format(got, message))
end

local function file_refused(extension, text, message)
  with_file(extension, text, function(path)
    local got = usage_error(config.load, path)
    assert.is_truthy(got:find(path, 1, true), ("%q does not name the file"):format(got))
    assert.is_truthy(got:find(message, 1, true), ("%q does not contain %q"):format(got, message))
  end)
end

describe("The presets", function()
  it("have the parameter counts of the published models", function()
    local expected = {
      ["20m"] = 20403520, ["50m"] = 48507392, ["90m"] = 91605120, ["250m"] = 251943360, ["500m"] = 516814080,
    }
    for name, parameters in pairs(expected) do
      local preset = config.load("configs/" .. name .. ".lua")
      assert.equal(parameters, config.parameters(preset.model), name)
      assert.equal(32000, preset.model.vocab_size)
      assert.equal(1024, preset.model.context_length)
    end
  end)

  it("hold the tuned settings", function()
    local function facts(name)
      local c = config.load("configs/" .. name .. ".lua")
      return {c.decentralized.num_models, c.training.micro_batch_size, c.training.batch_tokens,
        c.optimizer.lr, c.optimizer.beta1, c.optimizer.beta2, c.decentralized.scheme}
    end
    assert.same({1, 128, 131072, 0.0056, 0.9, 0.98, "awc"}, facts "20m-tuned")
    assert.same({4, 32, 131072, 0.008, 0.95, 0.99, "awc"}, facts "packed4-20m-awc")
    assert.same({4, 32, 131072, 0.0056, 0.9, 0.99, "atc"}, facts "packed4-20m-atc")
    assert.same({8, 16, 131072, 0.0056, 0.95, 0.999, "awc"}, facts "packed8-20m-awc")
    assert.same({1, 32, 32768, 0.001, 0.9, 0.99, "awc"}, facts "50m")
    assert.same({1, 32, 32768, 0.001, 0.9, 0.99, "awc"}, facts "90m")
  end)

  it("are valid, tiny and smoke included", function()
    local tiny = config.load "configs/tiny.lua"
    assert.equal(4, tiny.decentralized.num_models)
    assert.equal("one_peer_exponential", tiny.decentralized.topology)
    assert.equal("bytes", tiny.data.tokenizer)
    for _, name in ipairs {"smoke", "smoke-20m"} do
      local smoke = config.load("configs/" .. name .. ".lua")
      assert.equal(4, smoke.decentralized.num_models)
      assert.equal(2, smoke.training.max_tokens / smoke.training.batch_tokens)
    end
    local real = config.load "configs/smoke-20m.lua"
    assert.equal(20403520, config.parameters(real.model))
    assert.equal(65536, real.training.max_tokens)
  end)
end)

describe("A configuration", function()
  it("has every key of the schema, with false for what is off", function()
    local c = config.resolve {}
    for _, row in ipairs(schema.rows) do
      assert.is_not_nil(c[row.section][row.name], row.key)
      assert.is_not_nil(row.help, row.key)
      assert.is_truthy(row.resume == "free" or row.resume == "same", row.key)
    end
    assert.is_false(c.training.max_tokens)
    assert.equal(0.95, c.optimizer.beta2)
  end)

  it("has defaults that its own schema accepts", function()
    local c = config.resolve {table = config.defaults()}
    assert.same(config.resolve {}, c)
  end)

  it("means the same in Lua, JSON and YAML", function()
    local lua = [[
      return {model = {layers = 2, width = 64, heads = 4}, data = {text = {"a.txt", "b.txt"}, prefetch = false},
        optimizer = {lr = 1e-3, grad_clip = false}, training = {batch_tokens = 16384, micro_batch_size = 4,
        checkpoint_policy = "explicit", checkpoint_epochs = {1, 10}}, runtime = {amp = true},
        decentralized = {num_models = 4, topology = "ring", adaptive_consensus = {start_frac = 0.25, p = 2}}}]]
    local as_json = [[{"model": {"layers": 2, "width": 64, "heads": 4},
      "data": {"text": ["a.txt", "b.txt"], "prefetch": false}, "optimizer": {"lr": 1e-3, "grad_clip": null},
      "training": {"batch_tokens": 16384, "micro_batch_size": 4, "checkpoint_policy": "explicit",
      "checkpoint_epochs": [1, 10]}, "runtime": {"amp": true}, "decentralized": {"num_models": 4,
      "topology": "ring", "adaptive_consensus": {"start_frac": 0.25, "p": 2}}}]]
    local yaml = table.concat({
      "# comments are allowed", "model:", "  layers: 2", "  width: 64", "  heads: 4",
      "data:", "  text: [a.txt, 'b.txt']", "  prefetch: no",
      "optimizer:", "  lr: 1e-3", "  grad_clip: null",
      "training:", "  batch_tokens: 16_384", "  micro_batch_size: 4", "  checkpoint_policy: explicit",
      "  checkpoint_epochs:", "    - 1", "    - 10", "runtime: {amp: true}", "evaluation:",
      "decentralized:", "  num_models: 4", "  topology: ring", "  adaptive_consensus: {start_frac: 0.25, p: 2.0}", "",
    }, "\n")
    local results = {}
    for extension, text in pairs {[".lua"] = lua, [".json"] = as_json, [".yaml"] = yaml, [".yml"] = yaml} do
      with_file(extension, text, function(path) results[extension] = config.load(path) end)
    end
    assert.equal(2, results[".lua"].model.layers)
    assert.is_false(results[".lua"].optimizer.grad_clip)
    assert.same({"a.txt", "b.txt"}, results[".lua"].data.text)
    assert.same(results[".lua"], results[".json"])
    assert.same(results[".lua"], results[".yaml"])
    assert.same(results[".lua"], results[".yml"])
    -- Without a known extension the content decides.
    for extension, text in pairs {[".lua"] = lua, [".json"] = as_json, [".yaml"] = yaml} do
      with_file(".conf", text, function(path) assert.same(results[extension], config.load(path)) end)
    end
  end)

  it("written as JSON reads back to the same", function()
    local settings = {"optimizer.lr=0.0037", "optimizer.grad_clip=off", "data.text=a.txt,b.txt",
      "training.max_tokens=655360", "decentralized.adaptive_consensus.p=2"}
    for _, preset in ipairs {"tiny", "20m", "packed8-20m-awc"} do
      local c = config.load("configs/" .. preset .. ".lua", settings)
      with_file(".json", config.encode(c), function(path) assert.same(c, config.load(path)) end)
      assert.equal(json.null, json.decode(config.encode(c)).optimizer.grad_clip)
    end
  end)
end)

describe("--set", function()
  local function set(...)
    return config.resolve {set = {...}}
  end

  it("reads the text by the type of the key", function()
    local c = set("model.layers=3", "optimizer.lr=1e-3", "data.prefetch=off", "data.text=a.txt,b.txt",
      "optimizer.schedule=wsd", "runtime.amp=on", "runtime.device=cuda:1", "optimizer.grad_clip=off",
      "training.checkpoint_policy=explicit", "training.checkpoint_epochs=1,10", "runtime.output_dir=a=b")
    assert.equal(3, c.model.layers)
    assert.equal(0.001, c.optimizer.lr)
    assert.is_false(c.data.prefetch)
    assert.same({"a.txt", "b.txt"}, c.data.text)
    assert.equal("wsd", c.optimizer.schedule)
    assert.is_true(c.runtime.amp)
    assert.equal("cuda:1", c.runtime.device)
    assert.is_false(c.optimizer.grad_clip)
    assert.same({1, 10}, c.training.checkpoint_epochs)
    assert.equal("a=b", c.runtime.output_dir)
  end)

  it("reaches into adaptive_consensus, whose other field keeps its default", function()
    assert.same({start_frac = 0, p = 2}, set("decentralized.adaptive_consensus.p=2").decentralized.adaptive_consensus)
    assert.is_false(set("decentralized.adaptive_consensus.p=2", "decentralized.adaptive_consensus=off")
      .decentralized.adaptive_consensus)
  end)

  it("overrides the file, the last one winning", function()
    local c = config.load("configs/tiny.lua", {"optimizer.lr=0.5", "optimizer.lr=0.25"})
    assert.equal(0.25, c.optimizer.lr)
  end)

  it("refuses what the key cannot be, showing key, value and what is allowed", function()
    set_refused("model.layers=two",
      '--set model.layers=two: model.layers = "two"; it must be a whole number, at least 1')
    set_refused("model.layers=2.5", "model.layers = 2.5; it must be a whole number")
    set_refused("model.layers=0", "model.layers = 0; it must be a whole number, at least 1 and at most 1024")
    set_refused("optimizer.lr=nan", 'optimizer.lr = "nan"')
    set_refused("optimizer.lr=1e400", 'optimizer.lr = "1e400"')
    set_refused("runtime.seed=9007199254740992", "runtime.seed")
    set_refused("runtime.seed=9007199254740991.4", "runtime.seed")
    set_refused("runtime.seed=4503599627370497.5", "runtime.seed")
    set_refused("optimizer.lr=0x10", 'optimizer.lr = "0x10"')
    set_refused("data.text=a.txt,,b.txt", "data.text = a table; it must be a list of strings")
    set_refused("optimizer.schedule=cosin", "one of cosine, wsd, constant")
    set_refused("optimizer.lr", "expected section.key=value")
    set_refused("optimizer.lr=", "optimizer.lr")
    set_refused("decentralized.adaptive_consensus.q=1", "no key decentralized.adaptive_consensus.q")
    set_refused("decentralized.adaptive_consensus.p=-1", "decentralized.adaptive_consensus.p = -1")
  end)
end)

describe("A key that is not there", function()
  it("is refused with the nearest name", function()
    refused({model = {widht = 320}}, "case: there is no key model.widht; did you mean model.width?")
    refused({optimizer = {learning_rat = 1}}, "did you mean optimizer.lr?")
    refused({modle = {width = 320}}, "there is no key modle; did you mean model?")
    refused({lr = 1}, "there is no key lr; did you mean optimizer.lr?")
    refused({model = {lr = 1}}, "did you mean optimizer.lr?")
    refused({optimizer = {zzzzzzzzzzzz = 1}}, "there is no key optimizer.zzzzzzzzzzzz; --help lists them all")
    set_refused("optimizer.learning_rat=1", "did you mean optimizer.lr?")
    set_refused("optimiser.lr=1", "did you mean optimizer.lr?")
    set_refused("lr=1", "did you mean optimizer.lr?")
  end)
end)

describe("A value out of place", function()
  it("is refused with key, value and what is allowed", function()
    refused({optimizer = {lr = "abc"}}, 'case: optimizer.lr = "abc"; it must be a number, at least 0 and at most 100')
    refused({optimizer = {beta1 = 1}}, "optimizer.beta1 = 1; it must be a number, at least 0 and below 1")
    refused({optimizer = {eps = 0}}, "optimizer.eps = 0; it must be a number, above 0")
    refused({optimizer = {grad_clip = 0}}, "optimizer.grad_clip = 0; it must be a number, above 0")
    refused({optimizer = {lr = false}}, "optimizer.lr = false")
    refused({optimizer = {lr = json.null}}, "optimizer.lr = null")
    refused({model = {layers = {}}}, "model.layers = a table")
    refused({model = {layers = 2 ^ 60}}, "model.layers")
    refused({data = {prefetch = 1}}, "data.prefetch = 1; it must be true or false")
    refused({data = {text = {"a", 1}}}, "data.text = a table; it must be a list of strings, or off")
    refused({runtime = {device = "gpu"}}, 'runtime.device = "gpu"; it must be auto, cpu, emu or cuda:K')
    refused({runtime = {amp = "yes"}}, "one of auto, on, off")
    refused({decentralized = {topology = "circle"}}, "one of complete, one_peer_ring")
    refused({decentralized = {adaptive_consensus = {q = 1}}}, "no key decentralized.adaptive_consensus.q")
    refused({model = 3}, "case: model = 3; it must be a table of keys")
    refused({1, 2}, "a table of sections (model, data")
  end)
end)

describe("Keys that do not fit together", function()
  it("are refused with their values", function()
    refused({model = {width = 320, heads = 6}}, "model.width 320 is not divisible by model.heads 6")
    refused({model = {width = 15, heads = 5}}, "model.width 15 / model.heads 5 is a head of 3")
    refused({decentralized = {num_models = 3}, training = {micro_batch_size = 8}},
      "training.batch_tokens 32768 is not a whole multiple of decentralized.num_models 3 * "
      .. "training.micro_batch_size 8 * model.context_length 1024 = 24576")
    refused({decentralized = {num_models = 4}}, "training.micro_batch_size 8 would fit")
    refused({training = {tokens_per_parameters = 20, epoch_tokens_per_parameters = 0.3}},
      "tokens_per_parameters 20 is not a whole multiple of training.epoch_tokens_per_parameters 0.3")
    refused({training = {max_tokens = 1000}}, "training.max_tokens 1000 is less than one batch")
    refused({training = {tokens_per_parameters = 5e-4, epoch_tokens_per_parameters = 5e-4}}, "nothing to train")
    refused({training = {checkpoint_policy = "interval"}}, "needs training.checkpoint_epochs = K")
    refused({training = {checkpoint_policy = "interval", checkpoint_epochs = {1, 2}}}, "a whole number")
    refused({training = {checkpoint_policy = "explicit"}}, "a list such as {1, 10}")
    refused({training = {checkpoint_epochs = 2}}, "checkpoint_policy final does not use it")
    refused({optimizer = {schedule = "wsd", warmup_fraction = 0.9}}, "overlap")
    refused({model = {vocab_size = 256}, data = {tokenizer = "bytes"}}, "model.vocab_size 256 is less than the 257 ids")
    refused({decentralized = {num_models = 3, topology = "hypercube"}, training = {batch_tokens = 3 * 32 * 1024}},
      "decentralized.topology hypercube, decentralized.num_models 3")
    refused({decentralized = {topology = "hierarchical"}}, "needs decentralized.group")
  end)

  it("allow ratios that are whole up to rounding", function()
    local c = config.resolve {table = {training = {tokens_per_parameters = 0.3, epoch_tokens_per_parameters = 0.1}}}
    assert.equal(0.3, c.training.tokens_per_parameters)
  end)
end)

describe("A configuration file", function()
  it("that is missing, a folder, empty or broken is refused by name", function()
    local got = usage_error(config.load, "configs/40m.lua")
    assert.is_truthy(got:find("--config configs/40m.lua: there is no such file", 1, true))
    assert.is_truthy(usage_error(config.load, "."):find("not a file", 1, true))
    file_refused(".lua", "", "not a table")
    file_refused(".lua", "return {model = {layers = 2}", ":1: '}' expected")
    file_refused(".json", "", "empty, not JSON")
    file_refused(".json", '{"model": {"layers": 2}', "the text ends inside")
    file_refused(".yaml", "model: [", "not valid YAML")
    file_refused(".yaml", "hello", "must hold a table of sections")
    file_refused(".json", "[1]", "must hold a table of sections")
    file_refused(".lua", "return {model = {widht = 1}}", "did you mean model.width?")
  end)

  it("is read with a byte order mark, whatever its name ends with", function()
    local mark = "\239\187\191"
    for _, case in ipairs {{".yaml", "optimizer:\n  lr: 2e-5\n"}, {".json", '{"optimizer": {"lr": 2e-5}}'},
      {".lua", "return {optimizer = {lr = 2e-5}}"}, {".conf", "return {optimizer = {lr = 2e-5}}"},
      {".conf", '{"optimizer": {"lr": 2e-5}}'}, {".conf", "optimizer:\n  lr: 2e-5\n"}} do
      with_file(case[1], mark .. case[2], function(path) assert.equal(2e-5, config.load(path).optimizer.lr) end)
    end
  end)

  it("takes a leading ~/ for the home folder in every key that is a path", function()
    local home = os.getenv("HOME")
    local got = config.resolve {table = {data = {text = {"~/a", "b"}, tokenizer = "~/t.model"}, runtime = {output_dir = "~/runs/b"}},
      set = {"data.cache_dir=~/cache"}}
    assert.same({home .. "/a", "b"}, got.data.text)
    assert.equal(home .. "/t.model", got.data.tokenizer)
    assert.equal(home .. "/runs/b", got.runtime.output_dir)
    assert.equal(home .. "/cache", got.data.cache_dir)
    set_refused("runtime.output_dir=~somebody/runs", "only ~/ is known")
  end)

  it("that tries more than to build a table is stopped", function()
    file_refused(".lua", "while true do end", "runs for more than 10000000 instructions")
    file_refused(".lua", "os.execute('true') return {}", ":1: there is no variable 'os'")
    file_refused(".lua", "local s = 'x' while true do s = s .. s end", "builds more than 64 MiB")
    file_refused(".lua", "return {data = {tokenizer = ('a'):rep(1e9)}}", "attempt to index a string value")
    file_refused(".lua", "return {data = {tokenizer = ('a'):match(('a?'):rep(40))}}", "attempt to index a string value")
    file_refused(".lua", "require('ffi').cdef'' return {}", "there is no variable 'require'")
    file_refused(".lua", string.dump(loadstring "return {}"), "is bytecode")
    file_refused(".lua", (" "):rep(2 ^ 20 + 1), "")
  end)

  it("is empty in YAML: all defaults", function()
    with_file(".yaml", "# nothing here\n", function(path)
      assert.same(config.resolve {}, config.load(path))
    end)
  end)

  it("that belongs to packlua is found from any folder", function()
    local home = assert(require("pack.native").home())
    local path = config.find "configs/20m.lua"
    assert.is_truthy(path == "configs/20m.lua" or path == home .. "/configs/20m.lua")
  end)
end)

describe("a seed that a double cannot hold", function()
  -- Read as doubles, 2^53 and 2^53 + 1 are the same number.
  it("is refused wherever it comes from", function()
    for _, seed in ipairs {"9007199254740992", "9007199254740993", "18446744073709551615"} do
      for _, key in ipairs {"data.shuffle_seed", "evaluation.seed", "runtime.seed"} do
        local section, name = key:match("(%w+)%.([%w_]+)")
        local message = usage_error(config.load, "configs/tiny.lua", {key .. "=" .. seed})
        assert.truthy(message:find("below 9007199254740992", 1, true), message)
        for extension, format in pairs {[".json"] = '{"%s": {"%s": %s}}', [".yaml"] = "%s:\n  %s: %s\n",
          [".lua"] = "return {%s = {%s = %s}}"} do
          with_file(extension, format:format(section, name, seed), function(path)
            local got = usage_error(config.load, path)
            assert.truthy(got:find("is not below 2^53 in magnitude", 1, true), got)
          end)
        end
      end
    end
  end)

  it("is read and written with all its digits where it is the largest that is held", function()
    local text = config.encode(config.load("configs/tiny.lua", {"runtime.seed=9007199254740991"}))
    assert.truthy(text:find('"seed": 9007199254740991', 1, true))
    assert.equal("9007199254740991", schema.show(2 ^ 53 - 1))
  end)
end)
