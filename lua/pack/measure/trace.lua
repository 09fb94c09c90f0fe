--- Traces: what operations ran on a device context, when, on which threads, and what they worked on.
--
-- trace.capture runs a function and returns what was seen: events one by one, a table of operations by name and
-- shape, seconds by phase, and a file that Perfetto (ui.perfetto.dev) and chrome://tracing open.
local caller = require "pack.core.caller"
local chrome = require "pack.measure.chrome"
local context = require "pack.core.context"
local dispatch = require "pack.core.dispatch"
local ffi = require "ffi"
local native = require "pack.native"
local phase = require "pack.core.phase"
local work = require "pack.measure.work"

caller.register()

local C = native.C
local trace = {}

local Trace = {}
Trace.__index = Trace

local DEFAULT_CAPACITY = 2 ^ 18

local dtype_names = {}
for name, number in pairs(dispatch.dtypes) do dtype_names[number] = name end

local function read_tensor(look)
  if look.dtype < 0 then return nil end
  local shape = {}
  for d = 0, look.rank - 1 do shape[d + 1] = tonumber(look.shape[d]) end
  return {dtype = dtype_names[look.dtype], shape = shape}
end

local function read_attributes(operation, attributes)
  local read = {}
  for _, attribute in ipairs(operation.attributes) do
    if attribute.kind == "i" then
      read[attribute.name] = tonumber(attributes.integers[attribute.place])
    elseif attribute.kind == "d" then
      read[attribute.name] = attributes.numbers[attribute.place]
    else
      local list = {}
      for i = 0, attributes.list_count - 1 do list[i + 1] = tonumber(attributes.list[i]) end
      read[attribute.name] = list
    end
  end
  return read
end

local function read_form(form)
  local operation = dispatch.list[form.op + 1]
  local read = {name = operation.name, n_inputs = form.n_inputs, inputs = {}, outputs = {}, again = form.again ~= 0,
    attributes = read_attributes(operation, form.attributes), accumulate = form.attributes.accumulate}
  for i = 0, form.n_inputs - 1 do read.inputs[i + 1] = read_tensor(form.inputs[i]) end
  for o = 0, form.n_outputs - 1 do read.outputs[o + 1] = read_tensor(form.outputs[o]) end
  read.flops, read.bytes, read.model_flops = work.of(read)
  return read
end

-- The names that a function knows by number, from the first on.
local function read_names(handle, name_of, first)
  local names, number = {}, first
  local name = name_of(handle, number)
  while name ~= nil do
    names[number], number = ffi.string(name), number + 1
    name = name_of(handle, number)
  end
  return names
end

-- What the C object holds, as Lua objects that share the events.
local function read(self)
  local count = ffi.new("int64_t[1]")
  local forms = C.pk_trace_forms(self.handle, count)
  self.forms = {}
  for f = 0, tonumber(count[0]) - 1 do self.forms[f] = read_form(forms[f]) end
  self.raw = C.pk_trace_events(self.handle, count)
  self.count = tonumber(count[0])
  self.dropped = tonumber(C.pk_trace_dropped(self.handle))
  self.note = ffi.string(C.pk_trace_note(self.handle))
  self.lanes, self.activities = read_names(self.handle, C.pk_trace_lane, 1), read_names(self.handle, C.pk_trace_name, 0)
end

--- Begins the next step: operations from here on are shown inside it.
function Trace:step()
  C.pk_trace_step(self.handle)
end

local function finish(self, handle, good, ...)
  local status = C.pk_context_synchronize(handle)
  self.seconds = C.pk_clock() - self.began
  C.pk_trace_end(self.handle)
  if not good then
    self:free()
    error((...), 0)
  end
  if status ~= 0 then caller.raise("trace: %s", native.message()) end
  read(self)
  return self
end

