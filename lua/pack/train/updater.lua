--- What a training step does once the gradients are there: scale and norm of each worker's gradient, the look for values
-- that are not finite, clipping, and the algorithm's step with the optimizer in it.
--
-- A value that is not finite sets the guard, under which every later change leaves weights, state and counters as they
-- are. What is looked at: losses and gradient norms in every step, and weights and state in a step before which
-- something else than the step wrote to them; the optimizers look at their own results as they write them.
--
-- AdamW with plain gossip runs as one operation, to the bits of clip, mix and adamw.
local algorithms = require "pack.algorithms"
local arena = require "pack.model.arena"
local dispatch = require "pack.core.dispatch"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local interrupt = require "pack.core.interrupt"
local native = require "pack.native"
local ops = require "pack.core.ops"
local optim = require "pack.optim"
local phase = require "pack.core.phase"
local step_view = require "pack.train.step"
local tensor = require "pack.core.tensor"

local updater = {}

local Updater = {}
Updater.__index = Updater

local C = native.C
local known_sendings = setmetatable({}, {__mode = "k"}) -- by matrix

-- The reasons of a stop by number: those of pack.h, then what is kept, in its order.
local FIRST_KEPT = C.PK_REASON_UPDATE + 1
local reasons = {"loss", "gradient norm", "gradient norm", "update"}

-- What a clipped gradient norm may be, by dtype: the square of twice as much is a number still, and so are all
-- second moments.
local largest_norm = {f32 = 2 ^ 63, f64 = 2 ^ 511}

local function small(self, dtype, ...)
  return tensor.zeros({...}, dtype, {category = "workspace", context = self.model.context})
end

