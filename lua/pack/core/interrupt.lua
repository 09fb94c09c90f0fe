--- Requests to stop (pk_interrupt_request in host/pack.h), and what they must wait for.
local finally = require "pack.core.finally"
local native = require "pack.native"

local C = native.C
local interrupt = {}

--- Calls fn(...), in which requests to stop wait: C.PK_HOLD_CODE, for the end of Lua code, though operations may still
-- be refused; C.PK_HOLD_ALL, for all of it. Whatever way it ends, they wait no longer than before.
function interrupt.hold(level, fn, ...)
  local before = C.pk_interrupt_hold(level)
  return finally(function() C.pk_interrupt_hold(before) end, fn, ...)
end

return interrupt
