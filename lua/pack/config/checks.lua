--- What must hold between the keys of a configuration; each refusal shows the values.
local algorithms = require "pack.algorithms"
local architectures = require "pack.model.architectures"
local batch = require "pack.config.batch"
local failure = require "pack.core.failure"

local function check_model(model)
  if model.width % model.heads ~= 0 then
    failure.usage("model.width %d is not divisible by model.heads %d", model.width, model.heads)
  end
  local refusal = architectures.of(model).refusal(model)
  if refusal then failure.usage("%s", refusal) end
end

local function check_batch(training, workers, context_length)
  local micro = workers * training.micro_batch_size * context_length
  if training.batch_tokens % micro == 0 then return end
  local sequences = training.batch_tokens / (workers * context_length)
  local hint = ""
  if sequences == math.floor(sequences) then
    hint = ("; training.micro_batch_size %d would fit"):format(
      batch.fitting(sequences, training.micro_batch_size))
  end
  failure.usage("training.batch_tokens %d is not a whole multiple of decentralized.num_models %d * "
    .. "training.micro_batch_size %d * model.context_length %d = %d%s", training.batch_tokens, workers,
    training.micro_batch_size, context_length, micro, hint)
end

local function check_horizon(training, parameters)
  local ratio = training.tokens_per_parameters / training.epoch_tokens_per_parameters
  if not training.epoch_tokens and (ratio < 1 - 1e-9 or math.abs(ratio - math.floor(ratio + 0.5)) > 1e-9) then
    failure.usage("training.tokens_per_parameters %.14g is not a whole multiple of "
      .. "training.epoch_tokens_per_parameters %.14g", training.tokens_per_parameters,
      training.epoch_tokens_per_parameters)
  end
  local epoch = training.epoch_tokens_per_parameters * parameters
  if not training.epoch_tokens and epoch < 1 then
    failure.usage("training.epoch_tokens_per_parameters %.14g * %d parameters is %.14g tokens; an epoch has one at least",
      training.epoch_tokens_per_parameters, parameters, epoch)
  end
  if training.max_tokens and training.max_tokens < training.batch_tokens then
    failure.usage("training.max_tokens %d is less than one batch, training.batch_tokens %d",
      training.max_tokens, training.batch_tokens)
  end
  if math.floor(training.tokens_per_parameters * parameters / training.batch_tokens + 0.5) < 1 then
    failure.usage("training.tokens_per_parameters %.14g * %d parameters is less than half a batch, "
      .. "training.batch_tokens %d: nothing to train", training.tokens_per_parameters, parameters,
      training.batch_tokens)
  end
end

local function check_checkpoints(training)
  local policy, epochs = training.checkpoint_policy, training.checkpoint_epochs
  if policy == "interval" and type(epochs) ~= "number" then
    failure.usage("training.checkpoint_policy interval needs training.checkpoint_epochs = K, a whole number")
  elseif policy == "explicit" and not epochs then
    failure.usage("training.checkpoint_policy explicit needs training.checkpoint_epochs, a list such as {1, 10}")
  elseif (policy == "none" or policy == "final") and epochs then
    failure.usage("training.checkpoint_epochs is given, but training.checkpoint_policy %s does not use it; "
      .. "interval and explicit do", policy)
  end
end

local function check_topology(decentralized, seed)
  local name, workers = decentralized.topology, decentralized.num_models
  local algorithm = algorithms.find(decentralized.algorithm.name)
  if name == "hierarchical" and not decentralized.group then
    failure.usage("decentralized.topology hierarchical needs decentralized.group, the workers in a group")
  end
  local topology = require "pack.mixing.topology"
  if type(name) == "table" and name.defined_by and not topology.find(name.name) then return end -- of another recipe
  local good, message = failure.pcall(topology.create, name, workers,
    {group = decentralized.group or nil, period = decentralized.period or nil, seed = seed,
      column_stochastic = algorithm and algorithm.column_stochastic})
  if not good then
    failure.usage("decentralized.topology %s, decentralized.num_models %d: %s",
      type(name) == "string" and name or "of rows", workers,
      (tostring(message):gsub("^[^ ]*:%d+: ", "")))
  end
end

local function check_schedule(optimizer)
  if optimizer.schedule == "wsd" and optimizer.warmup_fraction + optimizer.decay_fraction > 1 then
    failure.usage("optimizer.warmup_fraction %.14g and optimizer.decay_fraction %.14g of a wsd schedule "
      .. "overlap: together they are more than 1", optimizer.warmup_fraction, optimizer.decay_fraction)
  end
end

local function check_sources(data)
  if data.sources and (data.text or data.cache_dir) then
    failure.usage("data.sources and data.%s are both given; the sources are all that is trained on",
      data.text and "text" or "cache_dir")
  end
  if data.dirichlet and not data.sources then failure.usage("data.dirichlet shares out data.sources, and there are none") end
end

local function check_workers_rates(optimizer, workers)
  local factors = optimizer.lr_factors
  if factors and #factors ~= workers then
    failure.usage("optimizer.lr_factors has %d factors for decentralized.num_models %d", #factors, workers)
  end
end

-- Whether the algorithm goes with the rest. One that a recipe defines and this program does not know is left alone.
local function check_algorithm(config)
  local algorithm = algorithms.find(config.decentralized.algorithm.name)
  local refusal = algorithm and algorithm.refuse and algorithm.refuse(config)
  if refusal then failure.usage("decentralized.algorithm %s: %s", algorithm.name, refusal) end
end

local byte_tokenizer_ids = 257 -- 256 bytes and the end of a document

--- Raises a usage error for the first thing that does not fit.
return function(config, parameters)
  check_model(config.model)
  if parameters >= 2 ^ 53 then failure.usage("the model has 2^53 parameters or more") end
  if config.data.tokenizer == "bytes" and config.model.vocab_size < byte_tokenizer_ids then
    failure.usage("model.vocab_size %d is less than the %d ids of data.tokenizer bytes",
      config.model.vocab_size, byte_tokenizer_ids)
  end
  check_batch(config.training, config.decentralized.num_models, config.model.context_length)
  check_horizon(config.training, parameters)
  check_schedule(config.optimizer)
  check_workers_rates(config.optimizer, config.decentralized.num_models)
  check_algorithm(config)
  check_sources(config.data)
  check_checkpoints(config.training)
  check_topology(config.decentralized, config.runtime.seed)
end
