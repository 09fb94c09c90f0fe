-- The update against AdamW, clipping and mixing written out in f64 Lua, with matched gradients.
local ffi = require "ffi"
local packed_model = require "pack.model.packed"
local updater = require "pack.train.updater"
local tensor = require "pack.core.tensor"
local topology = require "pack.mixing.topology"

local config = {vocab_size = 11, layers = 1, width = 8, heads = 2, ffn_width = 12,
  context_length = 4, rope_theta = 10000, norm_eps = 1e-5, init_std = 0.2}
local settings = {beta1 = 0.9, beta2 = 0.98, eps = 1e-8, weight_decay = 0.1, grad_clip = 0.5}

local function with(changes)
  local copy = {}
  for key, value in pairs(settings) do copy[key] = value end
  for key, value in pairs(changes or {}) do copy[key] = value end
  return copy
end

-- A model whose worker w differs from the others, with its update.
local function build(n, dtype, options)
  local model = packed_model.create(config, {num_models = n, dtype = dtype})
  model:initialize(3)
  for w = 1, n do
    local row = model.arena.tensor[w - 1]
    local values, count = row:read_numbers()
    for i = 0, count - 1 do values[i] = values[i] * (1 + 0.02 * w * math.cos(i)) end
    row:write_numbers(values, count)
  end
  return model, updater.create(model, with(options and options.settings), options)
end

-- Gradient of step t for worker w at named column i: any numbers, the same for every dtype.
local function gradient(t, w, i)
  local x = math.sin(12.9898 * i + 78.233 * w + 37.719 * t) * 43758.5453
  return (x - math.floor(x) - 0.5) * 0.1
end

local function write_gradients(model, update, t, kept)
  for w = 1, model.num_models do
    local row = update.gradients.tensor[w - 1]
    local values = ffi.new("double[?]", tonumber(row.numel))
    for _, entry in ipairs(model.layout) do
      for i = tonumber(entry.start), tonumber(entry.start + entry.numel) - 1 do
        values[i] = gradient(t, w, i)
      end
    end
    row:write_numbers(values, tonumber(row.numel))
    kept[w] = row:read_numbers()
  end
end

-- Reads the rows of an arena as double arrays.
local function rows_of(arena)
  local rows = {}
  for w = 1, #arena.tensor do rows[w] = arena.tensor[w - 1]:read_numbers() end
  return rows
end

