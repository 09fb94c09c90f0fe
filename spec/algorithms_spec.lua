-- Algorithms and optimizers: golden cases where they are, identities that hold by definition, resuming, the guard.
local algorithms = require "pack.algorithms"
local checkpoint = require "pack.run.checkpoint"
local config = require "pack.config"
local context = require "pack.core.context"
local ffi = require "ffi"
local files = require "pack.io.files"
local golden = require "pack.train.golden_algorithm"
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local plan = require "pack.train.plan"
local runtime = require "pack.config.runtime"
local safetensors = require "pack.io.safetensors"
local tensor = require "pack.core.tensor"
local trainer = require "pack.train.trainer"

-- Everything that algorithms need to be told besides their names.
local needs = {
  exact_diffusion = {"decentralized.topology=ring"},
  quasi_global_momentum = {"optimizer.name=sgd", "optimizer.momentum=0"},
  diloco = {"decentralized.algorithm.every=3"},
  slowmo = {"decentralized.algorithm.every=3"},
  choco = {"decentralized.algorithm.ratio=0.1"},
  sparta = {"decentralized.algorithm.probability=0.25"},
}

local function settings_of(name, ...)
  local list = {"model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24", "model.context_length=8",
    "training.micro_batch_size=2", "training.batch_tokens=64", "training.max_tokens=640", "decentralized.num_models=4",
    "decentralized.topology=one_peer_ring", "optimizer.warmup_fraction=0", "runtime.amp=false",
    "decentralized.algorithm=" .. name}
  for _, one in ipairs(needs[name] or {}) do list[#list + 1] = one end
  for _, one in ipairs {...} do list[#list + 1] = one end
  return list
end

local function stream(count)
  local tokens = ffi.new("uint16_t[?]", count)
  for i = 0, count - 1 do tokens[i] = (i * i + 3 * i) % 251 end
  return {tokens = tokens, count = count}
end

local function open(name, settings, options)
  local resolved = config.load("configs/tiny.lua", settings_of(name, unpack(settings or {})))
  local given = {context = context.default(), train = stream(800), validation = stream(100)}
  for key, value in pairs(options or {}) do given[key] = value end
  return trainer.create(resolved, given)
end

-- Bytes of everything that a trainer keeps, by name.
local function kept(one)
  local bytes = {guard = numbers.bytes(one.updater.guard)}
  for _, item in ipairs(one.updater.kept) do bytes[item.name] = numbers.bytes(item.tensor) end
  return bytes
end

local function weights_after(steps, name, settings, options)
  local one = open(name, settings, options)
  for _ = 1, steps do one:step() end
  local values, count = one.model.arena.tensor:read_numbers()
  local list = {}
  for i = 0, count - 1 do list[i + 1] = values[i] end
  one:free()
  return list
end

local function largest_difference(a, b)
  local worst, scale = 0, 0
  for i = 1, #a do worst, scale = math.max(worst, math.abs(a[i] - b[i])), math.max(scale, math.abs(b[i])) end
  return worst / scale
end

describe("golden cases of algorithms", function()
  helper.watch()

  local folder = "../shared/golden/algorithms"
  if not files.exists(folder) then
    pending("are not here", function() end)
    return
  end
  for _, name in ipairs(files.list(folder)) do
    if name:find("%.json$") then
      it("agree in f64 and f32, recorded to the same bits: " .. name, function()
        for _, dtype in ipairs {"f64", "f32"} do
          local result, bytes = golden.run(folder .. "/" .. name, {dtype = dtype, context = context.default()})
          for quantity, worst in pairs(result) do
            assert.is_true(worst.value <= golden.tolerances[dtype], ("%s %s: %g"):format(dtype, quantity, worst.value))
          end
          local _, recorded = golden.run(folder .. "/" .. name, {dtype = dtype, context = context.default(), compile = true})
          assert.equal(bytes, recorded)
        end
      end)
    end
  end
end)

-- Seven steps, gone on with from the states after some of them.
local function assert_resumes(name, settings)
  local folder = os.tmpname()
  local whole = open(name, settings)
  for t = 1, 7 do
    whole:step()
    local contents = checkpoint.tensors(whole)
    contents.metadata = checkpoint.metadata(whole, {data = "data"})
    safetensors.write(folder .. t, contents)
  end
  local expected = kept(whole)
  for _, t in ipairs {1, 3, 5} do
    local again = open(name, settings)
    local state = assert(checkpoint.open(folder .. t))
    state:restore(again)
    state:close()
    while again.step_number < 7 do again:step() end
    assert.same(expected, kept(again))
    again:free()
  end
  whole:free()
  for t = 1, 7 do os.remove(folder .. t) end
  os.remove(folder)
end

describe("an optimizer", function()
  helper.watch()

  for _, name in ipairs(require("pack.optim").names) do
    it("resumes to the same bits, recorded and one by one the same: " .. name, function()
      local settings = {"optimizer.name=" .. name, "optimizer.window=3"}
      assert_resumes("gossip", settings)
      local recorded, eager = open("gossip", settings), open("gossip", {"runtime.compile=false", unpack(settings)})
      for _ = 1, 7 do
        recorded:step()
        eager:step()
      end
      assert.same(kept(recorded), kept(eager))
      recorded:free()
      eager:free()
    end)
  end
end)

describe("an algorithm", function()
  helper.watch()

  for _, name in ipairs(algorithms.names) do
    it("gives the same bits recorded and one by one, with one thread and two: " .. name, function()
      local expected
      for _, settings in ipairs {{}, {"runtime.compile=false"}} do
        for _, threads in ipairs {1, 2} do
          local own = runtime.context {device = "cpu", threads = threads}
          local one = open(name, settings, {context = own})
          for _ = 1, 7 do one:step() end
          expected = expected or kept(one)
          assert.same(expected, kept(one))
          one:free()
        end
      end
    end)

    it("resumes to the same bits from any step: " .. name, function() assert_resumes(name) end)

    it("leaves everything that it keeps as it was in a step with a NaN: " .. name, function()
      local one = open(name)
      for _ = 1, 3 do one:step() end -- the next one is within a round
      local before = kept(one)
      for _ = 1, 3 do
        one.gradients_of = function(micro)
          local losses, counts = one.model:backward(one.tokens, one.targets, one.updater.gradients, micro > 1)
          losses = losses:totable()
          losses[3] = 0 / 0
          return tensor.from(losses, "f32"), counts
        end
        one.config.runtime.compile = false
        assert.has_error(function() one:step() end)
        local after = kept(one)
        before.guard, after.guard = nil, nil
        assert.same(before, after)
      end
      one:free()
    end)

    it("keeps the padding between parameters at zero: " .. name, function()
      local one = open(name)
      for _ = 1, 6 do one:step() end
      local values = one.model.arena.tensor:read_numbers()
      local size = one.model.layout.size
      for _, entry in ipairs(one.model.layout) do
        for w = 0, 3 do
          for c = entry.numel, entry.padded_numel - 1 do assert.equal(0, values[w * size + entry.start + c]) end
        end
      end
      one:free()
    end)

    it("has a forecast that is its peak: " .. name, function()
      local resolved = config.load("configs/tiny.lua", settings_of(name, "runtime.device=cpu"))
      local forecast = plan.of(resolved)
      local own = runtime.context {device = "cpu"}
      local one = trainer.create(resolved, {context = own, train = stream(800)})
      for _ = 1, 6 do one:step() end
      assert.equal(forecast.total, own:peak())
      one:free()
    end)
  end

  it("may mix some columns alone, by taking and putting them or by choosing", function()
    local function define(name, mix)
      algorithms.define {name = name, step = function(self, s)
        s:optimize()
        if s.mixes then mix(self, s) end
      end, start = function(self, s)
        local index, mask = {}, {}
        for c = 0, s.layout.size - 1 do
          mask[c + 1] = c % 7 == 3 and 1 or 0
          if c % 7 == 3 then index[#index + 1] = c end
        end
        self.index, self.mask = tensor.from(index, "i32"), tensor.from({mask})
      end}
    end
    define("put_columns", function(self, s)
      local some = ops.gather_columns(s.x, self.index)
      s:mix(some)
      s:put_columns(s.x, self.index, some)
    end)
    define("chosen_columns", function(self, s)
      local mixed = s:copy(s.x)
      s:mix(mixed)
      s:assign(s.x, self.mask:where(mixed, s.x))
    end)
    local put, chosen = open("put_columns"), open("chosen_columns")
    for _ = 1, 5 do
      put:step()
      chosen:step()
    end
    assert.same(kept(chosen), kept(put))
    put:free()
    chosen:free()
  end)

  it("tells what a worker sends", function()
    local one = open("gossip")
    local bytes = 4 * one.model.layout.parameters
    assert.equal(bytes, one:step().bytes_sent) -- one neighbour
    one:free()
    local alone = open("diloco")
    local sent = {}
    for t = 1, 6 do sent[t] = alone:step().bytes_sent end
    assert.same({0, 0, 1.5 * bytes, 0, 0, 1.5 * bytes}, sent)
    alone:free()
    local signs = open("choco", {"decentralized.algorithm.compressor=sign"})
    assert.equal(4 + bytes / 32, signs:step().bytes_sent)
    signs:free()
    local complete = open("gossip", {"decentralized.topology=complete", "decentralized.mix_every=2"})
    assert.same({0, 1.5 * bytes}, {complete:step().bytes_sent, complete:step().bytes_sent})
    complete:free()
  end)
end)

describe("by definition", function()
  helper.watch()

  local sgd = {"optimizer.name=sgd", "optimizer.momentum=0", "optimizer.lr=0.05", "decentralized.topology=complete",
    "decentralized.scheme=atc"}

  local function means(list, n)
    local size, mean = #list / n, {}
    for c = 1, size do
      local sum = 0
      for w = 0, n - 1 do sum = sum + list[w * size + c] end
      mean[c] = sum / n
    end
    return mean
  end

  for _, name in ipairs(algorithms.names) do
    it("one worker trains as without an algorithm: " .. name, function()
      if name == "slowmo" or name == "diloco" or name == "quasi_global_momentum" or name == "choco" then return end
      local alone = {"decentralized.num_models=1", "training.micro_batch_size=8", "decentralized.topology=complete"}
      local plain = weights_after(6, "gossip", alone)
      assert.is_true(largest_difference(weights_after(6, name, alone), plain) < 1e-5)
    end)
  end

  it("diloco with learning rate 1 and no momentum averages every round", function()
    local diloco = weights_after(6, "diloco", {"decentralized.algorithm.outer_lr=1",
      "decentralized.algorithm.outer_momentum=0", "decentralized.algorithm.outer_nesterov=false"}, {dtype = "f64"})
    local averaged = weights_after(6, "gossip", {"decentralized.topology=complete", "decentralized.scheme=atc",
      "decentralized.mix_every=3"}, {dtype = "f64"})
    assert.is_true(largest_difference(diloco, averaged) < 1e-12)
  end)

  it("choco without compression and with step 1 is gossip after the optimizer", function()
    local choco = weights_after(5, "choco", {"decentralized.algorithm.compressor=none",
      "decentralized.algorithm.consensus_lr=1"}, {dtype = "f64"})
    local gossip = weights_after(5, "gossip", {"decentralized.scheme=atc"}, {dtype = "f64"})
    assert.is_true(largest_difference(choco, gossip) < 1e-12)
  end)

  it("push_sum with a doubly stochastic matrix is gossip after the optimizer", function()
    local pushed = weights_after(5, "push_sum", {}, {dtype = "f64"})
    local gossip = weights_after(5, "gossip", {"decentralized.scheme=atc"}, {dtype = "f64"})
    assert.is_true(largest_difference(pushed, gossip) < 1e-12)
  end)

  it("gradient tracking after the optimizer on a complete graph keeps the averages of gossip", function()
    local tracked = weights_after(4, "gradient_tracking", sgd, {dtype = "f64"})
    local gossip = weights_after(4, "gossip", sgd, {dtype = "f64"})
    assert.is_true(largest_difference(means(tracked, 4), means(gossip, 4)) < 1e-10)
  end)

  it("links that all hold are links that never drop", function()
    local dropped = weights_after(4, "gossip", {"decentralized.algorithm.link_drop=1e-12"})
    assert.same(weights_after(4, "gossip"), dropped)
  end)
end)

describe("learning rates of workers", function()
  helper.watch()

  it("multiply the schedule's", function()
    local one = open("gossip", {"decentralized.topology=disconnected", "optimizer.lr_factors=1,0,0.5,1"})
    local before = one.model.arena.tensor:totable()
    one:step()
    local after = one.model.arena.tensor:totable()
    assert.same(before[2], after[2])
    assert.is_false(largest_difference(after[1], before[1]) == 0)
    one:free()
  end)

  it("are as many as workers", function()
    assert.has_error(function() open("gossip", {"optimizer.lr_factors=1,2"}) end)
  end)
end)
