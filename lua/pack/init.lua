--- The library: require "pack" gives its modules, tensor makers and operations by name.
--
-- pack.topology is require "pack.mixing.topology", loaded at first use so that starting stays a matter of
-- milliseconds; pack.zeros and the other makers come from pack.tensor, derivatives from pack.grad,
-- and any operation of pack.ops can be called as pack.matmul.
local pack = {
  --- The version of the library and of the program.
  version = require "pack.version",
}

--- Functions that are worth a short name: name -> {module, its name there}.
pack.functions = {
  zeros = {"tensor", "zeros"},
  ones = {"tensor", "ones"},
  full = {"tensor", "full"},
  from = {"tensor", "from"},
  arange = {"tensor", "arange"},
  normal = {"tensor", "normal"},
  uniform = {"tensor", "uniform"},
  compile = {"program", "compile"},
}

-- A file is asked for by its name and not opened, which may fail for other reasons than that there is none.
local function is_module(module)
  if package.loaded[module] or package.preload[module] then return true end
  local native = require "pack.native"
  local path = ("%s/lua/%s.lua"):format(native.home(), (module:gsub("%.", "/")))
  return native.C.pk_path_kind(path) ~= 0 or package.searchpath(module, package.path) ~= nil
end

local function find(name)
  local place = pack.functions[name]
  if place then return require("pack." .. place[1])[place[2]] end
  local module = "pack." .. name
  if is_module(module) then return require(module) end
  if require("pack.core.dispatch").operations[name] then return require("pack.core.ops")[name] end
end

return setmetatable(pack, {
  __index = function(self, name)
    local value = type(name) == "string" and find(name)
    if not value then
      error(("pack has no module, function or operation '%s'"):format(tostring(name)), 2)
    end
    rawset(self, name, value)
    return value
  end,
})
