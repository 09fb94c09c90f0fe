--- Runs busted under packlua: packlua spec/support/busted.lua [busted's options] [SPEC...]
--
-- The library declares its types once per process, so specs share the loaded modules instead of each
-- file getting its own; specs set no globals, which the lint checks.
local defaults = {"--no-auto-insulate", "--output=spec/support/output.lua"}
for i, option in ipairs(defaults) do table.insert(arg, i, option) end

local found, runner = pcall(require, "busted.runner")
if not found then
  require("pack.failure").usage("busted is not installed (Debian: lua-busted):\n%s", runner)
end
runner {standalone = false}
