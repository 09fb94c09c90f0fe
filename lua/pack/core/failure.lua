--- Errors that decide the exit code of the program: objects with a message and the code.
local failure = {}

local INTERRUPTED = 130
local class = {
  __tostring = function(self) return self.message end,
}
debug.getregistry()["pack.failure"] = class -- also of what ^C raises in host/call.c

--- An error that ends the program with `exit` when it is raised; `message` may be "", which prints nothing.
function failure.create(exit, message)
  return setmetatable({message = message, exit = exit}, class)
end

--- Raises such an error.
function failure.raise(exit, message)
  error(failure.create(exit, message), 0)
end

--- Raises a usage error (exit code 2): what the user asked for makes no sense. printf style.
function failure.usage(format, ...)
  failure.raise(2, select("#", ...) > 0 and format:format(...) or format)
end

--- Raises what ^C raises: a script ends with 130.
function failure.interrupted()
  failure.raise(INTERRUPTED, "interrupted")
end

--- Whether a caught error is one of these objects.
function failure.is(object)
  return getmetatable(object) == class
end

local function let_pass(good, ...)
  local problem = ...
  if not good and failure.is(problem) and problem.exit == INTERRUPTED then error(problem, 0) end
  return good, ...
end

--- As pcall, but what ^C raises goes on: for errors that stand for something else, such as a file that is damaged.
function failure.pcall(fn, ...)
  return let_pass(pcall(fn, ...))
end

return failure
