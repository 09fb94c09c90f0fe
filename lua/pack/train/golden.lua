-- Re-runs a golden case: training steps whose every number an independent program has computed.
--
-- A case is a safetensors file (spec/fixtures/README.md lists its tensors). Differences are
-- ||a - b|| / ||b|| per named tensor, and the worst tensor counts.
local failure = require "pack.core.failure"
local ffi = require "ffi"
local files = require "pack.io.files"
local json = require "pack.io.json"
local ops = require "pack.core.ops"
local packed = require "pack.model.packed"
local safetensors = require "pack.io.safetensors"
local tensor = require "pack.core.tensor"
local updater = require "pack.train.updater"
local grad = require "pack.grad"

local golden = {}

--- What a run is compared by, in order.
golden.quantities = {"loss", "grad_norm", "logits", "grad0", "final", "exp_avg", "exp_avg_sq",
  "average_loss", "hvp"}

--- The largest difference allowed per quantity and precision. In amp the bf16 rounding of gradients
-- makes single AdamW steps differ, so that only losses and gradients are held to a bound there.
golden.tolerances = {
  f64 = {all = 1e-9},
  f32 = {all = 1e-4},
  amp = {loss = 3e-2, grad_norm = 3e-2, logits = 3e-2, grad0 = 3e-2, average_loss = 3e-2},
}

-- ||a - b|| / ||b|| of two double arrays; ||a|| where b is zero.
local function difference(a, b, count)
  local distance, norm = 0, 0
  for i = 0, count - 1 do
    distance = distance + (a[i] - b[i]) ^ 2
    norm = norm + b[i] ^ 2
  end
  if distance ~= distance then return math.huge end
  return norm > 0 and math.sqrt(distance / norm) or math.sqrt(distance)
end

local function note(result, quantity, value, name)
  local worst = result[quantity]
  if not worst or value > worst.value then result[quantity] = {value = value, name = name} end
end

local Case = {}
Case.__index = Case

local function open(path, options)
  if not files.exists(path) then failure.usage("%s: there is no such file", path) end
  local file = safetensors.open(path)
  local text = file:metadata("case")
  if not text then error(path .. ": not a golden case: its metadata has no 'case'", 0) end
  local case = setmetatable({path = path, file = file, settings = json.decode(text, path)}, Case)
  case.settings.accumulate = case.settings.accumulate or 1
  case.context = options.context
  case.dtype = options.dtype == "f64" and "f64" or "f32"
  case.amp = options.dtype == "amp"
  case.result = {}
  return case
end

-- Sets every parameter from the tensors PREFIX/NAME.
function Case:load(model, prefix)
  for _, name in ipairs(model.names) do
    self.file:read_into(prefix .. name, model.weight[name])
  end
end

-- The tensor [N, rows, T] of rows first .. first+rows-1 of a step's tokens or targets.
function Case:rows(name, step, first, rows)
  local s = self.settings
  local n, batch, length = s.num_models, s.batch, s.model.context_length
  local all = self.file:read_doubles(name)
  local part = ffi.new("int32_t[?]", n * rows * length)
  for worker = 0, n - 1 do
    local from = ((step * n + worker) * batch + first) * length
    for i = 0, rows * length - 1 do part[worker * rows * length + i] = all[from + i] end
  end
  local t = tensor.zeros({n, rows, length}, "i32", {context = self.context})
  t:write(part)
  return t
end

-- The matrix W of a step as rows.
function Case:mixing(step)
  local n, all = self.settings.num_models, (self.file:read_doubles("W"))
  local matrix = {}
  for i = 1, n do
    matrix[i] = {}
    for j = 1, n do matrix[i][j] = all[(step * n + i - 1) * n + j - 1] end
  end
  return matrix
end

-- Compares an arena with the tensors PREFIX/NAME; factor, if given, is a per-worker factor on it.
function Case:compare_arena(quantity, prefix, one, factor)
  for _, entry in ipairs(one.layout) do
    local mine, count = one:view(entry.name):read_numbers()
    local reference, expected = self.file:read_doubles(prefix .. entry.name)
    assert(count == expected, entry.name)
    if factor then
      for i = 0, count - 1 do mine[i] = mine[i] * factor[math.floor(i / entry.numel)] end
    end
    note(self.result, quantity, difference(mine, reference, count), entry.name)
  end
end

-- Compares values (a double array) with row `step` of a [S, count] tensor.
function Case:compare_row(quantity, name, step, values, count)
  local all = self.file:read_doubles(name)
  note(self.result, quantity, difference(values, all + step * count, count), "step " .. step)
