-- Quasi-global momentum on a ring, whose optimizer is SGD without a momentum of its own. The model is that of configs/tiny.lua.
return {
  model = {vocab_size = 257, layers = 4, width = 128, heads = 4, ffn_width = 352, context_length = 128},
  data = {tokenizer = "bytes", shuffle_buffer = 1000},
  optimizer = {name = "sgd", lr = 0.5, momentum = 0, warmup_fraction = 0.1, weight_decay = 1e-4},
  training = {max_tokens = 409600, epoch_tokens = 102400, batch_tokens = 2048, micro_batch_size = 4},
  evaluation = {subset_blocks = 64, batch_size = 16},
  decentralized = {
    num_models = 4, topology = "ring",
    algorithm = {name = "quasi_global_momentum", momentum = 0.9},
  },
}
