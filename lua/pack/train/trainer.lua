-- The training loop's machinery: data, model, optimizer, topology and schedule as one object that
-- takes steps and evaluates. A recipe owns the loop; see recipes/train.lua.
local algorithms = require "pack.algorithms"
local configs = require "pack.config"
local data = require "pack.data.source"
local failure = require "pack.core.failure"
local interrupt = require "pack.core.interrupt"
local loader = require "pack.data.loader"
local native = require "pack.native"
local ops = require "pack.core.ops"
local packed = require "pack.model.packed"
local recorded_step = require "pack.train.recorded"
local runtime = require "pack.config.runtime"
local schedule = require "pack.train.schedule"
local tensor = require "pack.core.tensor"
local topology = require "pack.mixing.topology"
local updater = require "pack.train.updater"
local workers = require "pack.data.workers"

local trainer = {}

local MOST_STEPS_AHEAD = 4096 -- that the forms of steps are looked for in

local Trainer = {}
Trainer.__index = Trainer

-- gamma W + (1 - gamma) I as rows; without W, I.
local function consensus_matrix(n, gamma, w)
  local rows = {}
  for i = 1, n do
    rows[i] = {}
    for j = 1, n do
      local identity = i == j and 1 or 0
      rows[i][j] = w and gamma * w[i][j] + (1 - gamma) * identity or identity
    end
  end
  return rows
end

--- The training batches of a resolved configuration from a stream (see pack.loader), or from a list of streams, one for
-- each worker (see pack.workers); course: its schedule.
function trainer.batches(config, train, course)
  course = course or schedule.create(config)
  local streams = train[1] and train
  return (streams and workers.batches or loader.create) {
    streams = streams, tokens = train, context_length = config.model.context_length,
    num_models = config.decentralized.num_models, micro_batch_size = config.training.micro_batch_size,
    accumulation = course.accumulation, seed = config.data.shuffle_seed,
    limit_tokens = course.total_steps * config.training.batch_tokens + 1, -- the last one is a target only
    buffer_mib = config.data.buffer_size_mib, prefetch = config.data.prefetch,
  }
end

--- What trainer.create takes of opened data (see pack.data.open): {train, validation, validation_complete, own_validation}.
function trainer.data_options(opened)
  local given = {train = opened.train, validation = opened.validation, validation_complete = opened.validation_complete}
  if not opened.workers then return given end
  given.train, given.own_validation = {}, opened.workers[1].validation and {}
  for i, worker in ipairs(opened.workers) do
    given.train[i] = worker.train
    if given.own_validation then given.own_validation[i] = worker.validation end
  end
  return given
end

-- The algorithm that a configuration names, or one that a recipe gave.
local function algorithm_of(config, given)
  if given and given.options and getmetatable(given) then return given end
  local settings = config.decentralized.algorithm or {name = "gossip"}
  local algorithm = given or algorithms.find(settings.name)
  if not algorithm then
    failure.usage("there is no algorithm %s; there are %s. A recipe's own is made known by pack.algorithms.define",
      tostring(settings.name), table.concat(algorithms.list(), ", "))
  end
  local one = algorithms.create(algorithm, settings)
  one.seed = config.runtime.seed
  return one
end

