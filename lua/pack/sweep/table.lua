--- What a running sweep shows: a table redrawn in place on a terminal, a line per event elsewhere.
local files = require "pack.io.files"
local json = require "pack.io.json"
local native = require "pack.native"
local progress = require "pack.io.progress"

local C = native.C
local display = {}

local REDRAW_SECONDS = 0.5
local SHOWN = 16 -- running ones at most, as what has scrolled away cannot be redrawn
local TAIL_BYTES = 2 ^ 17 -- of metrics.jsonl, which hold its last line also of a thousand workers

local Table = {}
Table.__index = Table

--- A display for a sweep of `total` runs. options: stream, terminal (default: whether standard output is one).
function display.create(total, options)
  options = options or {}
  local self = setmetatable({total = total, finished = 0, failed = 0, drawn = 0, drawn_at = -math.huge}, Table)
  self.stream = options.stream or io.stdout
  self.terminal = options.terminal
  if self.terminal == nil then self.terminal = C.pk_is_terminal(1) ~= 0 and os.getenv("TERM") ~= "dumb" end
  self.began = C.pk_clock()
  return self
end

-- The last whole row of a run's metrics.jsonl that is of a step, or nil.
local function last_step(folder)
  local last
  for line in (files.tail(files.join(folder, "metrics.jsonl"), TAIL_BYTES) or ""):gmatch("([^\n]+)\n") do
    if line:find('"tokens_per_second"', 1, true) then last = line end
  end
  return last and json.decode(last) or nil
end

local function running_line(item)
  local row = last_step(item.task.folder)
  local text = row and ("step %d  loss %.4f  %s tok/s"):format(row.step + 1, tonumber(row.loss) or 0 / 0,
    progress.count(row.tokens_per_second)) or "starting"
  return ("  %s  %s  %s%s"):format(item.task.name, progress.duration(C.pk_clock() - item.began), text,
    item.device and "  " .. item.device or "")
end

local function erase(self)
  if self.drawn > 0 then self.stream:write(("\27[%dF\27[J"):format(self.drawn)) end
  self.drawn = 0
end

--- Shows what runs at the moment, a list of {task, began, device}; on a terminal, twice a second at most.
function Table:update(running)
  if not self.terminal or C.pk_clock() - self.drawn_at < REDRAW_SECONDS then return end
  local columns = C.pk_terminal_width(1)
  local width = (columns > 0 and columns or 80) - 1
  erase(self)
  local lines = {("%d of %d done, %d failed, %d running, %s"):format(self.finished, self.total, self.failed, #running,
    progress.duration(C.pk_clock() - self.began))}
  for i = 1, math.min(#running, SHOWN) do lines[#lines + 1] = running_line(running[i]) end
  if #running > SHOWN then lines[#lines + 1] = ("  ... and %d more"):format(#running - SHOWN) end
  for _, line in ipairs(lines) do self.stream:write(line:sub(1, width), "\n") end
  self.stream:flush()
  self.drawn, self.drawn_at = #lines, C.pk_clock()
end

--- Prints a line that stays.
function Table:print(text, ...)
  erase(self)
  self.stream:write(select("#", ...) > 0 and text:format(...) or text, "\n")
  self.stream:flush()
  self.drawn_at = -math.huge
end

--- Notes that a run is done: its row of the summary.
function Table:done(row)
  self.finished = self.finished + 1
  if row.status == "failed" then self.failed = self.failed + 1 end
  local result = row.result
  local what = row.status
  if result and type(result.loss) == "number" then what = ("%s, loss %.4f"):format(what, result.loss) end
  if row.reason then what = what .. ": " .. row.reason:match("[^\n]*") end
  self:print("[%d/%d] %s: %s", self.finished, self.total, row.name, what)
end

--- Ends the display.
function Table:finish()
  erase(self)
  self.stream:flush()
end

return display
