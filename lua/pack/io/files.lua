--- Files and folders.
local caller = require "pack.core.caller"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local native = require "pack.native"

caller.register()

local C = native.C
local files = {}

local READ_LIMIT = 2 ^ 30
local MOST_NAMES = 1000

local function check(status)
  if status ~= 0 then caller.raise("%s", native.message()) end
end

-- C would follow a nil to nowhere.
local function checked(path)
  if type(path) ~= "string" then caller.raise("a path is a string, not a %s", type(path)) end
  return path
end

-- The text that C has allocated at pointer[0], which is freed.
local function take(pointer, bytes)
  local owned = ffi.gc(pointer[0], C.pk_bytes_free)
  local text = ffi.string(owned, bytes)
  C.pk_bytes_free(ffi.gc(owned, nil))
  return text
end

--- The content of a file of at most `limit` bytes (1 GiB), or nil and the message.
function files.read(path, limit)
  local data, bytes = ffi.new("char *[1]"), ffi.new("int64_t[1]")
  if C.pk_file_read(checked(path), data, bytes, limit or READ_LIMIT) ~= 0 then return nil, native.message() end
  return take(data, bytes[0])
end

--- Opens a regular file for reading by Lua (see io.open); nil and the message if there is none. What is no regular
-- file is not waited for.
function files.open(path)
  if C.pk_path_kind(checked(path)) ~= ("f"):byte() then return nil, path .. ": there is no such file" end
  return io.open(path, "rb")
end

--- The last `bytes` of a file that others may be writing to, or all of a shorter one; nil if it cannot be read.
function files.tail(path, bytes)
  local file = files.open(path)
  if not file then return nil end
  local size = file:seek("end") or 0
  file:seek("set", math.max(0, size - bytes))
  local text = file:read("*a")
  file:close()
  return text
end

