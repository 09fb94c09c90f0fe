-- Budgets, learning rates and consensus: values by hand or from exact fractions.
local config = require "pack.config"
local numbers = require "spec.support.numbers"
local schedule = require "pack.train.schedule"

local refused = numbers.assert_refused

-- A schedule of a model with so many parameters; one step is 4 workers * 2 rows * 5 tokens = 40 tokens.
local function create(changes, parameters)
  local settings = {
    model = {context_length = 5},
    optimizer = {lr = 1, schedule = "cosine", warmup_fraction = 0.1, min_lr_ratio = 0.1,
      decay_fraction = 0.2},
    training = {tokens_per_parameters = 20, epoch_tokens_per_parameters = 0.5, max_tokens = false,
      epoch_tokens = false, batch_tokens = 40, micro_batch_size = 2},
    decentralized = {num_models = 4, adaptive_consensus = false, mix_every = 1},
  }
  for section, keys in pairs(changes or {}) do
    for key, value in pairs(keys) do settings[section][key] = value end
  end
  return schedule.create(settings, parameters or 200)
end

local function assert_near(expected, got)
  assert(math.abs(expected - got) <= 1e-14, ("%.17g is not %.17g"):format(got, expected))
end

describe("the budget", function()
  it("is floor(k e P / B + 1/2) batches after epoch k", function()
    local settings = config.resolve {table = {training = {batch_tokens = 32768, micro_batch_size = 32}}}
    local s = schedule.create(settings) -- the 20m model, 20,403,520 parameters
    assert.equal(12453, s.total_steps)
    assert.equal(40, s.total_epochs)
    assert.equal(12453 * 32768, s.total_tokens)
    for k, batches in ipairs({311, 623, 934, 1245}) do assert.equal(batches, s:steps_after_epoch(k)) end
    assert.equal(1, s.accumulation)
  end)

  it("of other presets and batches", function()
    local s = schedule.create(config.load("configs/50m.lua"))
    assert.same({29607, 740, 1480, 2220},
      {s.total_steps, s:steps_after_epoch(1), s:steps_after_epoch(2), s:steps_after_epoch(3)})
    s = schedule.create(config.load("configs/packed4-20m-awc.lua"))
    assert.same({3113, 78, 156, 233},
      {s.total_steps, s:steps_after_epoch(1), s:steps_after_epoch(2), s:steps_after_epoch(3)})
  end)

  it("gives every step to one epoch, in order, epochs of no step included", function()
    -- e P / B = 1/2 * 20 / 40: an epoch is a quarter of a batch; after k epochs floor(k/4 + 1/2).
    local s = create({training = {tokens_per_parameters = 5}}, 20)
    assert.equal(3, s.total_steps)
    local first_and_count = {}
    for k = 1, 10 do first_and_count[k] = table.concat({s:steps_of_epoch(k)}, " ") end
    assert.same({"0 0", "0 1", "1 0", "1 0", "1 0", "1 1", "2 0", "2 0", "2 0", "2 1"}, first_and_count)
    assert.same({2, 6, 10}, {s:epoch_of_step(0), s:epoch_of_step(1), s:epoch_of_step(2)})
    assert.equal(10, s.total_epochs)
  end)

  it("agrees between epochs and steps over a whole run", function()
    local s = create({training = {tokens_per_parameters = 7, epoch_tokens_per_parameters = 0.7}}, 333)
    local steps = 0
    for k = 1, s.total_epochs do
      local first, count = s:steps_of_epoch(k)
      assert.equal(steps, first)
      for t = first, first + count - 1 do
        assert.equal(k, s:epoch_of_step(t))
        assert.equal(t == first + count - 1, s:ends_epoch(t))
      end
      steps = steps + count
    end
    assert.equal(s.total_steps, steps)
    assert.equal(math.floor(7 * 333 / 40 + 0.5), steps)
  end)

  it("is shortened by max_tokens to whole batches", function()
    local s = create {training = {max_tokens = 519}} -- 12.975 batches; an epoch is 2.5
    assert.equal(12, s.total_steps)
    assert.equal(480, s.total_tokens)
    assert.same({3, 5, 8, 10, 12}, {s:steps_after_epoch(1), s:steps_after_epoch(2), s:steps_after_epoch(3),
      s:steps_after_epoch(4), s:steps_after_epoch(5)})
    assert.equal(5, s.total_epochs)
    assert.is_true(s:ends_epoch(11))
    assert.equal(100, create({training = {max_tokens = 1e9}}).total_steps)
    assert.equal(1, create({training = {max_tokens = 40}}).total_steps)
  end)

  it("takes epoch_tokens instead of the ratio, with a last epoch that may be shorter", function()
    local s = create {training = {epoch_tokens = 1300}} -- 32.5 batches; 100 in all
    assert.equal(100, s.total_steps)
    assert.same({33, 65, 98, 100},
      {s:steps_after_epoch(1), s:steps_after_epoch(2), s:steps_after_epoch(3), s:steps_after_epoch(4)})
    assert.equal(4, s.total_epochs)
    assert.same({98, 2}, {s:steps_of_epoch(4)})
  end)

  it("counts micro-steps", function()
    assert.equal(3, create({training = {batch_tokens = 120}}).accumulation)
  end)

  it("refuses what does not fit, with the values", function()
    refused("batch_tokens 50 is not a whole multiple of num_models 4 * micro_batch_size 2 * context_length 5",
      create, {training = {batch_tokens = 50}})
    refused("tokens_per_parameters 20 is not a whole multiple of epoch_tokens_per_parameters 0.3", create,
      {training = {epoch_tokens_per_parameters = 0.3}})
    refused("max_tokens 39 is less than one batch of 40 tokens", create, {training = {max_tokens = 39}})
    refused("tokens_per_parameters 20 * 0 parameters is less than half a batch", create, {}, 0)
  end)
end)

