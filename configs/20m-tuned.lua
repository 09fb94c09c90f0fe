-- The 20m model alone, tuned for batches of 131,072 tokens.
return {
  model = {layers = 8, width = 320, heads = 5, ffn_width = 896},
  optimizer = {lr = 0.0056, beta1 = 0.9, beta2 = 0.98},
  training = {batch_tokens = 131072, micro_batch_size = 128},
  decentralized = {num_models = 1},
}
