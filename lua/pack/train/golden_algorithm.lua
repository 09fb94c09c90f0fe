--- Re-runs golden cases of algorithms: steps on given gradients, whose weights after every step and state at the end an
-- independent program has computed in f64.
--
-- A case is JSON: workers N, columns D, steps T, x [N, D], gradients [T, N, D], lr [T], mixing (the matrices of mixings
-- 0, 1, ... in turn), decay [D], optimizer, algorithm, expected_x [T, N, D] and expected_state; shape [out, in] of cases with
-- one matrix. Differences are relative to the largest magnitude.
local algorithms = require "pack.algorithms"
local arena = require "pack.model.arena"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local files = require "pack.io.files"
local json = require "pack.io.json"
local program = require "pack.core.program"
local tensor = require "pack.core.tensor"
local topology = require "pack.mixing.topology"
local updater = require "pack.train.updater"

local golden = {}

--- The largest difference allowed by precision.
golden.tolerances = {f64 = 1e-12, f32 = 1e-5}

-- Every column by itself, or the one matrix.
local function layout_of(case)
  if case.shape then return arena.layout {{"matrix", case.shape}} end
  local entries = {}
  for c = 1, case.columns do entries[c] = {"column." .. c, case.decay[c] == 1 and {1, 1} or {1}} end
  return arena.layout(entries)
end

-- What an updater wants of a model.
local function model_of(case, options)
  local layout = layout_of(case)
  local model = {num_models = case.workers, dtype = options.dtype, context = options.context, layout = layout}
  local function nothing() end
  model.keep_bf16, model.refresh, model.bf16_is_fresh = nothing, nothing, nothing
  function model.zeros_like(_, category)
    return arena.create(layout, case.workers, {dtype = options.dtype, category = category, context = options.context})
  end
  model.arena = model:zeros_like("parameters")
  return model
end

-- The place in an arena of column c (from 1) of the case.
local function place_of(case, layout, c)
  return case.shape and c or layout[c].start + 1
end

