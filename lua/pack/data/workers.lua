--- Data per worker: a source for each, or labelled sources shared out unevenly among all.
--
-- By a Dirichlet split (Hsu et al. 2019, arXiv:1909.06335) every source is cut into N ranges of whole samples whose shares are
-- drawn from Dirichlet(alpha, ..., alpha): a large alpha gives every worker the same mixture, a small one gives each its own
-- few sources. Every sample belongs to one worker.
local cache = require "pack.data.cache"
local caller = require "pack.core.caller"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local loader = require "pack.data.loader"
local native = require "pack.native"

caller.register()

local C = native.C
local workers = {}

--- Parts of token streams one after the other as one stream. parts: a list of {stream, first, count}.
function workers.join(parts)
  local n, count, kept = #parts, 0, {}
  local sources = ffi.new("const pk_tokens *[?]", n + 1)
  local firsts, counts = ffi.new("int64_t[?]", n + 1), ffi.new("int64_t[?]", n + 1)
  for i, part in ipairs(parts) do
    sources[i - 1], kept[i] = cache.tokens_of(part[1]), part[1]
    kept[#kept + 1] = sources[i - 1]
    firsts[i - 1], counts[i - 1] = part[2], part[3]
    count = count + part[3]
  end
  local made = ffi.new("pk_tokens *[1]")
  if C.pk_tokens_join(sources, firsts, counts, n, made) ~= 0 then failure.raise(1, native.message()) end
  return cache.stream(ffi.gc(ffi.cast("const pk_tokens *", made[0]), C.pk_tokens_free), count, kept)
end

-- Gamma(shape, 1) from uniform and normal numbers (Marsaglia and Tsang 2000); below 1 by Gamma(shape + 1) U^(1/shape).
local function gamma(shape, draw)
  if shape < 1 then return gamma(shape + 1, draw) * draw.uniform() ^ (1 / shape) end
  local d = shape - 1 / 3
  local c = 1 / math.sqrt(9 * d)
  while true do
    local x = draw.normal()
    local v = (1 + c * x) ^ 3
    local u = draw.uniform()
    if v > 0 and math.log(u) < 0.5 * x * x + d - d * v + d * math.log(v) then return d * v end
  end
end

-- Numbers of a stream of the seed, one after the other.
local function draws(seed, name)
  local uniform, normal = ffi.new("double[1]"), ffi.new("double[1]")
  local u, z = 0, 0
  return {
    uniform = function()
      C.pk_random_uniform(seed, name .. "/uniform", u, 1, uniform)
      u = u + 1
      return math.max(uniform[0], 2 ^ -33)
    end,
    normal = function()
      C.pk_random_normal(seed, name .. "/normal", z, 1, 0, 1, normal)
      z = z + 1
      return normal[0]
    end,
  }
end

--- The shares of n workers in a source (its label), drawn from Dirichlet(alpha): a list that sums to 1.
function workers.shares(n, alpha, seed, label)
  local draw, list, sum = draws(seed, "dirichlet/" .. label), {}, 0
  for i = 1, n do
    list[i] = gamma(alpha, draw)
    sum = sum + list[i]
  end
  for i = 1, n do list[i] = list[i] / sum end
  return list
end

--- How many samples of a source each worker gets: whole numbers near its shares that sum to `samples`.
function workers.counts(shares, samples)
  local counts, before, ends = {}, 0, 0
  for i, share in ipairs(shares) do
    ends = ends + share
    local last = i == #shares and samples or math.floor(ends * samples + 0.5)
    counts[i], before = last - before, last
  end
  return counts
end

-- The ranges of all sources that each worker trains on.
local function split(config, sources)
  local n, length = config.decentralized.num_models, config.model.context_length
  local own = {}
  for i = 1, n do own[i] = {} end
  for s, source in ipairs(sources) do
    local samples = math.floor((source.train.count - 1) / length)
    local shares = workers.shares(n, config.data.dirichlet.alpha, config.data.dirichlet.seed, s)
    local first = 0
    for i, count in ipairs(workers.counts(shares, samples)) do
      if count > 0 then table.insert(own[i], {source.train, first * length, count * length}) end
      first = first + count
    end
  end
  local streams = {}
  for i = 1, n do
    local total = 0
    for _, part in ipairs(own[i]) do total = total + part[3] end
    if total <= length then
      failure.usage("data.dirichlet: worker %d gets %d tokens of the sources, and one sample takes %d; a larger alpha or "
        .. "another seed shares more evenly", i - 1, total, length + 1)
    end
    streams[i] = workers.join(own[i])
  end
  return streams
end

--- The data of a configuration with data.sources, of which `open` opens one: as pack.data.open returns it, with workers, a
-- list of {train, validation} (validation is nil in a split, where nobody has one of his own).
function workers.open(config, open)
  local n, paths, sources = config.decentralized.num_models, config.data.sources, {}
  if not config.data.dirichlet and #paths ~= n then
    failure.usage("data.sources has %d sources for decentralized.num_models %d; one for each, or data.dirichlet, which "
      .. "shares any number out", #paths, n)
  end
  for i, path in ipairs(paths) do sources[i] = open(path) end
  local validation, train, list, complete = {}, {}, {}, true
  for i, source in ipairs(sources) do
    train[i] = {source.train, 0, source.train.count}
    validation[i] = {source.validation, 0, source.validation.count}
    complete = complete and source.validation_complete
  end
  if config.data.dirichlet then
    for i, stream in ipairs(split(config, sources)) do list[i] = {train = stream} end
  else
    for i, source in ipairs(sources) do list[i] = {train = source.train, validation = source.validation} end
  end
  return {
    name = "the sources", tokenizer = sources[1].tokenizer, no_tokenizer = sources[1].no_tokenizer,
    description = ("%d sources, %s"):format(#paths, config.data.dirichlet
      and ("shared out by Dirichlet(%g)"):format(config.data.dirichlet.alpha) or "one for each worker"),
    train = workers.join(train), validation = workers.join(validation), validation_complete = complete, workers = list,
    sources = sources,
  }
end

-- Batches -----------------------------------------------------------------------------------------------

local Batches = {}
Batches.__index = Batches

--- Training batches (see pack.loader) in which worker i has samples of its own stream. options: as of loader.create, but
-- streams, a list of N token streams, in place of tokens.
function workers.batches(options)
  local self = setmetatable({loaders = {}, length = options.context_length, rows = options.micro_batch_size,
    accumulation = options.accumulation or 1}, Batches)
  local n = #options.streams
  for i, stream in ipairs(options.streams) do
    self.loaders[i] = loader.create {tokens = stream, context_length = options.context_length, num_models = 1,
      micro_batch_size = options.micro_batch_size, accumulation = options.accumulation, seed = options.seed,
      buffer_mib = math.max(1, math.floor((options.buffer_mib or 64) / n)), prefetch = options.prefetch}
  end
  self.batch_samples = n * self.rows * self.accumulation
  local elements = self.rows * self.accumulation * self.length
  self.tokens, self.targets = ffi.new("int32_t[?]", elements), ffi.new("int32_t[?]", elements)
  return self
end

--- See Loader:next: arrays laid out [M][N, B, T].
function Batches:next(tokens, targets)
  local n, block = #self.loaders, self.rows * self.length
  for i, one in ipairs(self.loaders) do
    one:next(self.tokens, self.targets)
    for micro = 0, self.accumulation - 1 do
      local place = (micro * n + i - 1) * block
      ffi.copy(tokens + place, self.tokens + micro * block, block * 4)
      ffi.copy(targets + place, self.targets + micro * block, block * 4)
    end
  end
end

--- Samples taken so far by all workers together.
function Batches:cursor()
  return self.loaders[1]:cursor() * #self.loaders
end

--- Goes to the position at which so many samples were taken.
function Batches:set_cursor(taken)
  local n = #self.loaders
  if taken % n ~= 0 then caller.raise("%d samples are no whole number for each of %d workers", taken, n) end
  for _, one in ipairs(self.loaders) do one:set_cursor(taken / n) end
end

--- Ends reading ahead; twice is harmless.
function Batches:close()
  for _, one in ipairs(self.loaders) do one:close() end
end

return workers
