-- Packed Llama models: N replicas whose parameters are the rows of one arena.
--
-- Pre-RMSNorm, half-split rotary embedding, causal attention, SwiGLU, no biases, tied embedding and
-- head (Touvron et al. 2023, arXiv:2302.13971, with the embedding as head).
local arena = require "pack.model.arena"
local dispatch = require "pack.core.dispatch"
local grad = require "pack.grad"
local native = require "pack.native"
local ops = require "pack.core.ops"
local reference = require "pack.grad.reference"

local llama = {}

local Model = {}
Model.__index = Model

--- The parameters of one model in arena order: a list of {name, shape}, shapes without the worker.
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

-- Weights that the same input is multiplied by, which are one matrix where they lie one after the other.
local function joins_of(model)
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

--- The layout of one model's parameters, with blocks.i.attention.qkv_proj.weight and blocks.i.ffn.gate_up_proj.weight
-- as joined columns where no padding lies within them.
function llama.layout(model)
  return arena.layout(llama.parameter_list(model), joins_of(model))
end

--- Number of parameters of one model: V*d + L*(4d^2 + 3*d*f + 2d) + d.
function llama.parameters(model)
  local d = model.width
  return model.vocab_size * d
    + model.layers * (4 * d * d + 3 * d * model.ffn_width + 2 * d) + d
end

