#!/usr/bin/env packlua
-- Does everything that a run does work on this machine, at the real shapes?
--   packlua recipes/smoke.lua [--cache DIR] [--config configs/smoke.lua] [--output DIR]
-- Prepares a cache, trains, saves, resumes and evaluates; every stage is PASS or FAIL.
local pack = require "pack"

local options = pack.options.parse {
  recipe = "smoke",
  summary = "Prepares a cache, trains four workers for two updates, saves, resumes and evaluates; PASS or FAIL of each.",
  arg = arg,
  default_config = "configs/smoke-20m.lua",
  extra = {
    {name = "cache", value = "DIR", help = "a token cache; made of data.text, or packlua's own text, if not given"},
    {name = "output", value = "DIR", help = "the new folder (default runs/smoke-UTCTIME)"},
  },
}
local config = options.config
if options.output and pack.files.exists(options.output) then
  pack.failure.usage("%s: there is such a folder; --output DIR chooses another", options.output)
end
config.data.cache_dir = options.cache or config.data.cache_dir
local workers, total = config.decentralized.num_models, config.training.max_tokens
local updates = total and math.floor(total / config.training.batch_tokens)
if updates ~= 2 or config.training.checkpoint_steps ~= 1 or config.training.checkpoint_policy ~= "final" then
  pack.failure.usage("two updates and a state after each are tested: training.max_tokens must be twice "
    .. "training.batch_tokens, training.checkpoint_steps 1 and training.checkpoint_policy final")
end
local folder = options.output or assert(pack.files.claim(os.date("!runs/smoke-%Y%m%dT%H%M%SZ")))

-- Runs one stage: f returns what to say of it, or raises why it failed. Interruptions and usage errors end it all.
local failed = 0
local function stage(name, f)
  local good, message = pcall(f)
  if not good and pack.failure.is(message) and message.exit ~= 1 then error(message, 0) end
  failed = failed + (good and 0 or 1)
  print(("%s %-9s %s"):format(good and "PASS" or "FAIL", name, tostring(message)))
  io.stdout:flush()
end

local function expect(truth, format, ...)
  if not truth then pack.failure.raise(1, format:format(...)) end
end

-- A cache of text, of which every tenth file is held out; both splits are cut off.
local function prepare()
  local parts, length = {train = {}, validation = {}}, config.model.context_length
  for i, path in ipairs(config.data.text or pack.text.own_files()) do
    table.insert(i % 10 == 1 and parts.validation or parts.train, assert(pack.files.read(path)))
  end
  if #parts.train == 0 then parts.train = parts.validation end
  pack.files.mkdir(folder)
  for name, texts in pairs(parts) do pack.files.write(("%s/%s.txt"):format(folder, name), table.concat(texts, "\n\n")) end
  pack.prepare.run {output = folder .. "/cache", tokenizer = config.data.tokenizer or "bytes",
    train = {folder .. "/train.txt"}, validation = {folder .. "/validation.txt"}, txt_documents = "paragraph",
    max_train_tokens = total + length, max_validation_tokens = 8 * length + 1,
    shuffle_seed = config.data.shuffle_seed, shuffle_buffer = config.data.shuffle_buffer}
  pack.prepare.verify(folder .. "/cache")
  return folder .. "/cache"
end

local data
stage("cache", function()
  local made = not config.data.cache_dir
  if made then config.data.cache_dir = prepare() end
  data = pack.data.open(config)
  expect(not (made and data.validation_complete), "its validation split is cut off, but not marked as incomplete")
  return ("%s, %d tokens to train on, %d held out (%s)"):format(data.description, data.train.count,
    data.validation.count, data.validation_complete and "complete" or "marked incomplete")
end)
if not data then pack.failure.raise(1, "") end

-- A run, new or from a state, to its end. Returns its steps and its result.
local context, remarks = pack.runtime.open(config)
for _, remark in ipairs(remarks) do print(remark) end
local identity = pack.checkpoint.data_identity(data)

local function train(output, state)
  local study = pack.study.start {recipe = "smoke", config = config, output = output, state = state, data = data,
    context = context, print_line = function(line) print("  " .. line) end}
  study:train()
  study:conclude()
  local steps, result = study.trainer.step_number, study.run:path("result.json")
  study:close()
  return steps, pack.json.decode(assert(pack.files.read(result)))
end

local whole, again = folder .. "/run", folder .. "/resumed"
local average, last_state = "epoch-002.safetensors", pack.checkpoint.epoch_name(2)
local first_state = pack.checkpoint.step_name(1)
local names = {average}
for i = 0, workers - 1 do names[i + 2] = ("node-%03d/%s"):format(i, average) end

local result
stage("train", function()
  local steps
  steps, result = train(whole)
  expect(steps == updates, "%d updates were made", steps)
  expect(result.loss == result.loss, "the loss is not finite")
  return ("%d workers, %d updates, %d targets; validation loss %.4f"):format(workers, steps, total, result.loss)
end)

stage("weights", function()
  local paths = {}
  for i, name in ipairs(names) do paths[i] = whole .. "/" .. name end
  pack.compare.mean(table.remove(paths, 1), paths)
  return ("%s is the mean of %d workers' files"):format(average, workers)
end)

stage("states", function()
  for step, name in ipairs {first_state, last_state} do
    local state, message = pack.checkpoint.open(whole .. "/" .. name)
    expect(state, "%s", message)
    expect(state.info.step == step and state.info.num_models == workers, "%s holds step %d of %d workers", name,
      state.info.step, state.info.num_models)
    state:close()
  end
  return ("%s and %s"):format(first_state, last_state)
end)

stage("resume", function()
  local state = pack.checkpoint.find(whole .. "/" .. first_state)
  state:check(config, {data = identity})
  train(again, state)
  local rows = pack.compare.metrics(whole .. "/metrics.jsonl", again .. "/metrics.jsonl")
  local tensors = pack.compare.tensors(whole .. "/" .. last_state, again .. "/" .. last_state)
  for _, name in ipairs(names) do pack.compare.tensors(whole .. "/" .. name, again .. "/" .. name) end
  return ("%d lines of metrics, %d tensors of the state and all weights are the same to the bit"):format(rows, tensors)
end)

-- What is in the files gives the numbers that the run had.
stage("evaluate", function()
  local weights = pack.weights.open(whole .. "/" .. last_state, {set = {"runtime.device=" .. context:device()}})
  local row = pack.evaluate.run(weights, data, {context = context, full = true, workers = true})
  weights:close()
  expect(row.loss == result.loss, "the state's average has loss %.17g; the run's had %.17g", row.loss, result.loss)
  for i, worker in ipairs(row.workers) do
    expect(worker.loss == result.loss_worker[i], "worker %d has loss %.17g; in the run it had %.17g", i - 1,
      worker.loss, result.loss_worker[i])
  end
  expect(row.validation_complete == data.validation_complete, "validation_complete is %s, of the cache it is %s",
    tostring(row.validation_complete), tostring(data.validation_complete))
  return ("the state gives the run's losses; validation_complete: %s"):format(tostring(row.validation_complete))
end)

print(failed == 0 and "PASS: all stages; " .. folder or ("FAIL: %d stages; %s"):format(failed, folder))
if failed > 0 then pack.failure.raise(1, "") end
