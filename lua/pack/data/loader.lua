--- Batches of token streams: training batches without end, and evaluation blocks in order.
--
-- Sample k of a stream is its tokens kT .. kT+T: T inputs and T targets; there are floor((n-1)/T). Every
-- pass takes each sample once, in an order given by (seed, pass) and the size of the buffer. Sample r of a
-- global batch goes to worker r mod N, row r div N, and rows fill micro-steps in order: for every N the
-- global batch is the same set of samples. The position is one number, the samples taken so far.
local cache = require "pack.data.cache"
local caller = require "pack.core.caller"
local ffi = require "ffi"
local native = require "pack.native"
local numbers = require "pack.core.numbers"

caller.register()

local C = native.C
local MIB = 2 ^ 20
local loader = {}

local function check(status)
  if status ~= 0 then caller.raise("%s", native.message()) end
end

-- The finaliser of a C object that reads a stream's memory: holding `kept`, it keeps that alive.
local function finalizer(free, kept)
  return function(handle)
    free(handle)
    return kept
  end
end

local Loader = {}
Loader.__index = Loader

local function start(self, cursor)
  self:close()
  local tokens, kept = cache.tokens_of(self.stream)
  self.options.cursor = numbers.whole("cursor", cursor, 0)
  local made = ffi.new("pk_loader *[1]")
  check(C.pk_loader_create(tokens, made, self.options))
  self.free = finalizer(C.pk_loader_free, kept)
  self.handle = ffi.gc(made[0], self.free)
end

--- Training batches.
-- options: tokens (a stream: of pack.text, or a split of pack.cache), context_length T, num_models N,
-- micro_batch_size B (rows per worker and micro-step), accumulation M (1), seed (0), limit_tokens (only so many
-- first tokens), buffer_mib (64; or buffer_bytes), prefetch (true), cursor (0).
-- The object has samples (of one pass), ranges (in which they are shuffled) and batch_samples (M N B).
-- Raises when there is no whole sample.
function loader.create(options)
  local form = C.pk_loader_defaults()
  form.context_length = numbers.whole("context_length", options.context_length, 1)
  form.num_models = numbers.whole("num_models", options.num_models, 1)
  form.micro_batch_size = numbers.whole("micro_batch_size", options.micro_batch_size, 1)
  form.accumulation = numbers.whole("accumulation", options.accumulation or 1, 1)
  form.seed = numbers.whole("seed", options.seed or 0, 0)
  form.limit_tokens = numbers.whole("limit_tokens", options.limit_tokens or 0, 0)
  form.buffer_bytes = numbers.whole("buffer", options.buffer_bytes or (options.buffer_mib or 64) * MIB, 1)
  form.prefetch = options.prefetch == false and 0 or 1
  local self = setmetatable({stream = options.tokens, options = form, length = options.context_length,
    num_models = options.num_models, rows = options.micro_batch_size}, Loader)
  self.accumulation = options.accumulation or 1
  self.batch_samples = self.num_models * self.rows * self.accumulation
  start(self, options.cursor or 0)
  self.samples = tonumber(C.pk_loader_samples(self.handle))
  self.ranges = tonumber(C.pk_loader_ranges(self.handle))
  return self
end

local function opened(self)
  if not self.handle then caller.raise("the loader is closed") end
  return self.handle
end

--- Samples taken so far; set_cursor with this number goes on from here.
function Loader:cursor()
  return tonumber(C.pk_loader_cursor(opened(self)))
end

--- Goes to the position at which so many samples were taken.
function Loader:set_cursor(taken)
  numbers.whole("cursor", taken, 0)
  if taken ~= self:cursor() then start(self, taken) end
end

--- Fills the next global batch into int32_t arrays laid out [M][N, B, T]. Raises when the stream cannot be read,
-- and then at every later call.
function Loader:next(tokens, targets)
  check(C.pk_loader_next(opened(self), tokens, targets))
end

--- Ends reading ahead and frees the buffers; twice is harmless.
function Loader:close()
  if not self.handle then return end
  ffi.gc(self.handle, nil)
  self.free(self.handle)
  self.handle, self.free = nil, nil
end

local Validation = {}
Validation.__index = Validation

--- Evaluation blocks: all tokens of a stream in order, each a target once (but for the first), in blocks of
-- T; the last is padded with inputs 0 and targets -100.
-- options: tokens (a stream), context_length T, batch_size (blocks at once), subset (only so many blocks,
-- chosen by seed, the same every time), seed, context (of the tensors that each() gives).
-- The object has blocks (how many it gives), total (how many there are), targets (of these blocks)
-- and complete (whether it gives all).
function loader.validation(options)
  local tokens, kept = cache.tokens_of(options.tokens)
  local form = ffi.new("pk_blocks_options")
  form.context_length = numbers.whole("context_length", options.context_length, 1)
  form.batch_size = numbers.whole("batch_size", options.batch_size, 1)
  form.subset = numbers.whole("subset", options.subset or 0, 0)
  form.seed = numbers.whole("seed", options.seed or 0, 0)
  local made = ffi.new("pk_blocks *[1]")
  check(C.pk_blocks_create(tokens, made, form))
  local self = setmetatable({length = options.context_length, context = options.context}, Validation)
  self.free = finalizer(C.pk_blocks_free, kept)
  self.handle = ffi.gc(made[0], self.free)
  self.blocks, self.total = tonumber(C.pk_blocks_count(made[0])), tonumber(C.pk_blocks_total(made[0]))
  self.targets = tonumber(C.pk_blocks_targets(made[0]))
  self.complete = self.blocks == self.total
  self.batch_size = options.batch_size
  return self
end

--- Goes back to the first block.
function Validation:rewind()
  C.pk_blocks_rewind(opened(self))
end

local count = ffi.new("int64_t[1]")

--- Fills the next blocks into int32_t arrays [batch_size, T] and returns how many are real, 0 at the end.
function Validation:next(tokens, targets)
  check(C.pk_blocks_next(opened(self), tokens, targets, count))
  return tonumber(count[0])
end

--- Iterates over tensors tokens, targets [1, R, T] i32, R being batch_size or, at last, what is left. They
-- are filled anew or freed by the next round: do not keep them.
function Validation:each()
  local tensor = require "pack.core.tensor"
  local size = self.batch_size * self.length
  local host_tokens, host_targets = native.array("int32_t[?]", size), native.array("int32_t[?]", size)
  local rows, tokens, targets = 0, nil, nil
  local function allocate(wanted)
    if tokens then tokens:free(); targets:free() end
    rows, tokens, targets = wanted, nil, nil
    if rows == 0 then return end
    local options = {category = "data", context = self.context}
    tokens = tensor.zeros({1, rows, self.length}, "i32", options)
    targets = tensor.zeros({1, rows, self.length}, "i32", options)
  end
  self:rewind()
  return function()
    local wanted = self:next(host_tokens, host_targets)
    if wanted ~= rows then allocate(wanted) end
    if wanted == 0 then return nil end
    tokens:write(host_tokens)
    targets:write(host_targets)
    return tokens, targets
  end
end

--- Frees the reader; twice is harmless.
function Validation:close()
  if not self.handle then return end
  ffi.gc(self.handle, nil)
  self.free(self.handle)
  self.handle, self.free = nil, nil
end

return loader
