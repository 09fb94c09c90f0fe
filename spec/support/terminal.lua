--- A program on a pseudo-terminal: what is typed to it, and what it shows. Nothing here waits for time to pass: a
-- test waits for output, and fails with all of it when it does not come.
local assert = require "luassert"
local ffi = require "ffi"
local support = require "spec.support.helper"

ffi.cdef [[
  int posix_openpt(int flags);
  int grantpt(int fd);
  int unlockpt(int fd);
  char *ptsname(int fd);
  int close(int fd);
  long read(int fd, void *data, size_t size);
  long write(int fd, const void *data, size_t size);
  int ioctl(int fd, unsigned long request, ...);
  int kill(int pid, int signal);
  int waitpid(int pid, int *status, int options);

  struct terminal_poll { int fd; short events, revents; };
  int poll(struct terminal_poll *files, unsigned long count, int milliseconds);
  struct terminal_size { unsigned short rows, columns, width, height; };

  int posix_spawn(int *pid, const char *path, const void *actions, const void *attributes, char *const *arguments,
    char *const *environment);
  int posix_spawn_file_actions_init(void *actions);
  int posix_spawn_file_actions_destroy(void *actions);
  int posix_spawn_file_actions_addopen(void *actions, int fd, const char *path, int flags, unsigned mode);
  int posix_spawn_file_actions_adddup2(void *actions, int fd, int as);
  int posix_spawn_file_actions_addclose(void *actions, int fd);
  int posix_spawnattr_init(void *attributes);
  int posix_spawnattr_destroy(void *attributes);
  int posix_spawnattr_setflags(void *attributes, short flags);
  char **environ;
]]

local C = ffi.C
local READ_WRITE, NO_TERMINAL, CLOSE_IN_CHILDREN = 2, 0x100, 0x80000
local SET_SIZE, NEW_SESSION, READABLE, KILL = 0x5414, 0x80, 1, 9
local PATIENCE = 60000 -- milliseconds without any output after which it is not to be expected any more
local PRESSES_APART = 200 -- milliseconds

local terminal = {}
local Terminal = {}
Terminal.__index = Terminal

