--- The course of a run: how many steps and epochs it has, and learning rate, gamma and mixing of each step.
--
-- Steps count from 0, epochs from 1. The learning rate of a step is that at its end token position.
local topology = require "pack.mixing.topology"

local schedule = {}

local MOST_STEPS_LOOKED_AT = 1e6

local Schedule = {}
Schedule.__index = Schedule

local function refuse(...)
  error(string.format(...), 3)
end

-- Micro-steps per step; batch_tokens must be made of whole ones.
local function accumulation_of(config)
  local training, workers = config.training, config.decentralized.num_models
  local micro = workers * training.micro_batch_size * config.model.context_length
  if training.batch_tokens % micro ~= 0 then
    refuse("batch_tokens %d is not a whole multiple of num_models %d * micro_batch_size %d * "
      .. "context_length %d = %d", training.batch_tokens, workers, training.micro_batch_size,
      config.model.context_length, micro)
  end
  return training.batch_tokens / micro
end

-- Epochs of the whole budget: its ratio over that of one epoch, which must be whole.
local function epochs_of_ratio(training)
  local ratio = training.tokens_per_parameters / training.epoch_tokens_per_parameters
  local whole = math.floor(ratio + 0.5)
  if whole < 1 or math.abs(ratio - whole) > 1e-9 * whole then
    refuse("tokens_per_parameters %.14g is not a whole multiple of epoch_tokens_per_parameters %.14g",
      training.tokens_per_parameters, training.epoch_tokens_per_parameters)
  end
  return whole
end

-- Batches after k epochs of the whole budget: floor(k e P / B + 1/2).
function Schedule:budget_of(k)
  local training = self.training
  if training.epoch_tokens then
    return math.min(self.budget, math.floor(k * training.epoch_tokens / self.batch_tokens + 0.5))
  end
  return math.floor(
    k * training.epoch_tokens_per_parameters * self.parameters / self.batch_tokens + 0.5)
end

-- Sets total_steps: the budget in whole batches, or what max_tokens leaves of it.
local function set_horizon(self)
  local training = self.training
  if training.epoch_tokens then
    self.budget = math.floor(
      training.tokens_per_parameters * self.parameters / self.batch_tokens + 0.5)
  else
    self.budget = self:budget_of(epochs_of_ratio(training))
  end
  self.total_steps = self.budget
  if self.budget < 1 then
    refuse("tokens_per_parameters %.14g * %d parameters is less than half a batch of %d tokens",
      training.tokens_per_parameters, self.parameters, self.batch_tokens)
  end
  if not training.epoch_tokens and training.epoch_tokens_per_parameters * self.parameters < 1 then
    refuse("epoch_tokens_per_parameters %.14g * %d parameters is less than a token",
      training.epoch_tokens_per_parameters, self.parameters)
  end
  if training.max_tokens then
    local most = math.floor(training.max_tokens / self.batch_tokens)
    if most < 1 then
      refuse("max_tokens %d is less than one batch of %d tokens", training.max_tokens,
        self.batch_tokens)
    end
    self.total_steps = math.min(self.budget, most)
  end
end

-- The least k >= 1 with at least `batches` batches after k epochs.
local function epoch_reaching(self, batches)
  local low, high = 0, 1
  while self:budget_of(high) < batches do low, high = high, high * 2 end
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if self:budget_of(middle) < batches then low = middle else high = middle end
  end
  return high
end

--- The schedule of a resolved configuration (its sections model, optimizer, training and decentralized).
-- parameters: those of one model, by default counted from config.model.
-- The object has total_steps, total_epochs, total_tokens, batch_tokens and accumulation (micro-steps per
-- step). Raises what does not fit, with the values.
function schedule.create(config, parameters)
  local self = setmetatable({}, Schedule)
  self.optimizer, self.training = config.optimizer, config.training
  self.decentralized = config.decentralized
  self.parameters = parameters or require("pack.config").parameters(config.model)
  self.batch_tokens = config.training.batch_tokens
  self.accumulation = accumulation_of(config)
  set_horizon(self)
  self.total_tokens = self.total_steps * self.batch_tokens
  self.total_epochs = epoch_reaching(self, self.total_steps)
  return self
end

