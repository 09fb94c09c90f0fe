--- Losses of finished weights on held-out data.
local loader = require "pack.data.loader"
local ops = require "pack.core.ops"
local progress = require "pack.io.progress"

local evaluate = {}

-- A model's loss over blocks, as a row's fields.
local function loss_over(model, blocks, label)
  local bar = progress.create {total = blocks.blocks, every = blocks.blocks, unit = "block"}
  local loss, targets = model:loss_over(blocks, bar.terminal and function(done, mean)
    bar:update(done, "%s: loss %.3f", label, mean)
  end)
  if bar.terminal then bar:finish() end
  return {weights = label, loss = loss, perplexity = math.exp(loss), targets = targets}
end

-- A row for each worker and their distance from the average.
local function each_worker(opened, context, blocks, row)
  local packed = opened:workers(context)
  row.workers = {}
  for i = 0, packed.num_models - 1 do
    local one = packed:worker(i)
    local worker = loss_over(one, blocks, "worker " .. i)
    worker.weights, worker.worker = "worker", i
    row.workers[i + 1] = worker
    one:free()
  end
  row.consensus_distance = ops.consensus_distance(packed.arena.tensor):item()
  packed:free()
end

--- Evaluates weights (see pack.weights) on the validation split of data (see pack.data).
-- options: context, full (all of it, instead of the configuration's fixed subset), workers (each worker too,
-- where they are at hand).
-- Returns {weights ("average", "worker" or "model"), worker (its number), loss, perplexity, targets, blocks,
-- validation_complete} and, of workers, consensus_distance and workers: a list of {weights, worker, loss,
-- perplexity, targets}, on the same blocks.
function evaluate.run(opened, data, options)
  local config = opened.config
  local blocks = loader.validation {
    tokens = data.validation, context_length = config.model.context_length,
    batch_size = config.evaluation.batch_size, seed = config.evaluation.seed,
    subset = not options.full and config.evaluation.subset_blocks or nil, context = options.context,
  }
  local model = opened:model(options.context)
  local row = loss_over(model, blocks, opened:kind())
  model:free()
  row.worker, row.blocks = opened.worker, blocks.blocks
  row.validation_complete = data.validation_complete and blocks.complete
  if options.workers and opened:has_workers() then each_worker(opened, options.context, blocks, row) end
  blocks:close()
  return row
end

return evaluate
