--- The global batch and how workers share it out: training.batch_tokens stays, micro_batch_size follows N.
local batch = {}

--- The most sequences, at most `wanted` and one at least, that `sequences` are a whole multiple of.
function batch.fitting(sequences, wanted)
  for size = math.max(1, math.min(wanted, sequences)), 1, -1 do
    if sequences % size == 0 then return size end
  end
end

--- The micro_batch_size of N workers at the global batch of a resolved configuration: as large a part of the batch in a
-- micro-step as there, where that can be; nil and what is wrong, with the numbers that can be, where N does not divide the batch.
function batch.micro_batch_size(config, workers)
  local training, length = config.training, config.model.context_length
  local sequences = training.batch_tokens / length
  if sequences % workers == 0 then
    local rows = training.micro_batch_size * config.decentralized.num_models
    return batch.fitting(sequences / workers, math.floor(rows / workers))
  end
  local valid = {}
  for n = 1, sequences do valid[#valid + 1] = sequences % n == 0 and n or nil end
  return nil, ("training.batch_tokens %d is %.14g sequences of model.context_length %d, which %d workers cannot share out "
    .. "evenly; possible are %s"):format(training.batch_tokens, sequences, length, workers, table.concat(valid, ", "))
end

return batch
