--- Errors that point at the line of whoever called the library.
--
-- A mistake in an operation is seen deep inside dispatch, tape or rules; the line that helps is the
-- nearest one outside of them. Modules whose lines never help register themselves as inner.
local caller = {}

local inner = {}

--- Declares the calling file inner: caller.raise looks past its lines.
function caller.register()
  inner[debug.getinfo(2, "S").source] = true
end

caller.register()
inner[debug.getinfo(1, "S").source] = true

--- Raises format:format(...) at the nearest line that is not in an inner file.
function caller.raise(format, ...)
  local message = select("#", ...) > 0 and format:format(...) or format
  local level = 2
  local info = debug.getinfo(level, "S")
  while info and (inner[info.source] or info.what == "C") do
    level = level + 1
    info = debug.getinfo(level, "S")
  end
  error(message, info and level or 2)
end

return caller
