--- What must be done whatever way a function ends: finally(after, fn, ...) calls fn(...), then after(). Returns what fn
-- does; an error goes on as the same object. Its traceback, if nobody catches it, is of where it was raised.
local record = {} -- traceback: that of the error that is being passed on
debug.getregistry()["pack.finally"] = record -- host/call.c reads it

local HIGHEST = 5 -- handlers, error and rethrow are that near

--- Raises an error that an xpcall with keep has just caught, as if it had not been: finally.raise.
function record.rethrow(problem)
  error(problem, 0) -- and no tail call, as it is looked for
end

-- Whether the error that is being handled was passed on by finally.
local function is_passed_on()
  for level = 3, HIGHEST do
    local info = debug.getinfo(level, "f")
    if not info then return false end
    if info.func == record.rethrow then return true end
  end
  return false
end

local finally = {}

--- A handler for xpcall that keeps the traceback of an error, for raise.
function finally.keep(problem)
  if not is_passed_on() then
    record.traceback = type(problem) == "string" and debug.traceback(problem, 2) or nil
  end
  return problem
end

--- Raises an error that an xpcall with keep has just caught, as if it had not been.
finally.raise = record.rethrow

local function finish(after, good, ...)
  after()
  if not good then record.rethrow((...)) end
  return ...
end

--- For handlers of xpcall: the text of an error, with the traceback of where it was raised.
function finally.traceback(problem)
  local text = is_passed_on() and record.traceback or debug.traceback(tostring(problem), 2)
  return text
end

return setmetatable(finally, {__call = function(_, after, fn, ...) return finish(after, xpcall(fn, finally.keep, ...)) end})