local function write(case, model, rows, into)
  local flat = {}
  for i = 1, #rows * model.layout.size do flat[i] = 0 end
  for i, row in ipairs(rows) do
    for c, x in ipairs(row) do flat[(i - 1) * model.layout.size + place_of(case, model.layout, c)] = x end
  end
  into:write_numbers(ffi.new("double[?]", #flat, flat), #flat)
end

-- The largest difference of a tensor [N, D] or [1, D] from rows of numbers, relative to their largest magnitude.
local function difference(case, model, t, rows)
  local values, worst, largest = t:read_numbers(), 0, 1e-300
  for i, row in ipairs(rows) do
    for c, x in ipairs(row) do
      local own = values[(i - 1) * model.layout.size + place_of(case, model.layout, c) - 1]
      if own ~= own then return math.huge end
      worst, largest = math.max(worst, math.abs(own - x)), math.max(largest, math.abs(x))
    end
  end
  return worst / largest
end

-- Our names of the letters of a case's state.
local names = {a = "anchor", b = {"outer_momentum", "slow_momentum"}, y = "tracker", g = "previous_gradient", psi = "psi",
  p = "push_weights", x = "copies", accum_grad = "accum_grad", m = {"exp_avg", "momentum"}, v = "exp_avg_sq"}

local function find_kept(update, letter)
  local wanted = names[letter]
  for _, kept in ipairs(update.kept) do
    for _, name in ipairs(type(wanted) == "table" and wanted or {wanted}) do
      if kept.name == name then return kept.tensor end
    end
  end
end

local function product(w, rows)
  local mixed = {}
  for i = 1, #w do
    mixed[i] = {}
    for c = 1, #rows[1] do
      local sum = 0
      for j = 1, #w do sum = sum + w[i][j] * rows[j][c] end
      mixed[i][c] = sum
    end
  end
  return mixed
end

-- The state that a case expects, as what is kept under the letter. A tracker is kept mixed.
local function expected_of(case, letter)
  local rows = case.expected_state[letter]
  if type(rows[1]) == "number" then
    local list = {}
    for i, x in ipairs(rows) do list[i] = letter == "p" and {x} or x end
    rows = letter == "p" and list or {list}
  end
  if letter == "y" then return product(case.mixing[(case.steps - 1) % #case.mixing + 1], rows) end
  return rows
end

local function compare_small(t, rows)
  local values, worst, largest = t:read_numbers(), 0, 1e-300
  for i, row in ipairs(rows) do
    worst, largest = math.max(worst, math.abs(values[i - 1] - row[1])), math.max(largest, math.abs(row[1]))
  end
  return worst / largest
end

-- The case's algorithm as an instance of ours: options that a configuration has elsewhere are left out, and draws are the
-- case's own.
local function algorithm_of(case)
  local settings, options = case.algorithm, {}
  for key, value in pairs(settings) do options[key] = value end
  if settings.compressor then
    options.compressor, options.ratio = settings.compressor.kind, settings.compressor.ratio
  end
  options.link_delay, options.link_drop = settings.delay, settings.drop_pairs and 0.5 or nil
  local one = algorithms.create(algorithms.find(settings.name), options)
  if settings.drop_pairs then
    function one.dropped_pairs(_, k) return settings.drop_pairs[k % #settings.drop_pairs + 1] end
  end
  return one
end

-- Lets sparta take the columns that the case drew, which change from step to step.
local function give_columns(case, model, one)
  local columns = case.algorithm.columns
  local mask = tensor.zeros({1, model.layout.size}, model.dtype, {category = "workspace", context = model.context})
  function one.columns() return mask end
  return function(t)
    local row = {}
    for c = 1, case.columns do row[c] = 0 end
    for _, c in ipairs(columns[t]) do row[c + 1] = 1 end
    write(case, model, {row}, mask)
  end
end

--- Whether a file is such a case.
function golden.is_case(path)
  return path:find("%.json$") ~= nil
end

-- What the steps of a case have in common.
local function open(path, options)
  local text, message = files.read(path)
  if not text then failure.usage("%s", message) end
  local case
  case, message = json.decode(text, path)
  if type(case) ~= "table" or not case.expected_x then
    failure.usage("%s", message or path .. ": not a golden case of an algorithm")
  end
  local model = model_of(case, {dtype = options.dtype or "f64", context = options.context})
  write(case, model, case.x, model.arena.tensor)
  local settings = {beta1 = 0, beta2 = 0, eps = 1, weight_decay = 0}
  for key, value in pairs(case.optimizer) do settings[key] = value ~= json.null and value end
  local one = algorithm_of(case)
  local draw = case.algorithm.columns and give_columns(case, model, one)
  local update = updater.create(model, settings, {algorithm = one, fused = options.fused,
    scheme = case.algorithm.scheme or "awc"})
  return case, model, update, draw
end

-- What step t (from 1) takes from the host.
local function step_of(case, update, t)
  local every = case.algorithm.name == "gossip" and case.algorithm.every or 1
  local mixings = math.floor((t - 1) / every)
  local mixes = t % every == 0
  local w = mixes and case.mixing[mixings % #case.mixing + 1] or topology.create("disconnected", case.workers):matrix(0)
  if mixes and update.algorithm.matrix then w = update.algorithm:matrix(w, mixings) end
  return {t = t, lr = case.lr[t], mixes = mixes, mixings = mixings, mixing = w}
end

--- Runs the case in a file. options: dtype ("f64", the default, or "f32"), context, fused (see pack.updater), compile (record
-- the updates). Returns {x = {value, name}, STATE = {value, name}...}, and the last weights as bytes of f64.
function golden.run(path, options)
  local case, model, update, draw = open(path, options)
  local context, result, programs = options.context, {x = {value = 0, name = "step 1"}}, {}
  local losses = tensor.zeros({case.workers}, model.dtype, {context = context})
  local counts = tensor.ones({case.workers}, "f64", {context = context})
  for t = 1, case.steps do
    write(case, model, case.gradients[t], update.gradients.tensor)
    if draw then draw(t) end
    local form = update:prepare(step_of(case, update, t))
    if options.compile then
      programs[form] = programs[form] or program.record(function() return update:update(losses, counts) end, {}, context)
      programs[form]:run()
      update:updated()
    else
      update:update(losses, counts)
    end
    update:check()
    local value = difference(case, model, model.arena.tensor, case.expected_x[t])
    if value > result.x.value then result.x = {value = value, name = "step " .. t} end
  end
  for letter in pairs(case.expected_state) do
    local kept, expected = find_kept(update, letter), expected_of(case, letter)
    local no_state = letter == "m" and not kept and case.optimizer.momentum == 0
    local value = not kept and math.huge
      or kept:size(1) == 1 and compare_small(kept, expected) or difference(case, model, kept, expected)
    if not no_state then result[letter] = {value = value, name = kept and "" or "not kept"} end
  end
  local values, count = model.arena.tensor:read_numbers()
  return result, ffi.string(values, 8 * count)
end

return golden
