--- Child processes, their output in a file: started, waited for, signalled. None outlives the object or this program.
local caller = require "pack.core.caller"
local ffi = require "ffi"
local native = require "pack.native"

caller.register()

local C = native.C
local process = {}

local Process = {}
Process.__index = Process

local PATH_SIZE = 4096

--- Numbers of signals by name.
process.signals = {HUP = 1, INT = 2, QUIT = 3, ABRT = 6, KILL = 9, USR1 = 10, SEGV = 11, USR2 = 12, PIPE = 13, TERM = 15,
  CONT = 18, STOP = 19, XCPU = 24, XFSZ = 25}

local names = {}
for name, number in pairs(process.signals) do names[number] = "SIG" .. name end

--- "SIGTERM" of 15, "signal 31" of one without a name here.
function process.signal_name(number)
  return names[number] or "signal " .. number
end

--- The path of this program, for running it again.
function process.program()
  local path = ffi.new("char[?]", PATH_SIZE)
  if C.pk_program_path(path, PATH_SIZE) ~= 0 then caller.raise("%s", native.message()) end
  return ffi.string(path)
end

-- Strings as a C array that NULL ends, and what must be held for as long as it is used.
local function string_array(list)
  local held = {array = ffi.new("const char *[?]", #list + 1)}
  for i, word in ipairs(list) do
    held[i] = tostring(word)
    held.array[i - 1] = held[i]
  end
  return held.array, held
end

--- Starts a program. options: command, a list: the program, looked for in PATH unless it has a slash, and its
-- arguments; log, the file to which output and errors are appended (default: where this program's go); env, a
-- table of variables to add; own_group (true): a process group of its own, which a terminal's ^C does not reach
-- and which ends with it. Errors: no such program, a log that cannot be written.
function process.start(options)
  local self = setmetatable({held = {}, state = ffi.new("pk_process_state")}, Process)
  local additions = {}
  for name, text in pairs(options.env or {}) do additions[#additions + 1] = name .. "=" .. text end
  local settings, made = C.pk_process_defaults(), ffi.new("pk_process *[1]")
  settings.command, self.held[1] = string_array(options.command)
  settings.environment, self.held[2] = string_array(additions)
  self.held.log = options.log
  settings.log = self.held.log
  settings.own_group = options.own_group == false and 0 or 1
  if C.pk_process_start(settings, made) ~= 0 then caller.raise("%s", native.message()) end
  self.held = nil
  self.handle = ffi.gc(made[0], C.pk_process_free)
  self.id = tonumber(C.pk_process_id(self.handle))
  return self
end

--- Waits at most so many seconds (0) for the end, less if a signal comes to this program. Returns whether the
-- process has ended; then the fields code (or signal, its number), peak_rss in bytes (at least what this program
-- held when it started the process), user_seconds, system_seconds and seconds are there.
function Process:poll(seconds)
  if self.ended then return true end
  if C.pk_process_poll(self.handle, seconds or 0, self.state) ~= 0 then caller.raise("%s", native.message()) end
  local state = self.state
  self.seconds = state.seconds
  if state.finished == 0 then return false end
  self.ended = true
  if state.signal ~= 0 then self.signal = state.signal else self.code = state.code end
  self.peak_rss = tonumber(state.peak_rss)
  self.user_seconds, self.system_seconds = state.user_seconds, state.system_seconds
  return true
end

--- Sends a signal ("TERM", or a number) to the process and to all of its own group; nothing once it has ended.
function Process:send(signal)
  local number = process.signals[signal] or signal
  if type(number) ~= "number" then caller.raise("there is no signal %s", tostring(signal)) end
  if not self.handle or self.ended then return end
  if C.pk_process_signal(self.handle, number) ~= 0 then caller.raise("%s", native.message()) end
end

--- Asks the process to end (SIGTERM) and kills it if it has not within so many seconds (5). Returns true.
function Process:stop(seconds)
  self:send("TERM")
  local last = C.pk_clock() + (seconds or 5)
  while not self:poll(math.max(0, last - C.pk_clock())) and C.pk_clock() < last do end
  self:send("KILL")
  while not self:poll(1) do end
  return true
end

--- Kills what still runs, and ends; twice is harmless.
function Process:close()
  if not self.handle then return end
  C.pk_process_free(ffi.gc(self.handle, nil))
  self.handle = nil
end

return process