-- Runs of 100 steps with lr 1: step t ends at (t + 1) / 100 of the run.
describe("the learning rate", function()
  it("rises over the warm-up, at the end position of each step", function()
    local s = create()
    assert.equal(100, s.total_steps)
    assert_near(0.1, s:lr(0))
    assert_near(0.5, s:lr(4))
    assert_near(0.9, s:lr(8))
    assert_near(1, s:lr(9))
  end)

  it("falls along a cosine to min_lr_ratio", function()
    local s = create()
    assert_near(0.55, s:lr(54)) -- half way: (0.55 - 0.1) / 0.9
    assert_near(0.1 + 0.9 * 0.75, s:lr(39)) -- a third: cos 60 degrees
    assert_near(0.1 + 0.9 * 0.25, s:lr(69))
    assert_near(0.1, s:lr(99))
    assert_near(0.003 * (0.1 + 0.9 * 0.75), create({optimizer = {lr = 0.003}}):lr(39))
  end)

  it("has a warm-up that need not end with a step", function()
    local s = create {optimizer = {warmup_fraction = 0.025}} -- 100 of 4000 tokens: 2.5 steps
    assert_near(0.4, s:lr(0))
    assert_near(0.8, s:lr(1))
    local progress = (120 - 100) / 3900
    assert_near(0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2, s:lr(2))
  end)

  it("holds and then falls linearly under wsd", function()
    local s = create {optimizer = {schedule = "wsd"}}
    assert_near(0.5, s:lr(4))
    for _, t in ipairs({9, 50, 79}) do assert.equal(1, s:lr(t)) end
    assert_near(1 - 0.9 / 20, s:lr(80))
    assert_near(0.55, s:lr(89))
    assert_near(0.1, s:lr(99))
    assert.equal(1, create({optimizer = {schedule = "wsd", decay_fraction = 0}}):lr(99))
    assert_near(0.55, create({optimizer = {schedule = "wsd", decay_fraction = 1, warmup_fraction = 0}}):lr(49))
  end)

  it("is constant after the warm-up when asked to be", function()
    local s = create {optimizer = {schedule = "constant"}}
    assert_near(0.3, s:lr(2))
    for _, t in ipairs({9, 50, 99}) do assert.equal(1, s:lr(t)) end
  end)

  it("is whole at its limits: no warm-up, nothing but warm-up, one step", function()
    local s = create {optimizer = {warmup_fraction = 0}}
    assert_near(0.1 + 0.9 * (1 + math.cos(math.pi / 100)) / 2, s:lr(0))
    s = create {optimizer = {warmup_fraction = 1}}
    assert_near(0.99, s:lr(98))
    assert.equal(1, s:lr(99))
    s = create({training = {max_tokens = 40}})
    assert_near(0.1, s:lr(0))
  end)

  it("follows the shortened horizon", function()
    local s = create {training = {max_tokens = 400}} -- 10 steps, 1 of warm-up
    assert.equal(1, s:lr(0))
    assert_near(0.1, s:lr(9))
    assert_near(0.1 + 0.9 * 0.75, s:lr(3))
  end)

  it("refuses another kind of schedule", function()
    local s = create {optimizer = {schedule = "linear"}}
    refused("there is no schedule linear; there are cosine, wsd and constant", s.lr, s, 50)
  end)
end)

