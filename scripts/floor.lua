#!/usr/bin/env packlua
-- The floor of a training step: the time that its operations need at least on a device of given rates. Every
-- operation of the recorded step reads its inputs and writes its outputs once at the bandwidth, or multiplies at the
-- products' rate, whichever takes longer; they come one after the other. Nothing is run, and no device is needed:
--   packlua scripts/floor.lua [--config FILE] [--set KEY=VALUE]... [--workers N] [--device NAME]
-- Prints a table in Markdown, as docs/performance.md has it.
local context = require "pack.core.context"
local options = require "pack.run.options"
local plan = require "pack.train.plan"
local trace = require "pack.measure.trace"
local trainer = require "pack.train.trainer"
local work = require "pack.measure.work"

local given = options.parse {
  recipe = "floor", summary = "The least time of a training step's operations at given rates.", arg = arg,
  config = false,
  extra = {
    {name = "config", value = "FILE", default = "configs/20m.lua", help = "configuration"},
    {name = "set", value = "KEY=VALUE", repeated = true, help = "changes a key; may be repeated"},
    {name = "workers", value = "N", type = "integer", minimum = 1, default = 4, help = "number of workers"},
    {name = "device", value = "NAME", default = "cpu", help = "whose operations: cpu, emu or cuda"},
    {name = "bandwidth", value = "TB/S", type = "number", minimum = 0.001, default = 4.3, help = "of memory"},
    {name = "products", value = "TFLOP/S", type = "number", minimum = 0.001, default = 750, help = "of bf16 products"},
  },
}

local config = plan.with_workers(given.config, {"runtime.amp=true", unpack(given.set or {})}, given.workers)
if not config then
  require("pack.core.failure").usage("the batch of %s cannot be shared out among %d workers", given.config, given.workers)
end

-- The operations of one step, from a run that computes nothing.
local function record()
  local own = context.create {device = given.device, forecast = true}
  local one = trainer.create(config, {context = own})
  local recorded = one:recorded()
  local captured = trace.capture(own, function() recorded:run() end)
  local calls = {}
  for _, event in captured:events() do
    if event.form then calls[#calls + 1] = event.form end
  end
  captured:free()
  recorded:free()
  one:free()
  own:close()
  return calls
end

local function sum(rows)
  local total = {name = "all", count = 0, bytes = 0, flops = 0, moving = 0, multiplying = 0, floor = 0}
  for _, row in ipairs(rows) do
    for key, value in pairs(total) do
      if key ~= "name" then total[key] = value + row[key] end
    end
  end
  return total
end

-- The calls of each operation added up; seconds by either rate, and the larger of the two of each call.
local function add_up(calls)
  local rows, by_name = {}, {}
  for _, call in ipairs(calls) do
    local row = by_name[call.name]
    if not row then
      row = {name = call.name, count = 0, bytes = 0, flops = 0, moving = 0, multiplying = 0, floor = 0}
      by_name[call.name], rows[#rows + 1] = row, row
    end
    local flops = work.is_product(call.name) and call.flops or 0
    local moving, multiplying = call.bytes / (given.bandwidth * 1e12), flops / (given.products * 1e12)
    row.count, row.bytes, row.flops = row.count + 1, row.bytes + call.bytes, row.flops + flops
    row.moving, row.multiplying = row.moving + moving, row.multiplying + multiplying
    row.floor = row.floor + math.max(moving, multiplying)
  end
  table.sort(rows, function(a, b) return a.floor > b.floor end)
  return rows
end

local rows = add_up(record())
local total = sum(rows)
rows[#rows + 1] = total
print("| operation | calls | GB | TFLOP of products | ms to move | ms to multiply | floor, ms | share |")
print("|---|---|---|---|---|---|---|---|")
for _, row in ipairs(rows) do
  print(("| %s | %d | %.2f | %.3f | %.3f | %.3f | %.3f | %.1f%% |"):format(row.name, row.count, row.bytes / 1e9,
    row.flops / 1e12, row.moving * 1e3, row.multiplying * 1e3, row.floor * 1e3, 100 * row.floor / total.floor))
end
print(("\n%d workers, %d targets a step: at least %.2f ms, at most %.2f M targets/s"):format(given.workers,
  config.training.batch_tokens, total.floor * 1e3, config.training.batch_tokens / total.floor / 1e6))
