-- Whole training steps on the CUDA device, emulated: golden cases, against the CPU, recorded against eager, what a
-- recorded step asks of the runtime, and the recipes. PACKLUA_TEST_DEVICE names another device, such as cuda:0. Those
-- tagged #slow are left out under sanitizers.
local config = require "pack.config"
local context = require "pack.core.context"
local emu = require "spec.support.emu"
local ffi = require "ffi"
local files = require "pack.io.files"
local golden = require "pack.train.golden"
local helper = require "spec.support.helper"
local json = require "pack.io.json"
local packed_model = require "pack.model.packed"
local numbers = require "spec.support.numbers"
local updater = require "pack.train.updater"
local tensor = require "pack.core.tensor"
local topology = require "pack.mixing.topology"
local trainer = require "pack.train.trainer"

local name = os.getenv "PACKLUA_TEST_DEVICE" or "emu"
local device
if name == "emu" then
  device = emu.open {deterministic = true}
else
  device = context {device = name, deterministic = true}
end
if not device then
  pending("the emulated device is not part of this build", function() end)
  return
end
local cpu = context {device = "cpu"}

-- A stream of tokens below `vocabulary` that follow a pattern which a model can learn.
local function stream(count, vocabulary)
  local tokens = ffi.new("uint16_t[?]", count)
  for i = 0, count - 1 do tokens[i] = (i * i + 3 * i) % vocabulary end
  return {tokens = tokens, count = count}
end

local settings = {
  "model.vocab_size=257", "model.layers=2", "model.width=64", "model.heads=1", "model.ffn_width=48",
  "model.context_length=8", "training.batch_tokens=96", "training.micro_batch_size=2", "training.max_tokens=1920",
  "optimizer.lr=0.01", "optimizer.warmup_fraction=0.1", "evaluation.batch_size=3", "decentralized.num_models=3",
  "decentralized.topology=one_peer_exponential", "runtime.amp=false", "runtime.attention=flash",
}

