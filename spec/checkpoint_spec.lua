-- Training states: what they hold, that they continue to the same bits, and that damage is seen.
local checkpoint = require "pack.run.checkpoint"
local config = require "pack.config"
local context = require "pack.core.context"
local ffi = require "ffi"
local files = require "pack.io.files"
local native = require "pack.native"
local numbers = require "spec.support.numbers"
local run = require "pack.run.folder"
local safetensors = require "pack.io.safetensors"
local saver = require "pack.run.saver"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"
local trainer = require "pack.train.trainer"

local C = native.C

local settings = {
  "model.vocab_size=257", "model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24",
  "model.context_length=8", "training.micro_batch_size=2", "training.epoch_tokens=640", "optimizer.lr=0.02",
  "optimizer.warmup_fraction=0.1", "evaluation.batch_size=3", "runtime.amp=false", "runtime.compile=false",
  "runtime.attention=flash", "runtime.device=cpu",
}

-- A configuration of num_models workers and ten steps of `accumulation` micro-steps, changed by key=value.
local function configure(num_models, accumulation, changes)
  local batch = num_models * 2 * 8 * accumulation
  local all = {unpack(settings)}
  all[#all + 1] = "decentralized.num_models=" .. num_models
  all[#all + 1] = "training.batch_tokens=" .. batch
  all[#all + 1] = "training.max_tokens=" .. 10 * batch
  for _, change in ipairs(changes or {}) do all[#all + 1] = change end
  return config.load("configs/tiny.lua", all)
end

-- A stream of so many tokens that a model can learn; 150 are some passes over a small set.
local function stream(count)
  local tokens = ffi.new("uint16_t[?]", count)
  for i = 0, count - 1 do tokens[i] = (i * i + 3 * i) % 13 end
  return {tokens = tokens, count = count}
end

local function create(resolved, own_context)
  return trainer.create(resolved, {context = own_context or context.default(), train = stream(150),
    validation = stream(100)})
end

local function free(one)
  one.batches:close()
  one.updater:free()
  one.model:free()
  for _, list in ipairs {one.tokens, one.targets} do
    for _, t in ipairs(list.free and {list} or list) do t:free() end
  end
end

-- Everything that the next step depends on, tensors as bytes.
local function everything(one)
  local optimizer = one.optimizer
  return {numbers.bytes(one.model.arena.tensor), numbers.bytes(optimizer.exp_avg.tensor),
    numbers.bytes(optimizer.exp_avg_sq.tensor), numbers.bytes(one.updater.guard), one.batches:cursor(),
    one.step_number, one.mixings}
end

local function steps(one, count)
  local rows = {}
  for i = 1, count do
    rows[i] = one:step()
    rows[i].step_seconds, rows[i].tokens_per_second, rows[i].memory_bytes = nil, nil, nil
  end
  return rows
end

-- Saves a trainer's state through a run in a new folder; returns the state's path.
local function save(one, folder)
  local owner = run.create {recipe = "train", output = folder, config = one.config}
  local keeper = saver.create {run = owner, trainer = one, data = "data"}
  keeper:save_step()
  keeper:finish()
  keeper:close()
  owner:close()
  return folder .. "/" .. checkpoint.step_name(one.step_number)
end

local function refused(message, fn, ...)
  local good, object = pcall(fn, ...)
  assert.is_false(good)
  assert.is_truthy(tostring(object):find(message, 1, true), tostring(object))
  return object
end

describe("A training state", function()
  local folder
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  -- Fails unless a run of ten steps that is saved after `at` and restored into a new trainer has the same rows
  -- and ends with the same bits.
  local function assert_continues(resolved, at, first_context, second_context)
    local whole = create(resolved, first_context)
    local expected = steps(whole, 10)
    local part = create(resolved, first_context)
    local rows = steps(part, at)
    local path = save(part, folder .. "/run")
    local state = assert(checkpoint.open(path))
    local rest = create(resolved, second_context or first_context)
    state:restore(rest)
    state:close()
    assert.same(everything(part), everything(rest))
    for _, row in ipairs(steps(rest, 10 - at)) do rows[#rows + 1] = row end
    assert.same(expected, rows)
    assert.same(everything(whole), everything(rest))
    for _, one in ipairs {whole, part, rest} do free(one) end
  end

  describe("continues to the same bits", function()
    local cases = {
      {"with AWC and a one-peer topology in mid-cycle", 4, 1, {}, 3},
      {"with ATC and a one-peer topology in mid-cycle", 4, 1, {"decentralized.scheme=atc"}, 3},
      {"with a one-peer ring at an odd mixing", 3, 1, {"decentralized.topology=one_peer_ring"}, 5},
      {"with random matchings", 4, 1, {"decentralized.topology=random_matching"}, 4},
      {"with one worker", 1, 1, {"decentralized.topology=complete"}, 4},
      {"with adaptive consensus, before it begins", 4, 1,
        {"decentralized.adaptive_consensus.start_frac=0.5", "decentralized.adaptive_consensus.p=2"}, 4},
      {"with adaptive consensus, once it has begun", 4, 1,
        {"decentralized.adaptive_consensus.start_frac=0.2", "decentralized.adaptive_consensus.p=1"}, 6},
      {"with a WSD schedule, in its decay", 3, 1, {"optimizer.schedule=wsd", "decentralized.topology=ring"}, 9},
      {"with accumulation", 3, 2, {"decentralized.topology=one_peer_exponential"}, 3},
      {"with mixing every third step", 4, 1, {"decentralized.mix_every=3"}, 4},
      {"without reading ahead", 4, 1, {"data.prefetch=off"}, 7},
      {"before the first step", 4, 1, {}, 0},
      {"with recorded steps", 4, 2, {"runtime.compile=on"}, 3},
    }
    for _, case in ipairs(cases) do
      it(case[1], function() assert_continues(configure(case[2], case[3], case[4]), case[5]) end)
    end

    it("with another number of threads", function()
      local one, two = context.create {threads = 1}, context.create {threads = 2}
      assert_continues(configure(4, 1), 5, one, two)
      one:close()
      two:close()
    end)
  end)

  it("holds parameters and moments without padding, counters, position, and the configuration", function()
    local resolved = configure(4, 1)
    local one = create(resolved)
    steps(one, 3)
    local state = assert(checkpoint.open(save(one, folder .. "/run")))
    local info = state.info
    assert.same({3, 3, 3 * 64, 24, 4, 10, "train", "data"}, {info.step, info.mixings, info.tokens, info.cursor,
      info.num_models, info.total_steps, info.recipe, info.data})
    assert.equal(one.context:isa(), info.instruction_set)
    assert.same(resolved, state:config())
    assert.same({4, 24, 16}, state.file:entry("exp_avg/blocks.0.ffn.up_proj.weight").shape)
    local bytes = 0
    for _, name in ipairs(state.file:names()) do bytes = bytes + state.file:entry(name).bytes end
    assert.equal(3 * 4 * 4 * one.model.layout.parameters + 8 * 4, bytes)
    assert.is_true(one.model.layout.parameters < one.model.layout.size)
    state:close()
    free(one)
  end)

  it("is refused by name when any byte of it is flipped, or it is cut short", function()
    local one = create(configure(1, 1, {"decentralized.topology=complete"}))
    steps(one, 1)
    local path = save(one, folder .. "/run")
    free(one)
    local text = files.read(path)
    local places = {}
    for i = 1, 40 do places[#places + 1] = i end
    for i = #text - 100, #text do places[#places + 1] = i end
    for i = 41, #text - 101, math.floor(#text / 60) do places[#places + 1] = i end
    local damaged = folder .. "/damaged.state.safetensors.zst"
    local function assert_refused(content)
      support.write(damaged, content)
      local state, message = checkpoint.open(damaged)
      assert.is_nil(state)
      assert.is_truthy(message:find(damaged, 1, true), message)
    end
    for _, place in ipairs(places) do
      local flipped = string.char(bit.bxor(text:byte(place), 2 ^ (place % 8)))
      assert_refused(text:sub(1, place - 1) .. flipped .. text:sub(place + 1))
    end
    for _, left in ipairs {0, 1, 3, 4, 90, #text - 100, #text - 87, #text - 1} do assert_refused(text:sub(1, left)) end
    assert_refused(text .. "\0")
    assert_refused(text .. text)
    support.write(damaged, text)
    assert(checkpoint.open(damaged)):close()
  end)

  it("is no other file", function()
    local path = folder .. "/weights.safetensors"
    safetensors.write(path, {{name = "x", tensor = tensor.ones {2}}})
    local state, message = checkpoint.open(path)
    assert.is_nil(state)
    assert.equal(path .. ": not a training state", message)
  end)

  it("becomes another number of workers by average or tile, when asked to", function()
    local one = create(configure(4, 1))
    steps(one, 3)
    local path = save(one, folder .. "/run")
    local mean = numbers.bytes(require("pack.core.ops").average(one.model.arena.tensor))
    local row = #mean
    local before = numbers.bytes(one.optimizer.exp_avg.tensor)
    for _, n in ipairs {2, 8} do
      local changes = {"decentralized.num_models=" .. n, "training.batch_tokens=64", "training.max_tokens=640",
        n == 8 and "training.micro_batch_size=1" or "training.micro_batch_size=4"}
      local other = create(configure(4, 1, changes))
      local state = assert(checkpoint.open(path))
      local message = tostring(refused("--allow-conversion", state.check, state, other.config, {}))
      assert.is_truthy(message:find("num_models 4 workers, and " .. n .. " are wanted", 1, true), message)
      state:check(other.config, {conversion = "average"})
      state:restore(other, "average")
      assert.equal(mean:rep(n), numbers.bytes(other.model.arena.tensor))
      assert.equal(3, other.step_number)
      state:restore(other, "tile")
      assert.equal((before .. before):sub(1, n * row), numbers.bytes(other.optimizer.exp_avg.tensor))
      state:close()
      free(other)
    end
    free(one)
  end)

  it("refuses to continue as another experiment, naming field and both values", function()
    local one = create(configure(4, 1))
    steps(one, 2)
    local state = assert(checkpoint.open(save(one, folder .. "/run")))
    local function refuses(message, ...)
      refused(message, state.check, state, configure(4, 1, {...}), {data = "data"})
    end
    refuses("optimizer.lr = 0.02, and a resumed run must keep it; 0.03 is wanted", "optimizer.lr=0.03")
    refuses("training.max_tokens = 640, and a resumed run must keep it; 1280 is wanted", "training.max_tokens=1280")
    refuses("decentralized.adaptive_consensus = off, and a resumed run must keep it; start_frac 0 p 2 is wanted",
      "decentralized.adaptive_consensus.p=2")
    refused("trained on other data: on data; now there is other", state.check, state, configure(4, 1), {data = "other"})
    state:check(configure(4, 1, {"runtime.threads=1", "training.keep=7", "data.prefetch=off"}), {data = "data"})
    state:close()
    free(one)
  end)
end)

describe("A saver #threads", function()
  local folder
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  it("knows which epochs its policy saves", function()
    local function saved(policy, epochs)
      local list = {}
      for epoch = 1, 6 do
        if saver.saves_epoch({checkpoint_policy = policy, checkpoint_epochs = epochs}, epoch, epoch == 6) then
          list[#list + 1] = epoch
        end
      end
      return list
    end
    assert.same({}, saved("none", false))
    assert.same({6}, saved("final", false))
    assert.same({4, 6}, saved("interval", 4))
    assert.same({1, 3, 6}, saved("explicit", {1, 3}))
    assert.same({2, 6}, saved("explicit", 2))
  end)

  -- The names of the states in a folder after ten steps with these changes.
  local function states_of(changes)
    local one = create(configure(4, 1, changes))
    local owner = run.create {recipe = "train", output = folder .. "/run", config = one.config}
    local keeper = saver.create {run = owner, trainer = one, data = "data"}
    for _ = 1, 10 do
      one:step()
      keeper:after_step()
    end
    keeper:finish()
    keeper:close()
    owner:close()
    free(one)
    local names = {}
    for _, name in ipairs(files.list(folder .. "/run")) do
      if name:find("state", 1, true) then names[#names + 1] = name:match("^[^.]*") end
    end
    return names
  end

  it("keeps the newest states between epochs, and all of epochs", function()
    -- An epoch's state does for the step at which it ends.
    assert.same({"epoch-001", "epoch-002", "epoch-003", "step-00000007", "step-00000009"},
      states_of {"training.checkpoint_steps=1", "training.keep=2", "training.epoch_tokens=256",
        "training.checkpoint_policy=interval", "training.checkpoint_epochs=1"})
  end)

  it("saves when so many minutes have passed", function()
    assert.same({"epoch-001", "step-00000008", "step-00000009"}, states_of {"training.checkpoint_minutes=1e-9"})
  end)

  it("saves no state of epochs when told so", function()
    assert.same({}, states_of {"training.save_epoch_training_state=off"})
  end)

  it("writes the average as exactly the f32 mean of what it writes of the workers", function()
    states_of {}
    local mean = safetensors.open(folder .. "/run/epoch-001.safetensors")
    assert.equal("average", mean:metadata("content"))
    for _, name in ipairs(mean:names()) do
      local average, count = mean:read_doubles(name)
      local workers = {}
      for i = 0, 3 do
        local file = safetensors.open(("%s/run/node-%03d/epoch-001.safetensors"):format(folder, i))
        assert.equal(tostring(i), file:metadata("worker"))
        assert.same(mean:names(), file:names())
        workers[i] = file:read_doubles(name)
        file:close()
      end
      for k = 0, count - 1 do
        -- The sum of four f32 is exact in f64, or so nearly that one rounding decides.
        local sum = workers[0][k] + workers[1][k] + workers[2][k] + workers[3][k]
        assert.equal(numbers.f32(sum / 4), average[k])
      end
    end
    mean:close()
  end)

  it("writes what spans several frames, reads parts of it, and zstd unpacks it", function()
    local made = tensor.zeros {3, 2 ^ 21 + 5}
    made:seed_normal(1, "x", 0, 1)
    local snapshot, handle = ffi.new("pk_snapshot *[1]"), ffi.new("pk_saver *[1]")
    local path, progress = folder .. "/x.safetensors.zst", ffi.new("pk_saver_progress")
    native.check(C.pk_snapshot_create(path, 1, 2, snapshot))
    native.check(C.pk_snapshot_metadata(snapshot[0], "key", "value"))
    native.check(C.pk_snapshot_tensor(snapshot[0], "x", made, 2, ffi.new("int64_t[2]", {3, 2 ^ 21 + 5})))
    native.check(C.pk_saver_create(handle))
    native.check(C.pk_saver_submit(handle[0], snapshot[0]))
    native.check(C.pk_saver_poll(handle[0], 100, progress))
    assert.equal(1, tonumber(progress.finished))
    assert.equal(files.size(path), tonumber(progress.bytes))
    C.pk_saver_free(handle[0])
    local file = safetensors.open(path)
    local entry = file:entry("x")
    assert.equal("value", file:metadata("key"))
    assert.equal(numbers.bytes(made), ffi.string(file:elements(entry, "f32", 0, entry.numel), entry.bytes))
    local part = ffi.string(file:elements(entry, "f32", 2 ^ 22 - 3, 7), 28)
    assert.equal(numbers.bytes(made):sub(4 * (2 ^ 22 - 3) + 1, 4 * (2 ^ 22 + 4)), part)
    file:close()
    if os.execute("command -v zstd > /dev/null 2>&1") == 0 then
      assert.equal(0, (support.run(("zstd -q -d %s -o %s/plain"):format(path, folder))))
      local plain = safetensors.open(folder .. "/plain")
      assert.equal(numbers.bytes(made), numbers.bytes(plain:read_tensor("x")))
      plain:close()
    end
  end)

  it("says which file cannot be written, leaves no part of it, and fails from then on", function()
    local one = create(configure(4, 1))
    local owner = run.create {recipe = "train", output = folder .. "/run", config = one.config}
    local keeper = saver.create {run = owner, trainer = one, data = "data"}
    one.config.training.checkpoint_steps = 1
    files.mkdir(folder .. "/run/" .. checkpoint.step_name(1))
    steps(one, 1)
    keeper:after_step()
    local message = checkpoint.step_name(1) .. ": cannot be written: it is a directory"
    refused(message, keeper.finish, keeper)
    steps(one, 1)
    refused(message, keeper.after_step, keeper)
    for _, name in ipairs(files.list(folder .. "/run")) do assert.is_falsy(name:find("tmp", 1, true), name) end
    keeper:close()
    owner:close()
    free(one)
  end)

  describe("on a full disk", function()
    local mounted
    before_each(function()
      os.execute("mkdir " .. folder .. "/disk")
      mounted = os.execute(("mount -t tmpfs -o size=2m none %s/disk > /dev/null 2>&1"):format(folder)) == 0
    end)
    after_each(function()
      if mounted then os.execute(("umount %s/disk"):format(folder)) end
    end)

    it("fails beforehand or while writing, and leaves the state before intact and no part of the new one", function()
      if not mounted then return pending("no small disk can be mounted here") end
      local one = create(configure(4, 1))
      local owner = run.create {recipe = "train", output = folder .. "/disk/run", config = one.config}
      local keeper = saver.create {run = owner, trainer = one, data = "data"}
      one.config.training.checkpoint_steps = 1
      steps(one, 1)
      keeper:after_step()
      keeper:finish()
      local filler = assert(io.open(folder .. "/disk/filler", "w"))
      filler:write(("x"):rep(2 ^ 20))
      filler:close()
      steps(one, 1)
      local message = refused("step-00000002.state.safetensors.zst: cannot be written", function()
        keeper:after_step()
        keeper:finish()
      end)
      assert.equal(1, message.exit)
      local names = {}
      for _, name in ipairs(files.list(folder .. "/disk/run")) do
        if name:find("step-", 1, true) then names[#names + 1] = name end
      end
      assert.same({"step-00000001.state.safetensors.zst"}, names)
      assert(checkpoint.open(folder .. "/disk/run/" .. names[1])):close()
      keeper:close()
      owner:close()
      free(one)
    end)
  end)
end)
