--- Runs busted under packlua: packlua spec/support/busted.lua [busted's options] [SPEC...]
--
-- The library declares its types once per process, so specs share the loaded modules instead of each
-- file getting its own; specs set no globals, which the lint checks.
local ffi = require "ffi"

local defaults = {"--no-auto-insulate", "--output=spec/support/output.lua"}
for i, option in ipairs(defaults) do table.insert(arg, i, option) end

-- Programs under test take the signals that this one's caller ignores, as a shell does for its background jobs.
ffi.cdef "void (*signal(int number, void (*handler)(int)))(int);"
local status = io.open("/proc/self/status")
local ignored = tonumber(status:read("*a"):match("SigIgn:%s*%x*(%x%x%x%x%x%x%x%x)"), 16)
status:close()
for number = 1, 31 do
  if math.floor(ignored / 2 ^ (number - 1)) % 2 == 1 then ffi.C.signal(number, nil) end
end

local found, runner = pcall(require, "busted.runner")
if not found then
  require("pack.core.failure").usage("busted is not installed (Debian: lua-busted):\n%s", runner)
end
runner {standalone = false}
