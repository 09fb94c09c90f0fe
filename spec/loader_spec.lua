-- Training batches and evaluation blocks: which sample goes where, and that nothing is lost or doubled.
local cache = require "pack.data.cache"
local ffi = require "ffi"
local loader = require "pack.data.loader"
local numbers = require "spec.support.numbers"
local support = require "spec.support.helper"

local refused = numbers.assert_refused

-- A stream of `count` tokens 0, 1, 2, ...: a token says where it is from.
local function stream(count)
  local tokens = ffi.new("uint16_t[?]", math.max(count, 1))
  for i = 0, count - 1 do tokens[i] = i end
  return {tokens = tokens, count = count}
end

local function create(changes)
  local options = {tokens = stream(57), context_length = 4, num_models = 1, micro_batch_size = 1,
    accumulation = 1, seed = 3}
  for key, value in pairs(changes or {}) do options[key] = value end
  return loader.create(options)
end

-- Takes a batch and returns its sample numbers [micro][worker][row], after checking every token.
local function take(b)
  local size = b.batch_samples * b.length
  local tokens, targets = ffi.new("int32_t[?]", size), ffi.new("int32_t[?]", size)
  b:next(tokens, targets)
  local micros, at = {}, 0
  for m = 1, b.accumulation do
    micros[m] = {}
    for w = 1, b.num_models do
      micros[m][w] = {}
      for r = 1, b.rows do
        local start = tokens[at]
        assert(start % b.length == 0)
        for i = 0, b.length - 1 do
          assert(tokens[at + i] == start + i and targets[at + i] == start + i + 1)
        end
        micros[m][w][r] = start / b.length
        at = at + b.length
      end
    end
  end
  return micros
end

-- The samples of a batch in the order of the stream.
local function in_order(b, micros)
  local list = {}
  for r = 0, b.batch_samples - 1 do
    local row = math.floor(r / b.num_models)
    list[r + 1] = micros[math.floor(row / b.rows) + 1][r % b.num_models + 1][row % b.rows + 1]
  end
  return list
end

