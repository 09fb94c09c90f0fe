--- Packed models: N replicas whose parameters are the rows of one arena, of whatever architecture.
--
-- An architecture is a file of this room, named in architectures.lua, that returns a table. Below,
-- model is the model section of a configuration, a name is that of a parameter, and shapes are those
-- of one model, without the worker. The table has
--   parameter_list(model)   the parameters in arena order, a list of {name, shape}; an entry with
--                           lookup = true is a table of rows, which nothing is multiplied by
--   head                    the name of the weight [V, d] that gives logits of hidden states
--   hidden(self, tokens)    the last hidden states [N, B*T, d], ready for the head, of tokens
--                           [N, B, T] i32: operations on the weights of the packed model self,
--                           which has weight, linear, operand, is_joined, attention, num_models
--                           and config
--   initial(model, name)    mean and deviation of the normals that a parameter begins with; with
--                           deviation 0 it begins as the mean
--   attention_width(model)  the widths that attention works on, added up over the layers
--   refusal(model)          what does not fit in the keys of the model, as text; nil if all does
--   hf_name(name)           Hugging Face's name, and true if the tensor is transposed there
--   hf_config(model)        what its config.json says of this architecture alone
-- and, where one input is multiplied by several weights,
--   joins(model)            these weights, as the joins of pack.arena.layout: they are one matrix
--                           where they lie one after the other
local architectures = require "pack.model.architectures"
local arena = require "pack.model.arena"
local caller = require "pack.core.caller"
local dispatch = require "pack.core.dispatch"
local grad = require "pack.grad"
local native = require "pack.native"
local ops = require "pack.core.ops"
local reference = require "pack.grad.reference"

caller.register()

local Model = {}
Model.__index = Model

local packed = {
  --- The methods of every packed model, by name.
  Model = Model,
}

--- The layout of one model's parameters, with the architecture's joined columns where no padding
-- lies within them.
function packed.layout(model)
  local architecture = architectures.of(model)
  local joins = architecture.joins and architecture.joins(model)
  return arena.layout(architecture.parameter_list(model), joins)
end

-- Names the model's weights: views of its arena.
local function name_weights(self)
  self.names, self.weights, self.weight = {}, {}, {}
  for i, entry in ipairs(self.layout) do
    local view = self.arena:view(entry.name)
    self.names[i], self.weights[i], self.weight[entry.name] = entry.name, view, view
  end
  for name in pairs(self.layout.joined) do self.weight[name] = self.arena:view(name) end
  return self
end

