--- Batches of token streams: training batches without end, and evaluation blocks in order.
--
-- Sample k of a stream is its tokens kT .. kT+T: T inputs and T targets; there are floor((n-1)/T). Every
-- pass takes each sample once, in an order given by (seed, pass). Sample r of a global batch goes to
-- worker r mod N, row r div N, and rows fill micro-steps in order: for every N the global batch is the
-- same set of samples. The position is one number, the samples taken so far.
local ffi = require "ffi"
local native = require "pack.native"

local batches = {}

local ignored = -100 -- a target that does not count

local function permutation(seed, name, count)
  local order = ffi.new("int64_t[?]", count)
  native.C.pk_random_permutation(seed, name, count, order)
  return order
end

-- Copies `count` inputs and as many targets of the sample that starts at token `start`; the rest of the T
-- places are padding.
local function copy_sample(stream, start, count, length, tokens, targets, at)
  local from = stream.tokens
  for i = 0, count - 1 do
    tokens[at + i], targets[at + i] = from[start + i], from[start + i + 1]
  end
  for i = count, length - 1 do
    tokens[at + i], targets[at + i] = 0, ignored
  end
end

local Batches = {}
Batches.__index = Batches

--- Training batches.
-- options: tokens (a stream {tokens, count}, see pack.text), context_length T, num_models N,
-- micro_batch_size B (rows per worker and micro-step), accumulation M, seed.
-- The object has samples (of one pass) and batch_samples (M N B). Raises when there is no whole sample.
function batches.create(options)
  local length = options.context_length
  local samples = math.floor((options.tokens.count - 1) / length)
  if samples < 1 then
    error(("%d training tokens are less than one sample: context_length %d + 1")
      :format(options.tokens.count, length), 2)
  end
  local self = setmetatable({}, Batches)
  self.stream, self.length, self.samples = options.tokens, length, samples
  self.num_models, self.rows = options.num_models, options.micro_batch_size
  self.accumulation, self.seed = options.accumulation or 1, options.seed
  self.batch_samples = self.num_models * self.rows * self.accumulation
  self.taken = 0
  return self
end

--- Samples taken so far; set_cursor with this number goes on from here.
function Batches:cursor()
  return self.taken
end

--- Goes to the position at which so many samples were taken.
function Batches:set_cursor(taken)
  if type(taken) ~= "number" or taken < 0 or taken ~= math.floor(taken) then
    error(("cursor %s is not a whole number of at least 0"):format(tostring(taken)), 2)
  end
  self.taken = taken
end

-- The sample at a position of the endless sequence of passes.
function Batches:sample_at(position)
  local pass = math.floor(position / self.samples)
  if pass ~= self.pass then
    self.pass, self.order = pass, permutation(self.seed, ("batches/%d"):format(pass), self.samples)
  end
  return tonumber(self.order[position % self.samples])
end

--- Fills the next global batch into int32_t arrays laid out [M][N, B, T].
function Batches:next(tokens, targets)
  local n, rows, length = self.num_models, self.rows, self.length
  for r = 0, self.batch_samples - 1 do
    local worker, row = r % n, math.floor(r / n)
    local micro = math.floor(row / rows)
    local at = ((micro * n + worker) * rows + row % rows) * length
    local sample = self:sample_at(self.taken + r)
    copy_sample(self.stream, sample * length, length, length, tokens, targets, at)
  end
  self.taken = self.taken + self.batch_samples
end

local Validation = {}
Validation.__index = Validation

-- `subset` of `total` numbers chosen by seed, in order, as a list.
local function choose(total, subset, seed)
  local order, chosen = permutation(seed, "evaluation", total), {}
  for i = 1, subset do chosen[i] = tonumber(order[i - 1]) end
  table.sort(chosen)
  return chosen
end

--- Evaluation blocks: all tokens of a stream in order, each a target once (but for the first), in blocks of
-- T; the last is padded with inputs 0 and targets -100.
-- options: tokens (a stream), context_length T, batch_size (blocks at once), subset (only so many blocks,
-- chosen by seed, the same every time), seed, context (of the tensors that each() gives).
-- The object has blocks (how many it gives), total (how many there are), targets (of these blocks)
-- and complete (whether it gives all).
function batches.validation(options)
  local count, length = options.tokens.count, options.context_length
  if count < 2 then
    error(("%d held-out tokens are too few to predict one"):format(count), 2)
  end
  local self = setmetatable({}, Validation)
  self.stream, self.length, self.context = options.tokens, length, options.context
  self.batch_size = options.batch_size
  self.total = math.ceil((count - 1) / length)
  self.complete = not options.subset or options.subset >= self.total
  self.blocks = self.complete and self.total or options.subset
  self.chosen = not self.complete and choose(self.total, self.blocks, options.seed)
  self.targets = 0
  for i = 0, self.blocks - 1 do self.targets = self.targets + self:block_targets(i) end
  return self
end

-- The stream's block that is given as number i (from 0).
function Validation:block(i)
  return self.chosen and self.chosen[i + 1] or i
end

function Validation:block_targets(i)
  return math.min(self.length, self.stream.count - 1 - self:block(i) * self.length)
end

--- Fills blocks first .. first + rows - 1 (from 0) into int32_t arrays [rows, T].
function Validation:fill(first, rows, tokens, targets)
  for r = 0, rows - 1 do
    copy_sample(self.stream, self:block(first + r) * self.length, self:block_targets(first + r),
      self.length, tokens, targets, r * self.length)
  end
end

--- Iterates over tensors tokens, targets [1, R, T] i32, R being batch_size or, at last, what is left. They
-- are filled anew or freed by the next round: do not keep them.
function Validation:each()
  local tensor = require "pack.tensor"
  local size = math.min(self.batch_size, self.blocks) * self.length
  local host_tokens, host_targets = ffi.new("int32_t[?]", size), ffi.new("int32_t[?]", size)
  local done, rows, tokens, targets = 0, 0, nil, nil
  local function allocate(wanted)
    if tokens then tokens:free(); targets:free() end
    rows, tokens, targets = wanted, nil, nil
    if rows == 0 then return end
    local options = {category = "data", context = self.context}
    tokens = tensor.zeros({1, rows, self.length}, "i32", options)
    targets = tensor.zeros({1, rows, self.length}, "i32", options)
  end
  return function()
    local wanted = math.min(self.batch_size, self.blocks - done)
    if wanted ~= rows then allocate(wanted) end
    if wanted == 0 then return nil end
    self:fill(done, wanted, host_tokens, host_targets)
    tokens:write(host_tokens)
    targets:write(host_targets)
    done = done + wanted
    return tokens, targets
  end
end

return batches