--- Runs fn(capture) and returns the capture: what the operations of a device context (nil: the default) did
-- meanwhile. capture:step() begins a step. options: capacity (262,144), how many events are kept at most.
-- The capture has seconds (by the clock, around fn), count (events kept), dropped (events that are missing, as they
-- were beyond the capacity or lost by the device), note (what the capture lacks and why, "" if nothing), forms, threads
-- and lanes (names of a GPU's lanes, from 1).
function trace.capture(device, fn, options)
  local handle = context.handle_of(device)
  local made = ffi.new("pk_trace *[1]")
  if C.pk_trace_begin(handle, options and options.capacity or DEFAULT_CAPACITY, made) ~= 0 then
    caller.raise("trace: %s", native.message())
  end
  local self = setmetatable({handle = ffi.gc(made[0], C.pk_trace_free)}, Trace)
  self.threads = tonumber(C.pk_context_threads(handle))
  self.device = ffi.string(C.pk_context_describe(handle))
  self.began = C.pk_clock()
  return finish(self, handle, pcall(fn, self))
end

local function refuse_freed(self)
  if not self.handle then caller.raise("the trace was freed") end
end

-- What a lane did, added to its event.
local function read_lane(self, event, raw)
  event.lane = raw.lane
  if raw.name < 0 then
    event.busy, event.pieces = tonumber(raw.busy) / 1e9, tonumber(raw.pieces)
  else
    event.name, event.bytes = self.activities[raw.name], tonumber(raw.memory)
    if event.operation < 0 then event.operation = nil end
  end
end

--- Iterates over the events in order: index, event. An operation has form, its {name, inputs, outputs
-- (lists of {dtype, shape}), attributes, accumulate, again, flops, bytes, model_flops}, phase (a list of names, outermost
-- first), step, memory (bytes in use) and operation (its number); what a thread did for an operation has lane
-- (from 1), operation, busy (seconds at work) and pieces. Both have start and finish in seconds since the trace began.
function Trace:events()
  refuse_freed(self)
  local i = -1
  return function()
    i = i + 1
    if i >= self.count then return nil end
    local raw = self.raw[i]
    local event = {start = tonumber(raw.start) / 1e9, finish = tonumber(raw["end"]) / 1e9,
      operation = tonumber(raw.operation)}
    if raw.form >= 0 then
      event.form, event.memory = self.forms[tonumber(raw.form)], tonumber(raw.memory)
      event.phase, event.step = phase.path(raw.phase), raw.step
    else
      read_lane(self, event, raw)
    end
    return i + 1, event
  end
end

-- A tensor's shape, with a T where a product takes the matrix transposed.
local function one_shape(form, i, tensor)
  local transposed = form.name == "matmul" and form.attributes[i == 1 and "transpose_a" or "transpose_b"] == 1
  return ("[%s]%s"):format(table.concat(tensor.shape, ", "), transposed and "T" or "")
end

-- What an operation works on, such as "f32 [8, 4096, 320] [8, 320, 320]T": the inputs that are there, or the output
-- where there are none; equal ones in a row once, as "[2, 3] *4"; a dtype where it changes.
local function shape_text(form)
  local parts, dtype, last, count = {}, nil, nil, 0
  local function repeated()
    if count > 1 then parts[#parts] = parts[#parts] .. " *" .. count end
  end
  local list, most = form.inputs, form.n_inputs
  if most == 0 then list, most = form.outputs, 1 end
  for i = 1, most do
    local tensor = list[i]
    local text = tensor and (tensor.dtype ~= dtype and tensor.dtype .. " " or "") .. one_shape(form, i, tensor)
    if text and dtype and text == last then
      count = count + 1
    elseif text then
      repeated()
      parts[#parts + 1], count = text, 1
      dtype, last = tensor.dtype, one_shape(form, i, tensor)
    end
  end
  repeated()
  return table.concat(parts, " ")
end

-- The ceiling of a form's kind, and its own rate: both of FLOP/s, or of bytes per second.
local function against_ceiling(row, ceilings)
  if not row.product then return row.bytes_per_second, ceilings.bytes_per_second end
  return row.flops_per_second, ceilings.flops_per_second[row.dtype]
end

local function finish_row(row, total, ceilings)
  row.share = total > 0 and row.seconds / total or 0
  if row.seconds > 0 then
    row.flops_per_second, row.bytes_per_second = row.flops / row.seconds, row.bytes / row.seconds
  end
  if not ceilings or row.seconds == 0 then return end
  local rate, ceiling = against_ceiling(row, ceilings)
  if ceiling and rate > 0 then row.of_ceiling = rate / ceiling end
end

local function new_row(form)
  local dtype = (form.inputs[1] or form.outputs[1]).dtype
  for i = 1, form.n_inputs do -- products of bf16 take other things in f32
    if form.inputs[i] and form.inputs[i].dtype == "bf16" then dtype = "bf16" end
  end
  return {name = form.name, shape = shape_text(form), dtype = dtype, product = work.is_product(form.name),
    count = 0, seconds = 0, flops = 0, bytes = 0, model_flops = 0}
end

--- The operations by name and shapes, those that took the most time first: a list of {name, shape (text), dtype,
-- product, count, seconds, share (of the time in operations), flops, bytes, model_flops, flops_per_second,
-- bytes_per_second}; with ceilings (see pack.ceiling) also of_ceiling, the share of the rate that bounds it: of
-- products of its dtype, or of copying.
function Trace:table(ceilings)
  refuse_freed(self)
  local rows, by_key, total = {}, {}, 0
  for i = 0, self.count - 1 do
    local raw = self.raw[i]
    if raw.form >= 0 then
      local form = self.forms[tonumber(raw.form)]
      form.key = form.key or form.name .. " " .. shape_text(form)
      local row = by_key[form.key]
      if not row then
        row = new_row(form)
        by_key[form.key], rows[#rows + 1] = row, row
      end
      local seconds = tonumber(raw["end"] - raw.start) / 1e9
      row.count, row.seconds, total = row.count + 1, row.seconds + seconds, total + seconds
      row.flops, row.bytes = row.flops + form.flops, row.bytes + form.bytes
      row.model_flops = row.model_flops + form.model_flops
    end
  end
  for _, row in ipairs(rows) do finish_row(row, total, ceilings) end
  table.sort(rows, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.name .. a.shape < b.name .. b.shape
  end)
  return rows
end

--- Sums over all operations: count, seconds, flops, bytes, model_flops.
function Trace:totals()
  local totals = {count = 0, seconds = 0, flops = 0, bytes = 0, model_flops = 0}
  for _, row in ipairs(self:table()) do
    for name, sum in pairs(totals) do totals[name] = sum + row[name] end
  end
  return totals
end

--- Seconds in operations by outermost phase, such as {forward = 1.2, backward = 2.5}; none under "".
function Trace:phases()
  refuse_freed(self)
  local seconds = {}
  for i = 0, self.count - 1 do
    local raw = self.raw[i]
    if raw.form >= 0 then
      local name = phase.path(raw.phase)[1] or ""
      seconds[name] = (seconds[name] or 0) + tonumber(raw["end"] - raw.start) / 1e9
    end
  end
  return seconds
end

local function rate_text(row)
  local rate = row.product and row.flops_per_second or row.bytes_per_second
  local text = rate and ("%7.1f %s"):format(rate / 1e9, row.product and "GFLOP/s" or "GB/s") or ""
  return ("%-15s %6s"):format(text, row.of_ceiling and ("%.0f%%"):format(100 * row.of_ceiling) or "")
end

--- The rows of capture:table as lines of text under a heading; most: only so many of them.
function trace.lines(rows, most)
  local lines = {("%-26s %6s %10s %6s %-15s %7s  %s"):format("operation", "count", "ms", "time", "rate", "ceiling",
    "works on")}
  for i = 1, math.min(most or #rows, #rows) do
    local row = rows[i]
    lines[#lines + 1] = ("%-26s %6d %10.2f %5.1f%% %s  %s"):format(row.name, row.count, row.seconds * 1e3,
      100 * row.share, rate_text(row), row.shape)
  end
  return lines
end

--- Writes the trace as a file of Chrome's trace format, which ui.perfetto.dev opens; it is there whole or not at all.
function Trace:write(path)
  refuse_freed(self)
  chrome.write(self, path)
end

--- Gives the memory of the events back; twice is harmless.
function Trace:free()
  if not self.handle then return end
  C.pk_trace_free(ffi.gc(self.handle, nil))
  self.handle, self.raw = nil, nil
end

return trace
