--- The Llama architecture (see pack.model.packed): pre-RMSNorm, half-split rotary embedding, causal
-- attention, SwiGLU, no biases, tied embedding and head (Touvron et al. 2023, arXiv:2302.13971,
-- with the embedding as head).
local json = require "pack.io.json"
local ops = require "pack.core.ops"

local llama = {
  --- The weight that the last hidden states are multiplied by: the embedding.
  head = "embedding.weight",
}

--- The parameters of one model in arena order, V d + L (4 d^2 + 3 d f + 2 d) + d elements.
function llama.parameter_list(model)
  local width, ffn = model.width, model.ffn_width
  local list = {{"embedding.weight", {model.vocab_size, width}}}
  local function add(name, ...)
    list[#list + 1] = {name, {...}}
  end
  for i = 0, model.layers - 1 do
    local block = "blocks." .. i .. "."
    add(block .. "attention_norm.weight", width)
    for _, projection in ipairs {"q_proj", "k_proj", "v_proj", "out_proj"} do
      add(block .. "attention." .. projection .. ".weight", width, width)
    end
    add(block .. "ffn_norm.weight", width)
    add(block .. "ffn.gate_proj.weight", ffn, width)
    add(block .. "ffn.up_proj.weight", ffn, width)
    add(block .. "ffn.down_proj.weight", width, ffn)
  end
  add("norm.weight", width)
  return list
end

--- The joined weights: blocks.i.attention.qkv_proj.weight and blocks.i.ffn.gate_up_proj.weight.
function llama.joins(model)
  local joins = {}
  local function add(prefix, name, ...)
    local parts = {}
    for i, part in ipairs {...} do parts[i] = prefix .. part .. "_proj.weight" end
    joins[#joins + 1] = {prefix .. name .. "_proj.weight", parts}
  end
  for i = 0, model.layers - 1 do
    add("blocks." .. i .. ".attention.", "qkv", "q", "k", "v")
    add("blocks." .. i .. ".ffn.", "gate_up", "gate", "up")
  end
  return joins
end

--- Norms begin as 1; matrices have the deviation init_std, out_proj and down_proj init_std / sqrt(2
-- * layers).
function llama.initial(model, name)
  if name:find("norm.weight", 1, true) then return 1, 0 end
  local residual = name:find("out_proj", 1, true) or name:find("down_proj", 1, true)
  return 0, residual and model.init_std / math.sqrt(2 * model.layers) or model.init_std
end

--- Rotary embedding turns pairs of elements.
function llama.refusal(model)
  local head_dim = model.width / model.heads
  if head_dim % 2 == 0 then return nil end
  return ("model.width %d / model.heads %d is a head of %d; rotary embedding needs an even one")
    :format(model.width, model.heads, head_dim)
end

--- The widths that attention works on, added up over the layers.
function llama.attention_width(model)
  return model.layers * model.width
end

-- q, k and v [N, B, T, H, K] of x, q and k turned by their positions.
local function project(self, x, prefix, sequences, length)
  local config = self.config
  local heads, theta = config.heads, {theta = config.rope_theta}
  local function linear(name, count)
    local shape = {self.num_models, sequences, length, count, config.width / heads}
    return ops.reshape(self:linear(x, prefix .. name), {shape = shape})
  end
  if self:is_joined(prefix .. "qkv_proj.weight") then
    return ops.rope_split(linear("qkv_proj.weight", 3 * heads), theta)
  end
  local q, k = linear("q_proj.weight", heads), linear("k_proj.weight", heads)
  return ops.rope(q, theta), ops.rope(k, theta), linear("v_proj.weight", heads)
end

local function attend(self, x, prefix, sequences, length)
  local config, n = self.config, self.num_models
  local q, k, v = project(self, x, prefix, sequences, length)
  q, k, v = self:operand(q), self:operand(k), self:operand(v)
  local o = self.attention(q, k, v, {scale = 1 / math.sqrt(config.width / config.heads)})
  o = self:operand(ops.reshape(o, {shape = {n, sequences * length, config.width}}))
  return self:linear(o, prefix .. "out_proj.weight")
end

local function feed_forward(self, x, prefix)
  local hidden
  if self:is_joined(prefix .. "gate_up_proj.weight") then
    hidden = ops.swiglu_split(self:linear(x, prefix .. "gate_up_proj.weight"))
  else
    local gate = self:linear(x, prefix .. "gate_proj.weight")
    hidden = ops.swiglu(gate, self:linear(x, prefix .. "up_proj.weight"))
  end
  return self:linear(self:operand(hidden), prefix .. "down_proj.weight")
end

local function normalize(self, x, name)
  local y = ops.rmsnorm(x, self.weight[name], {eps = self.config.norm_eps})
  return self:operand(y)
end

--- The last hidden states [N, B*T, d], normalised and ready for the head, of tokens [N, B, T] i32.
function llama.hidden(self, tokens)
  local sequences, length = tokens:size(1), tokens:size(2)
  local x = ops.embedding(self.weight["embedding.weight"], tokens)
  x = ops.reshape(x, {shape = {self.num_models, sequences * length, self.config.width}})
  for i = 0, self.config.layers - 1 do
    local block = "blocks." .. i .. "."
    local a = normalize(self, x, block .. "attention_norm.weight")
    x = ops.add(x, attend(self, a, block .. "attention.", sequences, length))
    local f = normalize(self, x, block .. "ffn_norm.weight")
    x = ops.add(x, feed_forward(self, f, block .. "ffn."))
  end
  return normalize(self, x, "norm.weight")
end

local whole_names = {
  ["embedding.weight"] = "model.embed_tokens.weight", ["norm.weight"] = "model.norm.weight",
}
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

--- Hugging Face's name of a parameter. Its rotary embedding turns the two halves of a head as ours
-- does, and its linear weights are [out, in] too, so that tensors only change their names.
function llama.hf_name(name)
  local layer, rest = name:match("^blocks%.(%d+)%.(.+)$")
  return layer and ("model.layers.%s.%s"):format(layer, block_names[rest]) or whole_names[name]
end

--- What config.json of Hugging Face's LlamaForCausalLM says of the model.
function llama.hf_config(model)
  return {
    architectures = {"LlamaForCausalLM"}, model_type = "llama", hidden_act = "silu",
    hidden_size = model.width, intermediate_size = model.ffn_width,
    num_hidden_layers = model.layers, num_attention_heads = model.heads,
    num_key_value_heads = model.heads, head_dim = model.width / model.heads,
    max_position_embeddings = model.context_length,
    rms_norm_eps = model.norm_eps, rope_theta = model.rope_theta, rope_scaling = json.null,
    attention_bias = false, mlp_bias = false, attention_dropout = 0, pretraining_tp = 1,
  }
end

--- A packed Llama model with zeroed parameters; config and options as of packed.create.
function llama.create(config, options)
  return require("pack.model.packed").create(config, options)
end

return llama
