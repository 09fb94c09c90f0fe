-- Checks that the folders of the code use each other as the tables of CONTRIBUTING.md allow:
--   packlua scripts/rooms.lua [FOLDER]    FOLDER: a checkout, default the one that this file is in
-- Prints a line for each use that is not allowed, each folder that no table names and each cycle in the tables.
local files = require "pack.io.files"
local native = require "pack.native"

local root = arg[1] or native.home()
local problems = {}

local function add(text, ...)
  problems[#problems + 1] = text:format(...)
end

-- The tables: rows of | `folder` | what is in it | `folders` that it may use |, folder being lua/pack/NAME or host/NAME.
local function read_rooms(text)
  local rooms = {}
  for row in text:gmatch("[^\n]+") do
    local room, uses = row:match("^| `([%w_/]+)` |[^|]*|([^|]*)|$")
    if room then
      rooms[room] = {}
      local parent = room:match("^(.*)/")
      for name in uses:gmatch("`([%w_]+)`") do rooms[room][parent .. "/" .. name] = true end
    end
  end
  return rooms
end

local function each_file(folder, found)
  for _, name in ipairs(files.list(root .. "/" .. folder) or {}) do
    local path = folder .. "/" .. name
    if files.kind(root .. "/" .. path) == "directory" then each_file(path, found) else found(path) end
  end
end

-- The folder of the module that require knows by a name, nil for those at the top of lua/pack.
local function room_of_module(module)
  local first, rest = module:match("^pack%.([%w_]+)(.*)$")
  if not first then return nil end
  local folder = "lua/pack/" .. first
  return (rest ~= "" or files.kind(root .. "/" .. folder) == "directory") and folder or nil
end

-- What a file names: a list of folders.
local function uses_of(path, text)
  local list = {}
  if path:find("%.lua$") then
    for module in text:gmatch("require%s*%(?%s*[\"'](pack[%w_.]*)[\"']") do list[#list + 1] = room_of_module(module) end
  else
    for folder in text:gmatch("#include%s+\"([%w_]+)/") do list[#list + 1] = "host/" .. folder end
  end
  return list
end

-- The folder of a file, nil for those above the folders.
local function room_of_file(path)
  return path:match("^(lua/pack/[%w_]+)/") or path:match("^(host/[%w_]+)/")
end

local function check_uses(rooms)
  local seen = {}
  local function look_at(path)
    local room = room_of_file(path)
    if not room or not (path:find("%.lua$") or path:find("%.[ch]c?$")) then return end
    if not rooms[room] and not seen[room] then
      seen[room] = true
      add("%s: no table of CONTRIBUTING.md names it", room)
    end
    for _, used in ipairs(uses_of(path, files.read(root .. "/" .. path))) do
      if rooms[room] and used ~= room and used ~= "host/kernels" and not rooms[room][used] then
        add("%s uses %s, which CONTRIBUTING.md does not allow", path, used)
      end
    end
  end
  each_file("lua/pack", look_at)
  each_file("host", look_at)
end

-- A folder that can be reached from itself.
local function check_cycles(rooms)
  local function reaches(from, wanted, seen)
    for used in pairs(rooms[from] or {}) do
      if used == wanted then return true end
      if not seen[used] then
        seen[used] = true
        if reaches(used, wanted, seen) then return true end
      end
    end
    return false
  end
  for room in pairs(rooms) do
    if reaches(room, room, {}) then add("%s: the tables of CONTRIBUTING.md let it use itself in a circle", room) end
  end
end

local text = files.read(root .. "/CONTRIBUTING.md")
if not text then error(root .. "/CONTRIBUTING.md cannot be read", 0) end
local rooms = read_rooms(text)
if not next(rooms) then add("CONTRIBUTING.md has no table of folders") end
check_uses(rooms)
check_cycles(rooms)
table.sort(problems)
for _, problem in ipairs(problems) do print(problem) end
os.exit(#problems == 0 and 0 or 1)
