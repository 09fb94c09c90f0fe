#!/usr/bin/env packlua
-- Measures the loader at the shapes of configs/20m.lua: packlua scripts/bench_loader.lua [TOKENS] [ZSTD_LEVEL]
-- A cache of so many random tokens (default 100 million) is made in a temporary folder and read twice over
-- as fast as possible, then at the pace of a consumer that waits between batches.
local ffi = require "ffi"
local pack = require "pack"

local C = require("pack.native").C
local tokens, level = tonumber(arg[1] or 1e8), tonumber(arg[2] or 0)
local shape = {num_models = 8, micro_batch_size = 4, accumulation = 1, context_length = 1024} -- 32,768 targets

-- A cache by prepare, of words that a byte tokenizer takes as they are.
local folder = os.tmpname()
os.remove(folder)
pack.files.mkdir(folder)
local path = folder .. "/text.txt"
do
  local random, piece = pack.uniform({2 ^ 18}):read_numbers(), {}
  for i = 0, 2 ^ 18 - 1 do piece[i + 1] = string.char(97 + math.floor(26 * random[i])) end
  local text = table.concat(piece)
  for _ = 1, math.ceil(tokens / (#text + 1)) do pack.files.append(path, text .. "\n") end
end
pack.prepare.run {tokenizer = "bytes", train = {path}, output = folder .. "/cache", txt_documents = "line",
  shuffle_buffer = 1, zstd = level > 0 and level or nil}

local function measure(name, options)
  local opened = pack.cache.open(folder .. "/cache")
  options.tokens, options.seed = opened.splits.train, 1
  for key, value in pairs(shape) do options[key] = value end
  local began = C.pk_clock()
  local loader = pack.loader.create(options)
  local size = loader.batch_samples * loader.length
  local inputs, targets = ffi.new("int32_t[?]", size), ffi.new("int32_t[?]", size)
  loader:next(inputs, targets)
  local first = C.pk_clock() - began
  local batches = math.floor(options.passes * loader.samples / loader.batch_samples)
  local times, busy = {}, 0
  for i = 1, batches do
    if options.pause then
      local until_then = C.pk_clock() + options.pause
      while C.pk_clock() < until_then do end
    end
    local start = C.pk_clock()
    loader:next(inputs, targets)
    times[i] = C.pk_clock() - start
    busy = busy + times[i]
  end
  loader:close()
  opened:close()
  table.sort(times)
  print(("%-34s %6.1f M tokens/s; next(): median %.3f ms, p99 %.3f ms, longest %.1f ms; first batch after %.0f ms; %d ranges")
    :format(name, batches * size / busy / 1e6, times[math.ceil(batches / 2)] * 1e3,
      times[math.ceil(batches * 0.99)] * 1e3, times[batches] * 1e3, first * 1e3, loader.ranges))
end

print(("%d tokens, batches of %d, buffer of 64 MiB%s"):format(tokens, 32768, level > 0 and ", zstd " .. level or ""))
measure("as fast as possible", {passes = 2})
measure("as fast as possible, no prefetch", {passes = 2, prefetch = false})
measure("a step of 1 ms between batches", {passes = 1, pause = 1e-3})
os.execute("rm -rf " .. folder)
