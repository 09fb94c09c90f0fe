-- The 250m model: 251,943,360 parameters. Four micro-steps make a batch, to bound the memory.
return {
  model = {layers = 20, width = 960, heads = 15, ffn_width = 2560},
  training = {batch_tokens = 32768, micro_batch_size = 8},
}
