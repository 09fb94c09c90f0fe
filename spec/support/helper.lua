--- What specs share: running programs, temporary folders, and a watch over tensors left alive.
local ffi = require "ffi"

ffi.cdef [[
  long readlink(const char *path, char *target, size_t size);
  char *mkdtemp(char *template);
  void __asan_init(void);
  void __tsan_init(void);
]]

local support = {}

local function own_path()
  local target = ffi.new("char[4096]")
  local length = ffi.C.readlink("/proc/self/exe", target, 4096)
  assert(length > 0, "no /proc/self/exe")
  return ffi.string(target, length)
end

--- The packlua that runs the specs.
support.program = own_path()

--- A word that the shell takes literally.
function support.quote(text)
  return "'" .. tostring(text):gsub("'", "'\\''") .. "'"
end

--- The content of a file, or nil.
function support.read(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  return text
end

--- Writes a file.
function support.write(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

--- A new folder under the system's temporary one; the path ends without a slash. The caller removes it
-- with support.remove.
function support.temporary()
  local template = (os.getenv("TMPDIR") or "/tmp") .. "/packlua-spec-XXXXXX"
  local path = ffi.new("char[?]", #template + 1, template)
  assert(ffi.C.mkdtemp(path) ~= nil, "no temporary folder")
  return ffi.string(path)
end

--- Removes a folder made by support.temporary.
function support.remove(folder)
  assert(folder:find("/packlua%-spec%-%w+$"), "not a folder of support.temporary: " .. folder)
  os.execute("rm -rf " .. support.quote(folder))
end

-- The exit code of a wait status, 128 + N for signal N, as shells say it.
local function exit_code(status)
  if status >= 256 then return math.floor(status / 256) end
  return status == 0 and 0 or 128 + status % 128
end

-- Sanitizers reserve terabytes of address space, so limits on it cannot be kept under them.
local function is_sanitized()
  return pcall(function() return ffi.C.__asan_init end) or pcall(function() return ffi.C.__tsan_init end)
end

local prologue = ("packlua() { %s \"$@\"; }\n"):format(support.quote(support.program))
if is_sanitized() then
  prologue = prologue .. 'ulimit() { [ "$1" = -v ] || command ulimit "$@"; }\n'
end

--- Runs a shell command, in which packlua is the program that runs the specs; standard input is
-- empty unless the command gives one. Returns its exit code (124: it took longer than 120 s), standard output
-- and standard error.
function support.run(command)
  local folder = support.temporary()
  support.write(folder .. "/command", prologue .. command .. "\n")
  local status = os.execute(("timeout 120 sh %s/command < /dev/null > %s/out 2> %s/err")
    :format(folder, folder, folder))
  local out, err = support.read(folder .. "/out"), support.read(folder .. "/err")
  support.remove(folder)
  return exit_code(status), out, err
end

-- Tensor buffers alive in the default context, after everything that nobody holds was collected. Compiled
-- code holds the closures that it was made from, and what they know, so it goes first.
local function live_tensors()
  jit.flush()
  collectgarbage()
  collectgarbage()
  return require("pack.core.context").default():memory().live
end

--- Called in a describe block: every case in it must leave no more live tensors than it found. Tensors
-- that the block holds in its own locals are made in setup, outside of any case.
function support.watch()
  local block = getfenv(2)
  local before
  block.before_each(function() before = live_tensors() end)
  block.after_each(function()
    local after = live_tensors()
    block.assert(after <= before, ("the case left %d tensors alive"):format(after - before))
  end)
end

return support
