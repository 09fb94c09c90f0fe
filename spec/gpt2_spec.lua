-- The gpt2 architecture: its numbers, and that whatever works for llama works for it.
local architectures = require "pack.model.architectures"
local checkpoint = require "pack.run.checkpoint"
local config_module = require "pack.config"
local context = require "pack.core.context"
local ffi = require "ffi"
local files = require "pack.io.files"
local grad = require "pack.grad"
local gradcheck = require "pack.grad.gradcheck"
local json = require "pack.io.json"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local packed = require "pack.model.packed"
local sequential = require "pack.benchmark.sequential"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"
local trainer = require "pack.train.trainer"

local config = {architecture = "gpt2", vocab_size = 7, layers = 1, width = 4, heads = 2, ffn_width = 6,
  context_length = 4, norm_eps = 1e-5, init_std = 0.5}

-- Tokens or targets [n, rows, length]: worker w's are a function of (w, salt) alone.
local function tokens_of(n, rows, salt, length)
  local list = {}
  for w = 1, n do
    list[w] = {}
    for b = 1, rows do
      list[w][b] = {}
      for t = 1, length or config.context_length do
        list[w][b][t] = (w * 31 + b * 17 + t * t * 5 + salt * 3) % config.vocab_size
      end
    end
  end
  return tensor.from(list, "i32")
end

-- A model whose parameters all differ, from worker to worker too.
local function create(n, dtype, options)
  local model = packed.create(config, {num_models = n, dtype = dtype, amp = options and options.amp})
  model:initialize(7)
  for w = 0, n - 1 do
    local row = model.arena:row(w).tensor
    local values, count = row:read_numbers()
    for i = 0, count - 1 do values[i] = values[i] + 0.1 * math.sin(i * (w + 1)) end
    row:write_numbers(values, count)
    row:free()
  end
  return model
end

local function copy_of_worker(model, w, options)
  local one = packed.create(config, {num_models = 1, dtype = model.dtype, amp = options.amp})
  for _, name in ipairs(model.names) do
    ops.slice(model.weight[name], {axis = 0, start = w, count = 1, out = one.weight[name]})
  end
  return one
end

