-- recipes/export.lua: folders that Hugging Face's LlamaForCausalLM and GPT2LMHeadModel load. Its own logits of such a folder are in
-- spec/fixtures/export (made by scripts/peers/hf_logits.py).
local cache = require "spec.support.cache"
local ffi = require "ffi"
local files = require "pack.io.files"
local json = require "pack.io.json"
local llama = require "pack.model.llama"
local packed_model = require "pack.model.packed"
local reference = require "spec.support.reference_model"
local safetensors = require "pack.io.safetensors"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"

-- Two layers, as the library's documentation of LlamaForCausalLM and its state_dict have them.
local expected_shapes = {
  ["model.embed_tokens.weight"] = {61, 24}, ["model.norm.weight"] = {24},
}
for i = 0, 1 do
  local layer = ("model.layers.%d."):format(i)
  for _, projection in ipairs {"q_proj", "k_proj", "v_proj", "o_proj"} do
    expected_shapes[layer .. "self_attn." .. projection .. ".weight"] = {24, 24}
  end
  expected_shapes[layer .. "input_layernorm.weight"] = {24}
  expected_shapes[layer .. "post_attention_layernorm.weight"] = {24}
  expected_shapes[layer .. "mlp.gate_proj.weight"] = {20, 24}
  expected_shapes[layer .. "mlp.up_proj.weight"] = {20, 24}
  expected_shapes[layer .. "mlp.down_proj.weight"] = {24, 20}
end

local function bits(file, name)
  local entry = file:entry(name)
  return ffi.string(file:elements(entry, "f32", 0, entry.numel), entry.numel * 4)
end

-- Compares the logits of a model with those that are stored with their tokens.
local function assert_logits_are_those_of(path, model)
  local theirs = safetensors.open(path)
  local ids = theirs:read_tensor("tokens")
  local tokens = tensor.from({ids:totable()[1]}, "i32"):view {shape = {1, 1, 16}}
  local logits, count = model:logits(tokens):read_numbers()
  local expected, expected_count = theirs:read_doubles("logits")
  assert.equal(expected_count, count)
  assert.equal(16 * 61, count)
  local worst, largest = 0, 0
  for i = 0, count - 1 do
    worst, largest = math.max(worst, math.abs(logits[i] - expected[i])), math.max(largest, math.abs(expected[i]))
  end
  assert.is_true(largest > 3, "logits that tell nothing")
  assert.is_true(worst < 1e-5, ("the logits differ by %.3g"):format(worst))
  theirs:close()
end