-- This process's environment with other values: an array of C strings, and what keeps them alive.
local function environment(changes)
  local list, i = {}, 0
  while C.environ[i] ~= nil do
    local entry = ffi.string(C.environ[i])
    if changes[entry:match("^[^=]*")] == nil then list[#list + 1] = entry end
    i = i + 1
  end
  for name, value in pairs(changes) do
    if value then list[#list + 1] = name .. "=" .. value end
  end
  return list
end

local function c_strings(list)
  local kept, array = {}, ffi.new("char *[?]", #list + 1)
  for i, text in ipairs(list) do
    kept[i] = ffi.new("char[?]", #text + 1, text)
    array[i - 1] = kept[i]
  end
  return array, kept
end

-- Starts the program with the terminal of this path as its own, in a session of its own.
local function spawn(path, arguments, changes, master)
  local actions, attributes = ffi.new("int64_t[64]"), ffi.new("int64_t[64]") -- larger than any C library's
  C.posix_spawn_file_actions_init(actions)
  C.posix_spawn_file_actions_addclose(actions, master)
  C.posix_spawn_file_actions_addopen(actions, 0, path, READ_WRITE, 0)
  C.posix_spawn_file_actions_adddup2(actions, 0, 1)
  C.posix_spawn_file_actions_adddup2(actions, 0, 2)
  C.posix_spawnattr_init(attributes)
  C.posix_spawnattr_setflags(attributes, NEW_SESSION)
  local pid = ffi.new("int[1]")
  local argv, kept = c_strings({support.program, unpack(arguments)})
  local envp, kept_too = c_strings(environment(changes))
  local failed = C.posix_spawn(pid, support.program, actions, attributes, argv, envp)
  C.posix_spawn_file_actions_destroy(actions)
  C.posix_spawnattr_destroy(attributes)
  assert(failed == 0 and kept and kept_too, "packlua was not started")
  return pid[0]
end

--- Starts packlua on a terminal. options: arguments (a list), environment (a table of changes; false removes),
-- columns (80). The caller closes it.
function terminal.open(options)
  options = options or {}
  local self = setmetatable({seen = "", all = ""}, Terminal)
  self.fd = C.posix_openpt(READ_WRITE + NO_TERMINAL + CLOSE_IN_CHILDREN)
  assert(self.fd >= 0 and C.grantpt(self.fd) == 0 and C.unlockpt(self.fd) == 0, "no pseudo-terminal")
  self:resize(options.columns or 80)
  local changes = {TERM = "xterm", PACKLUA_HISTORY = "", LC_ALL = "C.UTF-8", HOME = "/nonexistent"}
  for name, value in pairs(options.environment or {}) do changes[name] = value end
  self.pid = spawn(ffi.string(C.ptsname(self.fd)), options.arguments or {}, changes, self.fd)
  return self
end

--- Makes the window so many columns wide, of which the program is told.
function Terminal:resize(columns)
  assert(C.ioctl(self.fd, SET_SIZE, ffi.new("struct terminal_size", 24, columns, 0, 0)) == 0, "no window size")
end

--- Types text.
function Terminal:type(text)
  assert(C.write(self.fd, text, #text) == #text, "the terminal takes no input")
end

-- Reads what is there, or comes; returns false at the end.
local function read_more(self, wanted)
  local file = ffi.new("struct terminal_poll", self.fd, READABLE, 0)
  if C.poll(file, 1, PATIENCE) < 1 then
    self:close()
    error(("the terminal did not show %q; it showed:\n%s"):format(wanted, self.all), 0)
  end
  local data = ffi.new("char[4096]")
  local got = tonumber(C.read(self.fd, data, 4096))
  if got <= 0 then return false end
  local text = ffi.string(data, got)
  self.seen, self.all = self.seen .. text, self.all .. text
  return true
end

--- Waits until the terminal shows text that was not waited for before, and returns what it showed until then,
-- that included.
function Terminal:wait(text)
  while true do
    local _, last = self.seen:find(text, 1, true)
    if last then
      local shown = self.seen:sub(1, last)
      self.seen = self.seen:sub(last + 1)
      return shown
    end
    if not read_more(self, text) then
      error(("the program ended without showing %q; it showed:\n%s"):format(text, self.all), 0)
    end
  end
end

--- Presses ^C, again and again at some distance, as one that comes while another is on its way is none, until the
-- terminal shows text; returns what it showed until then.
function Terminal:interrupt_until(text)
  local file = ffi.new("struct terminal_poll", self.fd, READABLE, 0)
  for _ = 1, PATIENCE / PRESSES_APART do
    self:type("\3")
    local last
    repeat
      last = select(2, self.seen:find(text, 1, true))
    until last or C.poll(file, 1, PRESSES_APART) < 1 or not read_more(self, text)
    if last then return self:wait(text) end
  end
  self:close()
  error(("the terminal did not show %q after ^C; it showed:\n%s"):format(text, self.all), 0)
end

--- Types a line at the prompt, waits for the next prompt, and returns what was shown in between.
function Terminal:answer(line, prompt)
  prompt = "\r\n" .. (prompt or "> ")
  self:type(line .. "\r")
  self:wait("\r\n")
  self.seen = "\r\n" .. self.seen
  return (self:wait(prompt):sub(3, -#prompt - 1):gsub("\r\n", "\n"))
end

--- Waits for the end of the program. Returns its exit code, and what it showed since it was last waited for.
function Terminal:finish()
  while read_more(self, "the end") do end
  local status = ffi.new("int[1]")
  C.waitpid(self.pid, status, 0)
  self.pid = nil
  self:close()
  return status[0] % 128 == 0 and math.floor(status[0] / 256) or 128 + status[0] % 128, self.seen
end

--- Ends the program if it still runs, and the terminal. Twice is harmless.
function Terminal:close()
  if self.pid then
    C.kill(self.pid, KILL)
    C.waitpid(self.pid, nil, 0)
  end
  if self.fd then C.close(self.fd) end
  self.pid, self.fd = nil, nil
end

return terminal
