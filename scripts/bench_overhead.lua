#!/usr/bin/env packlua
-- Times what a training step takes outside its kernels:
--   packlua scripts/bench_overhead.lua [--config FILE] [--set KEY=VALUE]... [--steps K]
--   packlua scripts/bench_overhead.lua --small       a model so small that hardly anything else is left
-- What Lua does around the recorded program (loader, batch, schedule, mixing matrix, guard, record, its line in
-- metrics.jsonl) is timed in each step; what one operation of a program costs beside its arithmetic, on a program of
-- additions of one number. On a busy machine look at the least.
local pack = require "pack"

local given = pack.options.parse {
  recipe = "bench_overhead", summary = "Times what a training step takes outside its kernels.", arg = arg,
  extra = {
    {name = "steps", value = "K", type = "integer", minimum = 3, default = 200, help = "steps to time"},
    {name = "small", help = "one layer of width 8, two workers"},
  },
}
local clock = require("pack.native").C.pk_clock

local settings = {
  "training.max_tokens=" .. 2 ^ 30, "training.log_every=" .. 2 ^ 30, "runtime.compile=true",
}
if given.small then
  for _, setting in ipairs {"model.layers=1", "model.width=8", "model.heads=1", "model.ffn_width=16",
    "model.context_length=8", "decentralized.num_models=2", "training.micro_batch_size=1", "training.batch_tokens=16",
    "training.epoch_tokens=1048576"} do
    settings[#settings + 1] = setting
  end
end
local config = pack.config.resolve {table = given.config, set = settings}
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

-- Seconds of each step: in all, and in the program.
local function steps(count, after_step)
  local totals, programs, inside = {}, {}, nil
  function trainer:run_step() -- luacheck: ignore self
    local began = clock()
    self:recorded():run()
    inside = clock() - began
    return unpack(self.program.results)
  end
  for i = 1, count do
    local began = clock()
    run:metrics(trainer:step())
    totals[i], programs[i] = clock() - began, inside
    if after_step then after_step() end
  end
  return totals, programs
end

steps(3) -- records the program, and lets code be compiled
local totals, programs = steps(given.steps)
local outside = {}
for i = 1, #totals do outside[i] = totals[i] - programs[i] end

-- Seconds that an operation of a program takes, arithmetic on one number included.
local function of_an_operation()
  local count, list = 1000, {}
  local x = pack.tensor.ones {1}
  local chain = require("pack.program").record(function()
    local y = x
    for _ = 1, count do y = pack.ops.add(y, x) end
    return y
  end, {}, context)
  for i = 1, 50 do
    local began = clock()
    chain:run()
    list[i] = (clock() - began) / count
  end
  chain:free()
  x:free()
  return list
end

local operations = trainer.program:memory().operations
print(context:describe())
print(("%d workers of %d parameters, %d targets, %d operations a step"):format(trainer.num_models,
  pack.llama.parameters(config.model), config.training.batch_tokens, operations))
print(("%-20s %10s %10s"):format("microseconds", "median", "least"))
for _, row in ipairs {{"a step", totals}, {"around the program", outside}, {"one operation", of_an_operation()}} do
  print(("%-20s %10.2f %10.2f"):format(row[1], spread(row[2])))
end
trainer:free()
run:close()
os.execute("rm -rf " .. folder)
