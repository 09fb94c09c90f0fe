-- The trainer: steps, their records, mixing, accumulation, non-finite values and evaluation.
local config = require "pack.config"
local context = require "pack.core.context"
local ffi = require "ffi"
local numbers = require "spec.support.numbers"
local support = require "spec.support.helper"
local trainer = require "pack.train.trainer"

-- A stream of tokens below `vocabulary` that follow a pattern which a model can learn.
local function stream(count, vocabulary)
  local tokens = ffi.new("uint16_t[?]", count)
  for i = 0, count - 1 do tokens[i] = (i * i + 3 * i) % vocabulary end
  return {tokens = tokens, count = count}
end

local settings = {
  "model.vocab_size=257", "model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24",
  "model.context_length=8", "training.batch_tokens=64", "training.micro_batch_size=2",
  "training.max_tokens=640", "optimizer.lr=0.01", "optimizer.warmup_fraction=0",
  "evaluation.batch_size=3", "runtime.amp=false", "decentralized.num_models=4",
}

-- A trainer of the settings above, changed by a list of key=value.
local function create(changes, data)
  local all = {unpack(settings)}
  for _, change in ipairs(changes or {}) do all[#all + 1] = change end
  data = data or {}
  local resolved = config.load("configs/tiny.lua", all)
  resolved.runtime.attention = "flash"
  return trainer.create(resolved, {context = context.default(), fused = data.fused,
    train = data.train or stream(400, 13), validation = data.validation or stream(100, 13),
    validation_complete = data.validation_complete})
end

local function steps(one, count)
  local rows = {}
  for i = 1, count do rows[i] = one:step() end
  return rows
end

-- Everything that the next step depends on, tensors as bytes.
local function state(one)
  local optimizer = one.optimizer
  return {numbers.bytes(one.model.arena.tensor), numbers.bytes(optimizer.exp_avg.tensor),
    numbers.bytes(optimizer.exp_avg_sq.tensor), one.batches:cursor(), one.step_number, one.mixings}
end

-- The rows without what differs from run to run.
local function without_times(rows)
  for _, row in ipairs(rows) do row.step_seconds, row.tokens_per_second, row.memory_bytes = nil, nil, nil end
  return rows
end

-- The mixing matrices that a trainer's next steps hand to the optimizer; false for a step that does not mix.
local function mixings_of(one, count)
  local list, prepare = {}, one.updater.prepare
  one.updater.prepare = function(self, step)
    list[#list + 1] = step.mixes and step.mixing
    return prepare(self, step)
  end
  return list, steps(one, count)
end

-- Fails unless two arenas agree to single precision.
local function assert_near(a, b)
  numbers.assert_close(numbers.flat(a.model.arena.tensor), b.model.arena.tensor, 2e-5)
end

describe("A trainer", function()
  support.watch()

  it("learns: the loss falls from that of guessing towards that of the pattern", function()
    local one = create {"training.max_tokens=3840", "optimizer.lr=0.02"}
    local rows = steps(one, 60)
    assert.is_true(math.abs(rows[1].loss - math.log(257)) < 0.1, "a new model guesses")
    assert.is_true(rows[60].loss < 2, "loss " .. rows[60].loss)
  end)

  it("describes each step in a row of metrics", function()
    local one = create()
    local rows = steps(one, 3)
    local row = rows[3]
    assert.equal(2, row.step)
    assert.equal(3 * 64, row.tokens)
    assert.equal(1, row.epoch)
    assert.equal(4, #row.loss_worker)
    assert.equal(4, #row.grad_norm_worker)
    local sum = 0
    for i = 1, 4 do
      sum = sum + row.loss_worker[i]
      assert.is_true(row.grad_norm_worker[i] > 0)
    end
    assert.is_true(math.abs(row.loss - sum / 4) < 1e-12)
    assert.equal(one.schedule:lr(2), row.lr)
    assert.equal(1, row.gamma)
    assert.equal(2, row.topology_phase)
    assert.is_true(row.step_seconds > 0)
    assert.is_true(math.abs(row.tokens_per_second * row.step_seconds - 64) < 1e-6)
    assert.is_true(row.memory_bytes >= 4 * 4 * one.model.layout.size * 4)
  end)

  it("repeats to the bit", function()
    local a, b = create(), create()
    assert.same(without_times(steps(a, 5)), without_times(steps(b, 5)))
    assert.same(state(a), state(b))
  end)

  it("makes other weights with another seed", function()
    assert.not_same(state(create()), state(create {"runtime.seed=43"}))
  end)

  it("of one worker is the same under every topology", function()
    local first
    for _, name in ipairs {"complete", "one_peer_ring", "one_peer_exponential", "ring", "exponential",
      "torus", "hypercube", "star", "random_matching", "disconnected"} do
      local one = create {"decentralized.num_models=1", "decentralized.topology=" .. name,
        "training.micro_batch_size=8"}
      steps(one, 3)
      local bytes = numbers.bytes(one.model.arena.tensor)
      first = first or bytes
      assert.is_true(bytes == first, name)
    end
  end)

  it("gives separate clip, mix and AdamW the same bits as the fused update", function()
    for _, scheme in ipairs {"awc", "atc"} do
      local a = create({"decentralized.scheme=" .. scheme})
      local b = create({"decentralized.scheme=" .. scheme}, {fused = false})
      steps(a, 3)
      steps(b, 3)
      assert.is_true(numbers.bytes(a.model.arena.tensor) == numbers.bytes(b.model.arena.tensor), scheme)
    end
  end)

  it("gives recorded steps the same bits as steps run one operation at a time", function()
    local changes = {"decentralized.num_models=2", "training.micro_batch_size=2", "decentralized.mix_every=2"}
    local recorded = create(changes)
    changes[#changes + 1] = "runtime.compile=false"
    local eager = create(changes)
    assert.equal(2, eager.accumulation)
    assert.same(without_times(steps(eager, 5)), without_times(steps(recorded, 5)))
    assert.same(state(eager), state(recorded))
  end)

  it("records a micro-step once, however many there are, in memory that the parts share", function()
    local few = create {"decentralized.num_models=2", "training.micro_batch_size=2"}
    local many = create {"decentralized.num_models=2", "training.micro_batch_size=1"}
    local a, b = few:recorded():memory(), many:recorded():memory()
    assert.equal(3, #many:recorded():parts())
    assert.equal(a.recorded, b.recorded)
    local first, later, update = unpack(many:recorded():parts())
    assert.equal(first:memory().operations + 3 * later:memory().operations + update:memory().operations, b.operations)
    assert.equal(math.max(first:memory().slab, later:memory().slab, update:memory().slab), b.slab)
    steps(many, 1)
    assert.has_error(function() first:run() update.results[3]:totable() end)
  end)

  it("in micro-steps does what it does with the undivided batch", function()
    local whole = create {"decentralized.num_models=2", "training.micro_batch_size=4"}
    local parts = create {"decentralized.num_models=2", "training.micro_batch_size=1"}
    assert.equal(1, whole.accumulation)
    assert.equal(4, parts.accumulation)
    local a, b = steps(whole, 4), steps(parts, 4)
    for i = 1, 4 do
      assert.is_true(math.abs(a[i].loss - b[i].loss) < 1e-5)
      assert.is_true(math.abs(a[i].grad_norm_worker[2] - b[i].grad_norm_worker[2]) < 1e-4)
      assert.equal(i - 1, b[i].topology_phase)
    end
    assert_near(whole, parts)
  end)

  it("trains disconnected workers as models of their own on their own samples", function()
    local packed = create {"decentralized.topology=disconnected", "decentralized.num_models=2",
      "training.micro_batch_size=4"}
    local rows = steps(packed, 1)
    local alone = create {"decentralized.num_models=1", "training.batch_tokens=32",
      "training.micro_batch_size=4", "training.max_tokens=320"}
    packed.batches:set_cursor(0)
    local both = {ffi.new("int32_t[64]"), ffi.new("int32_t[64]")}
    packed.batches:next(both[1], both[2])
    -- What worker 1 of the two was given.
    alone.batches.next = function(_, tokens, targets)
      ffi.copy(tokens, both[1] + 32, 128)
      ffi.copy(targets, both[2] + 32, 128)
    end
    local row = alone:step()
    assert.is_true(math.abs(row.loss - rows[1].loss_worker[2]) < 1e-6)
    numbers.assert_close(numbers.flat(packed.model:worker(1).weight["embedding.weight"]),
      alone.model.weight["embedding.weight"], 2e-5)
  end)
end)

describe("Mixing in a trainer", function()
  support.watch()

  it("starts from equal workers", function()
    assert.equal(0, create():consensus_distance())
  end)

  it("comes every mix_every steps, and only then moves the topology on", function()
    local one = create {"decentralized.mix_every=3", "decentralized.topology=one_peer_exponential"}
    local matrices, rows = mixings_of(one, 10)
    local phases = {}
    for i = 1, 10 do
      phases[i] = rows[i].topology_phase
      assert.equal(i % 3 == 0, matrices[i] ~= false, "step " .. i - 1)
    end
    assert.same({0, 0, 0, 1, 1, 1, 2, 2, 2, 3}, phases)
    assert.same(one.topology:matrix(0), matrices[3])
    assert.same(one.topology:matrix(1), matrices[6])
    assert.not_same(matrices[3], matrices[6])
    assert.same({updates = 10, mixings = 3}, one.updater:status())
  end)

  it("makes all workers equal after a step of complete mixing that combines last", function()
    local one = create {"decentralized.mix_every=2", "decentralized.topology=complete",
      "decentralized.scheme=atc"}
    one:step()
    assert.is_true(one:consensus_distance() > 1e-4)
    one:step()
    assert.equal(0, one:consensus_distance())
  end)

  it("keeps disconnected workers apart", function()
    local apart, mixed = create {"decentralized.topology=disconnected"}, create {"decentralized.topology=complete"}
    steps(apart, 5)
    steps(mixed, 5)
    assert.is_true(apart:consensus_distance() > 1.5 * mixed:consensus_distance())
  end)

  it("weakens with adaptive consensus as the learning rate falls, from start_frac on", function()
    local one = create {"decentralized.topology=complete", "decentralized.adaptive_consensus.start_frac=0.5",
      "decentralized.adaptive_consensus.p=2"}
    local matrices, rows = mixings_of(one, 10)
    for t = 0, 9 do
      local gamma = t < 5 and 1 or (rows[t + 1].lr / rows[6].lr) ^ 2
      assert.is_true(math.abs(gamma - rows[t + 1].gamma) < 1e-12, "step " .. t)
      local w = matrices[t + 1]
      assert.is_true(math.abs(w[1][2] - gamma / 4) < 1e-12)
      assert.is_true(math.abs(w[1][1] - (gamma / 4 + 1 - gamma)) < 1e-12)
    end
    assert.is_true(rows[10].gamma < 0.5)
  end)
end)

describe("A value that is not finite", function()
  support.watch()

  it("stops the run, naming worker and step, before it reaches another worker", function()
    local one = create()
    steps(one, 3)
    numbers.put(one.model:worker(2).weight["norm.weight"], 3e38, 1)
    local before = {}
    for i = 0, 3 do before[i] = numbers.bytes(one.model:worker(i).weight["embedding.weight"]) end
    local good, problem = pcall(one.step, one)
    assert.is_false(good)
    assert.equal(1, problem.exit)
    assert.is_truthy(tostring(problem):find("worker 2: the loss is not finite at step 3", 1, true),
      tostring(problem))
    for i = 0, 3 do
      assert.is_true(before[i] == numbers.bytes(one.model:worker(i).weight["embedding.weight"]))
    end
    assert.equal(3, one.updater:status().updates)
  end)
end)

describe("Evaluation", function()
  support.watch()

  it("leaves training as it was", function()
    local a, b = create(), create()
    steps(a, 2)
    steps(b, 2)
    local before = state(a)
    a:evaluate {workers = true}
    a:evaluate {blocks = 2}
    assert.same(before, state(a))
    assert.same(without_times(steps(a, 2)), without_times(steps(b, 2)))
    assert.same(state(a), state(b))
  end)

  it("counts every held-out token but the first once, whatever the batch size", function()
    local data = {validation = stream(99, 13)}
    local small, large = create({}, data), create({"evaluation.batch_size=64"}, data)
    steps(small, 2)
    steps(large, 2)
    local a, b = small:evaluate(), large:evaluate()
    assert.equal(98, a.targets)
    assert.equal(98, b.targets)
    assert.is_true(math.abs(a.loss - b.loss) < 1e-6)
    assert.is_true(a.validation_complete)
  end)

  it("is the mean loss of the worker average over these tokens", function()
    local held_out = stream(21, 13)
    local one = create({}, {validation = held_out})
    steps(one, 4)
    local mean = one.model:average()
    local sum = 0
    for first = 0, 16, 8 do
      local length = math.min(8, 20 - first)
      local inputs, targets = {}, {}
      for i = 0, length - 1 do
        inputs[i + 1], targets[i + 1] = held_out.tokens[first + i], held_out.tokens[first + i + 1]
      end
      sum = sum + mean:loss(numbers.tensor({1, 1, length}, "i32", inputs),
        numbers.tensor({1, 1, length}, "i32", targets)):item()
    end
    local row = one:evaluate()
    assert.is_true(math.abs(row.loss - sum / 20) < 1e-5, row.loss .. " " .. sum / 20)
    assert.equal(math.exp(row.loss), row.perplexity)
    assert.equal("validation", row.split)
    assert.equal(4, row.step)
    assert.equal(4 * 64, row.tokens)
  end)

  it("gives each worker its own loss, equal ones before the first step", function()
    local one = create()
    local row = one:evaluate {workers = true}
    assert.equal(4, #row.loss_worker)
    for i = 1, 4 do assert.equal(row.loss, row.loss_worker[i]) end
    assert.equal(0, row.consensus_distance)
    steps(one, 5)
    row = one:evaluate {workers = true}
    assert.not_equal(row.loss_worker[1], row.loss_worker[2])
    assert.is_true(row.consensus_distance > 0)
  end)

  it("works with fewer tokens than a block or a batch", function()
    for _, count in ipairs {2, 5, 9, 10} do
      local row = create({}, {validation = stream(count, 13)}):evaluate {workers = true}
      assert.equal(count - 1, row.targets)
      assert.is_true(math.abs(row.loss - math.log(257)) < 0.2)
    end
  end)

  it("says when it saw a part only, the same part every time", function()
    local one = create()
    local a, b = one:evaluate {blocks = 3}, one:evaluate {blocks = 3}
    assert.is_false(a.validation_complete)
    assert.equal(24, a.targets)
    assert.equal(a.loss, b.loss)
    assert.is_true(one:evaluate({blocks = 1000}).validation_complete)
  end)

  it("says when the held-out data itself was cut off", function()
    local one = create({}, {validation_complete = false})
    assert.is_false(one:evaluate().validation_complete)
  end)
end)