--- Steps taken when epoch k ends: floor(k e P / B + 1/2), at most total_steps. 0 for k = 0.
function Schedule:steps_after_epoch(k)
  return math.min(self:budget_of(k), self.total_steps)
end

--- The first step of epoch k (from 1) and how many it has, which may be 0 where an epoch is less than a
-- batch.
function Schedule:steps_of_epoch(k)
  local first = self:steps_after_epoch(k - 1)
  return first, self:steps_after_epoch(k) - first
end

--- The epoch, from 1, that step t belongs to.
function Schedule:epoch_of_step(t)
  if not (self.epoch and t >= self.epoch_first and t < self.epoch_end) then -- not that of the call before
    self.epoch = epoch_reaching(self, t + 1)
    self.epoch_first = self:steps_after_epoch(self.epoch - 1)
    self.epoch_end = self:steps_after_epoch(self.epoch)
  end
  return self.epoch
end

--- Whether step t is the last of its epoch.
function Schedule:ends_epoch(t)
  self:epoch_of_step(t)
  return t + 1 == self.epoch_end
end

--- Tokens, over all workers, that have been trained on when step t ends.
function Schedule:tokens(t)
  return (t + 1) * self.batch_tokens
end

-- Learning rate after the warm-up, as a factor of lr; consumed and total in tokens.
local after_warmup = {}

function after_warmup.constant()
  return 1
end

function after_warmup.cosine(optimizer, consumed, warmup, total)
  local rest, r = total - warmup, optimizer.min_lr_ratio
  local progress = rest > 0 and math.max(0, math.min(1, (consumed - warmup) / rest)) or 0
  return r + (1 - r) * (1 + math.cos(math.pi * progress)) / 2
end

function after_warmup.wsd(optimizer, consumed, _, total)
  local decay, r = optimizer.decay_fraction * total, optimizer.min_lr_ratio
  local left = total - consumed
  if left >= decay then return 1 end
  return r + (1 - r) * left / decay
end

--- The learning rate of step t.
function Schedule:lr(t)
  local optimizer = self.optimizer
  local consumed, total = self:tokens(t), self.total_tokens
  local warmup = optimizer.warmup_fraction * total
  if consumed < warmup then return optimizer.lr * consumed / warmup end
  local rest = after_warmup[optimizer.schedule]
  if not rest then
    error(("there is no schedule %s; there are cosine, wsd and constant")
      :format(tostring(optimizer.schedule)), 2)
  end
  return optimizer.lr * rest(optimizer, consumed, warmup, total)
end

--- The first step from which adaptive consensus is active; nil if it never is.
function Schedule:first_adaptive_step()
  local adaptive = self.decentralized.adaptive_consensus
  if not adaptive then return nil end
  local first = math.ceil(adaptive.start_frac * self.total_steps)
  return first < self.total_steps and first or nil
end

-- The largest learning rate of the steps from first to the end of the run. It rises up to the end of the warm-up and
-- never after, so that no step before that, nor one long after it, can have the largest.
local function largest_lr(self, first)
  local largest, last = 0, self.total_steps - 1
  local warm = math.floor(self.optimizer.warmup_fraction * self.total_steps) - 2
  first = math.max(first, math.min(warm, last))
  for t = first, math.min(last, first + MOST_STEPS_LOOKED_AT) do largest = math.max(largest, self:lr(t)) end
  return largest
end

--- gamma of W' = gamma W + (1 - gamma) I at step t: (lr / lr_max)^p from the first adaptive step on, lr_max
-- being the largest learning rate of all those steps of the whole run; before, and without adaptive
-- consensus, 1. It is 1 too for p = 0, and where no active step has a learning rate above 0.
function Schedule:gamma(t)
  local first = self:first_adaptive_step()
  local p = first and self.decentralized.adaptive_consensus.p
  if not first or t < first or p == 0 then return 1 end
  self.lr_max = self.lr_max or largest_lr(self, first)
  if self.lr_max == 0 then return 1 end
  return (self:lr(t) / self.lr_max) ^ p
end

--- Whether step t mixes (see topology.mixes).
function Schedule:mixes(t)
  return topology.mixes(t, self.decentralized.mix_every or 1)
end

--- How many mixings precede step t: the number s of the next one.
function Schedule:mixings(t)
  return topology.mix_count(t, self.decentralized.mix_every or 1)
end

return schedule
