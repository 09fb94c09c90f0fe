--- gnuplot as a child process: quoting, running a script, and its SVG made fit for a page.
--
-- gnuplot is optional: without it the functions return nil and the reason. PACKLUA_GNUPLOT names the program.
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local process = require "pack.io.process"
local utf8 = require "pack.io.utf8"

local gnuplot = {}

local MAX_SECONDS = 120

--- The program that is run: PACKLUA_GNUPLOT, or gnuplot from the PATH.
function gnuplot.program()
  local chosen = os.getenv("PACKLUA_GNUPLOT")
  return chosen and chosen ~= "" and chosen or "gnuplot"
end

--- `text` as an expression of gnuplot's language whose value is exactly that text: nothing is special between
-- single quotes, and what cannot stand there is joined to it, a quote by its number. Line ends stay, other control
-- characters become spaces.
function gnuplot.quote(text)
  text = utf8.clean(tostring(text)):gsub("\r\n?", "\n"):gsub("[%z\1-\9\11-\31\127]", " ")
  return "'" .. text:gsub("['\n]", {["'"] = "'.\"\\47\".'", ["\n"] = "'.\"\\n\".'"}) .. "'"
end

--- The same for a label of a tic, which gnuplot takes for a format.
function gnuplot.quote_tic(text)
  return gnuplot.quote((tostring(text):gsub("%%", "%%%%")))
end

local function is_finite(x)
  return type(x) == "number" and x - x == 0
end

--- A block of data for a script: $name with a line of numbers per row. A row in which anything is not a
-- finite number becomes an empty line, at which curves break.
function gnuplot.block(name, rows)
  local lines = {("$%s << END_OF_DATA"):format(name)}
  for _, row in ipairs(rows) do
    local words = {}
    for i = 1, #row do
      if is_finite(row[i]) then words[#words + 1] = ("%.17g"):format(row[i]) end
    end
    lines[#lines + 1] = #words == #row and table.concat(words, " ") or ""
  end
  lines[#lines + 1] = "END_OF_DATA"
  return table.concat(lines, "\n")
end

-- What gnuplot said, without the echo of the script.
local function complaint(text, child)
  local lines = {}
  for line in text:gmatch("[^\n]+") do
    if not line:find("^%s*%^?%s*$") and not line:find("[Ww]arning") then lines[#lines + 1] = line end
  end
  if #lines > 0 then return lines[#lines] end
  return child.signal and "ended by " .. process.signal_name(child.signal) or "exit code " .. child.code
end

-- The program with a script as a process, or nil and why it cannot be started.
local function start(program, script, log)
  local good, started = failure.pcall(process.start, {command = {program, "-d", script}, log = log})
  if good then return started end
  return nil, ("%s is not there (Debian: gnuplot-nox; PACKLUA_GNUPLOT names another one)"):format(program)
end

-- Runs a script whose output goes to a file; returns true, or nil and the reason.
local function run(script_path, log)
  local program = gnuplot.program()
  local child, reason = start(program, script_path, log)
  if not child then return nil, reason end
  while not child:poll(1) and child.seconds < MAX_SECONDS do end
  local ended = child:poll()
  child:close()
  if not ended then return nil, ("%s: it did not end within %d seconds"):format(program, MAX_SECONDS) end
  if child.code == 0 then return true end
  return nil, ("%s: %s"):format(program, complaint(files.read(log) or "", child))
end

--- Runs a script that draws on the given terminal; returns what it drew, or nil and the reason. The user's own
-- settings for gnuplot are not read.
function gnuplot.run(script, terminal)
  return files.with_temporary(function(folder)
    local path, log, drawn = folder .. "/script", folder .. "/log", folder .. "/output"
    files.write(path, ("set encoding utf8\nset terminal %s\nset output %s\n%s\n"):format(terminal,
      gnuplot.quote(drawn), script))
    local good, reason = run(path, log)
    if not good then return nil, reason end
    local output = files.read(drawn)
    if not output or output == "" then return nil, gnuplot.program() .. ": it drew nothing" end
    return output
  end)
end

local entities = {["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;"}

-- Turns a document of gnuplot into an element that can stand in a page beside others: no prologue, the chart's own
-- title, and names that no other chart has.
local function tidy(svg, title, prefix)
  svg = svg:gsub("^.-(<svg)", "%1", 1):gsub("<title>.-</title>", ""):gsub("<desc>.-</desc>", "")
  svg = svg:gsub("(%sid=['\"])", "%1" .. prefix):gsub("(href=['\"]#)", "%1" .. prefix):gsub("url%(#", "%0" .. prefix)
  svg = svg:gsub("%s+\n", "\n"):gsub("\n\n+", "\n")
  local described = utf8.clean(title):gsub("%c", " "):gsub("[&<>\"']", entities)
  local head, rest = svg:match("^(<svg.->)(.*)$")
  return ("%s<title>%s</title>%s"):format(head, described, rest)
end

-- Names of charts, for `tidy`.
local charts = 0

--- Draws a script that sets no terminal, as SVG. options: title, width and height in pixels, png (a file that gets
-- the same as PNG, twice as large). Returns an <svg> element as text, or nil and the reason.
function gnuplot.draw(script, options)
  local svg, reason = gnuplot.run(script, ("svg size %d,%d dynamic font 'sans-serif,14' noenhanced"
    .. " background '#ffffff'"):format(options.width, options.height))
  if not svg then return nil, reason end
  if options.png then
    local png, why = gnuplot.run(script, ("pngcairo size %d,%d font 'sans-serif,11' fontscale 2 linewidth 2"
      .. " pointscale 2 noenhanced background '#ffffff'"):format(2 * options.width, 2 * options.height))
    if not png then return nil, why end
    files.write(options.png, png)
  end
  charts = charts + 1
  return tidy(svg, options.title or "", ("chart%d-"):format(charts))
end

return gnuplot
