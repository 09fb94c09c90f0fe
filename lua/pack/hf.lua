--- Weights as Hugging Face's LlamaForCausalLM has them.
--
-- Its rotary embedding turns the two halves of a head as packlua's does, and its linear weights are [out, in]
-- too, so that tensors only change their names.
local failure = require "pack.failure"
local files = require "pack.files"
local hf_tokenizer = require "pack.hf_tokenizer"
local json = require "pack.json"
local safetensors = require "pack.safetensors"

local hf = {}

local whole_names = {["embedding.weight"] = "model.embed_tokens.weight", ["norm.weight"] = "model.norm.weight"}
local block_names = {
  ["attention_norm.weight"] = "input_layernorm.weight",
  ["attention.q_proj.weight"] = "self_attn.q_proj.weight",
  ["attention.k_proj.weight"] = "self_attn.k_proj.weight",
  ["attention.v_proj.weight"] = "self_attn.v_proj.weight",
  ["attention.out_proj.weight"] = "self_attn.o_proj.weight",
  ["ffn_norm.weight"] = "post_attention_layernorm.weight",
  ["ffn.gate_proj.weight"] = "mlp.gate_proj.weight",
  ["ffn.up_proj.weight"] = "mlp.up_proj.weight",
  ["ffn.down_proj.weight"] = "mlp.down_proj.weight",
}
local torch_dtypes = {f32 = "float32", bf16 = "bfloat16"}

--- Hugging Face's name of a parameter.
function hf.name(name)
  local layer, rest = name:match("^blocks%.(%d+)%.(.+)$")
  return layer and ("model.layers.%s.%s"):format(layer, block_names[rest]) or whole_names[name]
end

--- The content of config.json. model: the model section of a configuration. dtype: "f32" or "bf16". tokenizer:
-- whose id ends a text; bos: the id of its piece for the beginning, or nil.
function hf.config(model, dtype, tokenizer, bos)
  return {
    architectures = {"LlamaForCausalLM"}, model_type = "llama", hidden_act = "silu",
    hidden_size = model.width, intermediate_size = model.ffn_width, num_hidden_layers = model.layers,
    num_attention_heads = model.heads, num_key_value_heads = model.heads, head_dim = model.width / model.heads,
    vocab_size = model.vocab_size, max_position_embeddings = model.context_length,
    rms_norm_eps = model.norm_eps, rope_theta = model.rope_theta, rope_scaling = json.null,
    initializer_range = model.init_std, tie_word_embeddings = true, attention_bias = false, mlp_bias = false,
    attention_dropout = 0, pretraining_tp = 1, use_cache = true, torch_dtype = torch_dtypes[dtype],
    bos_token_id = bos or json.null, pad_token_id = json.null,
    eos_token_id = tokenizer and tokenizer.eos or json.null,
  }
end

-- Texts are trained on without a token at their beginning. Only pieces that the model has are named: another would get
-- an id that the embedding lacks.
local function tokenizer_config(tokenizer, facts, context_length, whole)
  return {
    -- With tokenizer.json its content alone counts; the class for tokenizer.model puts rules of its own over it.
    tokenizer_class = whole and "PreTrainedTokenizerFast" or "LlamaTokenizer", add_bos_token = false, add_eos_token = false,
    bos_token = facts.bos and tokenizer:piece(facts.bos) or json.null, eos_token = tokenizer:piece(tokenizer.eos),
    unk_token = tokenizer.unknown and tokenizer:piece(tokenizer.unknown) or json.null, pad_token = json.null,
    add_prefix_space = facts.dummy_prefix, legacy = true, clean_up_tokenization_spaces = false,
    model_max_length = context_length,
  }
end

local function write_json(folder, name, value)
  json.write(files.join(folder, name), value)
end

local function write_weights(path, model, dtype)
  local list = {metadata = {format = "pt"}}
  for i, name in ipairs(model.names) do
    local t = model.weight[name]
    local shape = t:sizes()
    table.remove(shape, 1)
    list[i] = {name = hf.name(name), tensor = t, shape = shape, dtype = dtype}
  end
  safetensors.write(path, list)
end

-- Takes a folder for the files, which must be new or empty.
local function claim(folder)
  local kind = files.kind(folder)
  if kind and (kind ~= "directory" or #files.list(folder) > 0) then
    failure.usage("%s: is there and not an empty folder; --output DIR chooses another", folder)
  end
  local good, message = failure.pcall(files.mkdir, folder)
  if not good then failure.usage("%s", (tostring(message):gsub("^[^ ]*%.lua:%d+: ", ""))) end
end

--- Writes an ordinary model (N = 1) into a new folder: config.json, model.safetensors, and of a SentencePiece
-- tokenizer tokenizer.model, tokenizer.json and tokenizer_config.json. The tied head is written once, as the embedding.
-- options: dtype ("f32" or "bf16"), tokenizer (or nil). Usage error: the folder holds something.
function hf.write(folder, model, options)
  local tokenizer, config = options.tokenizer, model.config
  claim(folder)
  write_weights(files.join(folder, "model.safetensors"), model, options.dtype)
  local facts = {}
  if tokenizer and tokenizer.kind == "sentencepiece" then
    local content = assert(files.read(tokenizer.name))
    facts = hf_tokenizer.read(content)
    local whole = hf_tokenizer.encode(facts)
    files.write(files.join(folder, "tokenizer.model"), content)
    if whole then write_json(folder, "tokenizer.json", whole) end
    write_json(folder, "tokenizer_config.json", tokenizer_config(tokenizer, facts, config.context_length, whole))
  end
  write_json(folder, "config.json", hf.config(config, options.dtype, tokenizer, facts.bos))
end

return hf
