--- Whether files say the same to the bit: tensors of safetensors, rows of metrics.jsonl.
local failure = require "pack.core.failure"
local ffi = require "ffi"
local files = require "pack.io.files"
local json = require "pack.io.json"
local safetensors = require "pack.io.safetensors"

local compare = {}

local PIECE_ELEMENTS = 2 ^ 20
local dtypes = {F64 = "f64", F32 = "f32", BF16 = "bf16", I32 = "i32"}
local untimed = {step_seconds = true, tokens_per_second = true, memory_bytes = true}

local function refuse(format, ...)
  failure.raise(1, format:format(...))
end

-- The first of `bytes` at which a and b differ, or nil.
local function first_difference(a, b, bytes)
  local x, y = ffi.cast("const uint8_t *", a), ffi.cast("const uint8_t *", b)
  for i = 0, bytes - 1 do
    if x[i] ~= y[i] then return i end
  end
end

-- Calls visit(first, count) for the parts of a tensor of numel elements.
local function each_piece(numel, visit)
  for first = 0, numel - 1, PIECE_ELEMENTS do visit(first, math.min(PIECE_ELEMENTS, numel - first)) end
end

local function same_tensor(a, b, name)
  local x, y = a:entry(name), b:entry(name)
  if x.dtype ~= y.dtype or x.bytes ~= y.bytes or table.concat(x.shape, " ") ~= table.concat(y.shape, " ") then
    refuse("'%s' is %s [%s] in %s and %s [%s] in %s", name, x.dtype, table.concat(x.shape, ", "), a.path, y.dtype,
      table.concat(y.shape, ", "), b.path)
  end
  local size = x.numel > 0 and x.bytes / x.numel or 0
  each_piece(x.numel, function(first, count)
    local at = first_difference(a:elements(x, dtypes[x.dtype], first, count),
      b:elements(y, dtypes[y.dtype], first, count), count * size)
    if at then refuse("'%s' of %s differs from that of %s at element %d", name, a.path, b.path, first + math.floor(at / size)) end
  end)
end

--- Raises a failure unless two safetensors files hold the same tensors to the bit. Returns how many.
function compare.tensors(path, other)
  local a, b = safetensors.open(path), safetensors.open(other)
  local good, message = pcall(function()
    if #a:names() ~= #b:names() then refuse("%s has %d tensors, %s has %d", path, #a:names(), other, #b:names()) end
    for _, name in ipairs(a:names()) do same_tensor(a, b, name) end
    return #a:names()
  end)
  a:close()
  b:close()
  if not good then error(message, 0) end
  return message
end

-- Raises unless piece `first` of a tensor is the rounded mean of the workers' pieces.
local function check_mean(average, workers, name, first, count)
  local entry, mean = average:entry(name), ffi.new("float[1]")
  local found = ffi.cast("const float *", average:elements(entry, "f32", first, count))
  local kept, sums = {}, ffi.new("double[?]", count)
  for i, worker in ipairs(workers) do
    kept[i] = worker:elements(worker:entry(name), "f32", first, count)
    local values = ffi.cast("const float *", kept[i])
    for k = 0, count - 1 do sums[k] = sums[k] + values[k] end
  end
  for k = 0, count - 1 do
    mean[0] = sums[k] / #workers
    if mean[0] ~= found[k] then
      refuse("'%s' of %s is %.9g at element %d, the workers' mean is %.9g", name, average.path, found[k], first + k, mean[0])
    end
  end
end

--- Raises a failure unless every tensor of a file is the mean of those of the workers' files: their sum in f64
-- over their number, rounded to f32.
function compare.mean(path, worker_paths)
  local average, workers = safetensors.open(path), {}
  for i, worker in ipairs(worker_paths) do workers[i] = safetensors.open(worker) end
  local good, message = pcall(function()
    for _, name in ipairs(average:names()) do
      each_piece(average:entry(name).numel, function(first, count) check_mean(average, workers, name, first, count) end)
    end
  end)
  average:close()
  for _, worker in ipairs(workers) do worker:close() end
  if not good then error(message, 0) end
end

local function rows_of(path)
  local text, message = files.read(path)
  if not text then refuse("%s", message) end
  local rows = {}
  for line in text:gmatch("[^\n]+") do
    local row = json.decode(line, path)
    if type(row) ~= "table" then refuse("%s: line %d is no row", path, #rows + 1) end
    for name in pairs(untimed) do row[name] = nil end
    rows[#rows + 1] = (json.encode(row))
  end
  return rows
end

--- Raises a failure unless two files of metrics have the same rows, times and memory apart. Returns how many.
function compare.metrics(path, other)
  local a, b = rows_of(path), rows_of(other)
  if #a ~= #b then refuse("%s has %d lines, %s has %d", path, #a, other, #b) end
  for i = 1, #a do
    if a[i] ~= b[i] then refuse("line %d of %s is %s, of %s it is %s", i, path, a[i], other, b[i]) end
  end
  return #a
end

return compare
