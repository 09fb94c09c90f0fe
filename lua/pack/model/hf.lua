--- Weights as a folder that Hugging Face's programs load: LlamaForCausalLM, GPT2LMHeadModel.
local architectures = require "pack.model.architectures"
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local hf_tokenizer = require "pack.model.hf_tokenizer"
local json = require "pack.io.json"
local ops = require "pack.core.ops"
local safetensors = require "pack.io.safetensors"

local hf = {}

local torch_dtypes = {f32 = "float32", bf16 = "bfloat16"}

--- The content of config.json. model: the model section of a configuration. dtype: "f32" or "bf16". tokenizer:
-- whose id ends a text; bos: the id of its piece for the beginning, or nil.
function hf.config(model, dtype, tokenizer, bos)
  local content = architectures.of(model).hf_config(model)
  content.vocab_size, content.initializer_range = model.vocab_size, model.init_std
  content.tie_word_embeddings, content.use_cache = true, true
  content.torch_dtype = torch_dtypes[dtype]
  content.bos_token_id, content.pad_token_id = bos or json.null, json.null
  content.eos_token_id = tokenizer and tokenizer.eos or json.null
  return content
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

-- The tensor to be written for a parameter, and whether it was made for that.
local function written(model, name, transposed)
  local t = model.weight[name]
  if not transposed then return t, false end
  return ops.transpose(t, {permutation = {0, 2, 1}}), true
end

local function write_weights(path, model, dtype)
  local list, made = {metadata = {format = "pt"}}, {}
  for i, name in ipairs(model.names) do
    local hf_name, transposed = model.architecture.hf_name(name)
    local t, own = written(model, name, transposed)
    if own then made[#made + 1] = t end
    local shape = t:sizes()
    table.remove(shape, 1)
    list[i] = {name = hf_name, tensor = t, shape = shape, dtype = dtype}
  end
  safetensors.write(path, list)
  for _, t in ipairs(made) do t:free() end
end

-- Takes a folder for the files, which must be new or empty.
local function claim(folder)
  local kind = files.kind(folder)
  if kind and (kind ~= "directory" or #files.names(folder) > 0) then
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
