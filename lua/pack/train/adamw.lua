-- AdamW over a packed arena, with clipping per worker and mixing between workers.
--
-- One step is: scale and norm of each worker's gradient, the check for finite values, and the
-- update, which clips, mixes and applies AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101).
-- AWC mixes before AdamW, ATC after it. A value that is not finite sets the guard, under which
-- every later update leaves parameters, moments and counters as they are. What is looked at: losses and
-- gradient norms in every step, and weights and moments in a step before which something else than
-- the update wrote to them; the update looks at its own results as it writes them.
local dispatch = require "pack.core.dispatch"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local interrupt = require "pack.core.interrupt"
local native = require "pack.native"
local ops = require "pack.core.ops"
local phase = require "pack.core.phase"
local tensor = require "pack.core.tensor"

local optim = {}

local Optimizer = {}
Optimizer.__index = Optimizer

local C = native.C

-- The reasons of a stop by number: those of pack.h, then the arenas that are looked at.
local FIRST_ARENA = C.PK_REASON_UPDATE + 1
local reasons = {"loss", "gradient norm", "gradient norm", "update", "weights", "exp_avg", "exp_avg_sq"}

-- What a clipped gradient norm may be, by dtype: the square of twice as much is a number still, and so are all
-- second moments.
local largest_norm = {f32 = 2 ^ 63, f64 = 2 ^ 511}

--- The AdamW optimizer of a packed model.
-- settings is the optimizer section of a configuration (beta1, beta2, eps, weight_decay, grad_clip
-- or false); options: scheme "awc" or "atc", fused (default true; false runs clip, mix and adamw as
-- operations of their own, to the same bits).
function optim.adamw(model, settings, options)
  options = options or {}
  local n = model.num_models
  local self = setmetatable({}, Optimizer)
  self.model = model
  self.settings = settings
  self.scheme = options.scheme or "awc"
  if self.scheme ~= "awc" and self.scheme ~= "atc" then
    error("scheme '" .. tostring(self.scheme) .. "' is not awc or atc", 2)
  end
  self.fused = options.fused ~= false
  model:keep_bf16()
  self.gradients = model:zeros_like("gradients")
  self.exp_avg = model:zeros_like("moments")
  self.exp_avg_sq = model:zeros_like("moments")
  self.arenas = {model.arena.tensor, self.exp_avg.tensor, self.exp_avg_sq.tensor}
  self.writes = {} -- to the arenas until the last update was done
  local function small(dtype, ...)
    return tensor.zeros({...}, dtype, {category = "workspace", context = model.context})
  end
  self.scalars = small("f64", C.PK_SCALARS_SIZE)
  self.mixing = small("f64", n, n)
  self.guard = small("i32", C.PK_GUARD_SIZE)
  self.blocks = model.layout:blocks(model.context)
  self.host_scalars = ffi.new("double[?]", C.PK_SCALARS_SIZE)
  self.host_mixing = ffi.new("double[?]", n * n)
  return self
end

local function write_mixing(self, matrix)
  local n, flat = self.model.num_models, self.host_mixing
  for i = 1, n do
    for j = 1, n do flat[(i - 1) * n + j - 1] = matrix[i][j] end
  end
  self.mixing:write(flat)
end

local function write_scalars(self, step)
  local s, flat = self.settings, self.host_scalars
  flat[C.PK_SCALAR_LR], flat[C.PK_SCALAR_BETA1], flat[C.PK_SCALAR_BETA2] = step.lr, s.beta1, s.beta2
  flat[C.PK_SCALAR_EPS], flat[C.PK_SCALAR_DECAY] = s.eps, s.weight_decay
  flat[C.PK_SCALAR_CORRECTION1] = 1 - s.beta1 ^ step.t
  flat[C.PK_SCALAR_CORRECTION2] = 1 - s.beta2 ^ step.t
  flat[C.PK_SCALAR_CLIP] = s.grad_clip or 0
  flat[C.PK_SCALAR_STEP], flat[C.PK_SCALAR_MIXES] = step.t - 1, step.mixes == false and 0 or 1
  self.scalars:write(flat)
end

-- Runs fn, whose operations traces show as a phase.
local function during(self, name, fn)
  return phase(name, fn, self.model.context)
end

local function apply_separately(self, scale, norm)
  local x, g = self.model.arena.tensor, self.gradients.tensor
  local m, v = self.exp_avg.tensor, self.exp_avg_sq.tensor
  local function mix()
    ops.mix(x, self.mixing, self.scalars, self.guard)
  end
  during(self, "clip", function() ops.clip(g, scale, norm, self.scalars, self.guard) end)
  if self.scheme == "awc" then during(self, "mix", mix) end
  during(self, "optimizer", function() ops.adamw(x, g, m, v, self.blocks, self.scalars, self.guard) end)
  if self.scheme == "atc" then during(self, "mix", mix) end
