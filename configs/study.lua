-- Eight small byte-level workers, for comparing algorithms on a laptop: recipes/study_algorithms.lua.
return {
  model = {vocab_size = 257, layers = 3, width = 96, heads = 3, ffn_width = 256, context_length = 128},
  data = {tokenizer = "bytes", shuffle_buffer = 1000},
  optimizer = {lr = 4e-3, beta2 = 0.98, warmup_fraction = 0.1},
  training = {
    max_tokens = 409600, -- 200 updates
    epoch_tokens = 51200, -- evaluated eight times
    batch_tokens = 2048, micro_batch_size = 2, checkpoint_policy = "none",
  },
  evaluation = {subset_blocks = 64, batch_size = 32},
  decentralized = {num_models = 8, topology = "ring"},
}
