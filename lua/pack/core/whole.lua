--- Functions that must run to their end, as something is in force while they run.
--
-- The module is callable: whole(what, fn, ...) is pcall(fn, ...), but a function that yields, which might never be
-- resumed, is ended with an error; what says whose function it is.
local caller = require "pack.core.caller"

caller.register()

local whole = {}

local function outcome(what, thread, good, ...)
  if good and coroutine.status(thread) == "suspended" then
    return false, what .. ": the function yielded, but has to run to its end; call coroutine.yield outside of it"
  end
  return good, ...
end

return setmetatable(whole, {__call = function(_, what, fn, ...)
  local thread = coroutine.create(type(fn) == "function" and fn or function(...) return fn(...) end)
  return outcome(what, thread, coroutine.resume(thread, ...))
end})