--- Writes a file atomically: whatever happens, the old content is there or the whole new one.
function files.write(path, text)
  check(C.pk_file_write(checked(path), text, #text))
end

--- Appends to a file, which is created if there is none.
function files.append(path, text)
  check(C.pk_file_append(checked(path), text, #text))
end

local Appending = {}
Appending.__index = Appending

--- Opens a file for appending, made if there is none; a link is not followed. Returns an object with write(text), after
-- which the system has the text, and close().
function files.appending(path)
  local cell = ffi.new("int[1]", -1)
  check(C.pk_append_open(checked(path), cell))
  return setmetatable({path = path, cell = ffi.gc(cell, function(held) C.pk_append_close(held[0], "") end)}, Appending)
end

-- Appends a text.
function Appending:write(text)
  check(C.pk_append(self.cell[0], self.path, text, #text))
end

-- Closes the file; twice is harmless.
function Appending:close()
  local fd = self.cell[0]
  self.cell[0] = -1
  check(C.pk_append_close(fd, self.path))
end

--- The whole lines at the beginning of a file of any size, at most so many: how many there are, and their bytes. nil
-- and the message if it cannot be read.
function files.lines(path, most)
  local found, bytes = ffi.new("int64_t[1]"), ffi.new("int64_t[1]")
  if C.pk_file_lines(checked(path), most, found, bytes) ~= C.PK_OK then return nil, native.message() end
  return tonumber(found[0]), tonumber(bytes[0])
end

--- The SHA-256 of a file's bytes in hexadecimal digits; nil and the message if it cannot be read.
function files.sha256(path)
  local paths, digits, bytes = ffi.new("const char *[1]", {checked(path)}), ffi.new("char[65]"), ffi.new("int64_t[1]")
  if C.pk_files_sha256(paths, 1, 0, digits, bytes) ~= C.PK_OK then return nil, native.message() end
  return ffi.string(digits, 64)
end

--- Cuts a file to its first bytes; a link is not followed.
function files.cut(path, bytes)
  check(C.pk_file_cut(checked(path), bytes))
end

--- Copies the first bytes of a file, atomically (see files.write).
function files.copy(path, bytes, to)
  check(C.pk_file_copy(checked(path), bytes, checked(to)))
end

--- Whether there is a symbolic link at the path itself, wherever it leads.
function files.is_link(path)
  return C.pk_path_is_link(checked(path)) ~= 0
end

--- A name that nothing has yet: the path with an ending, numbered if need be.
function files.free_name(path, ending)
  local name, i = path .. ending, 1
  while files.exists(name) or files.is_link(name) do
    i = i + 1
    name = ("%s%s-%d"):format(path, ending, i)
  end
  return name
end

--- Renames a damaged file so that it is in nobody's way: returns its new name, NAME.damaged.
function files.set_aside(path)
  local name = files.free_name(path, ".damaged")
  local good, message = os.rename(path, name)
  if not good then caller.raise("%s", message) end
  return name
end

--- "file", "directory", "other", or nil if there is nothing at the path.
function files.kind(path)
  local kind = C.pk_path_kind(checked(path))
  if kind == 0 then return nil end
  return kind == ("f"):byte() and "file" or kind == ("d"):byte() and "directory" or "other"
end

--- Whether there is anything at the path.
function files.exists(path)
  return C.pk_path_kind(checked(path)) ~= 0
end

--- The size of a regular file in bytes, or nil.
function files.size(path)
  local bytes = tonumber(C.pk_file_size(checked(path)))
  return bytes >= 0 and bytes or nil
end

--- Makes a directory and those above it; one that is there already is fine.
function files.mkdir(path)
  check(C.pk_directory_create(checked(path)))
end

--- Makes a new directory named `base`, or base-2, base-3 ... where there is one, and returns its name. Of several
-- processes that want the same name each gets its own. Returns nil and the message if it cannot be made.
function files.claim(base)
  local made = ffi.new("int[1]")
  for i = 1, MOST_NAMES do
    local folder = i == 1 and base or base .. "-" .. i
    if C.pk_directory_claim(checked(folder), made) ~= 0 then return nil, native.message() end
    if made[0] ~= 0 then return folder end
  end
  return nil, ("%s: this folder and those up to %s-%d are there already"):format(base, base, MOST_NAMES)
end

--- Calls f with the path of a new folder under TMPDIR, /tmp or /var/tmp, which is removed afterwards with the files in
-- it. Returns what f returns, or nil and the message if there is none, or f raises.
function files.with_temporary(f)
  local pointer = ffi.new("char *[1]")
  if C.pk_directory_temporary(pointer) ~= 0 then return nil, native.message() end
  local folder = take(pointer)
  local good, result, reason = failure.pcall(f, folder)
  for _, name in ipairs(files.list(folder) or {}) do os.remove(files.join(folder, name)) end
  C.pk_directory_remove(folder)
  if not good then return nil, tostring(result) end
  return result, reason
end

--- The names in a directory, sorted, without . and ..; or nil and the message.
function files.list(path)
  local names = ffi.new("char *[1]")
  if C.pk_directory_list(checked(path), names) ~= 0 then return nil, native.message() end
  local list = {}
  for name in take(names):gmatch("[^\n]+") do list[#list + 1] = name end
  return list
end

--- The same of a folder that may not be there, which has none. Raises the message where one is there that cannot be read:
-- what is in it must not be taken for nothing.
function files.names(path)
  if not files.exists(path) then return {} end
  local list, message = files.list(path)
  if not list then failure.raise(1, message) end
  return list
end

--- Locks a file made for that purpose alone against all other processes until files.unlock or the end of this one:
-- returns what to unlock; nil and the message if another process has it, which is named, or the file cannot be
-- made; false where the file system has no locks.
function files.lock(path)
  local cell = ffi.new("int[1]", -1)
  local status = C.pk_file_lock(checked(path), cell)
  if status == C.PK_UNSUPPORTED then return false end
  if status ~= C.PK_OK then return nil, native.message() end
  return ffi.gc(cell, function(held) C.pk_file_unlock(held[0]) end)
end

--- Gives up a lock; nil and false, which are none, are fine.
function files.unlock(lock)
  if lock then C.pk_file_unlock(ffi.gc(lock, nil)[0]) end
end

--- Whether a process, this one or another, holds the lock of a file.
function files.is_locked(path)
  if not files.exists(path) then return false end
  local held = ffi.new("int[1]", -1)
  local status = C.pk_file_lock(checked(path), held)
  if status == C.PK_OK then C.pk_file_unlock(held[0]) end
  return status == C.PK_INVALID
end

--- Bytes that may be written to the disk of a folder, math.huge where the file system does not say; nil and the
-- message if there is no such folder.
function files.room(folder)
  local bytes = ffi.new("double[1]")
  if C.pk_disk_room(checked(folder), bytes) ~= C.PK_OK then return nil, native.message() end
  return bytes[0]
end

--- What the file systems written to so far could not do and the library did without, such as bringing a folder to
-- disk: sentences, each once per process, from the first+1-th on (first: 0).
function files.remarks(first)
  local list, index = {}, first or 0
  local text = C.pk_file_remark(index)
  while text ~= nil do
    list[#list + 1], index = ffi.string(text), index + 1
    text = C.pk_file_remark(index)
  end
  return list
end

--- The path that a leading ~/ stands for, as shells know it; they do not look for it behind --output= or in a
-- configuration. Returns nil and the message where it stands for nothing here.
function files.expand(path)
  if path:sub(1, 1) ~= "~" then return path end
  local home = os.getenv("HOME")
  if path ~= "~" and path:sub(1, 2) ~= "~/" then
    return nil, ("%s: only ~/ is known; ./%s is a path of that name"):format(path, path)
  end
  if not home or home == "" then return nil, path .. ": HOME is not set, so that ~ stands for nothing" end
  return home .. path:sub(2)
end

--- What follows the last slash of a path, which may end with one: "c" of "/a/b/c".
function files.basename(path)
  return path:match("([^/]+)/*$") or "/"
end

--- What precedes the last slash: "/a/b" of "/a/b/c", "." of "c".
function files.dirname(path)
  local folder = path:match("^(.*[^/])/+[^/]+/*$")
  if folder then return folder end
  return path:sub(1, 1) == "/" and "/" or "."
end

--- The path of a file from the root, without links; nil if there is no such file.
function files.real(path)
  local text = native.array("char[?]", 4096)
  return native.C.pk_path_real(path, text) == 0 and require("ffi").string(text) or nil
end

--- A path below a folder; an absolute one stays as it is.
function files.join(folder, path)
  if path:sub(1, 1) == "/" or folder == "" then return path end
  return (folder:gsub("/$", "")) .. "/" .. path
end

return files
