-- Two updates of the 20m model with four workers: does a machine run the real shapes at all?
return {
  data = {tokenizer = "bytes"},
  training = {max_tokens = 65536, batch_tokens = 32768, micro_batch_size = 8, log_every = 1},
  evaluation = {subset_blocks = 8, batch_size = 8},
  decentralized = {num_models = 4, topology = "one_peer_exponential", scheme = "awc"},
}
