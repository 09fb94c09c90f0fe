--- Charts as SVG (and PNG) by gnuplot: curves, grouped bars, heat maps.
--
-- Each function takes a table and returns an <svg> element as text, or nil and the reason: gnuplot is not
-- there, or there is nothing to draw. All of them know title, width and height (pixels) and png (a file to write
-- too). An axis is a text or {label, unit = "s", log = true, si = true, min = x, max = x}; si counts in thousands or
-- millions.
-- Values that are not finite numbers (nil too, in tables that name their length n) are gaps.
local caller = require "pack.core.caller"
local gnuplot = require "pack.report.gnuplot"

caller.register()

local plot = {}

--- Colours that people with any kind of colour vision tell apart (Okabe and Ito, without the yellow).
plot.palette = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"}

-- Points of the map viridis, dark to light: even in lightness, so that it can be read without colours.
local viridis = {
  {68, 1, 84}, {72, 40, 120}, {62, 74, 137}, {49, 104, 142}, {38, 130, 142},
  {31, 158, 137}, {53, 183, 121}, {109, 205, 89}, {180, 222, 44}, {253, 231, 37},
}

local MARKED_POINTS = 24 -- curves of at most so many points show them
local no_color = "#e4e4e4" -- of a cell without a value

-- Pixels of a legend: what is beside it, an average letter, a sample with the space around it, a line.
local MARGINS, LETTER, SAMPLE, LINE = 60, 7, 50, 16

local function is_finite(x)
  return type(x) == "number" and x - x == 0
end

-- The smallest and the largest finite value of lists; above zero only, if asked for.
local function extent(lists, positive)
  local low, high = math.huge, -math.huge
  for _, values in ipairs(lists) do
    for i = 1, values.n or #values do
      local x = values[i]
      if is_finite(x) and (x > 0 or not positive) then low, high = math.min(low, x), math.max(high, x) end
    end
  end
  return low, high
end

-- Axes -------------------------------------------------------------------------------------------

local prefixes = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}

