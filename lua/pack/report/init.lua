--- Reports about runs and sweeps: one document, written as an HTML file that needs nothing else and as Markdown.
--
-- A document is {title, blocks}. A block is {kind = "heading" | "text" | "note", text}, {kind = "table", head, rows,
-- folded} or {kind = "charts", charts}. A cell is a text or {text, class, exact, status}; a row may be marked `best`.
local charts = require "pack.report.charts"
local failure = require "pack.core.failure"
local files = require "pack.io.files"
local groups = require "pack.report.groups"
local json = require "pack.io.json"
local native = require "pack.native"
local progress = require "pack.io.progress"
local runs_of = require "pack.report.runs"
local schema = require "pack.config.schema"

local report = {}

-- Cells ------------------------------------------------------------------------------------------

-- A number as a cell that keeps all digits where the page can show them; "" for nil.
local function number(x, format)
  if x == nil then return {"", class = "number"} end
  local text = type(format) == "function" and format(x) or (format or "%.4g"):format(x)
  return {text, class = "number", exact = ("%.17g"):format(x)}
end

local function moments(found, format)
  if not found then return {"", class = "number"} end
  local function show(x) return type(format) == "function" and format(x) or format:format(x) end
  local text = show(found.mean) .. (found.std and " ± " .. ("%.2g"):format(found.std) or "")
  if type(format) == "function" and found.std then text = show(found.mean) .. " ± " .. show(found.std) end
  return {text, class = "number", exact = ("%.17g"):format(found.mean)}
end

local function status_cell(status)
  return {status, status = status}
end

local function mebibytes(x)
  return ("%.0f MiB"):format(x / 2 ^ 20)
end

-- Sections ---------------------------------------------------------------------------------------

local Writer = {}
Writer.__index = Writer

-- Adds a block: a table with what its kind needs.
function Writer:add(kind, block)
  block.kind = kind
  table.insert(self.blocks, block)
end

-- Adds a heading.
function Writer:heading(text) self:add("heading", {text = text}) end

-- Adds a remark about what is above it.
function Writer:note(text) self:add("note", {text = text}) end