-- A trainer on a device, of two micro-steps, a topology whose matrix changes, and a consensus that adapts.
local function create(chosen, changes)
  local all = {unpack(settings)}
  for _, change in ipairs(changes or {}) do all[#all + 1] = change end
  return trainer.create(config.load("configs/tiny.lua", all), {context = chosen, train = stream(4000, 13),
    validation = stream(200, 13), validation_complete = true})
end

local function state(one)
  local optimizer = one.optimizer
  return {numbers.bytes(one.model.arena.tensor), numbers.bytes(optimizer.exp_avg.tensor),
    numbers.bytes(optimizer.exp_avg_sq.tensor)}
end

local function losses(one, count)
  local list = {}
  for i = 1, count do list[i] = one:step().loss end
  return list
end

-- ||a - b|| / ||b|| of two arenas.
local function distance(a, b)
  local x, y = numbers.flat(a.model.arena.tensor), numbers.flat(b.model.arena.tensor)
  local apart, size = 0, 0
  for i = 1, #y do apart, size = apart + (x[i] - y[i]) ^ 2, size + y[i] ^ 2 end
  return math.sqrt(apart / size)
end

describe("training on " .. name, function()
  helper.watch()

  for _, path in ipairs(files.list("spec/fixtures/golden")) do
    if path:match("%.safetensors$") then
      for _, dtype in ipairs {"f32", "amp"} do
        it(("agrees with the golden case %s in %s%s"):format(path, dtype, dtype == "amp" and " #slow" or ""), function()
          local result = golden.run("spec/fixtures/golden/" .. path, {dtype = dtype, context = device})
          for _, quantity in ipairs(golden.quantities) do
            local bound, worst = golden.tolerance(dtype, quantity), result[quantity]
            assert.is_true(not bound or worst.value <= bound, ("%s: %.3g (%s)"):format(quantity, worst.value, worst.name))
          end
        end)
      end
    end
  end

  -- f32: other orders of sums; amp: products of bf16 whose roundings differ where an f32 sum does.
  for amp, bounds in pairs {["false"] = {loss = 2e-6, weights = 1e-4}, ["true"] = {loss = 2e-3, weights = 2e-2}} do
    local slow = amp == "true" and " #slow" or ""
    it("stays with the CPU for ten steps, amp " .. amp .. slow, function()
      local changes = {"runtime.amp=" .. amp, "decentralized.adaptive_consensus.p=1"}
      local a, b = create(cpu, changes), create(device, changes)
      local expected, got = losses(a, 10), losses(b, 10)
      for i = 1, 10 do
        assert.is_true(math.abs(got[i] - expected[i]) <= bounds.loss * expected[i],
          ("loss of step %d: %.9g, not %.9g"):format(i, got[i], expected[i]))
      end
      assert.is_true(distance(b, a) <= bounds.weights, ("weights are apart by %.3g"):format(distance(b, a)))
      assert.is_true(expected[10] < expected[1])
    end)

    it("has the same bits recorded and eager, amp " .. amp .. slow, function()
      local changes = {"runtime.amp=" .. amp, "decentralized.scheme=" .. (amp == "true" and "atc" or "awc")}
      local recorded = create(device, changes)
      changes[#changes + 1] = "runtime.compile=false"
      local eager = create(device, changes)
      assert.same(losses(eager, 4), losses(recorded, 4)) -- eager, captured, launched twice
      assert.same(state(eager), state(recorded))
    end)
  end

  it("trains another architecture: gpt2, near the CPU, the same bits recorded and eager", function()
    local changes = {"runtime.amp=true", "model.architecture=gpt2"}
    local a, recorded = create(cpu, changes), create(device, changes)
    changes[#changes + 1] = "runtime.compile=false"
    local expected, got, eager = losses(a, 4), losses(recorded, 4), create(device, changes)
    for i = 1, 4 do assert.is_true(math.abs(got[i] - expected[i]) <= 2e-3 * expected[i]) end
    assert.same(losses(eager, 4), got)
    assert.same(state(eager), state(recorded))
  end)

  it("evaluates as the CPU does, and leaves the training state alone", function()
    local a, b = create(cpu), create(device)
    losses(b, 2)
    a.model.arena.tensor:write_numbers(b.model.arena.tensor:read_numbers())
    local before = state(b)
    local expected, got = a:evaluate {workers = true}, b:evaluate {workers = true}
    assert.same(before, state(b))
    assert.is_true(math.abs(got.loss - expected.loss) <= 1e-6 * expected.loss)
    assert.is_true(math.abs(got.consensus_distance - expected.consensus_distance) <= 1e-6 * expected.consensus_distance)
    assert.equal(3, #got.loss_worker)
    for i = 1, 3 do
      assert.is_true(math.abs(got.loss_worker[i] - expected.loss_worker[i]) <= 1e-6 * expected.loss_worker[i])
    end
  end)

  -- The same gradients into the optimizers of both devices. Nothing but the norms is a sum in another order, and they
  -- are given, so that clipping, mixing and AdamW must agree to the last bit.
  for _, scheme in ipairs {"awc", "atc"} do
    it("updates with given gradients to the CPU's bits, " .. scheme, function()
      local shape = {vocab_size = 11, layers = 1, width = 8, heads = 2, ffn_width = 12, context_length = 4,
        rope_theta = 10000, norm_eps = 1e-5, init_std = 0.2}
      local sides = {}
      for i, chosen in ipairs {cpu, device} do
        local model = packed_model.create(shape, {num_models = 3, context = chosen})
        model:initialize(5)
        -- gradients beyond the clip's norm are scaled by a quotient of the norm, so clipping is off
        sides[i] = {model = model, updater = updater.create(model, {beta1 = 0.9, beta2 = 0.98, eps = 1e-8,
          weight_decay = 0.1, grad_clip = false}, {scheme = scheme})}
      end
      local ring = topology.create("ring", 3)
      for t = 1, 4 do
        local count = tonumber(sides[1].updater.gradients.tensor.numel)
        local values = ffi.new("double[?]", count)
        for i = 0, count - 1 do values[i] = math.sin(12.9898 * i + 37.719 * t) * 0.1 end
        for i, chosen in ipairs {cpu, device} do
          local side = sides[i]
          side.updater.gradients.tensor:write_numbers(values, count)
          side.updater:step {t = t, lr = 1e-2 / t, mixing = ring:matrix(t - 1),
            losses = tensor.from({1, 2, 3}, "f64", {context = chosen}),
            counts = tensor.from({4, 5, 6}, "f64", {context = chosen})}
        end
      end
      assert.equal(numbers.bytes(sides[1].model.arena.tensor), numbers.bytes(sides[2].model.arena.tensor))
      for _, moment in ipairs {"exp_avg", "exp_avg_sq"} do
        assert.equal(numbers.bytes(sides[1].updater.optimizer[moment].tensor), numbers.bytes(sides[2].updater.optimizer[moment].tensor))
      end
      assert.same({updates = 4, mixings = 4}, sides[2].updater:status())
    end)
  end
end)

if name ~= "emu" then return end

describe("a recorded step of training", function()
  helper.watch()

  for micro_batch, graphs in pairs {[4] = 1, [2] = 3} do
    local micro_steps = graphs == 1 and 1 or 2
    it(("of %d micro-steps is %d graphs: no wait inside, no allocation, and no copy from the host but the batch and two "
      .. "small tensors"):format(micro_steps, graphs), function()
      local one = create(device, {"training.micro_batch_size=" .. micro_batch})
      assert.equal(micro_steps, one.accumulation)
      losses(one, 2)
      for _, part in ipairs(one:recorded():parts()) do
        local run = part.run
        part.run = function(self)
          local inside = emu.count(function() run(self) end)
          assert.same({graph_launches = 1, captures = 0, launches = 0, allocations = 0, releases = 0, uploads = 0,
            downloads = 0, copies = 0, fills = 0, upload_bytes = 0, synchronizations = 0}, inside)
        end
      end
      local whole = emu.count(function() one:step() end)
      assert.equal(graphs, whole.graph_launches)
      assert.equal(2 * micro_steps + 2, whole.uploads) -- tokens and targets of micro-steps, the scalars and the matrix
      assert.equal(2 * 96 * 4 + (12 + 3) * 8 + 9 * 8, whole.upload_bytes)
      assert.same({0, 0}, {whole.allocations, whole.launches})
      assert.same({4, 1}, {whole.downloads, whole.synchronizations}) -- losses, counts, norms, the guard; one wait for all
      assert.equal("", one:recorded():remark())
    end)
  end
end)

describe("a step that the device has no memory for", function()
  helper.watch()
  after_each(emu.repair)

  it("says what is in use, changes nothing, and can be taken when there is memory, or with less", function()
    local expected = losses(create(device, {"training.micro_batch_size=4"}), 2)
    collectgarbage()
    local own = context {device = "emu", deterministic = true, memory_limit_mib = 4096}
    local one = create(own, {"training.micro_batch_size=4"})
    local before, slab, held = state(one), one:recorded():memory().slab, own:memory().reserved
    emu.pretend {left = math.floor(slab / 2)}
    for _ = 1, 2 do
      local good, message = pcall(one.step, one)
      assert.is_false(good)
      assert.matches("the slab of a recorded program: out of memory: %d+%.%d MiB more for activations is more than emu "
        .. "has left; in use: .*parameters", tostring(message))
    end
    assert.same(before, state(one))
    emu.repair()
    assert.same(expected, losses(one, 2))
    one:free()
    emu.pretend {left = held + math.floor(slab / 2)}
    local small = create(own, {"training.micro_batch_size=1"})
    for i, loss in ipairs(losses(small, 2)) do assert.is_true(math.abs(loss - expected[i]) <= 1e-6 * expected[i]) end
    small:free()
  end)
end)

describe("recipes on emu #slow", function()
  local folder
  setup(function() folder = helper.temporary() end)
  teardown(function() helper.remove(folder) end)

  local small = "--set model.width=64 --set model.heads=1 --set model.ffn_width=32 --set model.layers=1 "
    .. "--set model.context_length=16 --set training.micro_batch_size=2 --set training.batch_tokens=64 "
    .. "--set evaluation.subset_blocks=2 --set decentralized.num_models=2 --device emu"

  it("train, save, resume to the same bits and evaluate", function()
    local lines = {}
    for i = 1, 300 do lines[i] = ("the %d workers of the ring mix, line %d\n\n"):format(i % 7, i) end
    helper.write(folder .. "/text.txt", table.concat(lines))
    local code, out, err = helper.run(("packlua recipes/smoke.lua --config configs/smoke.lua %s --set data.text=%s/text.txt "
      .. "--set training.max_tokens=128 --set training.epoch_tokens=64 --output %s/smoke"):format(small, folder, folder))
    assert.equal("", err)
    assert.equal(0, code, out)
    local _, passed = out:gsub("PASS", "")
    assert.equal(7, passed, out) -- six stages, and all of them
  end)

  it("compare packed with sequential training", function()
    helper.write(folder .. "/tiny.lua", [[return {
      model = {vocab_size = 257, layers = 1, width = 64, heads = 1, ffn_width = 24, context_length = 16},
      training = {batch_tokens = 64, micro_batch_size = 4},
      decentralized = {topology = "one_peer_exponential"},
      runtime = {memory_limit_mib = 64},
    }]])
    local code, out, err = helper.run(("packlua recipes/benchmark.lua --config %s/tiny.lua --num-models 2 --warmup 1 "
      .. "--steps 1 --dtype f32 --device emu --output %s/bench"):format(folder, folder))
    assert.equal("", err)
    assert.equal(0, code, out)
    local summary = json.decode(assert(helper.read(folder .. "/bench/summary.json")))
    assert.is_true(#summary.candidates >= 4)
    for _, candidate in ipairs(summary.candidates) do assert.is_nil(candidate.reason) end
  end)
end)
