-- The 20m model: 20,403,520 parameters. The benchmark's shapes: 32,768 targets per step.
return {
  model = {layers = 8, width = 320, heads = 5, ffn_width = 896},
  training = {batch_tokens = 32768, micro_batch_size = 32},
}