describe("gamma", function()
  local function adaptive(start_frac, p, optimizer)
    return create {optimizer = optimizer or {},
      decentralized = {adaptive_consensus = {start_frac = start_frac, p = p}}}
  end

  it("is 1 without adaptive consensus and before it starts", function()
    local s = create()
    for _, t in ipairs({0, 50, 99}) do assert.equal(1, s:gamma(t)) end
    s = adaptive(0.3, 2)
    for _, t in ipairs({0, 29}) do assert.equal(1, s:gamma(t)) end
  end)

  it("is (lr / lr_max)^p from step ceil(start_frac * total_steps) on", function()
    local s = adaptive(0.695, 2) -- from step 70 on, where lr is the largest of the active steps
    assert.equal(70, s:first_adaptive_step())
    assert.equal(1, s:gamma(69))
    assert.equal(1, s:gamma(70))
    assert_near((0.1 / s:lr(70)) ^ 2, s:gamma(99))
    assert_near((s:lr(80) / s:lr(70)) ^ 2, s:gamma(80))
  end)

  it("takes the largest learning rate of all active steps, later ones included", function()
    local s = adaptive(0, 1) -- lr 1 is reached at step 9
    assert_near(0.1, s:gamma(0))
    assert_near(0.5, s:gamma(4))
    assert.equal(1, s:gamma(9))
    s = adaptive(0.03, 0.5)
    assert.equal(1, s:gamma(2))
    assert_near(math.sqrt(0.4), s:gamma(3))
  end)

  it("is the same whichever step is asked for first", function()
    local a, b = adaptive(0.05, 1.5), adaptive(0.05, 1.5)
    local last = a:gamma(99)
    for t = 0, 98 do a:gamma(t) end
    assert.equal(last, b:gamma(99))
    assert.equal(last, a:gamma(99))
  end)

  it("is 1 for p = 0, even where the learning rate is 0", function()
    local s = adaptive(0, 0, {min_lr_ratio = 0})
    for t = 0, 99 do assert.equal(1, s:gamma(t)) end
    s = adaptive(0, 2, {min_lr_ratio = 0})
    assert.equal(0, s:gamma(99))
    assert.equal(1, adaptive(0, 2, {lr = 0}):gamma(50))
  end)

  it("has no active step for start_frac 1 and one for just below", function()
    local s = adaptive(1, 2)
    assert.is_nil(s:first_adaptive_step())
    for _, t in ipairs({0, 99}) do assert.equal(1, s:gamma(t)) end
    s = adaptive(0.985, 2)
    assert.equal(99, s:first_adaptive_step())
    assert.equal(1, s:gamma(99))
  end)
end)

describe("mixing", function()
  it("happens at every mix_every-th step", function()
    local s = create {decentralized = {mix_every = 4}}
    local mixed = {}
    for t = 0, 12 do
      assert.equal(#mixed, s:mixings(t))
      if s:mixes(t) then mixed[#mixed + 1] = t end
    end
    assert.same({3, 7, 11}, mixed)
  end)
end)
