-- The 50m model: 48,507,392 parameters.
return {
  model = {layers = 10, width = 512, heads = 8, ffn_width = 1408},
  optimizer = {lr = 0.001, beta2 = 0.99},
  training = {batch_tokens = 32768, micro_batch_size = 32},
}
