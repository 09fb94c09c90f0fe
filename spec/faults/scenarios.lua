--- What runs while allocations and calls on files fail: commands in a folder of their own, what they leave, and
-- how one goes on after a failure.
--
-- A scenario: name; run, shell words in which packlua is the program; setup (optional), a command that makes what the
-- scenario starts from; shows (optional): what fails is shown, and it goes on; outcome(folder), a table of texts
-- that must be the same whatever was tolerated;
-- again(folder) (optional), the command that goes on after a failure, nil if there is nothing to go on from, after
-- which the outcome must be there; checked(folder) (optional), which raises if a file that was whole is not any more.
local cache = require "spec.support.cache"
local checkpoint = require "pack.run.checkpoint"
local files = require "pack.io.files"
local json = require "pack.io.json"
local prepare = require "pack.data.prepare"
local safetensors = require "pack.io.safetensors"
local support = require "spec.support.helper"

-- The smallest run that has all parts.
local keys = {"model.layers=1", "model.width=8", "model.heads=2", "model.ffn_width=8", "model.context_length=8",
  "training.batch_tokens=32", "training.micro_batch_size=2", "training.max_tokens=96", "training.epoch_tokens=96",
  "evaluation.subset_blocks=2", "evaluation.batch_size=4", "decentralized.num_models=2", "runtime.threads=1",
  "data.text=text.txt"}
local settings = "--set " .. table.concat(keys, " --set ")

-- Three steps and nothing else, and what they make of the weights.
local function steps(compiled)
  return ([[packlua -e '
    local pack = require "pack"
    local config = pack.config.load(require("pack.native").home() .. "/configs/tiny.lua", {"%s", "runtime.compile=%s"})
    local data = pack.data.open(config)
    local trainer = pack.trainer.create(config, {context = pack.runtime.open(config), train = data.train,
      validation = data.validation})
    for _ = 1, 3 do print(("%%.17g"):format(trainer:step().loss)) end
    print(("%%.17g"):format(pack.sum(trainer.model.arena.tensor):item()))
    trainer:free()']]):format(table.concat(keys, '", "'), compiled)
end

local function train(more)
  return "packlua recipes/train.lua --sample 0 --output out " .. settings .. (more and " " .. more or "")
end

-- What each kind of file says, without times.
local untimed = {"step_seconds", "tokens_per_second", "memory_bytes", "run_seconds", "finished", "seconds"}

local function without_times(text)
  local row = json.decode(text)
  for _, name in ipairs(untimed) do row[name] = nil end
  return json.encode(row)
end

local function rows(path)
  local list = {}
  for line in assert(files.read(path)):gmatch("[^\n]+") do list[#list + 1] = without_times(line) end
  return table.concat(list, "\n")
end

-- The tensors of a safetensors file, and not its header, as one text of bytes.
local function tensors(path)
  local file, parts = safetensors.open(path), {}
  for _, name in ipairs(file:names()) do
    local tensor = file:read_tensor(name)
    parts[#parts + 1] = name .. json.encode(tensor:totable())
    tensor:free()
  end
  file:close()
  return table.concat(parts, "\n")
end

local function run_outcome(folder)
  local out = {metrics = rows(folder .. "/out/metrics.jsonl"), result = without_times(files.read(folder .. "/out/result.json"))}
  for _, name in ipairs {"epoch-001.safetensors", "node-000/epoch-001.safetensors", "node-001/epoch-001.safetensors"} do
    out[name] = tensors(folder .. "/out/" .. name)
  end
  for _, one in ipairs(checkpoint.list(folder .. "/out")) do
    local name = files.basename(one.path)
    if name:find("^epoch") then
      out[name] = tensors(one.path)
    end
  end
  return out
end

-- Every state that is there must be whole.
local function check_states(folder)
  for _, one in ipairs(checkpoint.list(folder .. "/out")) do
    local state, message = checkpoint.open(one.path)
    assert(state, message)
    state:close()
    tensors(one.path)
  end
end

-- A run goes on from its newest state, unless its result is there or nothing was saved.
local function resume(folder)
  if files.exists(folder .. "/out/result.json") then return "true" end
  if checkpoint.list(folder .. "/out")[1] then return "packlua recipes/resume.lua out" end
end

local function manifest(folder)
  return {identity = prepare.verify(folder .. "/cache").identity}
end

local function preparation(name, tokenizer, more)
  local command = ("packlua recipes/prepare.lua --tokenizer %s --train text.txt --validation held.txt --txt-documents line "
    .. "--output cache --workers 1 %s"):format(tokenizer, more or "")
  return {name = name, run = command, outcome = manifest, again = function() return command end}
end

local with_states = "--set training.checkpoint_steps=2 --set training.keep=2 --set training.checkpoint_policy=final"

-- A run that ended, and one that seems to have been stopped in its last step.
local ended = train(with_states) .. " > log"
local stopped = ended .. " && rm -r out/result.json out/epoch-* out/node-*"

local function evaluation(folder)
  return {json = without_times(files.read(folder .. "/loss.json"))}
end

local evaluate = "packlua recipes/evaluate.lua --checkpoint out/epoch-001.state.safetensors.zst --per-worker --output loss.json"
local export = "packlua recipes/export.lua --checkpoint out/epoch-001.state.safetensors.zst --output model"

local operations = [[packlua -e '
  local pack = require "pack"
  local context, ops = pack.context.create {threads = 1}, pack.ops
  local a = pack.tensor.from({{1, 2}, {3, 4}}, "f32", {context = context})
  local b = ops.matmul(a, a)
  local g = pack.grad(function(x) return ops.sum(ops.multiply(x, x)) end, {b})
  print(b, g)']]

local prompt = [[printf '%s\n' 'pack = require "pack"' 'x = pack.tensor.from({1, 2, 3})' 'pack.ops.sum(x)' \
  ':help' | packlua -i]]

--- The scenarios, in the order in which they run.
return {
  {name = "operations", run = operations, shows = true},
  {name = "prompt line", run = prompt, shows = true},
  preparation("prepare bytes", "bytes"),
  preparation("prepare sentencepiece", "pieces.model", "--zstd 3"),
  {name = "train eagerly", run = steps(false)},
  {name = "train recorded", run = steps(true)},
  {name = "save", run = train(with_states), outcome = run_outcome, again = resume, checked = check_states},
  {name = "resume", setup = stopped, run = "packlua recipes/resume.lua out", outcome = run_outcome, again = resume,
    checked = check_states},
  {name = "evaluate", setup = ended, run = evaluate, outcome = evaluation, again = function() return evaluate end,
    checked = check_states},
  {name = "export", setup = ended, run = export, checked = check_states,
    outcome = function(folder)
      return {tensors = tensors(folder .. "/model/model.safetensors"), config = files.read(folder .. "/model/config.json")}
    end,
    again = function(folder) return files.exists(folder .. "/model") and "rm -r model; " .. export or export end},
  --- Writes the texts and the tokenizer that the scenarios work with.
  write_inputs = function(folder)
    local lines = {}
    for i = 1, 8 do lines[i] = ("the %d workers mix, line %d"):format(i % 7, i) end
    support.write(folder .. "/text.txt", table.concat(lines, "\n") .. "\n")
    support.write(folder .. "/held.txt", "one line\nthe workers mix\n")
    support.write(folder .. "/pieces.model", cache.model({"the", "mix", "work", "er", "line", "t"}, {byte_fallback = true}))
  end,
}
