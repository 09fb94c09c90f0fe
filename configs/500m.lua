-- The 500m model: 516,814,080 parameters. Eight micro-steps make a batch, to bound the memory.
return {
  model = {layers = 24, width = 1280, heads = 20, ffn_width = 3456},
  training = {batch_tokens = 32768, micro_batch_size = 4},
}
