--- The charts of a benchmark: throughput, memory and what a step is made of, as SVG and PNG.
local files = require "pack.files"
local plot = require "pack.plot"

local plots = {}

local MIB = 2 ^ 20

-- One entry per candidate that was measured, and its label.
local function measured(whole)
  local rows, labels = {}, {}
  for _, row in ipairs(whole.candidates) do
    if row.tokens_per_second then
      rows[#rows + 1] = row
      labels[#labels + 1] = ("N=%d %s\n%s"):format(row.num_models, row.mode, row.execution)
    end
  end
  return rows, labels
end

local function column(rows, value)
  local list = {}
  for i, row in ipairs(rows) do list[i] = value(row) or 0 / 0 end
  return list
end

local function throughput(rows, labels)
  return {title = "Throughput, median and range of the rounds", x = "", y = {"targets per second", si = true}, groups = labels,
    series = {{values = column(rows, function(row) return row.tokens_per_second.median end),
      low = column(rows, function(row) return row.tokens_per_second.min end),
      high = column(rows, function(row) return row.tokens_per_second.max end)}}}
end

local function memory(rows, labels)
  return {title = "Peak memory", x = "", y = {"allocated", unit = "MiB"}, groups = labels,
    series = {{values = column(rows, function(row) return row.peak_bytes / MIB end)}}}
end

local function parts(rows, labels)
  local series = {}
  for i, name in ipairs {"compute", "clip", "mix", "optimizer"} do
    series[i] = {name = name, values = column(rows, function(row)
      return row.component_seconds and row.component_seconds[name]
    end)}
  end
  return {title = "Parts of a step, from a separate pass", x = "", y = {"seconds", log = true}, groups = labels,
    series = series}
end

local charts = {{"throughput", throughput}, {"memory", memory}, {"components", parts}}

--- Writes throughput, memory and components, .svg and .png, into a folder. Returns lines about what could not be drawn.
function plots.write(folder, whole)
  local rows, labels = measured(whole)
  if #rows == 0 then return {} end
  for _, chart in ipairs(charts) do
    local options = chart[2](rows, labels)
    options.png, options.width = files.join(folder, chart[1] .. ".png"), math.max(720, 90 * #rows)
    local svg, reason = plot.bars(options)
    if not svg then return {"no plots: " .. reason} end
    files.write(files.join(folder, chart[1] .. ".svg"), svg .. "\n")
  end
  return {}
end

return plots
