--- Whole numbers that Lua can hold, and numbers from text: one check for all who take them.
local caller = require "pack.core.caller"
local ffi = require "ffi"

caller.register()

local numbers = {}

local LIMIT = 2 ^ 53 -- from here on numbers of Lua skip integers, so that one may stand for another

--- Whether x is a whole number below 2^53 in magnitude; not NaN, no text.
function numbers.is_integer(x)
  return type(x) == "number" and x % 1 == 0 and x > -LIMIT and x < LIMIT
end

--- Whether x is such a number of at least `least`.
function numbers.is_whole(x, least)
  return numbers.is_integer(x) and x >= least
end

--- x, or an error at the caller's line that says which one of at least `least` `name` must be.
function numbers.whole(name, x, least)
  if not numbers.is_whole(x, least) then
    caller.raise("%s %s is not a whole number of at least %.0f and below 2^53", name, tostring(x), least)
  end
  return x
end

--- The number that a text such as "1e-3" stands for; or nil and what is wrong with it: it is none, too large, or a
--- whole number comes of it that is not the one written.
function numbers.read(text)
  local made = ffi.new("double[1]")
  local defect = require("pack.native").C.pk_number_read(text, made)
  if defect ~= nil then return nil, ffi.string(defect) end
  return made[0]
end

return numbers
