--- Progress of a long loop: one redrawn line on a terminal, a plain line now and then elsewhere.
local native = require "pack.native"
local utf8 = require "pack.io.utf8"

local progress = {}

local REDRAW_SECONDS = 0.1
local MIN_BAR, MAX_BAR = 10, 40
local CLEAR = "\r\27[K"

--- A number in three digits and a unit of thousands: "12.3k" of 12345.
function progress.count(number)
  if number ~= number or number == math.huge or number == -math.huge then return tostring(number) end
  local units = {"", "k", "M", "G", "T", "P"}
  local at = 1
  while math.abs(number) >= 999.5 and at < #units do
    number = number / 1000
    at = at + 1
  end
  return ("%.3g%s"):format(number, units[at])
end

--- Seconds as "0:42", "12:03", "3:25:07" or "2d 03:25:07"; "?" if they are not finite.
function progress.duration(seconds)
  if not (seconds >= 0 and seconds < math.huge) then return "?" end
  local whole = math.floor(seconds + 0.5)
  local days, hours = math.floor(whole / 86400), math.floor(whole / 3600) % 24
  local minutes = math.floor(whole / 60) % 60
  if days > 0 then return ("%dd %02d:%02d:%02d"):format(days, hours, minutes, whole % 60) end
  if hours > 0 then return ("%d:%02d:%02d"):format(hours, minutes, whole % 60) end
  return ("%d:%02d"):format(minutes, whole % 60)
end

-- The first `width` bytes of a text, less a character that would be cut in two.
local function clip(text, width)
  if #text <= width then return text end
  local last = math.max(width, 0)
  while last > 0 and text:byte(last + 1) >= 0x80 and text:byte(last + 1) < 0xc0 do last = last - 1 end
  return text:sub(1, last)
end

local function join(...)
  local parts = {}
  for i = 1, select("#", ...) do
    local part = select(i, ...)
    if part and part ~= "" then parts[#parts + 1] = part end
  end
  return table.concat(parts, "  ")
end

local function format(text, ...)
  if type(text) == "function" then return text(...) end
  return select("#", ...) > 0 and text:format(...) or text
end

local Bar = {}
Bar.__index = Bar

local function is_terminal()
  return native.C.pk_is_terminal(1) ~= 0 and os.getenv("TERM") ~= "dumb"
end

local function width_of_terminal()
  local width = native.C.pk_terminal_width(1)
  return width > 0 and width or 80
end

--- A progress display on standard output. options: total; unit ("step"); start (0: what is done
-- before); every (1: a plain line comes every so many, besides the first and the last); log, a run
-- (lua/pack/run/folder.lua), which gets the plain lines, on a terminal only into its file. For
-- tests: stream, terminal, width (a function), clock.
function progress.create(options)
  local self = setmetatable({}, Bar)
  self.total, self.unit = options.total, options.unit or "step"
  self.every = math.max(1, options.every or 1)
  self.log = options.log
  self.stream = options.stream or io.stdout
  self.terminal = options.terminal
  if self.terminal == nil then self.terminal = is_terminal() end
  self.width = options.width or width_of_terminal
  self.clock = options.clock or native.C.pk_clock
  self.done = options.start or 0
  self.base_done, self.base_time = self.done, self.clock()
  self.text, self.drawn_at = "", -math.huge
  if self.terminal and self.log then self.log:print_through(function(line) self:print_line(line) end) end
  return self
end

-- Seconds that the rest takes at the mean pace since the first update, which itself is often slow.
local function remaining(self)
  local finished = self.done - self.base_done
  if finished <= 0 then return math.huge end
  return (self.clock() - self.base_time) / finished * (self.total - self.done)
end

local function fraction(self)
  return self.total > 0 and math.min(1, self.done / self.total) or 1
end

-- "step 20/300", and "eta 0:42" while there is something left.
local function head(self)
  return ("%s %d/%d"):format(self.unit, self.done, self.total)
end

local function tail(self)
  local seconds = remaining(self)
  if self.done >= self.total or seconds == math.huge then return nil end
  return "eta " .. progress.duration(seconds)
end

local function plain_line(self)
  return join(("%s (%d%%)"):format(head(self), math.floor(fraction(self) * 100)), self.text, tail(self))
end

-- The line for a terminal: percentage, a bar if there is room for one, and the rest. The last column
-- stays free, as some terminals begin a new line after it.
local function bar_line(self)
  local columns = self.width() - 1
  local percent = ("%3d%%"):format(math.floor(fraction(self) * 100))
  local rest = join(head(self), self.text, tail(self))
  local room = math.min(MAX_BAR, columns - #percent - #rest - #" [] ")
  if room < MIN_BAR then return clip(percent .. "  " .. rest, columns) end
  local full = math.floor(fraction(self) * room)
  return ("%s [%s%s] %s"):format(percent, ("#"):rep(full), (" "):rep(room - full), rest)
end

local function draw(self)
  self.stream:write(CLEAR, bar_line(self))
  self.stream:flush()
  self.drawn_at = self.clock()
end

--- Says that `done` of the total are done, with a text about them: printf style, or a function of the arguments, which
-- is called when the text is shown.
function Bar:update(done, text, ...)
  local first, last = not self.updated, done >= self.total
  self.done, self.updated = done, true
  local noted = first or last or done % self.every == 0
  if noted or self.terminal then self.text = text and format(text, ...) or "" end
  if self.terminal then
    if last or self.clock() - self.drawn_at >= REDRAW_SECONDS then draw(self) end
    if noted and self.log then self.log:note("%s", plain_line(self)) end
  elseif noted then
    self:print_line(plain_line(self))
  end
  if first then self.base_done, self.base_time = done, self.clock() end
end

--- Prints a line; above the bar on a terminal. Lines of a run's log come this way by themselves.
function Bar:print_line(line)
  line = utf8.printable(line)
  if not self.terminal then
    if self.log then return self.log:log("%s", line) end
    self.stream:write(line, "\n")
    self.stream:flush()
    return
  end
  self.stream:write(CLEAR, line, "\n")
  if not self.finished then draw(self) end
end

--- Prints a line (printf style), which goes into the run's log too.
function Bar:print(text, ...)
  local line = format(text, ...)
  if self.log then return self.log:log("%s", line) end
  self:print_line(line)
end

--- Ends the display; twice is harmless.
function Bar:finish()
  if self.finished then return end
  if self.terminal then
    draw(self)
    self.stream:write("\n")
    self.stream:flush()
    if self.log then self.log:print_through(nil) end
  end
  self.finished = true
end

return progress