describe("a gpt2 model", function()
  support.watch()

  it("has its parameters in layout order, and as many as the formula says", function()
    local model = create(2, "f32")
    assert.same({"embedding.weight", "positions.weight", "blocks.0.attention_norm.weight",
      "blocks.0.attention_norm.bias", "blocks.0.attention.qkv_proj.weight",
      "blocks.0.attention.qkv_proj.bias"}, {unpack(model.names, 1, 6)})
    assert.equal("norm.bias", model.names[#model.names])
    local d, f = 4, 6
    local expected = 7 * d + 4 * d + (4 * d * d + 2 * d * f + 9 * d + f) + 2 * d
    assert.equal(expected, model.layout.parameters)
    assert.equal(expected, architectures.parameters(config))
    assert.equal(expected, config_module.parameters(config))
    -- Neither positions nor vectors multiply a matrix.
    assert.equal(7 * d + 4 * d * d + 2 * d * f, architectures.multiplied(config))
    model:free()
  end)

  it("has, at the sizes of GPT-2, its 124,439,808 parameters", function()
    assert.equal(124439808, architectures.parameters {architecture = "gpt2", vocab_size = 50257,
      layers = 12, width = 768, heads = 12, ffn_width = 3072, context_length = 1024})
  end)

  it("begins with norms of 1, biases of 0 and smaller weights into the residual stream", function()
    local wide = {architecture = "gpt2", vocab_size = 300, layers = 2, width = 64, heads = 2,
      ffn_width = 128, context_length = 100, norm_eps = 1e-5, init_std = 0.02}
    local model = packed.create(wide, {num_models = 1})
    model:initialize(42)
    local function moments(name)
      local values, count = model.weight[name]:read_numbers()
      local sum, squares = 0, 0
      for i = 0, count - 1 do sum, squares = sum + values[i], squares + values[i] ^ 2 end
      return sum / count, math.sqrt(squares / count - (sum / count) ^ 2)
    end
    assert.same({1, 0}, {moments "blocks.1.ffn_norm.weight"})
    assert.same({0, 0}, {moments "blocks.0.attention_norm.bias"})
    assert.same({0, 0}, {moments "blocks.0.ffn.down_proj.bias"})
    for name, deviation in pairs {["embedding.weight"] = 0.02, ["positions.weight"] = 0.02,
      ["blocks.1.ffn.up_proj.weight"] = 0.02, ["blocks.0.attention.out_proj.weight"] = 0.01,
      ["blocks.1.ffn.down_proj.weight"] = 0.01} do
      assert.is_near(deviation, select(2, moments(name)), 0.04 * deviation, name)
    end
    model:free()
  end)

  it("has the gradients of its loss by differences, of every parameter", function()
    local model = create(2, "f64")
    local tokens, targets = tokens_of(2, 2, 1), tokens_of(2, 2, 2)
    gradcheck.gradcheck(function()
      return (model:loss(tokens, targets))
    end, model.weights, {eps = 1e-5})
    model:free()
  end)

  it("has second derivatives, by differences of its gradients", function()
    local model = create(1, "f64")
    local tokens, targets = tokens_of(1, 1, 1), tokens_of(1, 1, 2)
    for _, name in ipairs {"positions.weight", "blocks.0.attention.qkv_proj.bias",
      "blocks.0.ffn.up_proj.weight", "norm.bias"} do
      gradcheck.gradgradcheck(function()
        return (model:loss(tokens, targets))
      end, {model.weight[name]})
    end
    model:free()
  end)

  for _, case in ipairs {{"f64", false}, {"f32", false}, {"f32", true}} do
    local dtype, amp = unpack(case)
    local words = ("%s, amp %s"):format(dtype, tostring(amp))
    it("gives each worker the loss and gradient of an ordinary model: " .. words, function()
      local n, tolerance = 3, amp and 2e-3 or dtype == "f32" and 1e-5 or 1e-12
      local model = create(n, dtype, {amp = amp})
      local tokens, targets = tokens_of(n, 2, 1), tokens_of(n, 2, 2)
      local gradients = model:zeros_like("gradients")
      local losses = model:backward(tokens, targets, gradients):totable()
      for w = 0, n - 1 do
        local alone = copy_of_worker(model, w, {amp = amp})
        local own = alone:zeros_like("gradients")
        local function part(t) return tensor.from({t:totable()[w + 1]}, "i32") end
        local loss = alone:backward(part(tokens), part(targets), own)
        assert.is_near(loss:item(), losses[w + 1], tolerance * loss:item())
        numbers.assert_close(numbers.flat(own.tensor), gradients:row(w).tensor, tolerance, tolerance)
        own:free()
        alone:free()
      end
      gradients:free()
      model:free()
    end)
  end

  it("takes shorter sequences than its context, to the same logits, and refuses longer ones", function()
    local model = create(2, "f64")
    local whole = model:logits(tokens_of(2, 1, 1)):totable()
    local short = model:logits(tokens_of(2, 1, 1, 3)):totable()
    for w = 1, 2 do
      for t = 1, 3 do
        for v = 1, 7 do assert.is_near(whole[w][t][v], short[w][t][v], 1e-13) end
      end
    end
    numbers.assert_refused("sequences of 5 tokens; the model has positions for model.context_length 4",
      model.logits, model, tokens_of(2, 1, 1, 5))
    model:free()
  end)

  it("gives positions without tokens no gradient", function()
    local model = create(1, "f64")
    local _, gradients = grad.grad(function()
      return (model:loss(tokens_of(1, 1, 1, 3), tokens_of(1, 1, 2, 3)))
    end, {model.weight["positions.weight"]})
    local rows = gradients[1]:totable()[1]
    assert.same({0, 0, 0, 0}, rows[4])
    assert.is_true(math.abs(rows[1][1]) > 1e-4)
    model:free()
  end)
end)

describe("training gpt2 workers one after the other", function()
  support.watch()

  for _, amp in ipairs {"false", "true"} do
    it("gives the losses of packed ones, amp " .. amp, function()
      local tokens = ffi.new("uint16_t[?]", 400)
      for i = 0, 399 do tokens[i] = (i * i + 3 * i) % 13 end
      local function create_trainer(compute)
        local resolved = config_module.load("configs/tiny.lua", {"model.architecture=gpt2",
          "model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24",
          "model.context_length=8", "training.micro_batch_size=2", "training.max_tokens=640",
          "decentralized.num_models=3", "training.batch_tokens=48", "runtime.amp=" .. amp,
          "runtime.attention=flash"})
        return trainer.create(resolved,
          {context = context.default(), train = {tokens = tokens, count = 400}, compute = compute})
      end
      local packed_one, alone = create_trainer(), create_trainer(sequential.compute)
      for _ = 1, 4 do
        local a, b = packed_one:step(), alone:step()
        for w = 1, 3 do
          assert.is_near(a.loss_worker[w], b.loss_worker[w], 1e-3 * a.loss_worker[w])
        end
      end
      packed_one:free()
      alone:free()
    end)
  end
end)

describe("model.architecture", function()
  it("is llama where a configuration does not say, as in those of before", function()
    assert.equal("llama", config_module.resolve({}).model.architecture)
    assert.equal(require "pack.model.llama", architectures.of {})
    assert.equal(require "pack.model.gpt2", architectures.of {architecture = "gpt2"})
  end)

  it("is no difference between a run of before and one that says llama", function()
    local now = config_module.load "configs/smoke.lua"
    local before = json.decode(config_module.encode(now))
    before.model.architecture = nil
    assert.same({}, checkpoint.differences(config_module.resolve {table = before}, now))
  end)

  it("refuses what there is not", function()
    numbers.assert_refused("model.architecture", config_module.resolve,
      {set = {"model.architecture=rnn"}})
    numbers.assert_refused("there is no architecture 'rnn'; there are llama, gpt2", packed.create,
      {architecture = "rnn"}, {num_models = 1})
  end)

  it("decides whether heads must be even, which only rotary embedding needs", function()
    local odd = {"model.width=6", "model.heads=2"}
    numbers.assert_refused("rotary embedding needs an even one", config_module.resolve, {set = odd})
    odd[3] = "model.architecture=gpt2"
    assert.equal(6, config_module.resolve({set = odd}).model.width)
  end)
end)

describe("recipes of a gpt2 model", function()
  local folder, made
  local function recipe(line, ...)
    return support.run("packlua recipes/" .. line:format(...))
  end

  setup(function()
    folder = support.temporary()
    local lines = {}
    for i = 1, 600 do lines[i] = ("the %d workers of the ring mix, line %d\n"):format(i % 7, i) end
    support.write(folder .. "/text.txt", table.concat(lines))
    made = {recipe("smoke.lua --config configs/smoke.lua --output %s/made --set data.text=%s/text.txt "
      .. "--set model.architecture=gpt2", folder, folder)}
  end)
  teardown(function() support.remove(folder) end)

  it("train, save, resume to the same bits and evaluate", function()
    local code, out, err = unpack(made)
    assert.equal("", err)
    assert.equal(0, code, out)
    assert.is_truthy(out:find("\nPASS: all stages", 1, true), out)
  end)

  it("forecast, to the byte, the memory that a step takes", function()
    local code, out = recipe("train.lua --config configs/smoke.lua --set model.architecture=gpt2 "
      .. "--set runtime.device=cpu --plan")
    assert.equal(0, code, out)
    assert.is_truthy(out:find("100000 parameters per worker", 1, true), out)
    local total = tonumber(out:match("(%S+)%s*$"))
    local first = files.read(folder .. "/made/run/metrics.jsonl"):match("[^\n]+")
    assert.is_near(total, json.decode(first).memory_bytes / 2 ^ 20, 0.051)
  end)

  it("continue a text", function()
    local code, out, err = recipe("generate.lua --checkpoint %s/made/run/epoch-002.safetensors "
      .. "--prompt 'the ring' --tokens 80", folder)
    assert.equal("", err)
    assert.equal(0, code)
    assert.is_truthy(out:find("the ring", 1, true), out)
  end)

  it("export the average of a state", function()
    local code, out, err = recipe("export.lua --checkpoint %s/%s --output %s/hf", folder,
      "made/run/epoch-002.state.safetensors.zst", folder)
    assert.equal("", err)
    assert.equal(0, code, out)
    assert.equal("gpt2", json.decode(files.read(folder .. "/hf/config.json")).model_type)
  end)

  it("refuse to go on as another architecture, and to open its weights as one", function()
    local code, _, err = recipe("resume.lua %s/made/run --allow-recipe --set model.architecture=llama", folder)
    assert.equal(2, code)
    local words = "model.architecture = gpt2, and a resumed run must keep it; llama is wanted"
    assert.is_truthy(err:find(words, 1, true), err)
    code, _, err = recipe("evaluate.lua --checkpoint %s/made/run/epoch-002.safetensors "
      .. "--set model.architecture=llama", folder)
    assert.equal(2, code)
    words = "the weights are of model.architecture = gpt2; llama is wanted"
    assert.is_truthy(err:find(words, 1, true), err)
  end)
end)
