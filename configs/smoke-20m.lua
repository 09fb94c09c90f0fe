-- recipes/smoke.lua with the real shapes: four 20m workers, two updates of 32,768 targets.
return {
  model = {layers = 8, width = 320, heads = 5, ffn_width = 896},
  training = {
    max_tokens = 65536, epoch_tokens = 32768, batch_tokens = 32768, micro_batch_size = 8,
    checkpoint_steps = 1, log_every = 1,
  },
  evaluation = {subset_blocks = 4, batch_size = 4},
  decentralized = {num_models = 4, topology = "one_peer_exponential", scheme = "awc"},
}
