--- The course of a training run that recipes share: steps to the end, and what came of them.
local checkpoint = require "pack.run.checkpoint"
local failure = require "pack.core.failure"
local finally = require "pack.core.finally"
local native = require "pack.native"
local progress = require "pack.io.progress"
local saver = require "pack.run.saver"
local statistics = require "pack.measure.statistics"

local C = native.C
local training = {}

local EXIT_FAILED, EXIT_RESUMABLE, EXIT_INTERRUPTED = 1, 75, 130

local function describe(row)
  return ("loss %.3f, %s tok/s"):format(row.loss, progress.count(row.tokens_per_second))
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

local function take_steps(trainer, run, options)
  local config = trainer.config
  local every, total = config.training.log_every, trainer.total_steps
  local keeper = saver.create {run = run, trainer = trainer, data = options.data}
  local bar = progress.create {total = total, every = every, log = run, start = trainer.step_number}
  local first, rates = trainer.step_number, {}
  -- Recording a long step takes a while. It happens here, where a signal can end it between two steps.
  if config.runtime.compile and first < total then
    local _, number = until_signal(trainer.recorded, trainer)
    if number then keeper:stop(number) end
  end
  while trainer.step_number < total do
    local row = trainer:step()
    local step = trainer.step_number
    if step % every == 0 then row.consensus_distance = trainer:consensus_distance() end
    if options.on_step then options.on_step(row, trainer) end
    run:metrics(row)
    if row.step > first then rates[#rates + 1] = row.tokens_per_second end -- the first one warms up
    bar:update(step, describe, row)
    if trainer.schedule:ends_epoch(row.step) and step < total then
      local held_out = trainer:evaluate {blocks = config.evaluation.subset_blocks}
      if options.on_epoch then options.on_epoch(held_out, trainer) end
      run:metrics(held_out)
      bar:print("epoch %d: validation loss %.3f", row.epoch, held_out.loss)
    end
    keeper:after_step()
  end
  trainer.tokens_per_second = statistics.median(rates)
  bar:finish()
  keeper:finish()
  if C.pk_signals_pending() ~= 0 then keeper:stop(C.pk_signals_pending()) end
  if keeper.weights then run:log("weights: %s", keeper.weights) end
  keeper:close()
end

-- Notes in run.log why training ends, where that is an error and not what a signal asked for. The error keeps the
-- traceback of where it was raised.
local function note_failure(run)
  return function(problem)
    if failure.is(problem) and problem.exit ~= EXIT_FAILED then return problem end
    pcall(run.note, run, "failed: %s", (tostring(problem):gsub("^[^ ]*lua/pack/[^ ]*%.lua:%d+: ", "")))
    if failure.is(problem) then return problem end
    return failure.create(EXIT_FAILED, finally.traceback(problem))
  end
end

--- Takes a trainer's remaining steps: records each in the run, evaluates the average on a subset after each
-- epoch but the last, and saves what the configuration says. SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGXCPU and
-- SIGPIPE end the program after the current step, with a state saved and exit code 75.
-- options: data (its identity, see checkpoint.data_identity), on_step(row, trainer) and on_epoch(row, trainer),
-- called before a step's row, or that of an epoch's evaluation, is written: what they add to it is too.
-- An error within is noted in run.log.
function training.run(trainer, run, options)
  C.pk_signals_hold()
  local good, problem = xpcall(take_steps, note_failure(run), trainer, run, options)
  -- After one that ends the program, the next must not change the exit code.
  if good or not (failure.is(problem) and problem.exit == EXIT_RESUMABLE) then C.pk_signals_release() end
  if not good then error(problem, 0) end
end

-- Ends the program after a signal that came when all steps were done, with the last one's state.
local function stop_at_the_end(trainer, run, data, number)
  local keeper = saver.create {run = run, trainer = trainer, data = checkpoint.data_identity(data)}
  local newest = checkpoint.list(run.folder)[1]
  keeper.saved_step = newest and newest.step
  keeper:stop(number)
end

--- Evaluates the average of the workers, and each of them, on all that was held out, and writes result.json, where
-- tokens_per_second is the median of this process's steps after its first. A signal that ends training ends this too,
-- with the state saved and exit code 75.
-- data: see pack.data.open.
function training.conclude(trainer, run, data)
  C.pk_signals_hold()
  local evaluated, number = until_signal(trainer.evaluate, trainer, {workers = true})
  if number then stop_at_the_end(trainer, run, data, number) end
  local final = run:metrics(evaluated)
  local each = {}
  for i, loss in ipairs(final.loss_worker) do each[i] = ("%.4f"):format(loss) end
  run:log("validation loss %.4f of the average (perplexity %.2f), %s of the workers", final.loss,
    final.perplexity, table.concat(each, " "))
  run:log("consensus distance %.4g%s", final.consensus_distance, data.unigram_entropy
    and ("; entropy of single tokens %.4f"):format(data.unigram_entropy) or "")
  run:result {loss = final.loss, perplexity = final.perplexity, loss_worker = final.loss_worker,
    consensus_distance = final.consensus_distance, unigram_entropy = data.unigram_entropy,
    steps = trainer.total_steps, tokens_per_second = trainer.tokens_per_second}
  C.pk_signals_release()
end

return training