-- Notes a tensor as kept: columns, an arena of them, or nil for a tensor that is no set of columns.
local function note_kept(self, name, t, columns)
  for _, one in ipairs(self.kept) do
    if one.name == name then error(("'%s' is kept already"):format(name), 3) end
  end
  self.kept[#self.kept + 1] = {name = name, tensor = t, arena = columns}
end

--- The updater of a packed model. options: optimizer (pack.optim; default AdamW with `settings`), algorithm (an instance
-- of pack.algorithms.create; default gossip), scheme ("awc", the default, or "atc"), fused (default true; false runs
-- every part as an operation of its own, to the same bits). settings is the optimizer section of a configuration.
function updater.create(model, settings, options)
  options = options or {}
  local n = model.num_models
  local self = setmetatable({}, Updater)
  self.model, self.settings = model, settings
  self.scheme = options.scheme or "awc"
  if self.scheme ~= "awc" and self.scheme ~= "atc" then
    error("scheme '" .. tostring(self.scheme) .. "' is not awc or atc", 2)
  end
  model:keep_bf16()
  self.gradients = model:zeros_like("gradients")
  self.scalars, self.mixing = small(self, "f64", C.PK_SCALARS_SIZE + n), small(self, "f64", n, n)
  self.guard, self.blocks = small(self, "i32", C.PK_GUARD_SIZE), model.layout:blocks(model.context)
  self.host_scalars = ffi.new("double[?]", C.PK_SCALARS_SIZE + n)
  self.host_mixing = ffi.new("double[?]", n * n)
  self.kept, self.writes = {}, {} -- writes: to what is kept, until the last update was done
  note_kept(self, "parameters", model.arena.tensor, model.arena)
  self.optimizer = options.optimizer or optim.create(model, settings)
  for _, pair in ipairs(self.optimizer.state) do note_kept(self, pair[1], pair[2].tensor, pair[2]) end
  self.algorithm = options.algorithm or algorithms.create(algorithms.find "gossip")
  self.fused = options.fused ~= false and self.optimizer.name == "adamw" and self.algorithm.is_plain ~= nil
    and self.algorithm:is_plain()
  self.step_view = step_view.create(self)
  if self.algorithm.start then self.algorithm:start(self.step_view) end
  self.inputs = {scalars = self.scalars, blocks = self.blocks, guard = self.guard}
  return self
end

--- Keeps a tensor by a name, as part of training states; returns the one that is kept, with its values.
function Updater:keep(name, t)
  local layout, context = self.model.layout, self.model.context
  local shape = t:sizes()
  local columns, own
  if #shape == 2 and shape[2] == layout.size then
    columns = arena.create(layout, shape[1], {dtype = t.dtype, category = "moments", context = context})
    own = columns.tensor
  else
    own = tensor.zeros(shape, t.dtype, {category = "moments", context = context})
  end
  ops.copy(t, {out = own})
  note_kept(self, name, own, columns)
  return own
end

--- A tensor that is kept, by its name; an error if there is none.
function Updater:moment(name)
  for _, one in ipairs(self.kept) do
    if one.name == name then return one.tensor end
  end
  error(("%s keeps no %s"):format(self.optimizer.name, tostring(name)), 2)
end

-- Before a step ------------------------------------------------------------------------------------------

local function write_mixing(self, matrix)
  local n, flat = self.model.num_models, self.host_mixing
  for i = 1, n do
    for j = 1, n do flat[(i - 1) * n + j - 1] = matrix[i][j] end
  end
  self.mixing:write(flat)
end

local function write_scalars(self, step)
  local s, flat = self.settings, self.host_scalars
  flat[C.PK_SCALAR_EPS], flat[C.PK_SCALAR_DECAY] = s.eps, s.weight_decay
  flat[C.PK_SCALAR_BETA1], flat[C.PK_SCALAR_BETA2], flat[C.PK_SCALAR_CORRECTION1], flat[C.PK_SCALAR_CORRECTION2] =
    self.optimizer:coefficients(step.t)
  flat[C.PK_SCALAR_CLIP] = s.grad_clip or 0
  flat[C.PK_SCALAR_STEP], flat[C.PK_SCALAR_MIXES] = step.t - 1, step.mixes == false and 0 or 1
  for i = 0, self.model.num_models - 1 do
    flat[C.PK_SCALARS_SIZE + i] = type(step.lr) == "table" and step.lr[i + 1] or step.lr
  end
  self.scalars:write(flat)
end

-- Looks at weights and state to which something else than a step wrote.
local function check_kept(self)
  for i, one in ipairs(self.kept) do
    if one.arena and self.writes[i] ~= C.pk_tensor_writes(one.tensor) then
      ops.check_arena(one.tensor, self.scalars, self.guard, {reason = FIRST_KEPT + i - 1})
    end
  end
end

--- Writes what the coming update takes from the host into device memory: t (from 1), lr (a number, or one for each
-- worker), mixing (rows of the N x N matrix), mixes (false: W stands for "no mixing now" and is not counted) and
-- mixings (how many came before; default t - 1). What was written to since the last update is looked at: a value that
-- is not finite stops the run. Returns the form of the step, which is what a recorded one depends on besides.
function Updater:prepare(step)
  write_scalars(self, step)
  write_mixing(self, step.mixing)
  check_kept(self)
  self.model:refresh()
  return self:form_of(step)
end

-- The form of a step as a text: what the optimizer and the algorithm say, and whether it mixes where that is not left to
-- the operations.
function Updater:form_of(step)
  if self.fused then return "" end
  local view, t, mixes = self.step_view, step.t - 1, step.mixes ~= false
  view.optimizer_form = self.optimizer.form and self.optimizer:form(step.t) or nil
  view.form = self.algorithm.form and self.algorithm:form(t, step.mixings or t) or nil
  view.mixes = mixes
  return ("%s, %s, %s"):format(mixes and "mixes" or "alone", view.optimizer_form or "", view.form or "")
end

-- The step -----------------------------------------------------------------------------------------------

--- x <- U(x, g) of an algorithm's step.
function Updater:optimize(x, g, form)
  self.inputs.form = form
  self.optimizer:apply(x, g, self.inputs)
end

--- The workers' learning rates, a tensor [N, 1] in the dtype of the weights.
function Updater:rates()
  local n = self.model.num_models
  local rates = self.scalars:view {shape = {n, 1}, stride = 1, offset = C.PK_SCALARS_SIZE}
  return self.model.dtype == "f64" and rates or ops.cast(rates, {dtype = self.model.dtype})
end

-- Runs fn, whose operations traces show as a phase.
local function during(self, name, fn)
  return phase(name, fn, self.model.context)
end

local function apply_fused(self, scale, norm)
  local model, optimizer = self.model, self.optimizer
  ops.update(model.arena.tensor, self.gradients.tensor, optimizer.exp_avg.tensor, optimizer.exp_avg_sq.tensor, scale, norm,
    self.mixing, self.blocks, self.scalars, self.guard, model.bf16 and model.bf16.tensor,
    {combine_last = self.scheme == "atc"})
end

local function apply_separately(self, scale, norm)
  local view = self.step_view
  during(self, "clip", function() ops.clip(self.gradients.tensor, scale, norm, self.scalars, self.guard) end)
  view.sent = nil
  self.algorithm:step(view)
end

-- The factor and the norm [N] f64 of each worker's gradient.
local function measure(self, counts)
  local scale = ops.inverse_count(counts)
  return scale, ops.gradient_norm(self.gradients.tensor, scale)
end

--- Notes that the update ran; for a recorded one, which the updater does not see.
function Updater:updated()
  if self.fused then self.model:bf16_is_fresh() end
  for i, one in ipairs(self.kept) do self.writes[i] = tonumber(C.pk_tensor_writes(one.tensor)) end
end

local function apply(self, losses, scale, norm)
  during(self, "clip", function()
    ops.check_finite(losses, norm, self.scalars, self.guard, {largest = largest_norm[self.model.dtype]})
  end)
  if self.fused then
    during(self, "optimizer", function() apply_fused(self, scale, norm) end)
  else
    apply_separately(self, scale, norm)
  end
  if not dispatch.recording then self:updated() end
end

--- The update's operations: from the gradients of the loss sums in self.gradients, of losses and counts (loss sums
-- and valid targets per worker, tensors [N]), under what prepare wrote and the form that it returned. Returns the
-- gradient norms [N] f64 before clipping. Nothing here looks at values, so that a program can record it. In traces the
-- phases are "clip", which takes the norms too, "mix" and "optimizer"; fused, clipping and mixing are part of the last.
function Updater:update(losses, counts)
  local scale, norm = during(self, "clip", function() return measure(self, counts) end)
  interrupt.hold(C.PK_HOLD_ALL, apply, self, losses, scale, norm) -- from here on all of it happens
  return norm