end

-- Compares the logits of worker 0 before the first step.
function Case:compare_logits(model)
  local s = self.settings
  local logits = model:logits(self:rows("tokens", 0, 0, s.batch)):read_numbers()
  local reference, count = self.file:read_doubles("logits0_worker0")
  note(self.result, "logits", difference(logits, reference, count), "worker 0")
end

-- One training step in micro-steps; returns loss sums and counts as double arrays.
function Case:train_step(model, update, step)
  local s = self.settings
  local n, rows = s.num_models, s.batch / s.accumulate
  local losses, counts
  for micro = 0, s.accumulate - 1 do
    local tokens = self:rows("tokens", step, micro * rows, rows)
    local targets = self:rows("targets", step, micro * rows, rows)
    local loss, count = model:backward(tokens, targets, update.gradients, micro > 0)
    losses = losses and ops.add(losses, loss) or loss
    counts = counts and ops.add(counts, count) or count
  end
  local host_counts = counts:read_numbers()
  if step == 0 then
    local factor = ffi.new("double[?]", n)
    for i = 0, n - 1 do factor[i] = host_counts[i] > 0 and 1 / host_counts[i] or 0 end
    self:compare_arena("grad0", "grad0/", update.gradients, factor)
  end
  local norms = update:step {t = step + 1, lr = s.lr[step + 1], mixing = self:mixing(step),
    counts = counts, losses = losses}
  local means = losses:read_numbers()
  for i = 0, n - 1 do means[i] = host_counts[i] > 0 and means[i] / host_counts[i] or 0 end
  self:compare_row("loss", "loss", step, means, n)
  self:compare_row("grad_norm", "grad_norm", step, (norms:read_numbers()), n)
end

-- Loss and Hessian-vector product of the average on worker 0's rows of step 0. They are taken at the
-- case's own `final`: its curvature would show the rounding of the steps before, which compare_arena has
-- compared already, many times enlarged.
function Case:compare_average(model)
  local s = self.settings
  self:load(model, "final/")
  local mean = model:average()
  local function batch(name)
    local all = self:rows(name, 0, 0, s.batch)
    return all:view {shape = {1, s.batch, s.model.context_length},
      stride = s.batch * s.model.context_length}
  end
  local tokens, targets = batch("tokens"), batch("targets")
  local loss, count = mean:loss(tokens, targets)
  local targets_seen = count:item()
  local value = ffi.new("double[1]", loss:item() / targets_seen)
  self:compare_row("average_loss", "average_loss", 0, value, 1)

  local direction = mean:zeros_like("activations")
  local directions = {}
  for i, name in ipairs(mean.names) do
    directions[i] = direction:view(name)
    self.file:read_into("hvp_direction/" .. name, directions[i])
  end
  local products = grad.hvp(function()
    local sums = mean:loss(tokens, targets)
    return ops.affine(sums, {scale = 1 / targets_seen})
  end, mean.weights, directions)
  for i, name in ipairs(mean.names) do
    local reference, expected = self.file:read_doubles("hvp/" .. name)
    note(self.result, "hvp", difference((products[i]:read_numbers()), reference, expected), name)
  end
end

--- Runs the case in a file with dtype "f64", "f32" or "amp".
-- options: dtype, context, fused (see pack.updater). Returns {quantity = {value, name}}.
-- A path without a file is a usage error.
function golden.run(path, options)
  local case = open(path, options)
  local s = case.settings
  local model = packed.create(s.model, {num_models = s.num_models, dtype = case.dtype,
    amp = case.amp, context = case.context})
  case:load(model, "init/")
  local settings = {grad_clip = s.grad_clip ~= json.null and s.grad_clip or false}
  for key, value in pairs(s.optimizer) do settings[key] = value end
  local update = updater.create(model, settings, {scheme = s.scheme, fused = options.fused})
  case:compare_logits(model)
  for step = 0, s.steps - 1 do case:train_step(model, update, step) end
  update:check()
  case:compare_arena("final", "final/", model.arena)
  case:compare_arena("exp_avg", "exp_avg/", update.optimizer.exp_avg)
  case:compare_arena("exp_avg_sq", "exp_avg_sq/", update.optimizer.exp_avg_sq)
  case:compare_average(model)
  case.file:close()
  return case.result
end

--- The tolerance of a quantity in a precision, or nil where it is only reported.
function golden.tolerance(dtype, quantity)
  local bounds = golden.tolerances[dtype]
  return bounds.all or bounds[quantity]
end

return golden
