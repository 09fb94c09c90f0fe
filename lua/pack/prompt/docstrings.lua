--- Docstrings: the comments above functions, begun with three dashes, and those at the heads of files.
--
-- They are read from the source when they are asked for, so that nothing of them is loaded with the library.
-- pack.help shows them at the prompt, and scripts/lua_docs.lua makes docs/lua.md of them.
local files = require "pack.io.files"
local native = require "pack.native"

local docstrings = {}

--- The lines of a file; none where there is no such file.
function docstrings.lines_of(path)
  local lines = {}
  for line in ((files.read(path) or "") .. "\n"):gmatch("(.-)\r?\n") do lines[#lines + 1] = line end
  return lines
end

--- The comment that ends above a line, without its dashes, and whether it is a docstring.
function docstrings.comment_above(lines, number)
  local first = number
  while first > 1 and lines[first - 1]:find("^%s*%-%-") do first = first - 1 end
  local parts = {}
  for i = first, number - 1 do parts[#parts + 1] = (lines[i]:gsub("^%s*%-+ ?", "")) end
  return table.concat(parts, "\n"), first < number and lines[first]:find("^%s*%-%-%-") ~= nil
end

-- The comment at the head of a file.
local function head_of(lines)
  local last = 1
  while lines[last] and lines[last]:find("^%-%-") do last = last + 1 end
  return (docstrings.comment_above(lines, last))
end

--- The function that a line defines, as it is called: "trainer.create(config, options)".
function docstrings.signature_at(lines, number)
  local line = (lines[number] or ""):gsub("^%s*", ""):gsub("^local ", ""):gsub("^function methods:", "function tensor:")
  return line:match("^function%s+([%w_.:]+%(.-%))") or line:match("^([%w_.]+%s*=%s*function%(.-%))") or line
end

--- The documented functions of a Lua file, in order: a list of {name, signature, text, line}; and the comment
-- at its head.
function docstrings.documented(path)
  local lines, list = docstrings.lines_of(path), {}
  for number, line in ipairs(lines) do
    local name = line:match("^function%s+([%w_.:]+)%(") or line:match("^([%w_]+%.[%w_]+)%s*=")
    if name then
      local text, is_docstring = docstrings.comment_above(lines, number)
      if is_docstring then
        local signature = line:find("^function") and docstrings.signature_at(lines, number) or name
        list[#list + 1] = {name = name, signature = signature, text = text, line = number}
      end
    end
  end
  return list, head_of(lines)
end

--- The names of the public modules, sorted.
function docstrings.modules()
  local names = {}
  for name in pairs(require("pack").modules) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function add_files(list, folder, prefix)
  for _, name in ipairs(files.list(folder) or {}) do
    local path, stem = folder .. "/" .. name, name:match("^([%w_]+)%.lua$")
    if stem then
      list[#list + 1] = {module = stem == "init" and prefix or prefix .. "." .. stem, path = path}
    elseif files.kind(path) == "directory" then
      add_files(list, path, prefix .. "." .. name)
    end
  end
end

--- All modules of lua/pack: a list of {module, path}, the name that require knows and the file.
function docstrings.files()
  local list = {}
  add_files(list, native.home() .. "/lua/pack", "pack")
  return list
end

--- The file of a public module, relative to packlua's home.
function docstrings.source_of(module)
  local path = "lua/" .. require("pack").modules[module]:gsub("%.", "/")
  local file = path .. ".lua"
  return files.kind(native.home() .. "/" .. file) == "file" and file or path .. "/init.lua"
end

--- The same with packlua's home before it.
function docstrings.path_of(module)
  return native.home() .. "/" .. docstrings.source_of(module)
end

return docstrings
