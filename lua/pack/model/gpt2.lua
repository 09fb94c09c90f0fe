--- The GPT-2 architecture (see pack.model.packed): LayerNorm before each part, learned positions,
-- causal attention, GELU, biases, tied embedding and head (Radford et al. 2019, Language Models are
-- Unsupervised Multitask Learners); no dropout. GELU is the form by tanh. Of the model's keys
-- rope_theta is not used.
local caller = require "pack.core.caller"
local ops = require "pack.core.ops"

caller.register()

local gpt2 = {
  --- The weight that the last hidden states are multiplied by: the embedding.
  head = "embedding.weight",
}

--- The parameters of one model in arena order, V d + T d + L (4 d^2 + 2 d f + 9 d + f) + 2 d
-- elements.
function gpt2.parameter_list(model)
  local width, ffn = model.width, model.ffn_width
  local list = {
    {"embedding.weight", {model.vocab_size, width}},
    {"positions.weight", {model.context_length, width}, lookup = true},
  }
  local function add(name, ...)
    list[#list + 1] = {name .. ".weight", {...}}
    list[#list + 1] = {name .. ".bias", {(...)}}
  end
  for i = 0, model.layers - 1 do
    local block = "blocks." .. i .. "."
    add(block .. "attention_norm", width)
    add(block .. "attention.qkv_proj", 3 * width, width)
    add(block .. "attention.out_proj", width, width)
    add(block .. "ffn_norm", width)
    add(block .. "ffn.up_proj", ffn, width)
    add(block .. "ffn.down_proj", width, ffn)
  end
  add("norm", width)
  return list
end

--- Norms begin as 1 and biases as 0; matrices and both tables have the deviation init_std, out_proj
-- and down_proj init_std / sqrt(2 * layers).
function gpt2.initial(model, name)
  if name:find("norm.weight", 1, true) then return 1, 0 end
  if name:find("bias", 1, true) then return 0, 0 end
  local residual = name:find("out_proj", 1, true) or name:find("down_proj", 1, true)
  return 0, residual and model.init_std / math.sqrt(2 * model.layers) or model.init_std
end

--- Every shape that the keys of the model allow is one.
function gpt2.refusal()
  return nil
end

--- The widths that attention works on, added up over the layers.
function gpt2.attention_width(model)
  return model.layers * model.width
end

-- The named bias [N, m] as [N, 1, m].
local function bias(self, name)
  local b = self.weight[name .. ".bias"]
  return ops.reshape(b, {shape = {self.num_models, 1, b:size(1)}})
end

local function linear(self, x, name)
  return ops.add(self:linear(x, name .. ".weight"), bias(self, name))
end

-- LayerNorm of x [N, R, d]: of what has no mean, the root mean square is the deviation.
local function normalize(self, x, name)
  local centred = ops.subtract(x, ops.mean(x, {axes = {2}, keep = true}))
  local y = ops.rmsnorm(centred, self.weight[name .. ".weight"], {eps = self.config.norm_eps})
  return self:operand(ops.add(y, bias(self, name)))
end

-- x (1 + tanh(u)) / 2 = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
-- (Hendrycks and Gimpel 2016, arXiv:1606.08415).
local function gelu(x)
  local slope = 2 * math.sqrt(2 / math.pi)
  local factor = ops.affine(ops.multiply(x, x), {scale = 0.044715 * slope, shift = slope})
  return ops.multiply(x, ops.sigmoid(ops.multiply(x, factor)))
end

local function attend(self, x, prefix, sequences, length)
  local config, n = self.config, self.num_models
  local heads, head_dim = config.heads, config.width / config.heads
  local joined = self:operand(linear(self, x, prefix .. "qkv_proj"))
  joined = ops.reshape(joined, {shape = {n, sequences, length, 3 * heads, head_dim}})
  local function part(i)
    return ops.slice(joined, {axis = 3, start = i * heads, count = heads})
  end
  local o = self.attention(part(0), part(1), part(2), {scale = 1 / math.sqrt(head_dim)})
  o = self:operand(ops.reshape(o, {shape = {n, sequences * length, config.width}}))
  return linear(self, o, prefix .. "out_proj")
end

local function feed_forward(self, x, prefix)
  local hidden = gelu(linear(self, x, prefix .. "up_proj"))
  return linear(self, self:operand(hidden), prefix .. "down_proj")
end

-- The learned vectors of the first positions, [N, 1, T, d].
local function positions(self, length)
  local context_length = self.config.context_length
  if length > context_length then
    caller.raise("sequences of %d tokens; the model has positions for model.context_length %d",
      length, context_length)
  end
  local weight = self.weight["positions.weight"]
  if length < context_length then
    weight = ops.slice(weight, {axis = 1, start = 0, count = length})
  end
  return ops.reshape(weight, {shape = {self.num_models, 1, length, self.config.width}})
end

--- The last hidden states [N, B*T, d], normalised and ready for the head, of tokens [N, B, T] i32.
function gpt2.hidden(self, tokens)
  local sequences, length = tokens:size(1), tokens:size(2)
  local x = ops.add(ops.embedding(self.weight["embedding.weight"], tokens), positions(self, length))
  x = ops.reshape(x, {shape = {self.num_models, sequences * length, self.config.width}})
  for i = 0, self.config.layers - 1 do
    local block = "blocks." .. i .. "."
    local a = normalize(self, x, block .. "attention_norm")
    x = ops.add(x, attend(self, a, block .. "attention.", sequences, length))
    local f = normalize(self, x, block .. "ffn_norm")
    x = ops.add(x, feed_forward(self, f, block .. "ffn."))
  end
  return normalize(self, x, "norm")
end

local modules = {
  ["embedding"] = "wte", ["positions"] = "wpe", ["norm"] = "ln_f",
  ["attention_norm"] = "ln_1", ["attention.qkv_proj"] = "attn.c_attn",
  ["attention.out_proj"] = "attn.c_proj", ["ffn_norm"] = "ln_2",
  ["ffn.up_proj"] = "mlp.c_fc", ["ffn.down_proj"] = "mlp.c_proj",
}

--- Hugging Face's name of a parameter, and whether it has the transpose: its linear weights are
-- [in, out].
function gpt2.hf_name(name)
  local path, kind = name:match("^(.+)%.(%a+)$")
  local layer, part = path:match("^blocks%.(%d+)%.(.+)$")
  local transposed = kind == "weight" and path:find("_proj", 1, true) ~= nil
  local prefix = layer and ("transformer.h.%s."):format(layer) or "transformer."
  return prefix .. modules[part or path] .. "." .. kind, transposed
end

--- What config.json of Hugging Face's GPT2LMHeadModel says of the model.
function gpt2.hf_config(model)
  return {
    architectures = {"GPT2LMHeadModel"}, model_type = "gpt2", activation_function = "gelu_new",
    n_embd = model.width, n_inner = model.ffn_width, n_layer = model.layers, n_head = model.heads,
    n_positions = model.context_length, layer_norm_epsilon = model.norm_eps,
    attn_pdrop = 0, embd_pdrop = 0, resid_pdrop = 0, scale_attn_weights = true,
    scale_attn_by_inverse_layer_idx = false, reorder_and_upcast_attn = false,
    add_cross_attention = false,
  }
end

return gpt2