-- Gives a logarithmic axis the range of its data, where gnuplot would go on to whole decades, and marks within
-- decades where those would be two at most.
local function set_log_range(axis, lists)
  local low, high = extent(lists, true)
  if low > high then return end
  local margin = math.max((high / low) ^ 0.04, 1.02)
  axis.min, axis.max = axis.min or low / margin, axis.max or high * margin
  if axis.max >= 100 * axis.min then return end
  local marks = {}
  for decade = math.floor(math.log10(axis.min)), math.floor(math.log10(axis.max)) do
    for _, mantissa in ipairs(axis.max < 3 * axis.min and {1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8} or {1, 2, 3, 5, 7}) do
      marks[#marks + 1] = ("%.6g"):format(mantissa * 10 ^ decade)
    end
  end
  axis.marks = table.concat(marks, ",")
end

-- An axis with all that the script needs: scale (data are divided by it), text, log, name. lists: its data.
local function axis_of(name, axis, lists)
  axis = type(axis) == "table" and axis or {axis}
  local made = {name = name, log = axis.log, min = axis.min, max = axis.max, scale = 1, si = axis.si}
  local unit = axis.unit or ""
  if axis.si and not axis.log then
    local low, high = extent(lists)
    local most = math.max(-low, high)
    for _, prefix in ipairs(prefixes) do
      if most >= prefix[1] then
        made.scale, unit = prefix[1], prefix[2] .. (unit == "" and "" or " " .. unit)
        break
      end
    end
  end
  if axis.log then set_log_range(made, lists) end
  made.text = (axis[1] or "") .. (unit ~= "" and (" (%s)"):format(unit) or "")
  return made
end

-- A value on an axis, or nil for a gap.
local function placed(axis, x)
  if not is_finite(x) or (axis.log and x <= 0) then return nil end
  return x / axis.scale
end

local function bound(axis, x)
  x = placed(axis, x)
  return x and ("%.17g"):format(x) or "*"
end

local function axis_commands(axis)
  local lines = {("set %slabel %s offset %s"):format(axis.name, gnuplot.quote(axis.text),
    axis.name == "x" and "0,0.4" or "0,0")}
  lines[2] = ("set %srange [%s:%s]"):format(axis.name, bound(axis, axis.min), bound(axis, axis.max))
  if axis.log then
    lines[#lines + 1] = "set logscale " .. axis.name
    if axis.marks then lines[#lines + 1] = ("set %stics (%s)"):format(axis.name, axis.marks) end
    if axis.si then lines[#lines + 1] = ("set format %s '%%.0s%%c'"):format(axis.name) end
  end
  return table.concat(lines, "\n")
end

-- What all charts have in common.
local function preamble(options)
  return table.concat({
    "set title " .. gnuplot.quote(options.title or "") .. " font ',15'",
    "set border 3 lc rgb '#888888'",
    "set tics nomirror out scale 0.6 textcolor rgb '#333333'",
    "set grid y lc rgb '#dddddd' lt 1 lw 0.5",
  }, "\n")
end

local function draw(lines, options, size)
  return gnuplot.draw(table.concat(lines, "\n"), {title = options.title, png = options.png, width = size.width,
    height = size.height})
end

local function style_of(i)
  local palette = plot.palette
  return ("lc rgb '%s' dt %d lw 2"):format(palette[(i - 1) % #palette + 1], math.floor((i - 1) / #palette) % 5 + 1)
end

-- The command for the legend below the chart, and the size of the chart, which grows by the legend's lines.
local function legend(options)
  local longest, count = 0, 0
  for _, one in ipairs(options.series) do
    if one.name then longest, count = math.max(longest, #one.name), count + 1 end
  end
  local size = {width = options.width or 720, height = options.height or 420}
  if count == 0 then return "set key off", size end
  local columns = math.max(1, math.min(count, math.floor((size.width - MARGINS) / (longest * LETTER + SAMPLE))))
  local rows = math.ceil(count / columns)
  size.height = size.height + (rows - 1) * LINE
  -- gnuplot takes letters for wider than they are, and would make fewer columns; width corrects it.
  return ("set key outside bottom center horizontal Left reverse nobox samplen 2 width %.1f height 0.8 maxcols %d"
    .. " font ',12'\nset bmargin %g"):format(1 - 0.3 * longest, columns, 4.4 + 0.82 * rows), size
end

-- Curves -----------------------------------------------------------------------------------------

-- The rows of a curve, each column taken from a list; a gap in any is a gap. Also how many are points.
local function rows_of(x_axis, y_axis, xs, columns)
  local rows, points = {}, 0
  for k = 1, #xs do
    local row = {placed(x_axis, xs[k]) or 0 / 0}
    local good = row[1] == row[1]
    for c = 1, #columns do
      row[c + 1] = placed(y_axis, columns[c][k]) or 0 / 0
      good = good and row[c + 1] == row[c + 1]
    end
    rows[k], points = row, points + (good and 1 or 0)
  end
  return rows, points
end

-- Adds the block and the plot clauses of a curve; returns its number of points.
local function add_curve(chart, i, one)
  local name = "curve" .. i
  local style, title = style_of(i), one.name and "title " .. gnuplot.quote(one.name) or "notitle"
  if one.low and one.high then
    local rows = rows_of(chart.x, chart.y, one.x, {one.low, one.high})
    table.insert(chart.blocks, gnuplot.block("band" .. i, rows))
    table.insert(chart.clauses, ("$band%d using 1:2:3 with filledcurves fs transparent solid 0.15 noborder %s notitle")
      :format(i, style))
  end
  local rows, points = rows_of(chart.x, chart.y, one.x, {one.y})
  if points == 0 then return 0 end
  table.insert(chart.blocks, gnuplot.block(name, rows))
  local kind = points <= MARKED_POINTS and "linespoints pt 7 ps 0.5" or "lines"
  table.insert(chart.clauses, ("$%s using 1:2 with %s %s %s"):format(name, kind, style, title))
  return points
end

--- Curves. options: x and y (axes), series: a list of {name = text, x = list, y = list}, with low and high
-- (lists) for a shaded band.
function plot.lines(options)
  local xs, ys = {}, {}
  for i, one in ipairs(options.series) do
    if #one.x ~= (one.y.n or #one.y) then
      caller.raise("plot.lines: series %d has %d values of x and %d of y", i, #one.x, one.y.n or #one.y)
    end
    xs[#xs + 1], ys[#ys + 1] = one.x, one.y
    if one.low and one.high then ys[#ys + 1], ys[#ys + 2] = one.low, one.high end
  end
  local chart = {x = axis_of("x", options.x, xs), y = axis_of("y", options.y, ys), blocks = {}, clauses = {}}
  local points = 0
  for i, one in ipairs(options.series) do points = points + add_curve(chart, i, one) end
  if points == 0 then return nil, "there is nothing to draw: no finite values" end
  local lines = {preamble(options), "set autoscale xfixmax", axis_commands(chart.x), axis_commands(chart.y)}
  local size
  lines[#lines + 1], size = legend(options)
  for _, block in ipairs(chart.blocks) do lines[#lines + 1] = block end
  lines[#lines + 1] = "plot " .. table.concat(chart.clauses, ", \\\n  ")
  return draw(lines, options, size)
end

-- Bars -------------------------------------------------------------------------------------------

-- A value as text: by a printf format or a function.
local function shown(format, x)
  if type(format) == "function" then return format(x) end
  return (format or "%.4g"):format(x)
end

local function tics(name, labels)
  local words = {}
  for i, label in ipairs(labels) do words[i] = ("%s %d"):format(gnuplot.quote_tic(label), i) end
  return ("set %stics (%s)"):format(name, table.concat(words, ", "))
end

-- Adds the bars of one series: bars, whiskers from low to high, and the values above.
local function add_bars(chart, i, one, options)
  local count, axis = #options.series, chart.y
  local width = 0.84 / count
  local bars, whiskers = {}, {}
  for group = 1, #options.groups do
    local value = placed(axis, one.values[group])
    local at = group + (i - (count + 1) / 2) * width
    if value then
      local low = placed(axis, one.low and one.low[group]) or value
      local high = placed(axis, one.high and one.high[group]) or value
      bars[#bars + 1] = {at, value, width * 0.94}
      if low < high then whiskers[#whiskers + 1] = {at, low, 0, high - low} end
      if options.labels then
        chart.labels[#chart.labels + 1] = ("set label %s at %.17g,%.17g center offset 0,0.6 font ',12'"):format(
          gnuplot.quote(shown(options.labels, one.values[group])), at, high)
      end
    end
  end
  if #bars == 0 then return 0 end
  table.insert(chart.blocks, gnuplot.block("bars" .. i, bars))
  table.insert(chart.clauses, ("$bars%d using 1:2:3 with boxes fs solid 0.85 noborder %s %s"):format(i, style_of(i),
    one.name and "title " .. gnuplot.quote(one.name) or "notitle"))
  if #whiskers > 0 then
    table.insert(chart.blocks, gnuplot.block("whiskers" .. i, whiskers))
    table.insert(chart.after, ("$whiskers%d using 1:2:3:4 with vectors heads size graph 0.008,90 lw 1.2"
      .. " lc rgb '#222222' notitle"):format(i))
  end
  return #bars
end

--- Grouped bars. options: x and y (axes), groups: a list of labels, series: a list of {name, values, low, high}
-- with an entry per group, low and high being the ends of a whisker; labels: a format or function that
-- writes the values above the bars.
function plot.bars(options)
  local lists = {}
  for _, one in ipairs(options.series) do
    for _, list in ipairs {one.values, one.low or {}, one.high or {}} do
      lists[#lists + 1] = {n = #options.groups, unpack(list, 1, #options.groups)}
    end
  end
  local chart = {y = axis_of("y", options.y, lists), blocks = {}, clauses = {}, after = {}, labels = {}}
  if not chart.y.log and extent(lists) >= 0 then chart.y.min = chart.y.min or 0 end
  local count = 0
  for i, one in ipairs(options.series) do count = count + add_bars(chart, i, one, options) end
  if count == 0 then return nil, "there is nothing to draw: no finite values" end
  for _, clause in ipairs(chart.after) do table.insert(chart.clauses, clause) end
  local x = axis_of("x", options.x, {})
  local lines = {preamble(options), axis_commands(x), axis_commands(chart.y), tics("x", options.groups),
    ("set xrange [0.4:%d.6]"):format(#options.groups), "set offsets 0,0,graph 0.08,0"}
  local size
  lines[#lines + 1], size = legend(options)
  for _, list in ipairs {chart.labels, chart.blocks} do
    for _, entry in ipairs(list) do lines[#lines + 1] = entry end
  end
  lines[#lines + 1] = "plot " .. table.concat(chart.clauses, ", \\\n  ")
  return draw(lines, options, size)
end

-- Heat maps --------------------------------------------------------------------------------------

-- The colour for a part between 0 and 1, and whether it is dark.
local function color_of(part)
  local place = part * (#viridis - 1)
  local k = math.min(math.floor(place), #viridis - 2)
  local rgb = {}
  for c = 1, 3 do
    rgb[c] = math.floor(viridis[k + 1][c] + (place - k) * (viridis[k + 2][c] - viridis[k + 1][c]) + 0.5)
  end
  return ("#%02x%02x%02x"):format(unpack(rgb)), 0.299 * rgb[1] + 0.587 * rgb[2] + 0.114 * rgb[3] < 140
end

-- The commands of a cell: its rectangle and its text.
local function cell(options, c, r, low, high)
  local x = options.values[r] and options.values[r][c]
  local color, dark, text = no_color, false, options.missing or "-"
  if is_finite(x) then
    local part = high > low and (options.log and math.log(x / low) / math.log(high / low) or (x - low) / (high - low))
    color, dark = color_of(part or 0.5)
    text = shown(options.format, x)
  end
  return ("set object rect from %g,%g to %g,%g fc rgb '%s' fs solid noborder behind\n"
    .. "set label %s at %d,%d center front textcolor rgb '%s'"):format(c - 0.485, r - 0.47, c + 0.485, r + 0.47, color,
    gnuplot.quote(text), c, r, dark and "#ffffff" or "#111111")
end

--- A heat map with the value in each cell. options: x and y: {label, labels = list}, values[row][column] with a row
-- per label of y (the first on top), format (printf or a function), missing: the text of a cell without a value,
-- log: colours by the logarithm.
function plot.heatmap(options)
  local columns, rows = options.x.labels, options.y.labels
  local lists = {}
  for r = 1, #rows do lists[r] = {n = #columns, unpack(options.values[r] or {}, 1, #columns)} end
  local low, high = extent(lists)
  if low > high then return nil, "there is nothing to draw: no finite values" end
  if options.log and low <= 0 then
    caller.raise("plot.heatmap: no logarithm of the value %g", low)
  end
  local lines = {preamble(options), "unset grid", "unset border", "set tics scale 0", "set key off",
    axis_commands(axis_of("x", options.x, {})), axis_commands(axis_of("y", options.y, {})),
    tics("x", columns), tics("y", rows),
    ("set xrange [0.5:%d.5]\nset yrange [%d.5:0.5]"):format(#columns, #rows)}
  for r = 1, #rows do
    for c = 1, #columns do lines[#lines + 1] = cell(options, c, r, low, high) end
  end
  lines[#lines + 1] = gnuplot.block("none", {{0, 0}}) .. "\nplot $none using 1:2 with dots notitle"
  return draw(lines, options, {width = options.width or 720, height = options.height or 130 + 46 * #rows})
end

return plot
