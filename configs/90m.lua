-- The 90m model: 91,605,120 parameters.
return {
  model = {layers = 14, width = 640, heads = 10, ffn_width = 1792},
  optimizer = {lr = 0.001, beta2 = 0.99},
  training = {batch_tokens = 32768, micro_batch_size = 32},
}