end

--- prepare and update in one: step also holds losses and counts.
function Updater:step(step)
  self:prepare(step)
  return self:update(step.losses, step.counts)
end

-- What became of it --------------------------------------------------------------------------------------

-- What was not finite, as text.
local function reason_text(self, reason)
  if reasons[reason] then return reasons[reason] end
  local kept = self.kept[reason - FIRST_KEPT + 1]
  return kept.name == "parameters" and "weights" or kept.name
end

-- {worker, step, what} of a stop, and its reason as in the guard (see ops.def); nil if there is none.
local function stop_of(self, guard)
  local worker, reason = guard[C.PK_GUARD_WORKER], guard[C.PK_GUARD_REASON]
  if guard[C.PK_GUARD_STOPPED] == 0 then
    if guard[C.PK_GUARD_FOUND] == 0 then return nil end
    worker, reason = guard[C.PK_GUARD_FOUND] - 1, C.PK_REASON_UPDATE -- the last update found it
  end
  return {worker = worker, step = guard[C.PK_GUARD_STEP], what = reason_text(self, reason)}, reason
end

--- What the device counted: {updates, mixings}, and stopped = {worker, step, what} when a value that
-- was not finite stopped the run. guard: the values of self.guard where they were read already.
function Updater:status(guard)
  guard = guard or self.guard:read_numbers()
  return {updates = guard[C.PK_GUARD_UPDATES], mixings = guard[C.PK_GUARD_MIXINGS], stopped = (stop_of(self, guard))}
end

local before = "nothing was mixed or updated since, the weights are those before that step"
local outcomes = {
  [C.PK_REASON_LARGE_NORM] = ("has a square that exp_avg_sq cannot hold, after clipping; %s. Clip (optimizer.grad_clip), or lower the "
    .. "learning rate"):format(before),
  [C.PK_REASON_UPDATE] = "gave a value that is not finite; no such value was mixed, but weights and moments are those after that step. Go "
    .. "back to the last saved state",
}

--- Raises an error when the guard is set, naming worker, step and what was not finite. guard as of status.
function Updater:check(guard)
  guard = guard or self.guard:read_numbers()
  local stopped, reason = stop_of(self, guard)
  if not stopped then return end
  local outcome = outcomes[reason]
  if outcome then
    failure.raise(1, ("worker %d: the %s of step %d %s"):format(stopped.worker, stopped.what, stopped.step, outcome))
  end
  local plural = stopped.what == "weights" and "are" or "is"
  failure.raise(1, ("worker %d: the %s %s not finite at step %d; %s"):format(stopped.worker, stopped.what, plural,
    stopped.step, before))
end

-- Bytes that a worker sends -------------------------------------------------------------------------------

--- What a step of the form that ran or was recorded last sends: {mix, average}, bytes to each neighbour of the mixing, and
-- of what is averaged over all workers.
function Updater:sent()
  if self.fused then
    local size = self.model.dtype == "f64" and 8 or 4
    return {mix = self.model.layout.parameters * size, average = 0}
  end
  return self.step_view.sent or {mix = 0, average = 0}
end

-- How often a worker sends its message in a mixing, on average over the workers: once to each neighbour; where everyone is
-- everyone's neighbour, as an all-reduce does.
local function sendings(matrix)
  local n, links = #matrix, 0
  for i = 1, n do
    for j = 1, n do
      if i ~= j and matrix[i][j] ~= 0 then links = links + 1 end
    end
  end
  return links == n * (n - 1) and 2 * (n - 1) / n or links / n
end

--- The bytes that a worker sends in a step on average, by what sent() said of it and the matrix of its mixing.
function Updater.bytes_sent(_, sent, matrix)
  local n = #matrix
  local bytes = sent.average * 2 * (n - 1) / n
  if sent.mix == 0 then return bytes end
  known_sendings[matrix] = known_sendings[matrix] or sendings(matrix)
  return bytes + sent.mix * known_sendings[matrix]
end

--- Releases the updater's tensors at once.
function Updater:free()
  if self.optimizer.free then self.optimizer:free() end
  for i, one in ipairs(self.kept) do
    if i > 1 then (one.arena or one.tensor):free() end -- the first is the model's
  end
  for _, one in ipairs {self.gradients, self.scalars, self.mixing, self.guard, self.blocks} do one:free() end
end

return updater