--- A packed model of num_models workers with zeroed parameters.
-- config is the model section of a configuration. options: num_models, context (device context,
-- default the process's), dtype "f64" or "f32", amp (bf16 operands in products and attention),
-- attention ("reference": plain operations; else the fused one, which the context's attention computes).
function llama.create(config, options)
  local self = setmetatable({}, Model)
  self.config = config
  self.num_models = options.num_models
  self.context = options.context
  self.dtype = options.dtype or "f32"
  self.amp = options.amp or false
  self.attention = options.attention == "reference" and reference.attention or ops.attention
  self.layout = options.layout or llama.layout(config)
  self.arena = arena.create(self.layout, self.num_models,
    {dtype = self.dtype, category = "parameters", context = self.context})
  self.names, self.weights = {}, {}
  for _, entry in ipairs(self.layout) do
    self.names[#self.names + 1] = entry.name
    self.weights[#self.weights + 1] = self.arena:view(entry.name)
  end
  self.weight = {}
  for i, name in ipairs(self.names) do self.weight[name] = self.weights[i] end
  for name in pairs(self.layout.joined) do self.weight[name] = self.arena:view(name) end
  return self
end

--- Keeps a bf16 copy of the weights where products run in bf16, so that they are not cast at each use. The
-- optimizer's update writes it; refresh brings it up to date with what else changes the weights.
function Model:keep_half()
  if not self.amp or self.half then return end
  self.half = arena.create(self.layout, self.num_models,
    {dtype = "bf16", category = "parameters", context = self.context})
end

--- Notes that the bf16 copy holds the weights as they are.
function Model:half_is_fresh()
  if self.half then self.half_of = tonumber(native.C.pk_tensor_writes(self.arena.tensor)) end
end

--- Brings the bf16 copy, if one is kept, up to date. Model:loss does so; a recorded program cannot know what will have
-- been written when it runs, so where it is run on weights that others write, refresh comes first (as in the
-- optimizer's prepare).
function Model:refresh()
  if not self.half or self.half_of == native.C.pk_tensor_writes(self.arena.tensor) then return end
  ops.cast(self.arena.tensor, {dtype = "bf16", out = self.half.tensor})
  self:half_is_fresh()
end

--- The bf16 copy of a tensor where products run in bf16, else the tensor itself.
function Model:operand(t)
  return self.amp and ops.cast(t, {dtype = "bf16"}) or t
end

--- The same of a named weight, from the kept copy if there is one.
function Model:weight_operand(name)
  local weight = self.weight[name]
  if not self.half then return self:operand(weight) end
  local copy = self.half:view(name)
  grad.alias(weight, copy)
  return copy
end

--- x [N, R, in] times the transpose of the named weight [N, out, in].
function Model:linear(x, name)
  return ops.matmul(x, self:weight_operand(name), {transpose_b = true})
end

--- Whether a joined weight (see llama.layout) is there to be multiplied by, and none of its parts is to be seen by
-- itself: a gradient may be taken of a part, or a part be a tensor from elsewhere.
function Model:is_joined(name)
  local whole = self.weight[name]
  if not whole then return false end
  for _, part in ipairs(self.layout.joined[name].parts) do
    local weight = self.weight[part]
    if weight.storage ~= whole.storage or (dispatch.is_tracked and dispatch.is_tracked(weight)) then return false end
  end
  return true
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
function Model:hidden(tokens)
  if not dispatch.recording then self:refresh() end
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

--- Sums of the cross-entropy in nats over each worker's valid targets: loss [N] and count [N] f64.
-- tokens and targets are [N, B, T] i32; a target of -100 is ignored.
function Model:loss(tokens, targets)
  local rows = tokens:size(1) * tokens:size(2)
  local hidden, head = self:hidden(tokens), self:weight_operand("embedding.weight")
  local flat = ops.reshape(targets, {shape = {self.num_models, rows}})
  local loss, count = ops.linear_cross_entropy(hidden, head, flat)
  return loss, count
end

--- The mean loss in nats of an ordinary model (N = 1) over validation blocks (see loader.validation), and the
-- number of their targets. seen(done, mean), if given, is called after each batch with the blocks done so far.
function Model:loss_over(blocks, seen)
  local sum, count, done = 0, 0, 0
  for tokens, targets in blocks:each() do
    local loss, valid = self:loss(tokens, targets)
    sum, count, done = sum + loss:item(), count + valid:item(), done + tokens:size(1)
    if seen then seen(done, sum / count) end
  end
  return sum / count, count
end

--- Logits [N, B*T, V] of tokens [N, B, T]; whole in memory, so for small inputs only.
function Model:logits(tokens)
  return self:linear(self:hidden(tokens), "embedding.weight")
end

--- An arena of zeros in the model's layout, for gradients or moments.
function Model:zeros_like(category)
  return arena.create(self.layout, self.num_models,
    {dtype = self.dtype, category = category, context = self.context})
end

--- Writes the gradients of the loss sums into the gradient arena, or adds to it (accumulate).
-- Returns loss [N] and count [N] as Model:loss.
function Model:backward(tokens, targets, gradients, accumulate)
  local leaves, into = {}, {}
  local function add(name)
    leaves[#leaves + 1], into[#into + 1] = self.weight[name], gradients:view(name)
  end
  for _, name in ipairs(self.layout:joined_names()) do
    local join = self.layout.joined[name]
    if join and not self:is_joined(name) then
      for _, part in ipairs(join.parts) do add(part) end
    else
      add(name)
    end
  end
  local count
  local loss = grad.grad(function()
    local sums
    sums, count = self:loss(tokens, targets)
    return sums
  end, leaves, {into = into, accumulate = accumulate, release = true})
  return loss, count
end

local function deviation_of(config, name)
  local residual = name:find("out_proj", 1, true) or name:find("down_proj", 1, true)
  return residual and config.init_std / math.sqrt(2 * config.layers) or config.init_std
end

--- Seeds every worker with the same weights: norms 1, others normal with deviation init_std, and
-- init_std / sqrt(2 * layers) for out_proj and down_proj. The same bits for every N and device.
function Model:initialize(seed)
  for _, entry in ipairs(self.layout) do
    local view = self.weight[entry.name]
    if #entry.shape == 1 then
      ops.fill {shape = view:sizes(), dtype = self.dtype, value = 1, out = view}
    else
      view:seed_normal(seed, entry.name, 0, deviation_of(self.config, entry.name))
    end
  end
end

--- The worker average as an ordinary model (N = 1).
function Model:average()
  local mean = llama.create(self.config, {num_models = 1, layout = self.layout, dtype = self.dtype,
    amp = false, context = self.context})
  ops.average(self.arena.tensor, {out = mean.arena.tensor})
  return mean
end

--- Worker index (from 0) as an ordinary model (N = 1) that shares the packed weights. Freeing it gives back its views
-- alone, not the weights.
function Model:worker(index)
  if type(index) ~= "number" or index % 1 ~= 0 or index < 0 or index >= self.num_models then
    error(("worker %s of a model of %d, counted from 0"):format(tostring(index), self.num_models), 2)
  end
  local one = setmetatable({}, Model)
  for key, value in pairs(self) do one[key] = value end
  one.num_models = 1
  one.arena = self.arena:row(index)
  one.half = nil
  one.weights, one.weight = {}, {}
  for name, whole in pairs(self.weight) do
    local shape = whole:sizes()
    shape[1] = 1
    local stride = whole.stride
    one.weight[name] = whole:view {shape = shape, stride = stride, offset = index * stride}
  end
  for i, name in ipairs(self.names) do one.weights[i] = one.weight[name] end
  return one
end

--- Releases the model's tensors at once.
function Model:free()
  for _, view in pairs(self.weight) do view:free() end
  self.arena:free()
  if self.half then self.half:free() end
end

return llama