--- A packed model of num_models workers with zeroed parameters. config is the model section of a
-- configuration. options: num_models, context (device context, default the process's), dtype "f64"
-- or "f32", amp (bf16 operands in products and attention), attention ("reference": plain
-- operations; else the fused one, which the context's attention computes).
function packed.create(config, options)
  local self = setmetatable({}, Model)
  self.config = config
  self.architecture = architectures.of(config)
  self.num_models = options.num_models
  self.context = options.context
  self.dtype = options.dtype or "f32"
  self.amp = options.amp or false
  self.attention = options.attention == "reference" and reference.attention or ops.attention
  self.layout = options.layout or packed.layout(config)
  self.arena = arena.create(self.layout, self.num_models,
    {dtype = self.dtype, category = "parameters", context = self.context})
  return name_weights(self)
end

--- Keeps a bf16 copy of the weights where products run in bf16, so that they are not cast at each
-- use. The optimizer's update writes it; refresh brings it up to date with what else changes the
-- weights.
function Model:keep_bf16()
  if not self.amp or self.bf16 then return end
  self.bf16 = arena.create(self.layout, self.num_models,
    {dtype = "bf16", category = "parameters", context = self.context})
end

--- Notes that the bf16 copy holds the weights as they are.
function Model:bf16_is_fresh()
  if self.bf16 then self.bf16_of = tonumber(native.C.pk_tensor_writes(self.arena.tensor)) end
end

--- Brings the bf16 copy, if one is kept, up to date. Model:loss does so; a recorded program cannot
-- know what will have been written when it runs, so where it is run on weights that others write,
-- refresh comes first (as in the optimizer's prepare).
function Model:refresh()
  if not self.bf16 or self.bf16_of == native.C.pk_tensor_writes(self.arena.tensor) then return end
  ops.cast(self.arena.tensor, {dtype = "bf16", out = self.bf16.tensor})
  self:bf16_is_fresh()
end

--- The bf16 copy of a tensor where products run in bf16, else the tensor itself.
function Model:operand(t)
  return self.amp and ops.cast(t, {dtype = "bf16"}) or t
end

--- The same of a named weight, from the kept copy if there is one.
function Model:weight_operand(name)
  local weight = self.weight[name]
  if not self.bf16 then return self:operand(weight) end
  local copy = self.bf16:view(name)
  grad.alias(weight, copy)
  return copy
end

--- x [N, R, in] times the transpose of the named weight [N, out, in].
function Model:linear(x, name)
  return ops.matmul(x, self:weight_operand(name), {transpose_b = true})
end

--- Whether a joined weight (see packed.layout) is there to be multiplied by, and none of its parts
-- is to be seen by itself: a gradient may be taken of a part, or a part be a tensor from elsewhere.
function Model:is_joined(name)
  local whole = self.weight[name]
  if not whole then return false end
  for _, part in ipairs(self.layout.joined[name].parts) do
    local weight = self.weight[part]
    local tracked = dispatch.is_tracked and dispatch.is_tracked(weight)
    if tracked or weight.storage ~= whole.storage then return false end
  end
  return true
end

--- The last hidden states [N, B*T, d], normalised and ready for the head, of tokens [N, B, T] i32.
function Model:hidden(tokens)
  if not dispatch.recording then self:refresh() end
  return self.architecture.hidden(self, tokens)
end

--- Sums of the cross-entropy in nats over each worker's valid targets: loss [N] and count [N] f64.
-- tokens and targets are [N, B, T] i32; a target of -100 is ignored.
function Model:loss(tokens, targets)
  local rows = tokens:size(1) * tokens:size(2)
  local hidden, head = self:hidden(tokens), self:weight_operand(self.architecture.head)
  local flat = ops.reshape(targets, {shape = {self.num_models, rows}})
  local loss, count = ops.linear_cross_entropy(hidden, head, flat)
  return loss, count
end

--- The mean loss in nats of an ordinary model (N = 1) over validation blocks (see
-- loader.validation), and the number of their targets. seen(done, mean), if given, is called after
-- each batch with the blocks done so far.
function Model:loss_over(blocks, seen)
  local sum, count, done = 0, 0, 0
  for tokens, targets in blocks:each() do
    local loss, valid = self:loss(tokens, targets)
    sum, count, done = sum + loss:item(), count + valid:item(), done + tokens:size(1)
    if seen then seen(done, sum / count) end
  end
  return sum / count, count
end

--- Logits [N, R, V] of last hidden states [N, R, d]; whole in memory, so for small inputs only.
function Model:logits_of(hidden)
  return self:linear(hidden, self.architecture.head)
end

--- Logits [N, B*T, V] of tokens [N, B, T].
function Model:logits(tokens)
  return self:logits_of(self:hidden(tokens))
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

--- Seeds every worker with the same weights, as the architecture wants them to begin. The same bits
-- for every N and device.
function Model:initialize(seed)
  for i, name in ipairs(self.names) do
    local view, mean, deviation = self.weights[i], self.architecture.initial(self.config, name)
    if deviation == 0 then
      ops.fill {shape = view:sizes(), dtype = self.dtype, value = mean, out = view}
    else
      view:seed_normal(seed, name, mean, deviation)
    end
  end
end

--- The worker average as an ordinary model (N = 1).
function Model:average()
  local mean = packed.create(self.config, {num_models = 1, layout = self.layout, dtype = self.dtype,
    amp = false, context = self.context})
  ops.average(self.arena.tensor, {out = mean.arena.tensor})
  return mean
end

-- Worker index of a tensor [N, ...], as a tensor [1, ...].
local function row_of(whole, index)
  local shape, stride = whole:sizes(), whole.stride
  shape[1] = 1
  return whole:view {shape = shape, stride = stride, offset = index * stride}
end

--- Worker index (from 0) as an ordinary model (N = 1). Its arena [1, D] is a view of its row of the
-- packed one: it shares the weights, and freeing it gives back its views alone.
function Model:worker(index)
  if type(index) ~= "number" or index % 1 ~= 0 or index < 0 or index >= self.num_models then
    caller.raise("worker %s of a model of %d, counted from 0", tostring(index), self.num_models)
  end
  local one = setmetatable({}, Model)
  for key, value in pairs(self) do one[key] = value end
  one.num_models = 1
  one.arena = self.arena:row(index)
  one.bf16 = nil
  name_weights(one)
  for name, whole in pairs(self.weight) do
    local replaced = not rawequal(whole, self.arena:view(name))
    if replaced then one.weight[name] = row_of(whole, index) end
  end
  for i, name in ipairs(one.names) do one.weights[i] = one.weight[name] end
  return one
end

--- Releases the model's tensors at once.
function Model:free()
  for _, view in pairs(self.weight) do view:free() end
  self.arena:free()
  if self.bf16 then self.bf16:free() end
end

return packed
