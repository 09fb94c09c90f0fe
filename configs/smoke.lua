-- recipes/smoke.lua in seconds: small models, two updates of 2,048 targets.
return {
  model = {vocab_size = 257, layers = 2, width = 64, heads = 2, ffn_width = 176, context_length = 64},
  training = {
    max_tokens = 4096, epoch_tokens = 2048, batch_tokens = 2048, micro_batch_size = 4, -- two micro-steps
    checkpoint_steps = 1, log_every = 1,
  },
  evaluation = {subset_blocks = 4, batch_size = 4},
  decentralized = {num_models = 4, topology = "one_peer_exponential", scheme = "awc"},
}
