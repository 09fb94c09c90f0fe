--- Phases: names for what operations are for (forward, backward, clip, mix, optimizer), which traces show around
--- them. Inside one another they nest.
--
-- The module is callable: phase(name, fn, context) runs fn, whose operations, also those that it records, are
-- for the phase, and returns what fn returns.
local caller = require "pack.core.caller"
local context = require "pack.core.context"
local native = require "pack.native"

caller.register()

local C = native.C
local phase = {}

local outermost = {number = 0, inner = {}}
local known = {[0] = outermost} -- by number

-- The phase of a name inside another.
local function inside(parent, name)
  local found = parent.inner[name]
  if not found then
    found = {name = name, number = #known + 1, parent = parent, inner = {}}
    parent.inner[name], known[found.number] = found, found
  end
  return found
end

--- From now on the operations of a device context (a pk_context) are for the phase of this name, inside the present
-- one. Returns what phase.leave takes.
function phase.enter(handle, name)
  local before = C.pk_phase_enter(handle, 0)
  C.pk_phase_enter(handle, inside(known[before] or outermost, name).number)
  C.pk_range_enter(handle, name)
  return before
end

--- Goes back to the phase before phase.enter.
function phase.leave(handle, before)
  C.pk_range_leave(handle)
  C.pk_phase_enter(handle, before)
end

--- The names of a phase by the number that a trace has: from the outermost to its own. Empty for 0.
function phase.path(number)
  local names, at = {}, known[number]
  while at and at.parent do
    table.insert(names, 1, at.name)
    at = at.parent
  end
  return names
end

local function finish(handle, before, good, ...)
  phase.leave(handle, before)
  if not good then error((...), 0) end
  return ...
end

return setmetatable(phase, {__call = function(_, name, fn, chosen)
  local handle = context.handle_of(chosen)
  local before = phase.enter(handle, name)
  return finish(handle, before, pcall(fn))
end})
