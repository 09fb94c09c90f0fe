--- A step as an algorithm sees it: every worker's weights and gradient, and what can be done with them.
--
-- s.x, s.g      weights and clipped mean gradients of all workers, tensors [N, D]; columns between parameters are 0
-- s.mixes       whether this step mixes; s.scheme is "awc" or "atc"; s.form is what the algorithm's form named it
--
-- Tensors are changed by the methods alone. They do nothing in a step that was stopped, so that it has not happened.
local C = require("pack.native").C
local arena = require "pack.model.arena"
local ops = require "pack.core.ops"
local phase = require "pack.core.phase"
local tensor = require "pack.core.tensor"

local Step = {}
Step.__index = Step

local step = {}

--- The step of an updater (see pack.updater); form and mixes are set for each one.
function step.create(updater)
  local model = updater.model
  return setmetatable({updater = updater, x = model.arena.tensor, g = updater.gradients.tensor,
    scheme = updater.scheme, mixes = true, num_models = model.num_models, layout = model.layout,
    parameters = model.layout.parameters}, Step)
end

-- Runs fn, whose operations traces show as a phase.
local function during(self, name, fn)
  return phase(name, fn, self.updater.model.context)
end

-- State ----------------------------------------------------------------------------------------------

--- Keeps a tensor by a name, as part of training states: from now on it is changed by s:assign and its like. Columns [N, D]
-- and [1, D] are saved by the names of parameters. Only in an algorithm's start.
function Step:keep(name, t)
  return self.updater:keep(name, t)
end

--- The optimizer's moment of a name, such as "exp_avg", a tensor [N, D].
function Step:moment(name)
  return self.updater:moment(name)
end

--- Zeros [rows, D]; rows is by default N.
function Step:zeros(rows)
  return ops.fill {shape = {rows or self.num_models, self.layout.size}, dtype = self.x.dtype, value = 0,
    context = self.updater.model.context}
end

--- Each worker's learning rate, a tensor [N, 1].
function Step:learning_rate()
  return self.updater:rates()
end

--- A copy of a tensor.
function Step.copy(_, t)
  return ops.copy(t)
end

--- A number everywhere, of a shape; default [1, 1], which broadcasts.
function Step:full(value, shape)
  return ops.fill {shape = shape or {1, 1}, dtype = self.x.dtype, value = value, context = self.updater.model.context}
end

--- 1 at the columns of parameters and 0 between them, [1, D]. In an algorithm's start: it stays.
function Step:parameter_columns()
  local model = self.updater.model
  local real = tensor.zeros({1, self.layout.size}, model.dtype, {category = "workspace", context = model.context})
  for _, entry in ipairs(self.layout) do
    local view = arena.columns(real, entry)
    ops.fill {shape = view:sizes(), dtype = model.dtype, value = 1, out = view}
  end
  return real
end

-- Values ---------------------------------------------------------------------------------------------

--- Uniform random numbers in [0, 1) for the columns, [1, D]: others in every step, the same for all workers.
function Step:random_columns()
  local updater = self.updater
  local counter = updater.scalars:view {shape = {1}, offset = C.PK_SCALAR_STEP}
  return ops.random_columns(counter, {dtype = self.x.dtype, seed = updater.algorithm.seed or 0,
    columns = self.layout.size})
end

-- Changes --------------------------------------------------------------------------------------------

--- x <- U(x, g): the optimizer's update in place, of the weights by their gradients where nothing else is given.
function Step:optimize(x, g)
  during(self, "optimizer", function() self.updater:optimize(x or self.x, g or self.g, self.optimizer_form) end)
end

-- A tensor as it is, or repeated to the shape of another.
local function spread(t, like)
  local wanted, same = like:sizes(), t.rank == like.rank
  for d, extent in ipairs(t:sizes()) do same = same and extent == wanted[d] end
  return same and t or ops.expand(t, {shape = wanted})
end

--- into <- value, which is broadcast to it.
function Step:assign(into, value)
  if value.rank ~= into.rank or value:size(0) ~= 1 then value = spread(value, into) end
  ops.blend(into, value, self.updater.guard)
end

local function blend(self, y, x, factor, attributes)
  if type(factor) == "number" then
    attributes.scale, factor = factor, nil
  elseif factor.dtype ~= "f64" then
    factor = ops.cast(factor, {dtype = "f64"})
  end
  ops.blend(y, x, self.updater.guard, factor, attributes)
end

--- y <- y + a x; a is a number, or a tensor with one for all rows or one for each, such as s:learning_rate().
function Step:add(y, x, a)
  blend(self, y, x, a, {own = 1})
end

--- y <- (1 - t) y + t x; t is as a of s:add.
function Step:lerp(y, x, t)
  blend(self, y, x, t, {lerp = true})
end

--- Columns index [K] of t, i32, <- values [N, K], or [1, K] for all: what ops.gather_columns(t, index) took, changed.
function Step:put_columns(t, index, values)
  ops.scatter_columns(t, index, values, self.updater.guard)
end

-- Other workers --------------------------------------------------------------------------------------

-- Notes what a worker sends: bytes to each neighbour of the mixing, or to an all-reduce.
local function note(self, kind, bytes)
  self.sent = self.sent or {mix = 0, average = 0}
  self.sent[kind] = self.sent[kind] + bytes
end

-- Bytes of one worker's parameters, or of its row of a tensor without columns.
local function message_bytes(self, t)
  local columns = t:size(1)
  return (columns == self.layout.size and self.parameters or columns) * (t.dtype == "f64" and 8 or 4)
end

--- t <- W t in place, W being that of the mixing. bytes: what a worker sends of it to a neighbour, where that is less than
-- its row of t, such as a compressed form.
function Step:mix(t, bytes)
  local updater = self.updater
  during(self, "mix", function() ops.mix(t, updater.mixing, updater.scalars, updater.guard) end)
  note(self, "mix", bytes or message_bytes(self, t))
end

--- The mean over the workers of t [N, D], a tensor [1, D].
function Step:average(t)
  note(self, "average", message_bytes(self, t))
  return during(self, "mix", function() return ops.average(t) end)
end

--- What each worker keeps of its own in the mixing, the diagonal of W: a tensor [N, 1].
function Step:diagonal()
  local mixing = self.updater.mixing
  local diagonal = mixing:view {shape = {self.num_models, 1}, stride = self.num_models + 1}
  return self.x.dtype == "f64" and diagonal or ops.cast(diagonal, {dtype = self.x.dtype})
end

return step
