--- The keys of a configuration: one row each, from which parsing, checks, --help and the documents come.
--
-- section, name   the key is section.name
-- type            integer | number | boolean | string | choice | list (of strings) | numbers (a list) | epochs (an
--                 integer or a list of them) | fields (a table with rows of its own) | algorithm (a name, or a
--                 table with that and the algorithm's options) | topology (a name, rows, or a list of such)
-- default         false together with nullable = true means: off or not given
-- minimum, maximum, above, below    bounds of numbers (above and below are exclusive)
-- choices         what a choice may be
-- resume          "free": a resumed run may differ; "same": it must not
-- also            other names that people try, for the suggestion in the refusal
local algorithms = require "pack.algorithms"
local architectures = require "pack.model.architectures"
local optim = require "pack.optim"
local topology = require "pack.mixing.topology"

local schema = {}

--- The sections in the order in which they are shown.
schema.sections = {"model", "data", "optimizer", "training", "evaluation", "runtime", "decentralized"}

--- Names of the topologies (see pack.topology).
schema.topologies = topology.names()

local rows = {
  model = {
    {name = "architecture", type = "choice", default = architectures.names[1],
      choices = architectures.names, help = "what the model computes",
      also = {"arch", "model_type"}},
    {name = "vocab_size", type = "integer", default = 32000, minimum = 2, maximum = 2 ^ 24,
      help = "tokens the model knows", also = {"vocabulary", "n_vocab"}},
    {name = "layers", type = "integer", default = 8, minimum = 1, maximum = 1024,
      help = "transformer blocks", also = {"num_layers", "n_layer", "depth"}},
    {name = "width", type = "integer", default = 320, minimum = 2, maximum = 2 ^ 17,
      help = "width of the residual stream", also = {"hidden_size", "d_model", "dim"}},
    {name = "heads", type = "integer", default = 5, minimum = 1, maximum = 1024,
      help = "attention heads; divides width", also = {"num_heads", "n_head"}},
    {name = "ffn_width", type = "integer", default = 896, minimum = 1, maximum = 2 ^ 20,
      help = "width inside the feed-forward part", also = {"intermediate_size", "ffn_dim"}},
    {name = "context_length", type = "integer", default = 1024, minimum = 1, maximum = 2 ^ 20,
      help = "tokens in a sequence", also = {"sequence_length", "max_seq_len", "block_size"}},
    {name = "rope_theta", type = "number", default = 10000, above = 0, maximum = 1e12,
      help = "base of the rotary embedding of llama"},
    {name = "norm_eps", type = "number", default = 1e-5, above = 0, maximum = 1,
      help = "epsilon of the norms"},
    {name = "init_std", type = "number", default = 0.02, minimum = 0, maximum = 10,
      help = "standard deviation of the initial weights"},
  },
  data = {
    {name = "cache_dir", type = "string", path = true, nullable = true, default = false, resume = "free",
      help = "folder of a prepared token cache"},
    {name = "text", type = "list", path = true, nullable = true, default = false, resume = "free",
      help = "text files to train on", also = {"files"}},
    {name = "sources", type = "list", path = true, nullable = true, default = false, resume = "free",
      help = "token caches or text files, one for each worker"},
    {name = "dirichlet", type = "fields", nullable = true, default = false,
      help = "shares data.sources out among the workers, unevenly",
      fields = {
        {name = "alpha", type = "number", default = 1, above = 0, maximum = 1e6,
          help = "small: workers see different sources; large: the same"},
        {name = "seed", type = "integer", default = 42, minimum = 0, below = 2 ^ 53, help = "of the shares"},
      }},
    {name = "tokenizer", type = "string", path = true, nullable = true, default = false, resume = "free",
      help = "\"bytes\" or a SentencePiece model file"},
    {name = "shuffle_seed", type = "integer", default = 42, minimum = 0, below = 2 ^ 53,
      help = "seed of the order of the data"},
    {name = "shuffle_buffer", type = "integer", default = 10000, minimum = 1, maximum = 2 ^ 31,
      help = "documents shuffled together when a cache is prepared"},
    {name = "buffer_size_mib", type = "integer", default = 64, minimum = 1, maximum = 2 ^ 20,
      help = "memory of the loader; rows are shuffled within it"},
    {name = "prefetch", type = "boolean", default = true, resume = "free",
      help = "read ahead in the background"},
    {name = "shard_tokens", type = "integer", default = 16777216, minimum = 1, maximum = 2 ^ 40,
      help = "tokens in a shard of a cache"},
    {name = "prepare_workers", type = "integer", nullable = true, default = false, minimum = 1,
      maximum = 1024, resume = "free", help = "threads of prepare; one per core if not given"},
    {name = "prepare_train_tokens", type = "integer", nullable = true, default = false, minimum = 1,
      help = "tokens of the training split; all if not given"},
    {name = "prepare_validation_tokens", type = "integer", nullable = true, default = false, minimum = 1,
      help = "tokens of the validation split; all if not given"},
  },
  optimizer = {
    {name = "name", type = "choice", default = optim.names[1], choices = optim.names,
      help = "what turns gradients into updates (docs/algorithms.md)"},
    {name = "lr", type = "number", default = 1e-3, minimum = 0, maximum = 100,
      help = "peak learning rate", also = {"learning_rate", "max_lr"}},
    {name = "lr_factors", type = "numbers", nullable = true, default = false, minimum = 0, maximum = 1e6,
      help = "factors on lr, one for each worker"},
    {name = "beta1", type = "number", default = 0.9, minimum = 0, below = 1,
      help = "decay of the first moment", also = {"betas"}},
    {name = "beta2", type = "number", default = 0.95, minimum = 0, below = 1,
      help = "decay of the second moment"},
    {name = "eps", type = "number", default = 1e-8, above = 0, maximum = 1,
      help = "AdamW's epsilon", also = {"epsilon"}},
    {name = "momentum", type = "number", nullable = true, default = false, minimum = 0, below = 1,
      help = "of sgd and muon; 0.9 and 0.95 if not given"},
    {name = "nesterov", type = "choice", default = "auto", choices = {"auto", true, false},
      help = "Nesterov's momentum; auto: with muon"},
    {name = "window", type = "integer", default = 4, minimum = 1, maximum = 2 ^ 31,
      help = "steps of accumadamw's window"},
    {name = "adjust", type = "choice", default = "match_rms_adamw", choices = {"match_rms_adamw", "original"},
      help = "how muon scales its updates"},
    {name = "weight_decay", type = "number", default = 0.1, minimum = 0, maximum = 100,
      help = "of matrices; norms are not decayed", also = {"wd"}},
    {name = "grad_clip", type = "number", nullable = true, default = 1.0, above = 0, maximum = 1e12,
      help = "largest gradient norm per worker", also = {"clip", "max_grad_norm"}},
    {name = "schedule", type = "choice", default = "cosine", choices = {"cosine", "wsd", "constant"},
      help = "course of the learning rate", also = {"scheduler", "lr_schedule"}},
    {name = "warmup_fraction", type = "number", default = 0.05, minimum = 0, maximum = 1,
      help = "part of the run in which lr rises", also = {"warmup", "warmup_ratio"}},
    {name = "min_lr_ratio", type = "number", default = 0.1, minimum = 0, maximum = 1,
      help = "last learning rate over lr", also = {"min_lr"}},
    {name = "decay_fraction", type = "number", default = 0.2, minimum = 0, maximum = 1,
      help = "last part of the run, in which wsd falls"},
  },
  training = {
    {name = "tokens_per_parameters", type = "number", default = 20, above = 0, maximum = 1e6,
      help = "tokens of the run over parameters of one model", also = {"tokens_per_parameter"}},
    {name = "epoch_tokens_per_parameters", type = "number", default = 0.5, above = 0, maximum = 1e6,
      help = "the same of one epoch"},
    {name = "max_tokens", type = "integer", nullable = true, default = false, minimum = 1,
      help = "shortens the run to this many tokens"},
    {name = "epoch_tokens", type = "integer", nullable = true, default = false, minimum = 1,
      help = "tokens of an epoch, instead of the ratio"},
    {name = "batch_tokens", type = "integer", default = 32768, minimum = 1,
      help = "tokens of a step, over all workers", also = {"batch_size", "global_batch_size"}},
    {name = "micro_batch_size", type = "integer", default = 32, minimum = 1, maximum = 2 ^ 20,
      help = "sequences per worker and micro-step"},
    {name = "checkpoint_policy", type = "choice", default = "final", resume = "free",
      choices = {"none", "final", "interval", "explicit"}, help = "which epochs save their weights"},
    {name = "checkpoint_epochs", type = "epochs", nullable = true, default = false, minimum = 1,
      maximum = 2 ^ 31, resume = "free", help = "K of interval, or the epochs of explicit"},
    {name = "checkpoint_steps", type = "integer", nullable = true, default = false, minimum = 1,
      resume = "free", help = "save the state every so many steps"},
    {name = "checkpoint_minutes", type = "number", nullable = true, default = false, above = 0,
      maximum = 1e6, resume = "free", help = "save the state every so many minutes"},
    {name = "keep", type = "integer", default = 2, minimum = 1, maximum = 2 ^ 31, resume = "free",
      help = "states between epochs that stay"},
    {name = "save_epoch_training_state", type = "boolean", default = true, resume = "free",
      help = "save what resuming needs with an epoch"},
    {name = "log_every", type = "integer", default = 20, minimum = 1, maximum = 2 ^ 31, resume = "free",
      help = "steps between lines of the log"},
  },
  evaluation = {
    {name = "subset_blocks", type = "integer", default = 1024, minimum = 1, maximum = 2 ^ 31,
      help = "sequences of an evaluation within the run"},
    {name = "batch_size", type = "integer", default = 128, minimum = 1, maximum = 2 ^ 20,
      help = "sequences evaluated at once"},
    {name = "seed", type = "integer", default = 12345, minimum = 0, below = 2 ^ 53,
      help = "seed of the subset"},
  },
  runtime = {
    {name = "seed", type = "integer", default = 42, minimum = 0, below = 2 ^ 53,
      help = "seed of weights and matchings"},
    {name = "deterministic", type = "boolean", default = false,
      help = "the same bits in every run, where that costs something"},
    {name = "device", type = "string", default = "auto", resume = "free",
      pattern = {"^auto$", "^cpu$", "^emu$", "^cuda$", "^cuda:%d+$"},
      expects = "auto, cpu, emu or cuda:K", help = "auto, cpu, emu or cuda:K"},
    {name = "amp", type = "choice", default = "auto", choices = {"auto", true, false},
      help = "bf16 products; auto: where the device has them", also = {"bf16", "precision"}},
    {name = "compile", type = "boolean", default = true, resume = "free", help = "run recorded steps"},
    {name = "recompute", type = "choice", default = "auto", choices = {"auto", "none", "cheap", "products"},
      resume = "free", help = "what recorded steps compute again, not keep"},
    {name = "attention", type = "choice", default = "auto", choices = {"auto", "cudnn", "flash", "reference"},
      help = "what computes attention"},
    {name = "threads", type = "integer", nullable = true, default = false, minimum = 1, maximum = 4096,
      resume = "free", help = "of the CPU device; one per core if not given"},
    {name = "memory_limit_mib", type = "integer", nullable = true, default = false, minimum = 1,
      maximum = 2 ^ 32, resume = "free", help = "device memory; what is free if not given"},
    {name = "output_dir", type = "string", path = true, nullable = true, default = false, resume = "free",
      help = "folder of the run"},
    {name = "tensorboard", type = "boolean", default = false, resume = "free",
      help = "write TensorBoard events"},
  },
  decentralized = {
    {name = "num_models", type = "integer", default = 1, minimum = 1, maximum = 4096,
      help = "workers packed on the device", also = {"num_workers", "workers", "n"}},
    {name = "algorithm", type = "algorithm", default = {name = "gossip"},
      help = "what a step does with the gradients (docs/algorithms.md)"},
    {name = "variant", type = "string", nullable = true, default = false,
      help = "a name for what sets this run apart in reports"},
    {name = "topology", type = "topology", default = "complete", choices = schema.topologies,
      help = "whom a worker mixes with: a name, rows of a matrix, or several"},
    {name = "group", type = "integer", nullable = true, default = false, minimum = 1, maximum = 4096,
      help = "workers in a group of hierarchical"},
    {name = "period", type = "integer", nullable = true, default = false, minimum = 1, maximum = 2 ^ 31,
      help = "hierarchical mixes all every so many mixings"},
    {name = "scheme", type = "choice", default = "awc", choices = {"awc", "atc"},
      help = "mix, then AdamW (awc), or AdamW, then mix"},
    {name = "adaptive_consensus", type = "fields", nullable = true, default = false,
      help = "mix by gamma W + (1 - gamma) I, gamma = (lr/lr_max)^p",
      fields = {
        {name = "start_frac", type = "number", default = 0, minimum = 0, maximum = 1,
          help = "part of the run before it begins"},
        {name = "p", type = "number", default = 1, minimum = 0, maximum = 1000, help = "power of lr/lr_max"},
      }},
    {name = "mix_every", type = "integer", default = 1, minimum = 1, maximum = 2 ^ 31,
      help = "steps per mixing"},
  },
}

--- All rows in the order in which they are shown; each knows its `key`, and `resume` is filled in.
schema.rows = {}

local by_key = {}
for _, section in ipairs(schema.sections) do
  for _, row in ipairs(rows[section]) do
    row.section = section
    row.key = section .. "." .. row.name
    row.resume = row.resume or "same"
    by_key[row.key] = row
    schema.rows[#schema.rows + 1] = row
    for _, field in ipairs(row.fields or {}) do
      field.key = row.key .. "." .. field.name
    end
  end
end

--- The row of a dotted key, or nil.
function schema.find(key)
  return by_key[key]
end

--- The rows of one section, or nil.
function schema.section(name)
  return rows[name]
end

-- Whole numbers with all their digits, as far as a double knows them.
local function number_text(x)
  return (x == math.floor(x) and math.abs(x) < 1e17 and "%.0f" or "%.14g"):format(x)
end

local function bounds(row)
  local parts = {}
  if row.minimum then parts[#parts + 1] = "at least " .. number_text(row.minimum) end
  if row.above then parts[#parts + 1] = "above " .. number_text(row.above) end
  if row.maximum then parts[#parts + 1] = "at most " .. number_text(row.maximum) end
  if row.below then parts[#parts + 1] = "below " .. number_text(row.below) end
  return #parts > 0 and ", " .. table.concat(parts, " and ") or ""
end

local function spell(choice)
  return choice == true and "on" or choice == false and "off" or choice
end

local function kind_text(row)
  if row.expects then return row.expects end
  if row.type == "integer" then return "a whole number" .. bounds(row) end
  if row.type == "number" then return "a number" .. bounds(row) end
  if row.type == "boolean" then return "true or false" end
  if row.type == "list" then return "a list of strings" end
  if row.type == "numbers" then return "a list of numbers" .. bounds(row) end
  if row.type == "algorithm" then return "one of " .. table.concat(algorithms.list(), ", ") .. ", or a table with its name" end
  if row.type == "epochs" then return "a whole number or a list of whole numbers" .. bounds(row) end
  if row.type == "topology" then
    return "one of " .. table.concat(topology.list(), ", ") .. ", or a list of rows, or a list of such"
  end
  if row.type == "choice" then
    local names = {}
    for i, choice in ipairs(row.choices) do names[i] = spell(choice) end
    return "one of " .. table.concat(names, ", ")
  end
  if row.type == "fields" then
    local names = {}
    for i, field in ipairs(row.fields) do names[i] = field.name end
    return "a table with " .. table.concat(names, " and ")
  end
  return "a string"
end

--- What a row accepts, such as "a whole number, at least 1 and at most 1024, or off".
function schema.expected(row)
  return kind_text(row) .. (row.nullable and ", or off" or "")
end

-- An algorithm's name, and those of its options that are not at their defaults.
local function show_algorithm(x)
  local known, parts, names = {}, {x.name}, {}
  local algorithm = algorithms.find(x.name)
  for _, row in ipairs(algorithm and algorithm.options or {}) do known[row.name] = row end
  for name in pairs(x) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local is_default = known[name] and known[name].default == x[name]
    if name ~= "name" and name ~= "defined_by" and not is_default then
      parts[#parts + 1] = name .. "=" .. schema.show(x[name])
    end
  end
  return table.concat(parts, " ")
end

--- How a value is written in messages and help: "off" for false, commas between entries.
function schema.show(x)
  if type(x) == "boolean" then return spell(x) end
  if type(x) == "number" then return number_text(x) end
  if type(x) ~= "table" then return tostring(x) end
  if x.name then return show_algorithm(x) end
  local parts = {}
  for _, entry in ipairs(x) do parts[#parts + 1] = schema.show(entry) end
  return table.concat(parts, ",")
end

return schema
