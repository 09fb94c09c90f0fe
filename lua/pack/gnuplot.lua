--- gnuplot as a child process: quoting, running a script, and its SVG made fit for a page.
--
-- gnuplot is optional: without it the functions return nil and the reason. PACKLUA_GNUPLOT names the program.
local files = require "pack.files"
local utf8 = require "pack.utf8"

local gnuplot = {}

--- The program that is run: PACKLUA_GNUPLOT, or gnuplot from the PATH.
function gnuplot.program()
  local chosen = os.getenv("PACKLUA_GNUPLOT")
  return chosen and chosen ~= "" and chosen or "gnuplot"
end

-- A word that the shell takes literally.
local function shell_word(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
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

local function absent(program)
  return ("%s is not there (Debian: gnuplot-nox; PACKLUA_GNUPLOT names another one)"):format(program)
end

-- What gnuplot said, without the echo of the script.
local function complaint(text, status)
  local lines = {}
  for line in text:gmatch("[^\n]+") do
    if not line:find("^%s*%^?%s*$") and not line:find("[Ww]arning") then lines[#lines + 1] = line end
  end
  return #lines > 0 and lines[#lines] or ("it ended with status %d"):format(status)
end

--- Runs a script; returns what it wrote to standard output, or nil and the reason. The user's own settings for
-- gnuplot are not read.
function gnuplot.run(script)
  local program = gnuplot.program()
  local names = {os.tmpname(), os.tmpname(), os.tmpname()}
  files.write(names[1], script)
  local status = os.execute(("%s -d %s < /dev/null > %s 2> %s"):format(shell_word(program), shell_word(names[1]),
    shell_word(names[2]), shell_word(names[3])))
  local output, errors = files.read(names[2]), files.read(names[3])
  for _, name in ipairs(names) do os.remove(name) end
  local code = math.floor(status / 256)
  if code == 127 or code == 126 then return nil, absent(program) end
  if status ~= 0 then return nil, ("%s: %s"):format(program, complaint(errors or "", status)) end
  return output
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

--- Draws a script that sets no terminal, as SVG. options: title, width and height in pixels, png (a file that gets the
-- same as PNG, twice as large). Returns an <svg> element as text, or nil and the reason.
function gnuplot.draw(script, options)
  local size = ("size %d,%d"):format(options.width, options.height)
  local svg, reason = gnuplot.run(("set encoding utf8\nset terminal svg %s dynamic font 'sans-serif,14' noenhanced"
    .. " background '#ffffff'\n%s\n"):format(size, script))
  if not svg then return nil, reason end
  if not svg:find("</svg>%s*$") then return nil, gnuplot.program() .. ": it drew nothing" end
  if options.png then
    size = ("size %d,%d"):format(2 * options.width, 2 * options.height)
    local png, why = gnuplot.run(("set encoding utf8\nset terminal pngcairo %s font 'sans-serif,11' fontscale 2"
      .. " linewidth 2 pointscale 2 noenhanced background '#ffffff'\n%s\n"):format(size, script))
    if not png then return nil, why end
    files.write(options.png, png)
  end
  charts = charts + 1
  return tidy(svg, options.title or "", ("chart%d-"):format(charts))
end

return gnuplot
