-- The work of operations, against numbers counted by hand, by loops, and by the formula of a whole step.
local config = require "pack.config"
local context = require "pack.core.context"
local dispatch = require "pack.core.dispatch"
local numbers = require "spec.support.numbers"
local trace = require "pack.measure.trace"
local trainer = require "pack.train.trainer"
local work = require "pack.measure.work"

-- "f32 2 3" as a tensor's look.
local function look(text)
  local shape = {}
  for extent in text:gmatch(" (%d+)") do shape[#shape + 1] = tonumber(extent) end
  return {dtype = text:match("^%w+"), shape = shape}
end

local function call(name, inputs, outputs, given)
  local looks = {name = name, inputs = {}, outputs = {}, n_inputs = #inputs, attributes = {}, accumulate = 0}
  for i, text in ipairs(inputs) do looks.inputs[i] = look(text) end
  for o, text in ipairs(outputs) do looks.outputs[o] = look(text) end
  for key, value in pairs(given or {}) do looks[key] = value end
  return looks
end

-- {flops, bytes} of a call.
local function of(...)
  local flops, bytes = work.of(call(...))
  return {flops, bytes}
end

describe("The work of operations", function()
  it("is known for every operation, and for nothing else", function()
    local missing, extra = {}, {}
    for _, operation in ipairs(dispatch.list) do
      if not work.rows[operation.name] then missing[#missing + 1] = operation.name end
    end
    for name in pairs(work.rows) do
      if not dispatch.operations[name] then extra[#extra + 1] = name end
    end
    assert.same({}, missing)
    assert.same({}, extra)
    numbers.assert_refused("no operation 'guess'", work.of, {name = "guess"})
  end)

  it("is a multiplication and an addition for each term of a product", function()
    local terms = 0
    for _ = 1, 2 do for _ = 1, 3 do for _ = 1, 5 do for _ = 1, 7 do terms = terms + 1 end end end end
    local bytes = 4 * (2 * 3 * 7 + 2 * 7 * 5 + 2 * 3 * 5)
    assert.same({2 * terms, bytes}, of("matmul", {"f32 2 3 7", "f32 2 7 5"}, {"f32 2 3 5"}))
    assert.same({2 * terms, bytes},
      of("matmul", {"f32 2 7 3", "f32 2 5 7"}, {"f32 2 3 5"}, {attributes = {transpose_a = 1, transpose_b = 1}}))
    assert.same({2 * 3 * 5 * 7, 2 * (21 + 35) + 4 * 15}, of("matmul", {"bf16 3 7", "bf16 7 5"}, {"f32 3 5"}))
    assert.same({2 * terms, bytes + 4 * 30},
      of("matmul", {"f32 2 3 7", "f32 2 7 5"}, {"f32 2 3 5"}, {accumulate = 1}))
  end)

  it("is, for attention, that of the pairs of positions that see each other", function()
    local n, sequences, positions, heads, width = 2, 3, 5, 2, 4
    local pairs_seen = 0
    for i = 1, positions do for j = 1, positions do if j <= i then pairs_seen = pairs_seen + 1 end end end
    pairs_seen = pairs_seen * n * sequences * heads
    local x, lse = "f32 2 3 5 2 4", "f32 2 3 2 5"
    local size, row = 4 * n * sequences * positions * heads * width, 4 * n * sequences * positions * heads
    assert.same({pairs_seen * 2 * 2 * width, 4 * size + row}, of("attention", {x, x, x}, {x, lse}))
    local flops, bytes, model = work.of(call("attention_grad", {x, x, x, x, x, lse}, {x, x, x}))
    assert.equal(pairs_seen * 2 * 5 * width, flops)
    assert.equal(8 * size + row, bytes)
    assert.equal(pairs_seen * 2 * 4 * width, model)
  end)

  it("is three products for the head and its gradients, and one more where logits are made again", function()
    local product = 2 * 2 * 6 * 8 * 11
    local x, weight, targets, g = "f32 2 6 8", "f32 2 11 8", "i32 2 6", "f32 2"
    local _, _, forward = work.of(call("linear_cross_entropy", {x, weight, targets}, {"f32 2", "f64 2", "f32 2 6"}))
    local flops, _, backward = work.of(call("linear_cross_entropy_grad", {g, x, weight, targets, "f32 2 6"}, {x, weight}))
    assert.equal(product, forward)
    assert.equal(3 * product, flops)
    assert.equal(2 * product, backward)
  end)

  it("is that of reading inputs and writing outputs once, elsewhere", function()
    assert.same({6, 3 * 24}, of("add", {"f32 2 3", "f32 2 3"}, {"f32 2 3"}))
    assert.same({6, 24 + 12 + 24}, of("add", {"f32 2 3", "f32 3"}, {"f32 2 3"}))
    assert.same({0, 24 + 12}, of("cast", {"f32 2 3"}, {"bf16 2 3"}))
    assert.same({2 * 36, 2 * 144}, of("rope_split", {"f32 1 1 2 9 2"}, {"f32 1 1 2 3 2", "f32 1 1 2 3 2", "f32 1 1 2 3 2"}))
    assert.same({2 * 36, 144 + 72}, of("rope_join", {"f32 1 1 2 3 2", "f32 1 1 2 3 2", "f32 1 1 2 3 2"}, {"bf16 1 1 2 9 2"}))
    assert.same({6 * 6, 48 + 24}, of("swiglu_split", {"f32 2 6"}, {"f32 2 3"}))
    assert.same({12 * 6, 24 + 48 + 24}, of("swiglu_split_grad", {"f32 2 3", "f32 2 6"}, {"bf16 2 6"}))
    assert.same({6, 24 + 8}, of("sum", {"f32 2 3"}, {"f32 2"}))
    assert.same({6, 3 * 24}, of("copy", {"f32 2 3"}, {"f32 2 3"}, {accumulate = 1}))
    assert.same({0, 2 * 12}, of("slice", {"f32 100 3"}, {"f32 1 3"}))
    assert.same({0, 4 * 7}, of("fill", {}, {"f32 7"}))
  end)

  it("is, for embeddings, that of the rows that are looked up", function()
    assert.same({0, 4 * 6 + 2 * 4 * 6 * 8}, of("embedding", {"f32 2 1000 8", "i32 2 3"}, {"f32 2 3 8"}))
    local g, ids, table_ = "f32 2 3 8", "i32 2 3", "f32 2 1000 8"
    assert.same({48, 3 * 4 * 48 + 4 * 6}, of("embedding_grad", {g, ids}, {table_}, {accumulate = 1}))
    assert.same({48, 3 * 4 * 48 + 4 * 6 + 4 * 16000}, of("embedding_grad", {g, ids}, {table_}))
  end)

  it("counts what the update writes in place", function()
    local x, small = "f32 2 64", {"f64 2", "f64 2", "f64 2 2", "i32 1", "f64 12", "i32 8"}
    local own = 8 * (2 + 2 + 4 + 12) + 4 * (1 + 8)
    -- x, m and v are read and written, g is read.
    assert.same({(2 + 2 * 2 + 15) * 128, 7 * 4 * 128 + own}, of("update", {x, x, x, x, unpack(small)}, {}, {n_inputs = 11}))
    local flops, bytes = work.of(call("update", {x, x, x, x, small[1], small[2], small[3], small[4], small[5], small[6],
      "bf16 2 64"}, {}))
    assert.equal(21 * 128, flops)
    assert.equal(7 * 4 * 128 + own + 2 * 128, bytes)
    assert.same({2 * 2 * 128, 2 * 4 * 128 + 8 * (4 + 12) + 4 * 8}, of("mix", {x, "f64 2 2", "f64 12", "i32 8"}, {}))
  end)

  for _, case in ipairs {{"llama", "true"}, {"llama", "false"}, {"gpt2", "true"}} do
    local architecture, compile = unpack(case)
    it(("of a step of the 20m model is 6 for each weight and target, and attention: %s, compile=%s"):format(architecture,
      compile), function()
      local resolved = config.load("configs/20m.lua", {"decentralized.num_models=4", "training.micro_batch_size=8",
        "runtime.amp=false", "runtime.attention=flash", "runtime.compile=" .. compile, "model.architecture=" .. architecture})
      local forecast = context {forecast = true}
      local one = trainer.create(resolved, {context = forecast})
      local capture = trace.capture(forecast, function()
        if compile == "true" then one:recorded():run() else one:launch() end
      end)
      local totals = capture:totals()
      local matrices = 32000 * 320 + 8 * (4 * 320 * 320 + (architecture == "llama" and 3 or 2) * 320 * 896)
      local attention = 8 * 6 * 1025 * 320
      assert.equal(32768 * (6 * matrices + attention), totals.model_flops)
      assert.equal(work.model_flops(resolved), totals.model_flops)
      -- What is computed again, and all that is no product, adds less than a third.
      assert.is_true(totals.flops > totals.model_flops and totals.flops < 1.33 * totals.model_flops)
      capture:free()
      one:free()
      forecast:close()
    end)
  end
end)
