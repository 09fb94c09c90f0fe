#!/usr/bin/env packlua
-- Times what a training step takes outside its kernels:
--   packlua scripts/bench_overhead.lua [--config FILE] [--set KEY=VALUE]... [--steps K]
--   packlua scripts/bench_overhead.lua --small       a model so small that hardly anything else is left
-- What Lua does from the end of one step's program to the beginning of the next one's is timed in a training run
-- (record, its line in metrics.jsonl, progress, what is due; loader, batch, schedule, mixing matrix), without
-- evaluations and saved states; what one operation of a program costs beside its arithmetic, on a program of
-- additions of one number. On a busy machine look at the least.
local pack = require "pack"
local C = require("pack.native").C

local given = pack.options.parse {
  recipe = "bench_overhead", summary = "Times what a training step takes outside its kernels.", arg = arg,
  extra = {
    {name = "steps", value = "K", type = "integer", minimum = 3, default = 200, help = "steps to time"},
    {name = "small", help = "one layer of width 8, two workers"},
  },
}
local WARM_UP = 5 -- steps that record the program and have code compiled

local config = given.config
if given.small then
  config = pack.config.resolve {table = config, set = {"model.layers=1", "model.width=8", "model.heads=1",
    "model.ffn_width=16", "model.context_length=8", "decentralized.num_models=2", "training.micro_batch_size=1",
    "training.batch_tokens=16"}}
end
local tokens = config.training.batch_tokens * (WARM_UP + given.steps)
config = pack.config.resolve {table = config, set = {"runtime.compile=true", "training.log_every=" .. 2 ^ 30,
  "training.checkpoint_policy=none", "training.max_tokens=" .. tokens, "training.epoch_tokens=" .. tokens}}
local data = pack.data.open(config)
local context = pack.runtime.open(config)
local trainer = pack.trainer.create(config, {context = context, train = data.train, validation = data.validation})
local folder = os.tmpname()
os.remove(folder)
local run = pack.run.create {recipe = "bench_overhead", output = folder, config = config, context = context}

-- The median and the least of a list, in microseconds.
local function spread(list)
  table.sort(list)
  return list[math.floor((#list + 1) / 2)] * 1e6, list[1] * 1e6
end

-- Seconds of each step: from its program's end to the end of the next one's, and of that before the next one.
local function time_steps()
  local totals, outside, at, finished = {}, {}, 0, nil
  local program = trainer:recorded():parts()[1]
  assert(trainer.accumulation == 1, "a step of one micro-step is measured")
  function program:run()
    local began = C.pk_clock()
    local status = C.pk_program_run(self.handle)
    local now = C.pk_clock()
    assert(status == 0)
    at = at + 1
    if at > WARM_UP then totals[at - WARM_UP], outside[at - WARM_UP] = now - finished, began - finished end
    finished = now
  end
  pack.study.of({trainer = trainer, run = run, data = data}):train()
  return totals, outside
end

-- Seconds that an operation of a program takes, arithmetic on one number included.
local function time_operation()
  local count, list = 1000, {}
  local x = pack.tensor.ones {1}
  local chain = require("pack.core.program").record(function()
    local y = x
    for _ = 1, count do y = pack.ops.add(y, x) end
    return y
  end, {}, context)
  for i = 1, 50 do
    local began = C.pk_clock()
    chain:run()
    list[i] = (C.pk_clock() - began) / count
  end
  chain:free()
  x:free()
  return list
end

local totals, outside = time_steps()
print(context:describe())
print(("%d workers of %d parameters, %d targets, %d operations a step"):format(trainer.num_models,
  pack.config.parameters(config.model), config.training.batch_tokens,
  trainer.program:memory().operations))
print(("%-20s %10s %10s"):format("microseconds", "median", "least"))
for _, row in ipairs {{"a step", totals}, {"around the program", outside}, {"one operation", time_operation()}} do
  print(("%-20s %10.2f %10.2f"):format(row[1], spread(row[2])))
end
trainer:free()
run:close()
os.execute("rm -rf " .. folder)