--- A trainer for a resolved configuration.
-- options: context, train (a token stream, see pack.data, or one for each worker; without it can be planned, not run),
-- validation (a token stream), validation_complete (true), own_validation (a list of streams, one for each worker), fused
-- (see pack.updater), dtype of parameters and arithmetic (f32; f64 to check).
-- What the configuration says can be given instead: model (a packed model), optimizer (see pack.optim), algorithm (a table
-- of pack.algorithms, or an instance), topology (see pack.topology), batches (an object with next, cursor, set_cursor and
-- close, see pack.loader), and compute(trainer), which returns a function (micro) that makes the gradients of a micro-step and
-- returns loss sums and counts (default: the packed model's backward pass).
function trainer.create(config, options)
  local self = setmetatable({}, Trainer)
  local decentralized = config.decentralized
  self.config = config
  self.context = options.context
  self.num_models = decentralized.num_models
  self.schedule = schedule.create(config)
  self.total_steps = self.schedule.total_steps
  self.accumulation = self.schedule.accumulation
  self.algorithm = algorithm_of(config, options.algorithm)
  self.topology = options.topology or topology.create(decentralized.topology, self.num_models,
    {seed = config.runtime.seed, group = decentralized.group or nil, period = decentralized.period or nil,
      column_stochastic = self.algorithm.column_stochastic})
  self.model = options.model
  if not self.model then
    self.model = packed.create(config.model, {num_models = self.num_models, context = options.context,
      dtype = options.dtype, amp = config.runtime.amp == true, attention = config.runtime.attention})
    self.model:initialize(config.runtime.seed)
  end
  self.updater = updater.create(self.model, config.optimizer, {scheme = decentralized.scheme, fused = options.fused,
    optimizer = options.optimizer, algorithm = self.algorithm})
  self.optimizer = self.updater.optimizer
  self.batches = options.batches
  if options.train and not self.batches then self.batches = trainer.batches(config, options.train, self.schedule) end
  self.own_validation = options.own_validation
  self.validation, self.validation_complete = options.validation, options.validation_complete ~= false
  self.identity = consensus_matrix(self.num_models)
  self.step_number, self.mixings = 0, 0
  self:allocate_batch()
  self.gradients_of = options.compute and options.compute(self)
  return self
end

--- A trainer with everything that it needs: reads the configuration (a file, or a table of sections; default
-- configs/tiny.lua), changes it by settings, a list of "section.key=value", opens its data and its device. Besides
-- model, optimizer and batches (the loader) it has data, what pack.data.open returned.
function trainer.open(source, settings)
  source = source or "configs/tiny.lua"
  local config = type(source) == "table" and configs.resolve {table = source, set = settings}
    or configs.load(source, settings)
  local opened = data.open(config)
  local given = trainer.data_options(opened)
  given.context = runtime.open(config)
  local self = trainer.create(config, given)
  self.data = opened
  return self
end

-- The tensors that a micro-batch is copied into, the batch on the host, and the sums over micro-steps.
function Trainer:allocate_batch()
  local rows, length = self.config.training.micro_batch_size, self.config.model.context_length
  self.micro_elements = self.num_models * rows * length
  local function device_batch()
    return tensor.zeros({self.num_models, rows, length}, "i32",
      {category = "data", context = self.context})
  end
  local function sums(dtype)
    return tensor.zeros({self.num_models}, dtype, {category = "workspace", context = self.context})
  end
  self.tokens, self.targets = device_batch(), device_batch()
  if self.accumulation > 1 or #self:forms() > 1 then
    self.losses, self.counts = sums(self.model.dtype), sums("f64")
  end
  self.host_tokens = native.array("int32_t[?]", self.accumulation * self.micro_elements)
  self.host_targets = native.array("int32_t[?]", self.accumulation * self.micro_elements)
end

-- W' = gamma W + (1 - gamma) I for the coming mixing; I when this step does not mix.
function Trainer:mixing_matrix(gamma, mixes)
  if not mixes then return self.identity end
  local w = self.topology:matrix(self.mixings)
  if self.algorithm.matrix then w = self.algorithm:matrix(w, self.mixings) end
  return gamma == 1 and w or consensus_matrix(self.num_models, gamma, w)
end

-- Writes the part of the host's batch for one micro-step (from 1) into device memory.
function Trainer:write_batch(micro)
  local first = (micro - 1) * self.micro_elements
  self.tokens:write(self.host_tokens + first)
  self.targets:write(self.host_targets + first)
end

--- The operations of one micro-step (from 1, the default): forward and backward, into the gradient arena, which the first one
-- overwrites. Returns loss sums and counts of valid targets per worker so far, tensors [N].
function Trainer:compute(micro)
  local accumulate = (micro or 1) > 1
  local loss, count
  if self.gradients_of then
    loss, count = self.gradients_of(micro or 1)
  else
    loss, count = self.model:backward(self.tokens, self.targets, self.updater.gradients, accumulate)
  end
  if not self.losses then return loss, count end
  ops.copy(loss, {out = self.losses, accumulate = accumulate})
  ops.copy(count, {out = self.counts, accumulate = accumulate})
  return self.losses, self.counts
end

--- Runs the operations of a step one by one. Returns loss sums, counts of valid targets and gradient norms per worker,
-- tensors [N].
function Trainer:launch()
  local losses, counts
  for micro = 1, self.accumulation do
    self:write_batch(micro)
    losses, counts = self:compute(micro)
  end
  return losses, counts, self.updater:update(losses, counts)
end

--- What update t takes from the host: t, lr, gamma, mixes, mixings (before it) and the matrix.
function Trainer:plan_step(t, lr, gamma)
  local mixes, factors = self.schedule:mixes(t), self.config.optimizer.lr_factors
  if factors then
    local rates = {}
    for i, factor in ipairs(factors) do rates[i] = factor * lr end
    lr = rates
  end
  return {t = t + 1, lr = lr, mixes = mixes, mixings = self.schedule:mixings(t),
    mixing = self:mixing_matrix(gamma, mixes)}
end

--- The forms of the coming steps (see pack.updater), a list of {form, t}, t being the first step that has it; of a long
-- run those of the next MOST_STEPS_AHEAD steps.
function Trainer:forms()
  local first, last = self.step_number, math.min(self.total_steps, self.step_number + MOST_STEPS_AHEAD) - 1
  if self.updater.fused then return {{form = "", t = first}} end
  local list, seen = {}, {}
  for t = first, math.max(first, last) do
    local form = self.updater:form_of {t = t + 1, mixes = self.schedule:mixes(t), mixings = self.schedule:mixings(t)}
    if not seen[form] then
      seen[form] = true
      list[#list + 1] = {form = form, t = t}
    end
  end
  return list
end

--- The step as recorded programs (pack.train.recorded); made at first use.
function Trainer:recorded()
  self.program = self.program or recorded_step.create(self)
  return self.program
end

-- Runs the step's operations, recorded or one by one.
function Trainer:run_step(form)
  if not self.config.runtime.compile then return self:launch() end
  local losses, counts, norms = self:recorded():run(form)
  self.updater:updated()
  return losses, counts, norms
end

local function per_worker(n, values, counts)
  local list = {}
  for i = 0, n - 1 do
    list[i + 1] = counts and (counts[i] > 0 and values[i] / counts[i] or 0) or values[i]
  end
  return list
end

-- The batch's loss: all workers' sums over all their targets.
local function mean_loss(n, sums, counts)
  local sum, count = 0, 0
  for i = 0, n - 1 do sum, count = sum + sums[i], count + counts[i] end
  return count > 0 and sum / count or 0
end

-- Takes the batch of this step: the one that was taken before if that step came to nothing.
function Trainer:next_batch()
  if self.unfinished then self.batches:set_cursor(self.unfinished) end
  self.unfinished = self.batches:cursor()
  self.batches:next(self.host_tokens, self.host_targets)
end

--- Samples taken by the steps that were finished: where the next step's batch begins.
function Trainer:cursor()
  return self.unfinished or self.batches:cursor()
end

--- Goes to the batch that begins where so many samples were taken.
function Trainer:set_cursor(taken)
  self.unfinished = nil
  self.batches:set_cursor(taken)
end

-- What belongs together of a step.
local function take_step(self, lr, gamma)
  local t = self.step_number
  local mixes = self.schedule:mixes(t)
  native.C.pk_range_step(self.context.handle, t)
  self:next_batch()
  local step = self:plan_step(t, lr, gamma)
  local form = self.updater:prepare(step)
  local losses, counts, norms = self:run_step(form)
  self.host_results = tensor.read_all({losses, counts, norms, self.updater.guard}, self.host_results)
  self.updater:check(self.host_results[4])
  self.step_number, self.unfinished = t + 1, nil
  if mixes then self.mixings = self.mixings + 1 end
  local sent = self.program and self.program.sent[form] or self.updater:sent()
  self.bytes_sent = self.updater:bytes_sent(sent, step.mixing)
end

--- Takes one optimizer step and returns its record, a row of metrics.jsonl:
-- step, tokens, epoch, loss, loss_worker, grad_norm_worker, lr, gamma, topology_phase, step_seconds,
-- tokens_per_second, memory_bytes, bytes_sent (mean over the workers). Raises when a loss or norm is not finite. A step
-- that ^C interrupts, or that fails, has not happened: weights, state, counters and position are as before, and the next
-- one takes its batch.
function Trainer:step()
  local began = native.C.pk_clock()
  local n, t, phase = self.num_models, self.step_number, self.mixings
  local lr, gamma = self.schedule:lr(t), self.schedule:gamma(t)
  interrupt.hold(native.C.PK_HOLD_CODE, take_step, self, lr, gamma)
  local sums, host_counts, host_norms = unpack(self.host_results)
  local seconds = native.C.pk_clock() - began
  local batch_tokens = self.config.training.batch_tokens
  local record = {
    step = t, tokens = (t + 1) * batch_tokens, epoch = self.schedule:epoch_of_step(t),
    loss = mean_loss(n, sums, host_counts), loss_worker = per_worker(n, sums, host_counts),
    grad_norm_worker = per_worker(n, host_norms), lr = lr, gamma = gamma,
    topology_phase = phase, step_seconds = seconds,
    tokens_per_second = batch_tokens / seconds, memory_bytes = self.context:peak(), bytes_sent = self.bytes_sent,
  }
  return record
end

--- sqrt of the mean squared distance of the workers from their average.
function Trainer:consensus_distance()
  return ops.consensus_distance(self.model.arena.tensor):item()
end

--- Evaluates the worker average on the validation stream; the training state is untouched.
-- options: blocks (a fixed subset of that many blocks; default all), workers (each worker too).
-- Returns a row of metrics.jsonl: step, tokens, split, loss, perplexity, targets,
-- validation_complete, consensus_distance and, if asked for, loss_worker and, where workers have data of their own,
-- loss_own.
function Trainer:evaluate(options)
  options = options or {}
  local evaluation = self.config.evaluation
  local blocks = loader.validation {
    tokens = self.validation, context_length = self.config.model.context_length,
    batch_size = evaluation.batch_size, subset = options.blocks, seed = evaluation.seed,
    context = self.context,
  }
  local mean = self.model:average()
  local loss, targets = mean:loss_over(blocks)
  mean:free()
  local row = {
    step = self.step_number, tokens = self.step_number * self.config.training.batch_tokens,
    split = "validation", loss = loss, perplexity = math.exp(loss), targets = targets,
    validation_complete = self.validation_complete and blocks.complete,
    consensus_distance = self:consensus_distance(),
  }
  if options.workers then
    row.loss_worker = {}
    for i = 0, self.num_models - 1 do
      row.loss_worker[i + 1] = self.model:worker(i):loss_over(blocks)
    end
    if self.own_validation then row.loss_own = self:own_losses() end
  end
  return row
end

-- Each worker's loss on what was held out of its own data.
function Trainer:own_losses()
  local losses, evaluation = {}, self.config.evaluation
  for i, tokens in ipairs(self.own_validation) do
    losses[i] = self.model:worker(i - 1):loss_over(loader.validation {tokens = tokens,
      context_length = self.config.model.context_length, batch_size = evaluation.batch_size, context = self.context})
  end
  return losses
end

--- Releases the trainer's tensors and its loader at once.
function Trainer:free()
  if self.program then self.program:free() end
  if self.batches then self.batches:close() end
  for _, name in ipairs {"tokens", "targets", "losses", "counts"} do
    if self[name] then self[name]:free() end
  end
  self.updater:free()
  self.model:free()
end

return trainer
