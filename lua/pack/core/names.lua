--- Names that recipes give to algorithms, optimizers and topologies of their own.
local names = {}

--- Whether x is a word that a configuration can name something by: letters, digits and underscores, no digit first.
function names.is_word(x)
  return type(x) == "string" and x:find("^[%a_][%w_]*$") ~= nil
end

--- The names that are built in, a list, and after them the keys of `defined` that are not among those, sorted.
function names.all(built_in, defined)
  local list, own, is_built_in = {unpack(built_in)}, {}, {}
  for _, name in ipairs(built_in) do is_built_in[name] = true end
  for name in pairs(defined) do
    if not is_built_in[name] then own[#own + 1] = name end
  end
  table.sort(own)
  for _, name in ipairs(own) do list[#list + 1] = name end
  return list
end

return names
