-- Eight 20m workers, adapt-while-combine, tuned for batches of 131,072 tokens.
return {
  model = {layers = 8, width = 320, heads = 5, ffn_width = 896},
  optimizer = {lr = 0.0056, beta1 = 0.95, beta2 = 0.999},
  training = {batch_tokens = 131072, micro_batch_size = 16},
  decentralized = {num_models = 8, topology = "one_peer_exponential", scheme = "awc"},
}
