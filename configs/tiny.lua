-- The first run: four small byte-level workers that mix with one peer at a time, on a CPU in under a
-- minute. Used by every recipe that is given no --config.
return {
  model = {
    vocab_size = 257, -- 256 bytes and the end of a document
    layers = 4,
    width = 128,
    heads = 4,
    ffn_width = 352,
    context_length = 128,
  },
  data = {tokenizer = "bytes", shuffle_buffer = 1000},
  optimizer = {lr = 4e-3, beta2 = 0.98, warmup_fraction = 0.1},
  training = {
    max_tokens = 409600, -- 200 updates
    epoch_tokens = 102400, -- evaluated four times
    batch_tokens = 2048,
    micro_batch_size = 4,
    log_every = 20,
  },
  evaluation = {subset_blocks = 64, batch_size = 16},
  decentralized = {num_models = 4, topology = "one_peer_exponential", scheme = "awc"},
}