-- `count` samples in order.
local function samples(b, count)
  local list = {}
  while #list < count do
    for _, sample in ipairs(in_order(b, take(b))) do list[#list + 1] = sample end
  end
  return list
end

describe("training batches", function()
  it("take floor((n - 1) / T) samples in the order of the stream's permutation, then another pass", function()
    -- Permutations of 7 by an independent program.
    local b = create {tokens = stream(32)} -- 31 targets, of which 28 are in samples
    assert.equal(7, b.samples)
    assert.same({2, 0, 4, 1, 6, 3, 5, 6, 0, 3, 5, 1, 2, 4}, samples(b, 14))
  end)

  it("use the last token as a target only", function()
    assert.equal(7, create({tokens = stream(29)}).samples)
    assert.equal(6, create({tokens = stream(28)}).samples)
    assert.equal(1, create({tokens = stream(5)}).samples)
  end)

  it("take every sample once a pass, in an order of the seed and the pass", function()
    local b, orders = create(), {}
    for pass = 1, 3 do
      local order = samples(b, b.samples)
      orders[pass] = table.concat(order, " ")
      table.sort(order)
      for i = 1, b.samples do assert.equal(i - 1, order[i]) end
    end
    assert.not_equal(orders[1], orders[2])
    assert.not_equal(orders[2], orders[3])
    assert.not_equal(orders[1], table.concat(samples(create {seed = 4}, 14), " "))
    assert.equal(orders[1], table.concat(samples(create(), 14), " "))
  end)

  it("give sample r of a batch to worker r mod N, row r div N, and fill micro-steps in order", function()
    local order = samples(create(), 12)
    local b = create {num_models = 2, micro_batch_size = 3, accumulation = 2}
    assert.same({
      {{order[1], order[3], order[5]}, {order[2], order[4], order[6]}},
      {{order[7], order[9], order[11]}, {order[8], order[10], order[12]}},
    }, take(b))
  end)

  it("are the same sets for every division of a batch among workers and micro-steps", function()
    local order = samples(create(), 5 * 24)
    for _, shape in ipairs({{1, 24, 1}, {1, 4, 6}, {2, 12, 1}, {3, 4, 2}, {4, 3, 2}, {6, 1, 4}, {8, 3, 1},
      {24, 1, 1}}) do
      local b = create {num_models = shape[1], micro_batch_size = shape[2], accumulation = shape[3]}
      assert.same(order, samples(b, 5 * 24))
    end
  end)

  it("are disjoint across workers within a pass", function()
    for n = 1, 8 do
      local b = create {tokens = stream(4 * 48 + 1), num_models = n, micro_batch_size = 2}
      local seen, count = {}, 0
      for _ = 1, math.floor(48 / b.batch_samples) do
        for _, sample in ipairs(in_order(b, take(b))) do
          assert.is_nil(seen[sample])
          seen[sample], count = true, count + 1
        end
      end
      assert.equal(48 - 48 % b.batch_samples, count)
    end
  end)

  it("may span two passes, and many when the text is short", function()
    local b = create {tokens = stream(4 * 7 + 1), num_models = 5, micro_batch_size = 2}
    assert.same(samples(create {tokens = stream(29)}, 30), samples(b, 30))
    b = create {tokens = stream(4 * 2 + 1), num_models = 7}
    local list = samples(b, 14)
    for pass = 0, 6 do assert.equal(1, list[2 * pass + 1] + list[2 * pass + 2]) end
  end)

  it("go on from a cursor as if there had been no break", function()
    local function build() return create {num_models = 3, micro_batch_size = 2, accumulation = 2} end
    local through = build()
    local after = {}
    for k = 0, 9 do
      assert.equal(12 * k, through:cursor())
      after[k] = take(through)
    end
    for k = 9, 0, -1 do
      local resumed = build()
      resumed:set_cursor(12 * k)
      for later = k, math.min(k + 2, 9) do assert.same(after[later], take(resumed)) end
    end
    through:set_cursor(0)
    assert.same(after[0], take(through))
  end)

  it("go on at the same sample with another number of workers", function()
    local a = create {num_models = 2, micro_batch_size = 3}
    take(a)
    local b = create {num_models = 3, micro_batch_size = 2}
    b:set_cursor(a:cursor())
    assert.same(in_order(a, take(a)), in_order(b, take(b)))
  end)

  it("refuse a text shorter than a sample and a cursor that is none", function()
    refused("4 training tokens are less than one sample: context_length 4 + 1", create, {tokens = stream(4)})
    refused("0 training tokens", create, {tokens = stream(0)})
    local b = create()
    for _, cursor in ipairs({-1, 0.5, "3"}) do
      refused("is not a whole number of at least 0", b.set_cursor, b, cursor)
    end
  end)
end)

describe("evaluation blocks", function()
  support.watch()

  local function create_validation(changes)
    local options = {tokens = stream(23), context_length = 5, batch_size = 2, seed = 7}
    for key, value in pairs(changes or {}) do options[key] = value end
    return loader.validation(options)
  end

  -- All blocks as lists {tokens, targets}.
  local function gather(blocks)
    local list, shapes = {}, {}
    for tokens, targets in blocks:each() do
      local a, b = tokens:totable()[1], targets:totable()[1]
      shapes[#shapes + 1] = #a
      for r = 1, #a do list[#list + 1] = {a[r], b[r]} end
    end
    return list, shapes
  end

  it("stream all tokens in order, the last block padded with ignored targets", function()
    local blocks = create_validation()
    local list, shapes = gather(blocks)
    assert.same({2, 2, 1}, shapes)
    assert.same({{0, 1, 2, 3, 4}, {1, 2, 3, 4, 5}}, list[1])
    assert.same({{15, 16, 17, 18, 19}, {16, 17, 18, 19, 20}}, list[4])
    assert.same({{20, 21, 0, 0, 0}, {21, 22, -100, -100, -100}}, list[5])
    assert.same({5, 5, 22, true}, {blocks.blocks, blocks.total, blocks.targets, blocks.complete})
    assert.same(list, (gather(blocks))) -- again from the beginning
  end)

  it("count each token but the first as a target once, for any length", function()
    for count = 2, 30 do
      local blocks = create_validation {tokens = stream(count)}
      local seen = {}
      for _, block in ipairs((gather(blocks))) do
        for _, target in ipairs(block[2]) do
          if target ~= -100 then seen[#seen + 1] = target end
        end
      end
      assert.equal(count - 1, #seen)
      assert.equal(count - 1, blocks.targets)
      for i = 1, #seen do assert.equal(i, seen[i]) end
    end
  end)

  it("may be a subset that the seed chooses, in order, always the same", function()
    local function starts(seed, subset)
      local list = {}
      for i, block in ipairs((gather(create_validation {tokens = stream(501), seed = seed, subset = subset}))) do
        list[i] = block[1][1] / 5
      end
      return list
    end
    local some = starts(7, 20)
    assert.equal(20, #some)
    for i = 2, 20 do assert.is_true(some[i] > some[i - 1]) end
    assert.is_true(some[20] < 100)
    assert.same(some, starts(7, 20))
    assert.not_same(some, starts(8, 20))
    local blocks = create_validation {tokens = stream(501), subset = 20}
    assert.same({20, 100, 100, false}, {blocks.blocks, blocks.total, blocks.targets, blocks.complete})
  end)

  it("are all of them when the subset is as large or larger", function()
    for _, subset in ipairs({5, 6}) do
      local blocks = create_validation {subset = subset}
      assert.is_true(blocks.complete)
      assert.equal(5, blocks.blocks)
      assert.same((gather(create_validation())), (gather(blocks)))
    end
  end)

  it("refuse a text without a target", function()
    for count = 0, 1 do
      refused(count .. " held-out tokens are too few", create_validation, {tokens = stream(count)})
    end
  end)
end)

-- Everything that a loader gives in `count` batches, as one string of bytes.
local function content(b, count)
  local size = b.batch_samples * b.length
  local tokens, targets, parts = ffi.new("int32_t[?]", size), ffi.new("int32_t[?]", size), {}
  for i = 1, count do
    b:next(tokens, targets)
    parts[i] = ffi.string(tokens, size * 4) .. ffi.string(targets, size * 4)
  end
  return table.concat(parts)
end

describe("ranges of a buffer #threads", function()
  -- 14 samples of 4; a range of 4 samples takes 4 * 4 * 2 bytes.
  it("shuffle among themselves and inside, by permutations of the seed and the pass", function()
    local b = create {buffer_bytes = 32} -- by an independent program
    assert.equal(4, b.ranges)
    assert.same({13, 12, 11, 10, 8, 9, 0, 3, 2, 1, 5, 4, 7, 6, 7, 4, 6, 5, 12, 13, 1, 3, 2, 0, 11, 10, 9, 8},
      samples(b, 28))
  end)

  it("give every sample once a pass to all workers together, whatever divides what", function()
    for _, samples_of_pass in ipairs {1, 2, 13, 24, 50} do
      for _, rows in ipairs {1, 3, 4, 7, 64} do
        for n = 1, 8 do
          local b = create {tokens = stream(4 * samples_of_pass + 3), buffer_bytes = rows * 8, num_models = n,
            micro_batch_size = 2, accumulation = 2, prefetch = n % 2 == 0}
          assert.equal(math.ceil(samples_of_pass / rows), b.ranges)
          local list, seen = samples(b, 3 * samples_of_pass), {}
          for i = 1, 3 * samples_of_pass do
            local pass = math.floor((i - 1) / samples_of_pass)
            local key = pass * samples_of_pass + list[i]
            assert(not seen[key] and list[i] < samples_of_pass)
            seen[key] = true
          end
          b:close()
        end
      end
    end
  end)

  it("hold fewer samples than a batch, or a part of one, and the batches are still whole", function()
    local order = samples(create {buffer_bytes = 1}, 60)
    local b = create {buffer_bytes = 1, num_models = 3, micro_batch_size = 5, accumulation = 2}
    assert.equal(14, b.ranges)
    assert.same(order, samples(b, 60))
  end)

  it("go on from any cursor as if there had been no break, prefetched or not", function()
    for _, rows in ipairs {1, 3, 4, 5, 14} do
      local order = samples(create {buffer_bytes = rows * 8}, 42)
      for cursor = 0, 30 do
        local rest = samples(create {buffer_bytes = rows * 8, cursor = cursor, prefetch = cursor % 2 == 0}, 12)
        for i = 1, 12 do assert.equal(order[cursor + i], rest[i]) end
      end
    end
  end)

  it("go on from a cursor far away without playing through", function()
    local b = create {buffer_bytes = 32, cursor = 14 * 2 ^ 40 + 3, micro_batch_size = 14}
    local list = samples(b, 14)
    assert.equal(14 * 2 ^ 40 + 17, b:cursor())
    local next_pass = samples(create {buffer_bytes = 32, cursor = 14 * (2 ^ 40 + 1)}, 3)
    assert.same(next_pass, {list[12], list[13], list[14]})
  end)

  it("come in the same order with prefetch on and off, and in every run", function()
    local ids = ffi.new("uint16_t[?]", 20001)
    for i = 0, 20000 do ids[i] = i * i % 65521 end
    local function run(prefetch)
      local b = loader.create {tokens = {tokens = ids, count = 20001}, context_length = 16, num_models = 4,
        micro_batch_size = 3, accumulation = 2, seed = 9, buffer_bytes = 1000, prefetch = prefetch}
      return content(b, 150)
    end
    local expected = run(false)
    for _ = 1, 5 do assert.equal(expected, run(true)) end
  end)

  it("are cut from the first limit_tokens only", function()
    local b = create {limit_tokens = 29}
    assert.equal(7, b.samples)
    local seen = {}
    for _, sample in ipairs(samples(b, 7)) do seen[sample] = true end
    for i = 0, 6 do assert.is_true(seen[i]) end
    assert.equal(14, create({limit_tokens = 1000}).samples)
  end)

  it("can be left at any time, read ahead or not", function()
    for i = 0, 20 do
      local b = create {buffer_bytes = 32}
      if i > 0 then samples(b, i) end
      b:close()
      b:close()
      refused("the loader is closed", b.cursor, b)
    end
    create {buffer_bytes = 8} -- and forgotten
    collectgarbage()
    collectgarbage()
  end)
end)

describe("ids of 16 and 32 bits", function()
  it("arrive as they are: 65535, 65536 and 70000", function()
    local narrow, wide = ffi.new("uint16_t[3]", 65535, 0, 65535), ffi.new("uint32_t[4]", 65535, 65536, 70000, 0)
    local tokens, targets = ffi.new("int32_t[2]"), ffi.new("int32_t[2]")
    loader.create({tokens = {tokens = narrow, count = 3}, context_length = 2, num_models = 1, micro_batch_size = 1})
      :next(tokens, targets)
    assert.same({65535, 0, 0, 65535}, {tokens[0], tokens[1], targets[0], targets[1]})
    loader.create({tokens = {tokens = wide, count = 3}, context_length = 2, num_models = 1, micro_batch_size = 1})
      :next(tokens, targets)
    assert.same({65535, 65536, 65536, 70000}, {tokens[0], tokens[1], targets[0], targets[1]})
  end)

  it("are refused where they are not below the stream's vocabulary", function()
    local ids = stream(57)
    ids.vocab_size = 56
    local b = create {tokens = ids}
    refused("the tokens: token 56 is 56, not below the vocabulary of 56", samples, b, 14)
  end)
end)

describe("a loader of a cache #threads", function()
  local folder, fixture = nil, "spec/fixtures/cache"
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  local function of(opened, changes)
    local options = {tokens = opened.splits.train, context_length = 4, num_models = 3, micro_batch_size = 2,
      buffer_bytes = 48, seed = 5}
    for key, value in pairs(changes or {}) do options[key] = value end
    return loader.create(options)
  end

  local function copy()
    os.execute(("cp -r %s %s/cache"):format(fixture, folder))
    return folder .. "/cache"
  end

  it("gives the batches that the same tokens in memory give", function()
    local opened = cache.open(fixture)
    local list = opened:read("train", 0, 230)
    local memory = {tokens = ffi.new("uint16_t[?]", 230, list), count = 230}
    assert.equal(content(of(opened, {tokens = memory}), 60), content(of(opened), 60))
  end)

  it("goes on after the cache was closed", function()
    local opened = cache.open(fixture)
    local b = of(opened)
    opened:close()
    assert.equal(content(of(cache.open(fixture)), 60), content(b, 60))
  end)

  it("reports a shard that went bad while it was read, at that batch and ever after, without hanging", function()
    for _, prefetch in ipairs {true, false} do
      local path = copy()
      local opened = cache.open(path)
      os.remove(path .. "/train-00003.bin")
      local b, given = of(opened, {prefetch = prefetch, num_models = 1, micro_batch_size = 1}), 0
      local tokens, targets = ffi.new("int32_t[4]"), ffi.new("int32_t[4]")
      local good, problem
      repeat
        good, problem = pcall(b.next, b, tokens, targets)
        given = given + (good and 1 or 0)
      until not good
      assert.is_truthy(problem:find("train-00003.bin: cannot be opened: No such file", 1, true), problem)
      assert.equal(given, b:cursor())
      refused("train-00003.bin", b.next, b, tokens, targets)
      b:close()
      os.execute("rm -rf " .. path)
    end
  end)

  it("streams its validation split in order, and a subset, as from memory", function()
    local opened = cache.open(fixture)
    local memory = {tokens = ffi.new("uint16_t[?]", 37, opened:read("validation", 0, 37)), count = 37}
    for _, subset in ipairs {0, 3} do
      local rows = {}
      for i, tokens in ipairs {opened.splits.validation, memory} do
        rows[i] = {}
        local blocks = loader.validation {tokens = tokens, context_length = 4, batch_size = 2, seed = 1,
          subset = subset > 0 and subset or nil}
        for inputs, targets in blocks:each() do
          rows[i][#rows[i] + 1] = {inputs:totable(), targets:totable()}
        end
        blocks:close()
      end
      assert.equal(subset > 0 and 2 or 5, #rows[1])
      assert.same(rows[2], rows[1])
    end
  end)
end)
