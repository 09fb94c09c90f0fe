--- Checks a file of Chrome's trace format: what Perfetto and chrome://tracing need, and what makes sense.
local json = require "pack.io.json"
local support = require "spec.support.helper"

local chrome_trace = {}

local function refuse(format, ...)
  error(format:format(...), 0)
end

local function is_number(x)
  return type(x) == "number" and x - x == 0
end

-- A slice: its keys, times that go forward on its thread, and a place inside or behind those open there.
local function check_slice(event, threads)
  if not (is_number(event.ts) and is_number(event.dur) and event.ts >= 0 and event.dur >= 0) then
    refuse("slice %s: ts %s, dur %s", event.name, tostring(event.ts), tostring(event.dur))
  end
  local thread = threads[event.tid]
  if not thread then refuse("slice %s is on thread %s, which has no name", event.name, tostring(event.tid)) end
  if event.ts < thread.last then refuse("slice %s starts at %.3f, before %.3f", event.name, event.ts, thread.last) end
  thread.last = event.ts
  local finish = event.ts + event.dur
  while #thread.open > 0 and thread.open[#thread.open].finish <= event.ts + 1e-4 do table.remove(thread.open) end
  local outer = thread.open[#thread.open]
  if outer and finish > outer.finish + 1e-4 then
    refuse("slice %s ends at %.3f, after %s, in which it is, at %.3f", event.name, finish, outer.name, outer.finish)
  end
  local path = outer and outer.path .. "/" .. event.name or event.name
  table.insert(thread.open, {name = event.name, finish = finish, path = path})
  return {name = event.name, path = path, thread = event.tid, start = event.ts, finish = finish,
    category = event.cat, args = event.args}
end

--- Reads and checks a file. Returns slices (a list of {name, path with those around it, thread, start, finish,
-- category, args}), counters (a list of {name, time, values}), threads (names by number) and process, its name.
-- Raises what is wrong.
function chrome_trace.read(path)
  local text = assert(support.read(path), path .. " is not there")
  local decoded, message = json.decode(text, path)
  if not decoded then refuse("%s", message) end
  local threads, result = {}, {slices = {}, counters = {}, threads = {}}
  for _, event in ipairs(decoded.traceEvents) do
    if type(event.name) ~= "string" or event.pid ~= 1 then refuse("an event without name or process") end
    if event.ph == "M" then
      if event.name == "process_name" then result.process = event.args.name end
      if event.name == "thread_name" then
        threads[event.tid], result.threads[event.tid] = {last = 0, open = {}}, event.args.name
      end
    elseif event.ph == "C" then
      for name, value in pairs(event.args) do
        if not is_number(value) or value < 0 then refuse("counter %s is %s", name, tostring(value)) end
      end
      table.insert(result.counters, {name = event.name, time = event.ts, values = event.args})
    elseif event.ph == "X" then
      table.insert(result.slices, check_slice(event, threads))
    else
      refuse("event %s of kind %s", event.name, tostring(event.ph))
    end
  end
  if not result.process then refuse("the process has no name") end
  return result
end

return chrome_trace
