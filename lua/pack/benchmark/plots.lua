--- The charts of a benchmark: throughput, memory and what a step is made of, as SVG and PNG.
local files = require "pack.io.files"
local plot = require "pack.report.plot"

local plots = {}

local MIB = 2 ^ 20
local part_names = {"compute", "clip", "mix", "optimizer"}

local function label(row)
  return ("N=%d %s"):format(row.num_models, row.execution)
end

-- A value of the measured candidates as bars: a group per number of workers and execution, a series per mode.
local function by_mode(whole, value)
  local groups, series = {}, {}
  for i, one in ipairs(whole.comparisons) do groups[i] = label(one) end
  for _, mode in ipairs(whole.settings.modes) do
    local one = {name = mode, values = {}, low = {}, high = {}}
    for i, comparison in ipairs(whole.comparisons) do
      local row = comparison[mode]
      if row.tokens_per_second then one.values[i], one.low[i], one.high[i] = value(row) end
    end
    series[#series + 1] = one
  end
  return groups, series
end

local function throughput(whole)
  local groups, series = by_mode(whole, function(row)
    local speed = row.tokens_per_second
    return speed.median, speed.min, speed.max
  end)
  return {title = "Throughput: median and range of the rounds", x = "", y = {"targets per second", si = true},
    groups = groups, series = series}
end

local function memory(whole)
  local groups, series = by_mode(whole, function(row) return row.peak_bytes / MIB end)
  return {title = "Peak memory", x = "", y = {"allocated", unit = "MiB"}, groups = groups, series = series,
    labels = "%.0f"}
end

local function parts(whole)
  local groups, series = {}, {}
  for i, name in ipairs(part_names) do series[i] = {name = name, values = {}} end
  for _, row in ipairs(whole.candidates) do
    if row.component_seconds then
      groups[#groups + 1] = label(row) .. " " .. row.mode
      for i, name in ipairs(part_names) do series[i].values[#groups] = row.component_seconds[name] end
    end
  end
  return {title = "Parts of a step, from a separate pass", x = "", y = {"seconds", log = true}, groups = groups,
    series = series, width = math.max(720, 225 * #groups)}
end

local charts = {{"throughput", throughput}, {"memory", memory}, {"components", parts}}

--- Writes throughput, memory and components, .svg and .png, into a folder. Returns lines about what could not be drawn.
function plots.write(folder, whole)
  for _, chart in ipairs(charts) do
    local options = chart[2](whole)
    options.png = files.join(folder, chart[1] .. ".png")
    local svg, reason = plot.bars(options)
    if not svg then return {"no plots: " .. reason} end
    files.write(files.join(folder, chart[1] .. ".svg"), svg .. "\n")
  end
  return {}
end

return plots