-- Draws charts; without gnuplot the report says so once, and has its tables.
function Writer:charts(list)
  local drawn = {}
  for _, chart in ipairs(list) do
    if not self.without_charts then
      charts.draw(chart)
      if chart.svg then drawn[#drawn + 1] = chart end
      if chart.reason and not chart.reason:find("nothing to draw", 1, true) then self.without_charts = chart.reason end
    end
  end
  if #drawn > 0 then self:add("charts", {charts = drawn}) end
end

local count_words = {"complete", "running", "failed", "unfinished"}

local function counts_text(found)
  local counts, parts = {}, {}
  for _, run in ipairs(found.runs) do counts[run.status] = (counts[run.status] or 0) + 1 end
  counts.failed = (counts.failed or 0) + #found.failed
  for _, status in ipairs(count_words) do
    if (counts[status] or 0) > 0 then parts[#parts + 1] = ("%d %s"):format(counts[status], status) end
  end
  return table.concat(parts, ", ")
end

local function summary_section(writer, found)
  writer:add("text", {text = ("%d runs: %s."):format(#found.runs + #found.failed, counts_text(found))})
  if found.keys[1] == groups.recipe then
    writer:note("The runs are of several recipes, or of versions of one; those of different ones are not averaged.")
  end
  local best = groups.best(found.groups)
  if not best or #found.groups < 2 then return end
  local loss = best.statistics.loss
  writer:add("text", {text = ("Least held-out loss: %.4f%s with %s."):format(loss.mean,
    loss.std and (" ± %.2g"):format(loss.std) or "", best.label)})
end

-- The facts of a single run.
local function run_section(writer, run)
  local rows = {}
  local function add(name, cell) rows[#rows + 1] = {name, cell} end
  local own, decentralized = run.numbers, run.config.decentralized or {}
  add("state", status_cell(run.status))
  if run.reason then add(run.status == "failed" and "reason" or "how far", {run.reason, class = "reason"}) end
  add("workers", {tostring(decentralized.num_models), class = "number"})
  add("topology", groups.setting(run, "decentralized.topology"))
  local gap = groups.spectral_gap(run)
  if gap then add("spectral gap", number(gap)) end
  local function add_number(name, x, format)
    if x then add(name, number(x, format)) end
  end
  add_number("held-out loss of the average (nats)", own.loss, "%.4f")
  add_number("perplexity", own.perplexity, "%.4g")
  add_number("least held-out loss", own.best_loss, "%.4f")
  for i, loss in ipairs(run.result and type(run.result.loss_worker) == "table" and run.result.loss_worker or {}) do
    if type(loss) == "number" then add_number(("held-out loss of worker %d"):format(i - 1), loss, "%.4f") end
  end
  local non_finite, names = run.result and run.result.nonfinite, {}
  for name in pairs(type(non_finite) == "table" and non_finite or {}) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for _, name in ipairs(names) do add(name, {"not finite: " .. tostring(non_finite[name]), class = "reason"}) end
  add_number("consensus distance at the end", own.consensus_distance)
  add_number("targets per second (median of the steps)", own.tokens_per_second, progress.count)
  add_number("device memory", own.memory_bytes, mebibytes)
  add_number("steps", own.steps, "%d")
  writer:heading("The run")
  writer:add("table", {rows = rows})
end

local function groups_section(writer, found)
  local head, rows = {}, {}
  for i, name in ipairs(groups.short(found.keys)) do head[i] = name end
  for _, name in ipairs {"complete", "held-out loss", "least loss", "perplexity", "consensus distance", "targets/s",
    "device memory", "spectral gap"} do
    head[#head + 1] = name
  end
  local best = groups.best(found.groups)
  for g, group in ipairs(found.groups) do
    local cells, own = {best = group == best}, group.statistics
    for i, key in ipairs(found.keys) do cells[i] = groups.setting(group.runs[1], key) end
    for _, cell in ipairs {("%d of %d"):format(group.complete, #group.runs), moments(own.loss, "%.4f"),
      moments(own.best_loss, "%.4f"), moments(own.perplexity, "%.4g"), moments(own.consensus_distance, "%.3g"),
      moments(own.tokens_per_second, progress.count), number(own.memory_bytes and own.memory_bytes.mean, mebibytes),
      number(groups.spectral_gap(group.runs[1]), "%.3f")} do
      cells[#cells + 1] = cell
    end
    rows[g] = cells
  end
  writer:heading("Results")
  writer:note("Means over the complete runs of a setting; ± is the standard deviation over seeds. The loss is that of "
    .. "the workers' average on held-out data, in nats per target.")
  writer:add("table", {head = head, rows = rows})
end

local function grid_section(writer, found)
  local grid = groups.grid(found.groups)
  if not grid then return end
  writer:heading("Workers and topology")
  if grid.shared then writer:note("Where several settings share a cell, it shows the one with the least loss.") end
  writer:charts(charts.maps(grid))
  for _, measure in ipairs(charts.measures) do
    local head, rows, values = {"topology"}, {}, charts.values(grid, measure)
    for c, n in ipairs(grid.workers) do head[c + 1] = "N = " .. n end
    for r, name in ipairs(grid.topologies) do
      rows[r] = {name}
      for c = 1, #grid.workers do rows[r][c + 1] = number(values[r][c], measure.format) end
    end
    writer:add("table", {head = head, rows = rows, folded = measure.title})
  end
end

local function curves_section(writer, found)
  local list, note = charts.curves(found.groups)
  if #list == 0 then return end
  writer:heading("Curves")
  if note then writer:note(note) end
  local bands = false
  for _, chart in ipairs(list) do
    for _, one in ipairs(chart.series) do bands = bands or one.low ~= nil end
  end
  if bands then writer:note("Means over seeds, with a band of one standard deviation.") end
  writer:charts(list)
end

-- Every run with the settings in which it differs.
local function runs_section(writer, found)
  local head, rows = {"run", "state"}, {}
  for _, name in ipairs(groups.short(found.differing)) do head[#head + 1] = name end
  for _, name in ipairs {"steps", "held-out loss", "consensus distance", "targets/s", "reason"} do
    head[#head + 1] = name
  end
  for i, run in ipairs(found.runs) do
    local cells, own = {run.name, status_cell(run.status)}, run.numbers
    for _, key in ipairs(found.differing) do cells[#cells + 1] = groups.setting(run, key) end
    for _, cell in ipairs {number(own.steps, "%d"), number(own.loss, "%.4f"), number(own.consensus_distance, "%.3g"),
      number(own.tokens_per_second, progress.count), {run.reason or "", class = "reason"}} do
      cells[#cells + 1] = cell
    end
    rows[i] = cells
  end
  for _, failed in ipairs(found.failed) do
    local cells = {failed.name, status_cell("failed")}
    while #cells < #head - 1 do cells[#cells + 1] = "" end
    cells[#head] = {failed.reason, class = "reason"}
    rows[#rows + 1] = cells
  end
  writer:heading("Runs and the settings in which they differ")
  writer:add("table", {head = head, rows = rows})
end

local function settings_section(writer, found)
  local differs, rows = {}, {}
  for _, key in ipairs(found.differing) do differs[key] = true end
  for _, row in ipairs(schema.rows) do
    if not differs[row.key] and row.key ~= "runtime.output_dir" then
      rows[#rows + 1] = {row.key, groups.setting(found.runs[1], row.key)}
    end
  end
  writer:heading("Settings and machines")
  writer:add("table", {head = {"key", "value"}, rows = rows, folded = #found.runs == 1 and "All settings"
    or "Settings that all runs share"})
end

local environment_names = {"packlua", "revision", "host", "device", "device_description", "instruction_set", "threads",
  "started"}

-- Where the runs were done: each value once.
local function environment_section(writer, found)
  local rows = {}
  for _, name in ipairs(environment_names) do
    local seen, values = {}, {}
    for _, run in ipairs(found.runs) do
      local x = run.environment[name]
      local text = x ~= nil and x ~= json.null and schema.show(x) or nil
      if text and not seen[text] then values[#values + 1] = text end
      if text then seen[text] = true end
    end
    if name == "started" and #values > 1 then
      table.sort(values)
      values = {values[1] .. " to " .. values[#values]}
    end
    if #values > 0 then rows[#rows + 1] = {(name:gsub("_", " ")), {table.concat(values, "; "), class = "reason"}} end
  end
  if #rows > 0 then writer:add("table", {rows = rows}) end
  for _, run in ipairs(found.runs) do
    for _, remark in ipairs(run.remarks) do writer:note(run.name .. ": " .. remark) end
  end
end

--- The report on the runs at `paths`, each a run's folder or a folder of runs: a document for report_html.render and
-- report_markdown.render. Its `reason` says why it has no charts, if it has none. Usage errors: nothing is there.
function report.create(paths)
  local found, names = {runs = {}, failed = {}}, {}
  for i, path in ipairs(paths) do
    local runs, failed = runs_of.find(path)
    for _, run in ipairs(runs) do table.insert(found.runs, run) end
    for _, one in ipairs(failed) do table.insert(found.failed, one) end
    names[i] = files.basename(path)
  end
  found.differing = groups.differing(found.runs)
  found.keys = groups.distinguishing(found.runs, found.differing)
  found.groups = groups.groups(found.runs, found.keys)
  local writer = setmetatable({title = table.concat(names, ", "), blocks = {}}, Writer)
  local single = #found.runs == 1 and #found.failed == 0
  if single then
    run_section(writer, found.runs[1])
    curves_section(writer, found)
  else
    summary_section(writer, found)
    if #found.runs > 0 then
      groups_section(writer, found)
      grid_section(writer, found)
      curves_section(writer, found)
    end
    runs_section(writer, found)
  end
  if #found.runs > 0 then
    settings_section(writer, found)
    environment_section(writer, found)
  end
  local reason = writer.without_charts
  if reason then table.insert(writer.blocks, 1, {kind = "note", text = "Without charts: " .. reason}) end
  return {title = writer.title, blocks = writer.blocks, reason = reason}
end

--- Writes a document into a folder: report.html, which needs no other file, report.md, and the charts of the latter in
-- report-charts/. Returns the paths of the first two. Usage error: the folder cannot be made.
function report.write(document, folder)
  local charts_folder = "report-charts"
  local html, markdown = files.join(folder, "report.html"), files.join(folder, "report.md")
  if native.C.pk_directory_create(folder) ~= 0 then failure.usage("%s", native.message()) end
  for _, block in ipairs(document.blocks) do
    for _, chart in ipairs(block.charts or {}) do
      files.mkdir(files.join(folder, charts_folder))
      files.write(files.join(folder, ("%s/%s.svg"):format(charts_folder, chart.name)), chart.svg)
    end
  end
  files.write(html, require("pack.report.html").render(document))
  files.write(markdown, require("pack.report.markdown").render(document, charts_folder))
  return html, markdown
end

return report