end

local function apply_fused(self, scale, norm)
  local model = self.model
  ops.update(model.arena.tensor, self.gradients.tensor, self.exp_avg.tensor, self.exp_avg_sq.tensor, scale, norm,
    self.mixing, self.blocks, self.scalars, self.guard, model.bf16 and model.bf16.tensor,
    {combine_last = self.scheme == "atc"})
end

-- The factor and the norm [N] f64 of each worker's gradient.
local function measure(self, counts)
  local scale = ops.inverse_count(counts)
  return scale, ops.gradient_norm(self.gradients.tensor, scale)
end

-- Looks at weights and moments to which something else than the update wrote.
local function check_arenas(self)
  for i, arena in ipairs(self.arenas) do
    if self.writes[i] ~= C.pk_tensor_writes(arena) then
      ops.check_arena(arena, self.scalars, self.guard, {reason = FIRST_ARENA + i - 1})
    end
  end
end

--- Writes what the coming update takes from the host into device memory: t (from 1), lr, mixing (rows of the
-- N x N matrix) and mixes (false: W stands for "no mixing now" and is not counted). Weights and moments that were
-- written to since the last update are looked at: a value that is not finite stops the run.
function Optimizer:prepare(step)
  write_scalars(self, step)
  write_mixing(self, step.mixing)
  check_arenas(self)
  self.model:refresh()
end

--- Notes that the update ran; for a recorded one, which the optimizer does not see.
function Optimizer:updated()
  if self.fused then self.model:bf16_is_fresh() end
  for i, arena in ipairs(self.arenas) do self.writes[i] = tonumber(C.pk_tensor_writes(arena)) end
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
-- and valid targets per worker, tensors [N]), under what prepare wrote. Returns the gradient norms [N] f64 before
-- clipping. Nothing here looks at values, so that a program can record it. In traces the phases are "clip", which
-- takes the norms too, "mix" and "optimizer"; fused, clipping and mixing are part of the last.
function Optimizer:update(losses, counts)
  local scale, norm = during(self, "clip", function() return measure(self, counts) end)
  interrupt.hold(C.PK_HOLD_ALL, apply, self, losses, scale, norm) -- from here on all of it happens
  return norm
end

--- prepare and update in one: step also holds losses and counts.
function Optimizer:step(step)
  self:prepare(step)
  return self:update(step.losses, step.counts)
end

-- {worker, step, what} of a stop, and its reason as in the guard (see ops.def); nil if there is none.
local function stop_of(guard)
  local worker, reason = guard[C.PK_GUARD_WORKER], guard[C.PK_GUARD_REASON]
  if guard[C.PK_GUARD_STOPPED] == 0 then
    if guard[C.PK_GUARD_FOUND] == 0 then return nil end
    worker, reason = guard[C.PK_GUARD_FOUND] - 1, C.PK_REASON_UPDATE -- the last update found it
  end
  return {worker = worker, step = guard[C.PK_GUARD_STEP], what = reasons[reason]}, reason
end

--- What the device counted: {updates, mixings}, and stopped = {worker, step, what} when a value that
-- was not finite stopped the run. guard: the values of self.guard where they were read already.
function Optimizer:status(guard)
  guard = guard or self.guard:read_numbers()
  return {updates = guard[C.PK_GUARD_UPDATES], mixings = guard[C.PK_GUARD_MIXINGS], stopped = (stop_of(guard))}
end

local before = "nothing was mixed or updated since, the weights are those before that step"
local outcomes = {
  [C.PK_REASON_LARGE_NORM] = ("has a square that exp_avg_sq cannot hold, after clipping; %s. Clip (optimizer.grad_clip), or lower the "
    .. "learning rate"):format(before),
  [C.PK_REASON_UPDATE] = "gave a value that is not finite; no such value was mixed, but weights and moments are those after that step. Go "
    .. "back to the last saved state",
}

--- Raises an error when the guard is set, naming worker, step and what was not finite. guard as of status.
function Optimizer:check(guard)
  guard = guard or self.guard:read_numbers()
  local stopped, reason = stop_of(guard)
  if not stopped then return end
  local outcome = outcomes[reason]
  if outcome then
    failure.raise(1, ("worker %d: the %s of step %d %s"):format(stopped.worker, stopped.what, stopped.step, outcome))
  end
  local plural = stopped.what == "weights" and "are" or "is"
  failure.raise(1, ("worker %d: the %s %s not finite at step %d; %s"):format(stopped.worker, stopped.what, plural,
    stopped.step, before))
end

--- Releases the optimizer's tensors at once.
function Optimizer:free()
  for _, one in ipairs {self.gradients, self.exp_avg, self.exp_avg_sq, self.scalars, self.mixing,
    self.guard, self.blocks} do
    one:free()
  end
end

return optim
