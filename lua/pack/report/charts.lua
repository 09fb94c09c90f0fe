--- Charts of a report: curves of groups of runs against tokens, and maps over N and topology.
local groups = require "pack.report.groups"
local plot = require "pack.report.plot"
local statistics = require "pack.measure.statistics"

local report_charts = {}

local MAX_CURVES = 14 -- colours and dashes that can still be told apart
local MAX_POINTS = 800
local WIDE_LOSSES = 50 -- the largest over the smallest, from which on an axis of losses is logarithmic

-- Curves -----------------------------------------------------------------------------------------

--- At most `most` points of a curve: of each stretch the smallest and the largest value in their order, and the first
-- gap if it has one. Returns the two lists.
function report_charts.thin(xs, ys, most)
  if #xs <= most then return xs, ys end
  local stretches = math.floor(most / 3)
  local x_kept, y_kept = {}, {}
  for stretch = 0, stretches - 1 do
    local first = math.floor(stretch * #xs / stretches) + 1
    local last = math.floor((stretch + 1) * #xs / stretches)
    local low, high, gap
    for k = first, last do
      local y = ys[k]
      if y ~= y then
        gap = gap or k
      else
        if not low or y < ys[low] then low = k end
        if not high or y > ys[high] then high = k end
      end
    end
    local places = {}
    for _, k in pairs {low = low, high = high ~= low and high or nil, gap = gap} do places[#places + 1] = k end
    table.sort(places)
    for _, k in ipairs(places) do x_kept[#x_kept + 1], y_kept[#y_kept + 1] = xs[k], ys[k] end
  end
  return x_kept, y_kept
end

-- The runs that a group's curve is made of: the complete ones, or the one that went furthest.
local function drawn_runs(group)
  local complete, longest = {}, nil
  for _, run in ipairs(group.runs) do
    if run.status == "complete" then complete[#complete + 1] = run end
    if not longest or #run.steps.step > #longest.steps.step then longest = run end
  end
  return #complete > 0 and complete or {longest}
end

-- Mean and deviation of several runs' curves, which have the same xs, at every so manieth point.
local function mean_curve(curves)
  local xs = curves[1].x
  local stride = math.ceil(#xs / MAX_POINTS)
  local mean = {x = {}, y = {}, low = {}, high = {}}
  for k = 1, #xs do
    if k % stride == 0 or k == #xs or k == 1 then
      local values = {}
      for i, curve in ipairs(curves) do values[i] = curve.y[k] end
      local found = statistics.moments(values)
      local at = #mean.x + 1
      mean.x[at], mean.y[at] = xs[k], found.mean
      mean.low[at], mean.high[at] = found.mean - found.std, found.mean + found.std
    end
  end
  return mean
end

-- The curve of a group, or nil: pick(run) gives a run's x and y.
local function group_curve(group, pick)
  local curves, same = {}, true
  for _, run in ipairs(drawn_runs(group)) do
    local x, y = pick(run)
    if #x > 0 then curves[#curves + 1] = {x = x, y = y} end
    same = same and (not curves[1] or #x == #curves[1].x)
  end
  if #curves == 0 then return nil end
  if #curves > 1 and same then return mean_curve(curves) end
  local x, y = report_charts.thin(curves[1].x, curves[1].y, MAX_POINTS)
  return {x = x, y = y}
end

-- Whether two curves are the same.
local function equal(a, b)
  if #a.x ~= #b.x then return false end
  for k = 1, #a.x do
    if a.x[k] ~= b.x[k] or not (a.y[k] == b.y[k] or a.y[k] ~= a.y[k] and b.y[k] ~= b.y[k]) then return false end
  end
  return true
end

-- A chart of one curve per group, or nil; a single curve without a name where all are the same. Bands of deviations are
-- left out of charts that say so.
local function curves_of(list, chart, pick)
  local series, all_equal = {}, true
  for _, group in ipairs(list) do
    local curve = group_curve(group, pick)
    if curve then
      curve.name = group.label
      if chart.without_bands then curve.low, curve.high = nil, nil end
      all_equal = all_equal and (not series[1] or equal(series[1], curve))
      series[#series + 1] = curve
    end
  end
  if #series == 0 then return nil end
  if all_equal then series = {{x = series[1].x, y = series[1].y}} end
  chart.x, chart.series = chart.x or {"tokens", si = true, min = 0}, series
  return chart
end

-- The groups that are drawn: all, or those with the least loss.
local function chosen(list)
  if #list <= MAX_CURVES then return list end
  local sorted = {unpack(list)}
  local function loss(group) return group.statistics.loss and group.statistics.loss.mean or math.huge end
  table.sort(sorted, function(a, b)
    if loss(a) ~= loss(b) then return loss(a) < loss(b) end
    return a.place < b.place
  end)
  return {unpack(sorted, 1, MAX_CURVES)}
end

-- Whether any step mixed with less than all of W.
local function mixes_partly(list)
  for _, group in ipairs(list) do
    for _, run in ipairs(group.runs) do
      for _, x in ipairs(run.steps.gamma) do
        if x ~= 1 and x == x then return true end
      end
    end
  end
  return false
end

local function column(name)
  return function(run) return run.steps.tokens, run.steps[name] end
end

local function validation(run)
  return run.evaluations.tokens, run.evaluations.loss
end

-- The same against what was spent: "seconds" of steps or "bytes" that a worker sent.
local function validation_against(name)
  return function(run) return run.evaluations[name], run.evaluations.loss end
end

-- Whether workers sent anything.
local function sends(list)
  for _, group in ipairs(list) do
    for _, run in ipairs(group.runs) do
      if run.costs.bytes > 0 then return true end
    end
  end
  return false
end

-- The axis of losses: logarithmic where one went through the roof.
local function loss_axis(series)
  local low, high = math.huge, 0
  for _, one in ipairs(series) do
    for _, y in ipairs(one.y) do
      if y > 0 and y < math.huge then low, high = math.min(low, y), math.max(high, y) end
    end
  end
  return {"loss", unit = "nats", log = high > WIDE_LOSSES * low}
end

local function losses(list, chart, pick)
  chart = curves_of(list, chart, pick)
  if chart then chart.y = loss_axis(chart.series) end
  return chart
end

-- The loss of a single run, in training and held out, as one chart.
local function own_loss(group)
  local chart = {name = "loss", title = "Loss", x = {"tokens", si = true, min = 0}, series = {}}
  local training, held_out = group_curve(group, column "loss"), group_curve(group, validation)
  if training then
    training.name = "training"
    table.insert(chart.series, training)
  end
  if held_out then
    held_out.name = "held out, the workers' average"
    table.insert(chart.series, held_out)
  end
  chart.y = loss_axis(chart.series)
  return #chart.series > 0 and chart or nil
end

local function consensus(list)
  local zeros = false
  local chart = curves_of(list, {name = "consensus", title = "Consensus distance", y = {"distance", log = true}},
    function(run) return run.consensus.tokens, run.consensus.distance end)
  for _, one in ipairs(chart and chart.series or {}) do
    for _, y in ipairs(one.y) do zeros = zeros or y == 0 end
  end
  if zeros then chart.caption = "Distances of 0 have no place on a logarithmic axis." end
  return chart
end

--- The curves of groups, a list of charts for plot.lines with `name` and maybe `caption`; the second result says
-- which groups are left out, if any are.
function report_charts.curves(list)
  local drawn, charts = chosen(list), {}
  local function add(chart) charts[#charts + 1] = chart end
  if #list == 1 then
    add(own_loss(list[1]))
  else
    add(losses(drawn, {name = "validation-loss", title = "Held-out loss of the workers' average"}, validation))
    add(losses(drawn, {name = "training-loss", title = "Training loss"}, column "loss"))
    add(losses(drawn, {name = "validation-loss-time", title = "Held-out loss against the time of steps",
      x = {"seconds", min = 0}}, validation_against "seconds"))
    if sends(drawn) then
      add(losses(drawn, {name = "validation-loss-bytes", title = "Held-out loss against what a worker sent",
        x = {"bytes", si = true, min = 0}}, validation_against "bytes"))
    end
  end
  add(consensus(drawn))
  add(curves_of(drawn, {name = "throughput", title = "Throughput", without_bands = true,
    y = {"targets per second", si = true, min = 0}},
    column "tokens_per_second"))
  add(curves_of(drawn, {name = "lr", title = "Learning rate", y = {"learning rate", min = 0}}, column "lr"))
  if mixes_partly(drawn) then
    add(curves_of(drawn, {name = "gamma", title = "Weight of mixing", y = {"gamma", min = 0, max = 1.05}},
      column "gamma"))
  end
  if #drawn == #list then return charts end
  return charts, ("Curves are shown of the %d settings with the least loss, of %d."):format(#drawn, #list)
end

-- Maps -------------------------------------------------------------------------------------------

local function mean_of(name)
  return function(group) return group.statistics[name] and group.statistics[name].mean end
end

--- What maps over N and topology show: {name, title, format, value(group), log}.
report_charts.measures = {
  {name = "loss", title = "Held-out loss of the average (nats)", format = "%.4f", value = mean_of "loss"},
  {name = "consensus_distance", title = "Consensus distance at the end", format = "%.3g",
    value = mean_of "consensus_distance"},
  {name = "tokens_per_second", title = "Targets per second (median of the steps)", format = "%.0f",
    value = mean_of "tokens_per_second"},
  {name = "spectral_gap", title = "Spectral gap of the topology", format = "%.3f",
    value = function(group) return groups.spectral_gap(group.runs[1]) end},
}

--- The values of a measure over a grid (see report_groups.grid): values[topology][worker], nil where there is none.
function report_charts.values(grid, measure)
  local values = {}
  for r, name in ipairs(grid.topologies) do
    values[r] = {}
    for c, n in ipairs(grid.workers) do
      local group = grid.cells[name][n]
      values[r][c] = group and measure.value(group)
    end
  end
  return values
end

--- The maps over a grid, a list of charts for plot.heatmap with `name`.
function report_charts.maps(grid)
  local maps = {}
  for i, measure in ipairs(report_charts.measures) do
    maps[i] = {name = "map-" .. measure.name:gsub("_", "-"), title = measure.title, format = measure.format,
      x = {"workers", labels = grid.workers}, y = {"", labels = grid.topologies},
      values = report_charts.values(grid, measure)}
  end
  return maps
end

-- Drawing ----------------------------------------------------------------------------------------

--- Draws a chart: it gets `svg`, or `reason`. Returns the chart.
function report_charts.draw(chart)
  chart.width, chart.height = 640, chart.height or (chart.series and 400 or nil)
  chart.svg, chart.reason = (chart.series and plot.lines or plot.heatmap)(chart)
  return chart
end

return report_charts
