-- Chrome's trace format (the JSON of chrome://tracing, which Perfetto reads too) of a capture of pack.trace.
--
-- Process 1 has thread 0 for operations, with the slices of steps and phases around them, thread K for what thread
-- K of the pool or lane K of a GPU did, and a counter of memory. Times are microseconds with three decimals, so that nothing is
-- rounded. Events are written as they are made, in the order of their start on each thread.
local caller = require "pack.core.caller"
local files = require "pack.io.files"
local json = require "pack.io.json"
local phase = require "pack.core.phase"

caller.register()

local chrome = {}

local CHUNK = 2 ^ 18 -- bytes held before they are written

-- A writer of the list of events into a file beside path, which takes its place at the end.
local function open(path)
  local temporary = path .. ".tmp"
  files.write(temporary, '{"displayTimeUnit":"ms","traceEvents":[\n')
  local parts, bytes, first = {}, 0, true
  local function flush()
    files.append(temporary, table.concat(parts))
    parts, bytes = {}, 0
  end
  local function put(text)
    parts[#parts + 1] = first and text or ",\n" .. text
    first, bytes = false, bytes + #text
    if bytes >= CHUNK then flush() end
  end
  local function close(rest)
    parts[#parts + 1] = "\n]" .. rest .. "}\n"
    flush()
    local good, message = os.rename(temporary, path)
    if not good then caller.raise("%s cannot be written: %s", path, message) end
  end
  return put, close, function() os.remove(temporary) end
end

local function microseconds(nanoseconds)
  return ("%.3f"):format(tonumber(nanoseconds) / 1000)
end

local function slice(name, category, thread, start, finish, arguments)
  return ('{"ph":"X","pid":1,"tid":%d,"ts":%s,"dur":%s,"name":%s,"cat":"%s"%s}'):format(thread, microseconds(start),
    microseconds(finish - start), json.encode(name), category, arguments and ',"args":' .. arguments or "")
end

local function metadata(put, thread, name)
  put(('{"ph":"M","pid":1,"tid":%d,"name":"thread_name","args":{"name":%s}}'):format(thread, json.encode(name)))
  put(('{"ph":"M","pid":1,"tid":%d,"name":"thread_sort_index","args":{"sort_index":%d}}'):format(thread, thread))
end

-- What all calls of a form share, as JSON.
local function arguments_of(form)
  local shapes, dtypes, outputs = json.array(), json.array(), json.array()
  for i = 1, form.n_inputs do
    local input = form.inputs[i]
    shapes[i], dtypes[i] = input and json.array(input.shape) or json.null, input and input.dtype or json.null
  end
  for o, output in ipairs(form.outputs) do outputs[o] = json.array(output.shape) end
  return json.encode {shapes = shapes, dtypes = dtypes, outputs = outputs, bytes = form.bytes, flops = form.flops}
end

-- The names of the slices around an operation, outermost first.
local function enclosing(raw)
  local names = phase.path(raw.phase)
  if raw.step > 0 then table.insert(names, 1, "step " .. raw.step) end
  return names
end

-- Slices around operations, by the index of the event that they begin with: each a {name, start, finish}, the outer
-- before the inner. One ends where an operation has another name at its depth.
local function find_slices(capture)
  local slices, open_slices, key = {}, {}, nil
  local function close_from(depth)
    for d = #open_slices, depth, -1 do open_slices[d] = nil end
  end
  for i = 0, capture.count - 1 do
    local raw = capture.raw[i]
    if raw.form >= 0 then
      local now = raw.phase + raw.step * 2 ^ 31
      if now ~= key then
        local names, depth = enclosing(raw), 1
        while open_slices[depth] and open_slices[depth].name == names[depth] do depth = depth + 1 end
        close_from(depth)
        for d = depth, #names do
          slices[i] = slices[i] or {}
          open_slices[d] = {name = names[d], start = raw.start}
          table.insert(slices[i], open_slices[d])
        end
        key = now
      end
      for _, one in ipairs(open_slices) do one.finish = raw["end"] end
    end
  end
  return slices
end

-- What a GPU did: a slice under its own name, with the operation that it is for and what that works on.
local function put_activity(capture, put, raw, form, arguments)
  local parts, copied = {}, tonumber(raw.memory)
  if form then
    parts[1] = ('"operation":%s'):format(json.encode(capture.forms[form].name))
    parts[2] = arguments[form]:sub(2, -2) -- without its braces
  end
  if copied > 0 then parts[#parts + 1] = ('"copied_bytes":%d'):format(copied) end
  put(slice(capture.activities[raw.name], "device", raw.lane, raw.start, raw["end"], "{" .. table.concat(parts, ",") .. "}"))
end

local function put_events(capture, put)
  local slices, arguments, forms, memory = find_slices(capture), {}, {}, nil
  for i = 0, capture.count - 1 do
    local raw = capture.raw[i]
    local operation = tonumber(raw.operation)
    if raw.form >= 0 then
      local number = tonumber(raw.form)
      local form = capture.forms[number]
      arguments[number] = arguments[number] or arguments_of(form)
      forms[operation] = number
      for _, one in ipairs(slices[i] or {}) do put(slice(one.name, "phase", 0, one.start, one.finish)) end
      put(slice(form.name, "operation", 0, raw.start, raw["end"], arguments[number]))
      if raw.memory ~= memory then
        memory = raw.memory
        put(('{"ph":"C","pid":1,"tid":0,"ts":%s,"name":"memory","args":{"bytes":%d}}'):format(
          microseconds(raw["end"]), tonumber(memory)))
      end
    elseif raw.name >= 0 then
      put_activity(capture, put, raw, forms[operation], arguments)
    else
      put(slice(capture.forms[forms[operation]].name, "pieces", raw.lane, raw.start, raw["end"],
        ('{"pieces":%d,"busy_us":%s}'):format(tonumber(raw.pieces), microseconds(raw.busy))))
    end
  end
end

--- Writes a capture (see pack.trace) to path.
function chrome.write(capture, path)
  local put, close, abandon = open(path)
  local good, message = pcall(function()
    put(('{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":%s}}'):format(
      json.encode("packlua on " .. capture.device)))
    metadata(put, 0, "operations")
    for lane, name in ipairs(capture.lanes) do metadata(put, lane, name) end
    for thread = #capture.lanes + 1, capture.threads do metadata(put, thread, "thread " .. thread) end
    put_events(capture, put)
    close((',"otherData":{"dropped_events":%d,"note":%s}'):format(capture.dropped, json.encode(capture.note)))
  end)
  if good then return end
  abandon()
  error(message, 0)
end

return chrome