describe("recipes/export.lua", function()
  local folder, out
  local function export(arguments)
    return support.run("packlua recipes/export.lua " .. arguments)
  end

  setup(function()
    folder = support.temporary()
    reference.write(folder)
    local code, printed, err = export(("--checkpoint %s/weights.safetensors --config %s/config.json --output %s/hf")
      :format(folder, folder, folder))
    assert.equal("", err)
    assert.equal(0, code)
    out = printed
  end)
  teardown(function() support.remove(folder) end)
  support.watch()

  it("writes exactly the configuration and the weights where there is no tokenizer, and says so", function()
    assert.same({"config.json", "model.safetensors"}, files.list(folder .. "/hf"))
    assert.is_truthy(out:find("9072 parameters, f32", 1, true), out)
    assert.is_truthy(out:find("no tokenizer", 1, true), out)
  end)

  it("states the model in config.json by Hugging Face's keys", function()
    local config = json.decode(files.read(folder .. "/hf/config.json"))
    local expected = {
      model_type = "llama", hidden_size = 24, intermediate_size = 20, num_hidden_layers = 2,
      num_attention_heads = 3, num_key_value_heads = 3, head_dim = 8, rms_norm_eps = 1e-3, rope_theta = 50,
      vocab_size = 61, max_position_embeddings = 16, tie_word_embeddings = true, torch_dtype = "float32",
      attention_bias = false, mlp_bias = false, hidden_act = "silu", bos_token_id = json.null,
      eos_token_id = json.null, rope_scaling = json.null,
    }
    for key, x in pairs(expected) do assert.equal(x, config[key], key) end
    assert.same({"LlamaForCausalLM"}, config.architectures)
  end)

  it("gives every tensor Hugging Face's name, its shape, and the same bits; the tied head once", function()
    local file, own = safetensors.open(folder .. "/hf/model.safetensors"), safetensors.open(folder .. "/weights.safetensors")
    local shapes = {}
    for _, name in ipairs(file:names()) do
      shapes[name] = file:entry(name).shape
      assert.equal("F32", file:entry(name).dtype)
    end
    assert.same(expected_shapes, shapes)
    assert.same({format = "pt"}, file:metadata())
    for _, name in ipairs(own:names()) do assert.is_true(bits(own, name) == bits(file, llama.hf_name(name)), name) end
    file:close()
    own:close()
  end)

  it("leaves a model whose logits are those that Hugging Face's program computes of the folder", function()
    local file = safetensors.open(folder .. "/hf/model.safetensors")
    local model = packed_model.create(reference.config, {num_models = 1})
    for _, name in ipairs(model.names) do file:read_into(llama.hf_name(name), model.weight[name]) end
    file:close()
    assert_logits_are_those_of("spec/fixtures/export/logits.safetensors", model)
    model:free()
  end)

  it("writes bf16 when asked, rounded to nearest", function()
    local code, _, err = export(("--checkpoint %s/weights.safetensors --config %s/config.json --dtype bf16 --output %s/bf16")
      :format(folder, folder, folder))
    assert.equal("", err)
    assert.equal(0, code)
    assert.equal("bfloat16", json.decode(files.read(folder .. "/bf16/config.json")).torch_dtype)
    local half, full = safetensors.open(folder .. "/bf16/model.safetensors"), safetensors.open(folder .. "/hf/model.safetensors")
    for _, name in ipairs(half:names()) do
      assert.equal("BF16", half:entry(name).dtype)
      local a, count = half:read_doubles(name)
      local b = full:read_doubles(name)
      for i = 0, count - 1 do assert.is_true(math.abs(a[i] - b[i]) <= 2 ^ -8 * math.abs(b[i]), name) end
    end
    half:close()
    full:close()
  end)

  it("takes the tokenizer along, with its ids that begin and end a text", function()
    local pieces = {}
    for i = 1, 50 do pieces[i] = "p" .. i end
    support.write(folder .. "/small.model", cache.model(pieces))
    local code, printed, err = export(("--checkpoint %s/weights.safetensors --config %s/config.json --output %s/tok "
      .. "--tokenizer %s/small.model"):format(folder, folder, folder, folder))
    assert.equal("", err)
    assert.equal(0, code, printed)
    assert.is_true(files.read(folder .. "/small.model") == files.read(folder .. "/tok/tokenizer.model"))
    local config = json.decode(files.read(folder .. "/tok/config.json"))
    assert.equal(1, config.bos_token_id)
    assert.equal(2, config.eos_token_id)
    local tokenizer = json.decode(files.read(folder .. "/tok/tokenizer_config.json"))
    assert.equal("PreTrainedTokenizerFast", tokenizer.tokenizer_class)
    assert.equal("<s>", tokenizer.bos_token)
    assert.equal("</s>", tokenizer.eos_token)
    assert.equal("<unk>", tokenizer.unk_token)
    assert.is_false(tokenizer.add_bos_token)
  end)

  -- What the library `tokenizers` makes of the three, compared with packlua's ids on 1,416 texts: see docs/weights.md.
  it("writes a tokenizer.json that has the model's pieces, merges and spaces, and no others", function()
    local function written(name, pieces, options)
      support.write(folder .. "/m.model", cache.model(pieces, options))
      local code, _, err = export(("--checkpoint %s/weights.safetensors --config %s/config.json --output %s/%s "
        .. "--tokenizer %s/m.model"):format(folder, folder, folder, name, folder))
      assert.equal(0, code, err)
      local path = ("%s/%s/"):format(folder, name)
      return json.read(path .. "tokenizer.json"), json.read(path .. "tokenizer_config.json"), json.read(path .. "config.json")
    end
    local whole, config, model = written("bpe", {"ab", "▁ab", "aab", "a", "b", "▁"}, {bos = false, dummy_prefix = false})
    assert.same({["<unk>"] = 0, ["</s>"] = 1, ab = 2, ["▁ab"] = 3, aab = 4, a = 5, b = 6, ["▁"] = 7}, whole.model.vocab)
    assert.same({{"a", "b"}, {"▁", "ab"}, {"a", "ab"}}, whole.model.merges)
    assert.same({"<unk>", "</s>"}, {whole.added_tokens[1].content, whole.added_tokens[2].content})
    assert.equal(2, #whole.added_tokens)
    assert.same({{type = "Replace", pattern = {String = " "}, content = "▁"}}, whole.normalizer.normalizers)
    assert.same({json.null, json.null, false}, {config.bos_token, model.bos_token_id, config.add_prefix_space})

    whole, config, model = written("unigram", {"▁a", "b"}, {type = "unigram", bos = "<|begin|>", rules = true})
    assert.same({{"<unk>", 0}, {"<|begin|>", 0}, {"</s>", 0}, {"▁a", -1}, {"b", -2}}, whole.model.vocab)
    assert.equal(0, whole.model.unk_id)
    assert.same({"Replace", "Replace", "Prepend", "Replace"}, {whole.normalizer.normalizers[1].type,
      whole.normalizer.normalizers[2].type, whole.normalizer.normalizers[3].type, whole.normalizer.normalizers[4].type})
    assert.same({"<|begin|>", 1, true}, {config.bos_token, model.bos_token_id, config.add_prefix_space})
  end)

  it("exports of a state the workers' average, and of a run's bytes the id that ends a document", function()
    local code, _, err = support.run(("packlua recipes/train.lua --config configs/smoke.lua --sample 0 --output %s/run "
      .. "--set data.text=README.md"):format(folder))
    assert.equal("", err)
    assert.equal(0, code)
    for name, file in pairs {state = "epoch-002.state.safetensors.zst", average = "epoch-002.safetensors"} do
      code, _, err = export(("--checkpoint %s/run/%s --output %s/%s"):format(folder, file, folder, name))
      assert.equal("", err)
      assert.equal(0, code)
    end
    assert.is_true(files.read(folder .. "/state/model.safetensors") == files.read(folder .. "/average/model.safetensors"))
    local own, file = safetensors.open(folder .. "/run/epoch-002.safetensors"), safetensors.open(folder .. "/state/model.safetensors")
    for _, name in ipairs(own:names()) do assert.is_true(bits(own, name) == bits(file, llama.hf_name(name)), name) end
    own:close()
    file:close()
    assert.equal(256, json.decode(files.read(folder .. "/state/config.json")).eos_token_id)
  end)

  describe("refuses", function()
    local function refused(arguments, word)
      local code, _, err = export(("--checkpoint %s/weights.safetensors --config %s/config.json %s"):format(folder, folder, arguments))
      assert.equal(2, code, err)
      assert.is_truthy(err:find(word, 1, true), err)
      assert.is_falsy(err:find("traceback", 1, true), err)
    end

    it("a folder that holds something, and changes nothing in it", function()
      local before = files.read(folder .. "/hf/config.json")
      refused(("--output %s/hf --dtype bf16"):format(folder), "not an empty folder")
      assert.equal(before, files.read(folder .. "/hf/config.json"))
    end)

    it("to work without --output, and other formats", function()
      refused("", "--output DIR")
      refused(("--output %s/x --format gguf"):format(folder), "--format gguf: expected hf")
    end)

    it("a tokenizer with more pieces than the model", function()
      refused(("--output %s/x --tokenizer bytes"):format(folder), "model.vocab_size 61")
      local pieces = {}
      for i = 1, 59 do pieces[i] = "p" .. i end
      support.write(folder .. "/large.model", cache.model(pieces))
      refused(("--output %s/x --tokenizer %s/large.model"):format(folder, folder),
        "model.vocab_size 61 is smaller than the 62 pieces")
      assert.is_false(files.exists(folder .. "/x"))
    end)
  end)
end)

-- Two layers, as the library's GPT2LMHeadModel has them: linear weights are [in, out].
local gpt2_shapes = {
  ["transformer.wte.weight"] = {61, 24}, ["transformer.wpe.weight"] = {16, 24},
  ["transformer.ln_f.weight"] = {24}, ["transformer.ln_f.bias"] = {24},
}
for i = 0, 1 do
  local layer = ("transformer.h.%d."):format(i)
  for name, shape in pairs {["attn.c_attn"] = {24, 72}, ["attn.c_proj"] = {24, 24}, ["mlp.c_fc"] = {24, 20},
    ["mlp.c_proj"] = {20, 24}} do
    gpt2_shapes[layer .. name .. ".weight"], gpt2_shapes[layer .. name .. ".bias"] = shape, {shape[2]}
  end
  for _, name in ipairs {"ln_1", "ln_2"} do
    gpt2_shapes[layer .. name .. ".weight"], gpt2_shapes[layer .. name .. ".bias"] = {24}, {24}
  end
end

describe("recipes/export.lua of a gpt2 model", function()
  local folder
  setup(function()
    folder = support.temporary()
    reference.write(folder, "gpt2")
    local code, out, err = support.run(("packlua recipes/export.lua --checkpoint %s/weights.safetensors "
      .. "--config %s/config.json --output %s/hf"):format(folder, folder, folder))
    assert.equal("", err)
    assert.equal(0, code, out)
    assert.is_truthy(out:find("8896 parameters, f32", 1, true), out)
  end)
  teardown(function() support.remove(folder) end)
  support.watch()

  it("states the model in config.json by Hugging Face's keys", function()
    local config = json.decode(files.read(folder .. "/hf/config.json"))
    local expected = {
      model_type = "gpt2", n_embd = 24, n_inner = 20, n_layer = 2, n_head = 3, n_positions = 16, vocab_size = 61,
      layer_norm_epsilon = 1e-3, activation_function = "gelu_new", tie_word_embeddings = true, torch_dtype = "float32",
      attn_pdrop = 0, embd_pdrop = 0, resid_pdrop = 0, bos_token_id = json.null, eos_token_id = json.null,
    }
    for key, x in pairs(expected) do assert.equal(x, config[key], key) end
    assert.same({"GPT2LMHeadModel"}, config.architectures)
  end)

  it("gives every tensor Hugging Face's name, linear weights their transpose, and the same bits", function()
    local file, own = safetensors.open(folder .. "/hf/model.safetensors"), safetensors.open(folder .. "/weights.safetensors")
    local shapes = {}
    for _, name in ipairs(file:names()) do shapes[name] = file:entry(name).shape end
    assert.same(gpt2_shapes, shapes)
    local function assert_same_bits(theirs, name) assert.is_true(bits(own, name) == bits(file, theirs), name) end
    assert_same_bits("transformer.wpe.weight", "positions.weight")
    assert_same_bits("transformer.h.1.attn.c_attn.bias", "blocks.1.attention.qkv_proj.bias")
    for theirs, name in pairs {["attn.c_attn"] = "attention.qkv_proj", ["attn.c_proj"] = "attention.out_proj",
      ["mlp.c_fc"] = "ffn.up_proj", ["mlp.c_proj"] = "ffn.down_proj"} do
      local turned = file:read_doubles("transformer.h.1." .. theirs .. ".weight")
      local straight = own:read_doubles("blocks.1." .. name .. ".weight")
      local inputs, outputs = unpack(gpt2_shapes["transformer.h.1." .. theirs .. ".weight"])
      for i = 0, inputs - 1 do
        for o = 0, outputs - 1 do assert.equal(straight[o * inputs + i], turned[i * outputs + o], name) end
      end
    end
    file:close()
    own:close()
  end)

  it("has the logits that Hugging Face's program computes of the folder", function()
    local model = reference.create "gpt2"
    assert_logits_are_those_of("spec/fixtures/export/gpt2_logits.safetensors", model)
    model:free()
  end)
end)
