--- Studies: training runs as recipes write them. Data, device, run folder and trainer are opened together, new or from a state;
-- the loop over the steps is the recipe's; signals, saving, metrics and progress are inside.
--
--   local study = pack.study.open(options)
--   for row, held_out in study:steps() do
--     row.spread = study.trainer:consensus_distance()
--   end
--   study:conclude()
--   study:close()
local caller = require "pack.core.caller"
local checkpoint = require "pack.run.checkpoint"
local config_module = require "pack.config"
local data_module = require "pack.data.source"
local failure = require "pack.core.failure"
local finally = require "pack.core.finally"
local native = require "pack.native"
local progress = require "pack.io.progress"
local run_module = require "pack.run.folder"
local runtime = require "pack.config.runtime"
local saver = require "pack.run.saver"
local statistics = require "pack.measure.statistics"
local trainer_module = require "pack.train.trainer"

caller.register()

local C = native.C
local study = {}

local Study = {}
Study.__index = Study

local EXIT_FAILED, EXIT_RESUMABLE, EXIT_INTERRUPTED = 1, 75, 130

-- Watchers --------------------------------------------------------------------------------------------

local watchers = {}

--- Has functions called in every study of this process: opened(study), before its first step, step(row, study, held_out),
-- before a row is recorded, and evaluating(study), before the last evaluation. For tools that look at any recipe's run.
function study.watch(functions)
  watchers[#watchers + 1] = functions
end

local function tell(name, ...)
  for _, one in ipairs(watchers) do
    if one[name] then one[name](...) end
  end
end

-- Opening ---------------------------------------------------------------------------------------------

local function log_beginning(self, remarks)
  local run, config, trainer, opened = self.run, self.config, self.trainer, self.data
  local decentralized = config.decentralized
  if not self.resumed then run:log("run: %s", run.folder) end
  run:log("%s", trainer.context:describe())
  for _, one in ipairs(self.skipped or {}) do run:log("passed over: %s", one.message) end
  for _, remark in ipairs(remarks or {}) do run:log("%s", remark) end
  if self.resumed then return end
  run:log("%s, %d tokens to train on, %d held out", opened.description, opened.train.count, opened.validation.count)
  local what = {trainer.topology.name, decentralized.scheme}
  if decentralized.algorithm.name ~= "gossip" then table.insert(what, 1, decentralized.algorithm.name) end
  if config.optimizer.name ~= "adamw" then what[#what + 1] = config.optimizer.name end
  run:log("model: %d workers of %d parameters, %s; %d steps of %d tokens", trainer.num_models,
    config_module.parameters(config.model), table.concat(what, ", "), trainer.total_steps, config.training.batch_tokens)
  local unread = not opened.workers
    and data_module.unread_note(opened, trainer.total_steps, config.training.batch_tokens)
  if unread then run:log("%s", unread) end
end

--- A study of parts that are there: trainer, run (see pack.run), data (see pack.data) and identity (of the data, default
-- checkpoint.data_identity).
function study.of(parts)
  local self = setmetatable({}, Study)
  for key, value in pairs(parts) do self[key] = value end
  self.config = self.trainer.config
  self.identity = self.identity or checkpoint.data_identity(self.data)
  tell("opened", self)
  return self
end

-- What trainer.create takes besides the configuration.
local function trainer_options(options, context, opened)
  local given = trainer_module.data_options(opened)
  given.context = context
  for key, value in pairs(options.trainer or {}) do given[key] = value end
  return given
end

--- Starts a study: config (resolved), recipe (its name), output (the run's folder), data and context where they are open
-- already, arguments (see pack.run.create), and trainer, options for pack.trainer.create such as algorithm or optimizer.
-- From a training state: state, skipped (see pack.checkpoint.find) and conversion.
function study.start(options)
  local config, state = options.config, options.state
  local opened = options.data or data_module.open(config)
  local identity = checkpoint.data_identity(opened)
  local context, remarks = options.context, {}
  if not context then context, remarks = runtime.open(config) end
  local run
  if state then
    state:check(config, {data = identity, conversion = options.conversion})
    for _, remark in ipairs(state:remarks(context)) do remarks[#remarks + 1] = remark end
    run = run_module.resume {recipe = options.recipe, state = state, output = options.output, config = config,
      context = context, skipped = options.skipped, arguments = options.arguments}
  else
    run = run_module.create {recipe = options.recipe, output = options.output, config = config, context = context,
      arguments = options.arguments}
  end
  local trainer = trainer_module.create(config, trainer_options(options, context, opened))
  if options.print_line then run:print_through(options.print_line) end
  if state then
    state:restore(trainer, options.conversion)
    state:close()
  end
  local self = study.of {trainer = trainer, run = run, data = opened, identity = identity, context = context,
    resumed = state ~= nil, skipped = options.skipped}
  log_beginning(self, remarks)
  return self
end

--- Goes on from a state that was found (see pack.checkpoint.find, which also gives skipped), as a command line asks: options
-- has output, settings ("key=value") and allow_conversion. trainer_parts: options for pack.trainer.create.
function study.resume(state, skipped, options, trainer_parts)
  return study.start {config = state:config(options.settings), recipe = state.info.recipe, output = options.output,
    state = state, skipped = skipped, conversion = options.allow_conversion, trainer = trainer_parts}
end

--- Opens the study that a command line asks for, as pack.options.parse read it with resume = true: a new run, or with
-- --resume the one that a state is of. trainer_parts: options for pack.trainer.create, such as {topology = mine}.
function study.open(options, trainer_parts)
  if not options.resume then
    return study.start {config = options.config, recipe = options.recipe, output = options.output, trainer = trainer_parts}
  end
  local state, skipped = checkpoint.find(options.resume, {fallback = options.fallback})
  if not options.allow_recipe then state:check_recipe(run_module.made_by()) end
  return study.resume(state, skipped, options, trainer_parts)
end

-- Failing ---------------------------------------------------------------------------------------------

--- Notes in run.log why the study ends, where that is an error and not what a signal asked for.
function Study:note_failure(problem)
  if self.run.closed or failure.is(problem) and problem.exit ~= EXIT_FAILED then return end
  if self.noted then return end
  self.noted = true
  pcall(self.run.note, self.run, "failed: %s", (tostring(problem):gsub("\nstack traceback.*$", "")
    :gsub("^[^ ]*lua/pack/[^ ]*%.lua:%d+: ", "")))
end

-- The program calls this with an error that ends a script while a study takes its steps (host/call.c).
local function expect_failure(self)
  debug.getregistry()["pack.failed"] = self and function(problem) self:note_failure(problem) end or nil
end

-- A handler for xpcall. The error keeps the traceback of where it was raised.
local function noted_by(self)
  return function(problem)
    self:note_failure(problem)
    if failure.is(problem) then return problem end
    return failure.create(EXIT_FAILED, finally.traceback(problem))
  end
end

-- Calls fn(self) and notes its failure. After an error that ends the program, the next signal must not change the exit code.
local function guarded(self, fn)
  local good, result = xpcall(fn, noted_by(self), self)
  if good then return result end
  expect_failure(nil)
  if not (failure.is(result) and result.exit == EXIT_RESUMABLE) then C.pk_signals_release() end
  error(result, 0)
end

-- Calls fn(...), which a signal ends at its next operation: nothing of it has happened then, and it answers with nil and
-- the signal's number. Else it answers with what fn returns.
local function until_signal(fn, ...)
  C.pk_signals_ask(1)
  local good, result = xpcall(fn, finally.keep, ...)
  C.pk_signals_ask(0)
  if good then return result end
  local number = failure.is(result) and result.exit == EXIT_INTERRUPTED and C.pk_signals_pending() or 0
  if number == 0 then finally.raise(result) end
  return nil, number
end

-- The steps -------------------------------------------------------------------------------------------

local function describe(row)
  return ("loss %.3f, %s tok/s"):format(row.loss, progress.count(row.tokens_per_second))
end

local function begin(self)
  local trainer, training = self.trainer, self.config.training
  self.keeper = saver.create {run = self.run, trainer = trainer, data = self.identity}
  self.bar = progress.create {total = trainer.total_steps, every = training.log_every, log = self.run,
    start = trainer.step_number}
  self.first, self.rates = trainer.step_number, {}
  -- Recording a long step takes a while. It happens here, where a signal can end it between two steps.
  if self.config.runtime.compile and self.first < trainer.total_steps then
    local _, number = until_signal(trainer.recorded, trainer)
    if number then self.keeper:stop(number) end
  end
end

-- Takes a step, and evaluates where an epoch ends that is not the last. Returns the rows.
local function take(self)
  local trainer = self.trainer
  local row, held_out = trainer:step(), nil
  local step = trainer.step_number
  if step % self.config.training.log_every == 0 then row.consensus_distance = trainer:consensus_distance() end
  if trainer.schedule:ends_epoch(row.step) and step < trainer.total_steps then
    held_out = trainer:evaluate {blocks = self.config.evaluation.subset_blocks}
  end
  return row, held_out
end

-- Records what was taken, with what the recipe added to it, and saves what is due.
local function record(self, row, held_out)
  tell("step", row, self, held_out)
  self.run:metrics(row)
  if row.step > self.first then self.rates[#self.rates + 1] = row.tokens_per_second end -- the first one warms up
  self.bar:update(row.step + 1, describe, row)
  if held_out then
    self.run:metrics(held_out)
    self.bar:print("epoch %d: validation loss %.3f", row.epoch, held_out.loss)
  end
  self.keeper:after_step()
end

local function finish(self)
  self.trainer.tokens_per_second = statistics.median(self.rates)
  self.bar:finish()
  self.keeper:finish()
  if C.pk_signals_pending() ~= 0 then self.keeper:stop(C.pk_signals_pending()) end
  if self.keeper.weights then self.run:log("weights: %s", self.keeper.weights) end
  self.keeper:close()
  self.keeper = nil
  C.pk_signals_release()
  expect_failure(nil)
end

--- An iterator over the remaining steps. Each time round gives the step's record (see Trainer:step) and, where an epoch ends,
-- that of its evaluation; what the loop adds to them is written to metrics.jsonl too. SIGTERM, SIGINT, SIGUSR1, SIGUSR2,
-- SIGHUP, SIGXCPU and SIGPIPE end the program after the current step, with a state saved and exit code 75. An error, also
-- one of the loop's own, is noted in run.log.
function Study:steps()
  if self.keeper then caller.raise("the study in %s takes its steps already", self.run.folder) end
  C.pk_signals_hold()
  expect_failure(self)
  guarded(self, begin)
  local row, held_out
  local function next_rows()
    if row then record(self, row, held_out) end
    row, held_out = nil, nil
    if self.trainer.step_number < self.trainer.total_steps then
      row, held_out = take(self)
    else
      finish(self)
    end
  end
  return function()
    guarded(self, next_rows)
    return row, held_out
  end
end

--- Takes all remaining steps, for recipes that add nothing to them.
function Study:train()
  local taken = 0
  for _ in self:steps() do taken = taken + 1 end
  return taken
end

-- The end ---------------------------------------------------------------------------------------------

-- Ends the program after a signal that came when all steps were done, with the last one's state.
local function stop_at_the_end(self, number)
  local keeper = saver.create {run = self.run, trainer = self.trainer, data = self.identity}
  local newest = checkpoint.list(self.run.folder)[1]
  keeper.saved_step = newest and newest.step
  keeper:stop(number)
end

--- Evaluates the average of the workers, and each of them, on all that was held out, and writes result.json, where
-- tokens_per_second is the median of this process's steps after its first. A signal that ends training ends this too,
-- with the state saved and exit code 75. Returns the evaluation.
function Study:conclude()
  local trainer, run, opened = self.trainer, self.run, self.data
  if trainer.step_number < trainer.total_steps then
    caller.raise("the study in %s has taken %d of its %d steps", run.folder, trainer.step_number, trainer.total_steps)
  end
  C.pk_signals_hold()
  tell("evaluating", self)
  local evaluated, number = until_signal(trainer.evaluate, trainer, {workers = true})
  if number then stop_at_the_end(self, number) end
  local final = run:metrics(evaluated)
  local each = {}
  for i, loss in ipairs(final.loss_worker) do each[i] = ("%.4f"):format(loss) end
  run:log("validation loss %.4f of the average (perplexity %.2f), %s of the workers", final.loss,
    final.perplexity, table.concat(each, " "))
  run:log("consensus distance %.4g%s", final.consensus_distance, opened.unigram_entropy
    and ("; unigram entropy %.4f"):format(opened.unigram_entropy) or "")
  if final.loss_own then
    local own = {}
    for i, loss in ipairs(final.loss_own) do own[i] = ("%.4f"):format(loss) end
    run:log("on their own held-out data: %s", table.concat(own, " "))
  end
  run:result {loss_own = final.loss_own, loss = final.loss, perplexity = final.perplexity, loss_worker = final.loss_worker,
    consensus_distance = final.consensus_distance, unigram_entropy = opened.unigram_entropy,
    steps = trainer.total_steps, tokens_per_second = trainer.tokens_per_second}
  C.pk_signals_release()
  return evaluated
end

--- Releases the trainer and closes the run's files; twice is harmless.
function Study:close()
  if self.closed then return end
  self.closed = true
  if self.keeper then self.keeper:close() end
  expect_failure(nil)
  C.pk_signals_release()
  self.trainer:free()
  self.run:close()
end

return study