local function columns(model)
  local list = {}
  for _, entry in ipairs(model.layout) do
    for i = tonumber(entry.start), tonumber(entry.start + entry.numel) - 1 do
      list[#list + 1] = {i, #entry.shape >= 2}
    end
  end
  return list
end

local function mix(rows, matrix, list)
  local n, mixed = #rows, {}
  for w = 1, n do mixed[w] = {} end
  for _, column in ipairs(list) do
    local i = column[1]
    for w = 1, n do
      local sum = 0
      for j = 1, n do sum = sum + matrix[w][j] * rows[j][i] end
      mixed[w][i] = sum
    end
  end
  for w = 1, n do
    for _, column in ipairs(list) do rows[w][column[1]] = mixed[w][column[1]] end
  end
end

-- The reference: one step in plain f64, straight from the formulas.
local function reference_step(state, s, step, gradients, list)
  local n, counts = #state.x, step.counts:totable()
  local function adamw()
    for w = 1, n do
      local scale = counts[w] > 0 and 1 / counts[w] or 0
      local squares = 0
      for _, column in ipairs(list) do squares = squares + (gradients[w][column[1]] * scale) ^ 2 end
      local norm = math.sqrt(squares)
      state.norm[w] = norm
      local factor = scale * (s.grad_clip and math.min(1, s.grad_clip / (norm + 1e-6)) or 1)
      for _, column in ipairs(list) do
        local i, decays = column[1], column[2]
        local g = gradients[w][i] * factor
        state.m[w][i] = s.beta1 * state.m[w][i] + (1 - s.beta1) * g
        state.v[w][i] = s.beta2 * state.v[w][i] + (1 - s.beta2) * g * g
        local m_hat = state.m[w][i] / (1 - s.beta1 ^ step.t)
        local v_hat = state.v[w][i] / (1 - s.beta2 ^ step.t)
        local wd = decays and s.weight_decay or 0
        state.x[w][i] = (1 - step.lr * wd) * state.x[w][i]
          - step.lr * m_hat / (math.sqrt(v_hat) + s.eps)
      end
    end
  end
  if step.scheme == "awc" then mix(state.x, step.mixing, list) end
  adamw()
  if step.scheme == "atc" then mix(state.x, step.mixing, list) end
end

local function worst_difference(model, mine, reference, list)
  local distance, norm = 0, 0
  for w = 1, model.num_models do
    for _, column in ipairs(list) do
      local i = column[1]
      distance = distance + (mine[w][i] - reference[w][i]) ^ 2
      norm = norm + reference[w][i] ^ 2
    end
  end
  return math.sqrt(distance / norm)
end

local function losses_of(n, dtype, value)
  return tensor.full({n}, value or 1, dtype)
end

local function counts_of(n, zero)
  local counts = {}
  for i = 1, n do counts[i] = i - 1 == zero and 0 or i + 1 end
  return tensor.from(counts, "f64")
end

-- Runs some steps on both sides and compares parameters, moments and norms.
local function compare(n, dtype, bound, options)
  local model, update = build(n, dtype, options)
  local list, s = columns(model), update.settings
  local state = {x = rows_of(model.arena), m = rows_of(update.optimizer.exp_avg),
    v = rows_of(update.optimizer.exp_avg_sq), norm = {}}
  local mixer = topology.create(options.topology, n)
  for t = 1, 4 do
    local gradients = {}
    write_gradients(model, update, t, gradients)
    local step = {t = t, lr = 0.01 * t, mixing = mixer:matrix(t - 1), scheme = options.scheme,
      counts = counts_of(n, options.without), losses = losses_of(n, dtype)}
    local norms = update:step(step):totable()
    reference_step(state, s, step, gradients, list)
    for w = 1, n do
      assert.is_near(state.norm[w], norms[w], bound * math.max(state.norm[w], 1e-12))
    end
  end
  assert.is_true(worst_difference(model, rows_of(model.arena), state.x, list) < bound)
  assert.is_true(worst_difference(model, rows_of(update.optimizer.exp_avg), state.m, list) < bound)
  assert.is_true(worst_difference(model, rows_of(update.optimizer.exp_avg_sq), state.v, list) < bound)
  local status = update:status()
  assert.equals(4, status.updates)
  assert.equals(4, status.mixings)
end

describe("AdamW over packed workers", function()
  for _, scheme in ipairs {"awc", "atc"} do
    for _, fused in ipairs {true, false} do
      local title = scheme .. (fused and ", fused" or ", separate")
      it("equals the formulas in f64: " .. title, function()
        compare(4, "f64", 1e-13, {scheme = scheme, fused = fused, topology = "one_peer_ring"})
      end)
      it("equals the formulas in f32: " .. title, function()
        compare(3, "f32", 2e-6, {scheme = scheme, fused = fused, topology = "ring"})
      end)
    end
  end

  it("equals the formulas without clipping, and with a worker without targets", function()
    compare(3, "f64", 1e-13, {scheme = "awc", topology = "complete", settings = {grad_clip = false}})
    compare(3, "f64", 1e-13, {scheme = "atc", topology = "complete", without = 1})
  end)

  it("is plain AdamW for one worker, whatever the topology", function()
    for _, name in ipairs(topology.names()) do
      local one, plain = {}, {}
      for k, which in ipairs {name, "disconnected"} do
        local model, update = build(1, "f32", {scheme = "awc"})
        local mixer = topology.create(which, 1, {group = 1, period = 2})
        for t = 1, 3 do
          write_gradients(model, update, t, {})
          update:step {t = t, lr = 0.01, mixing = mixer:matrix(t - 1), counts = counts_of(1),
            losses = losses_of(1, "f32")}
        end
        (k == 1 and one or plain).bytes = ffi.string(model.arena.tensor:read(),
          tonumber(model.arena.tensor.numel) * 4)
      end
      assert.equals(plain.bytes, one.bytes, name)
    end
  end)

  it("leaves all workers equal to the bit after complete mixing", function()
    local model, update = build(5, "f32", {scheme = "atc"})
    write_gradients(model, update, 1, {})
    update:step {t = 1, lr = 0.01, mixing = topology.create("complete", 5):matrix(0),
      counts = counts_of(5), losses = losses_of(5, "f32")}
    local first = model.arena.tensor[0]:read_numbers()
    for w = 2, 5 do
      local other, count = model.arena.tensor[w - 1]:read_numbers()
      for i = 0, count - 1 do assert.equals(first[i], other[i]) end
    end
  end)

  it("keeps the padding of the arena at zero", function()
    local model, update = build(2, "f32", {scheme = "awc"})
    for t = 1, 3 do
      write_gradients(model, update, t, {})
      update:step {t = t, lr = 0.1, mixing = topology.create("complete", 2):matrix(0),
        counts = counts_of(2), losses = losses_of(2, "f32")}
    end
    local named = {}
    for _, column in ipairs(columns(model)) do named[column[1]] = true end
    local values, count = model.arena.tensor[0]:read_numbers()
    local padding = 0
    for i = 0, count - 1 do
      if not named[i] then
        padding = padding + 1
        assert.equals(0, values[i])
      end
    end
    assert.is_true(padding > 0)
  end)

  it("stops at a loss or gradient that is not finite, before mixing, and stays stopped", function()
    for _, what in ipairs {"loss", "gradient norm"} do
      local model, update = build(3, "f32", {scheme = "awc"})
      local function step(t, losses)
        update:step {t = t, lr = 0.01, mixing = topology.create("complete", 3):matrix(0),
          counts = counts_of(3), losses = losses or losses_of(3, "f32")}
      end
      write_gradients(model, update, 1, {})
      step(1)
      update:check()
      local before = rows_of(model.arena)
      if what == "loss" then
        step(2, tensor.from({1, 1, 0 / 0}, "f32"))
      else
        local row = update.gradients.tensor[2]
        local values, count = row:read_numbers()
        values[7] = 1 / 0
        row:write_numbers(values, count)
        step(2)
        write_gradients(model, update, 3, {})
      end
      step(3)
      local after = rows_of(model.arena)
      for w = 1, 3 do
        for i = 0, tonumber(model.arena.tensor[0].numel) - 1 do
          assert.equals(before[w][i], after[w][i])
        end
      end
      local status = update:status()
      assert.same({worker = 2, step = 1, what = what}, status.stopped)
      assert.equals(1, status.updates)
      assert.equals(1, status.mixings)
      local ok, message = pcall(update.check, update)
      assert.is_false(ok)
      assert.is_truthy(tostring(message):find("worker 2: the " .. what .. " is not finite at step 1",
        1, true))
    end
  end)

  it("survives gradients of 1e20 without an infinite norm", function()
    local model, update = build(2, "f32", {scheme = "awc"})
    local row = update.gradients.tensor[0]
    local values = ffi.new("double[?]", tonumber(row.numel))
    for _, column in ipairs(columns(model)) do values[column[1]] = 1e20 end
    row:write_numbers(values, tonumber(row.numel))
    local norms = update:step {t = 1, lr = 0.01, mixing = {{1, 0}, {0, 1}},
      counts = tensor.from({1, 1}, "f64"), losses = losses_of(2, "f32")}:totable()
    assert.is_near(1, norms[1] / (1e20 * math.sqrt(#columns(model))), 1e-6)
    update:check()
  end)

  it("refuses a scheme that is not awc or atc", function()
    local model = packed_model.create(config, {num_models = 1})
    assert.has_error(function() updater.create(model, settings, {scheme = "abc"}) end,
      "scheme 'abc' is not awc or atc")
  end)
end)
