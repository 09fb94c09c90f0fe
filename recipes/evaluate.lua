#!/usr/bin/env packlua
-- Evaluates finished weights on held-out data:
--   packlua recipes/evaluate.lua --checkpoint FILE [--full] [--per-worker] [--cache DIR | --text FILE...]
local pack = require "pack"

local options = pack.options.parse {
  recipe = "evaluate",
  summary = "Evaluates weights on held-out data: of a state the workers' average, of safetensors what they hold.",
  arg = arg,
  config = false,
  extra = {
    {name = "checkpoint", value = "FILE", help = "a state, or safetensors of the average or of a worker"},
    {name = "full", help = "everything held out, instead of evaluation.subset_blocks sequences"},
    {name = "per-worker", help = "each worker too, on the same data"},
    {name = "cache", value = "DIR", help = "token cache; that of the run if not given"},
    {name = "text", value = "FILE", many = true, help = "text files, instead of a cache"},
    {name = "tokenizer", value = "FILE", help = "of the text; that of the run if not given"},
    {name = "config", value = "FILE", help = "configuration, for files that do not hold one"},
    {name = "set", value = "KEY=VALUE", repeated = true, help = "changes a key, such as evaluation.batch_size"},
    {name = "device", value = "DEVICE", help = "the same as --set runtime.device=DEVICE"},
    {name = "output", value = "FILE", help = "the result as JSON (default CHECKPOINT's name with .evaluation.json)"},
  },
}
local settings = options.set or {}
local function set(key, x) table.insert(settings, key .. "=" .. x) end
if options.cache and options.text then pack.failure.usage("--cache and --text: there can be one of them only") end
if options.cache then set("data.cache_dir", options.cache) end
if options.text then
  set("data.cache_dir", "off")
  set("data.text", table.concat(options.text, ","))
end
if options.tokenizer then set("data.tokenizer", options.tokenizer) end
if options.device then set("runtime.device", options.device) end

-- What to evaluate, on what, and where.
local weights = pack.weights.open(options.checkpoint, {config = options.config, set = settings})
local data = pack.data.open(weights.config)
local context, remarks = pack.runtime.open(weights.config)
print(("%s: %s"):format(weights.path, weights:describe()))
print(("%s, %d tokens held out%s"):format(data.description, data.validation.count,
  data.validation_complete and "" or " (cut off by the cache)"))
for _, remark in ipairs(remarks) do print(remark) end
local identity = pack.checkpoint.data_identity(data)
if weights.data and weights.data ~= identity then
  print("this is not the data of the run, which was trained on " .. weights.data)
end
if options.per_worker and not weights:has_workers() then print("the file holds one model; no workers are beside it") end

local row = pack.evaluate.run(weights, data, {context = context, full = options.full, workers = options.per_worker})

-- The outcome, on the screen and in a file of its own.
local function show(one, label)
  print(("%-10s loss %.4f  perplexity %.2f"):format(label, one.loss, one.perplexity))
end
show(row, row.worker and "worker " .. row.worker or row.weights)
for _, worker in ipairs(row.workers or {}) do show(worker, "worker " .. worker.worker) end
if row.consensus_distance then print(("consensus distance %.4g"):format(row.consensus_distance)) end
print(("on %d targets in %d sequences; validation_complete: %s"):format(row.targets, row.blocks, tostring(row.validation_complete)))

row.recipe, row.split, row.checkpoint, row.content = "evaluate", "validation", weights.path, weights.content
row.step, row.epoch, row.num_models, row.data = weights.step, weights.epoch, weights.num_models, identity
row.device, row.instruction_set, row.amp = context:device(), context:isa(), weights.config.runtime.amp
local output = options.output or weights.path:gsub("%.zst$", ""):gsub("%.safetensors$", "") .. ".evaluation.json"
pack.json.write(output, row)
print("result: " .. output)
weights:close()
