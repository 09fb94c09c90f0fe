--- What a sweep found: a row per run, means and deviations over seeds, the best; as JSON, CSV and Markdown.
local files = require "pack.io.files"
local json = require "pack.io.json"
local markdown_of = require "pack.report.markdown"
local figures_of = require "pack.measure.statistics"
local plan = require "pack.sweep.plan"

local summary = {}

local SEED = "runtime.seed"
local cell = markdown_of.escape

-- Results that are shown first, in this order.
local first_results = {"loss", "perplexity", "consensus_distance", "tokens_per_second", "steps", "run_seconds"}

--- A run's row: {index, name, status, reason, values, result}.
function summary.row(task)
  local status, reason = task:status()
  return {index = task.index, name = task.name, status = status, reason = reason, values = task.values,
    result = status == "complete" and task:result() or nil}
end

-- The names of the numbers in the rows' results: known ones first, others by name.
local function result_names(rows)
  local there, names = {}, {}
  for _, row in ipairs(rows) do
    for key, value in pairs(row.result or {}) do
      if type(value) == "number" then there[key] = true end
    end
  end
  for _, name in ipairs(first_results) do
    if there[name] then names[#names + 1] = name end
    there[name] = nil
  end
  local others = {}
  for name in pairs(there) do others[#others + 1] = name end
  table.sort(others)
  for _, name in ipairs(others) do names[#names + 1] = name end
  return names
end

-- Rows that differ in the seed alone, in order of their first.
local function group_rows(rows, keys)
  local groups, by_text = {}, {}
  for _, row in ipairs(rows) do
    local parts, values = {}, {}
    for _, key in ipairs(keys) do
      if key ~= SEED then
        parts[#parts + 1] = row.values[key]
        values[key] = row.values[key]
      end
    end
    local text = table.concat(parts, "\0")
    local group = by_text[text]
    if not group then
      group = {values = values, rows = {}}
      by_text[text] = group
      groups[#groups + 1] = group
    end
    table.insert(group.rows, row)
  end
  return groups
end

-- The complete row with the least finite loss, or nil.
local function best_row(rows)
  local best
  for _, row in ipairs(rows) do
    local loss = row.result and row.result.loss
    if type(loss) == "number" and loss - loss == 0 and (not best or loss < best.result.loss) then best = row end
  end
  return best
end

local function summarize_group(group, names)
  local statistics = {}
  for _, name in ipairs(names) do
    local list = {}
    for _, row in ipairs(group.rows) do
      local x = row.result and row.result[name]
      if type(x) == "number" and x - x == 0 then list[#list + 1] = x end
    end
    statistics[name] = figures_of.moments(list)
  end
  local best = best_row(group.rows)
  local complete = 0
  for _, row in ipairs(group.rows) do complete = complete + (row.status == "complete" and 1 or 0) end
  return {values = group.values, runs = #group.rows, complete = complete, statistics = statistics,
    best = best and best.name or nil}
end

--- The summary of tasks (see sweep_task) over axes: {axes, runs, groups, best, results (their names), counts (by
-- status)}. groups hold the runs that differ in runtime.seed alone.
function summary.of(tasks, axes)
  local rows, counts = {}, {}
  for i, task in ipairs(tasks) do
    rows[i] = summary.row(task)
    counts[rows[i].status] = (counts[rows[i].status] or 0) + 1
  end
  local keys, names = plan.keys(axes), result_names(rows)
  local groups = {}
  for i, group in ipairs(group_rows(rows, keys)) do groups[i] = summarize_group(group, names) end
  local best = best_row(rows)
  return {axes = axes, keys = keys, runs = rows, groups = groups, best = best and best.name or nil, results = names,
    counts = counts}
end

-- CSV ----------------------------------------------------------------------------------------------

-- A field as RFC 4180 has it.
local function csv_field(x)
  if x == nil or x == json.null then return "" end
  local text = type(x) == "number" and ("%.17g"):format(x) or tostring(x)
  if text:find('[,"\r\n]') then return '"' .. text:gsub('"', '""') .. '"' end
  return text
end

local function csv(found)
  local lines = {}
  local function line(cells, count)
    for i = 1, count do cells[i] = csv_field(cells[i]) end
    lines[#lines + 1] = table.concat(cells, ",", 1, count)
  end
  local head = {"name"}
  for _, key in ipairs(found.keys) do head[#head + 1] = key end
  head[#head + 1], head[#head + 2] = "status", "reason"
  for _, name in ipairs(found.results) do head[#head + 1] = name end
  local width = #head
  line(head, width)
  for _, row in ipairs(found.runs) do
    local cells = {row.name}
    for i, key in ipairs(found.keys) do cells[1 + i] = row.values[key] end
    cells[#found.keys + 2], cells[#found.keys + 3] = row.status, row.reason
    for i, name in ipairs(found.results) do cells[#found.keys + 3 + i] = row.result and row.result[name] end
    line(cells, width)
  end
  return table.concat(lines, "\r\n") .. "\r\n"
end

-- Markdown -----------------------------------------------------------------------------------------

local function show(x)
  if type(x) ~= "number" then return x == nil and "" or tostring(x) end
  return ("%.5g"):format(x)
end

local function table_of(head, body)
  local lines = {"| " .. table.concat(head, " | ") .. " |", "|" .. ("---|"):rep(#head)}
  for _, cells in ipairs(body) do lines[#lines + 1] = "| " .. table.concat(cells, " | ") .. " |" end
  return table.concat(lines, "\n")
end

local function mean_text(statistics)
  if not statistics then return "" end
  return show(statistics.mean) .. (statistics.std and (" ± %.2g"):format(statistics.std) or "")
end

local shown_results = {"loss", "consensus_distance", "tokens_per_second"}

local function group_table(found)
  local keys, head, body = {}, {}, {}
  for _, key in ipairs(found.keys) do
    if key ~= SEED then keys[#keys + 1] = key end
  end
  for i, key in ipairs(keys) do head[i] = cell(key) end
  head[#head + 1] = "complete"
  for _, name in ipairs(shown_results) do head[#head + 1] = cell(name) end
  for g, group in ipairs(found.groups) do
    local cells = {}
    for i, key in ipairs(keys) do cells[i] = cell(group.values[key]) end
    cells[#cells + 1] = ("%d of %d"):format(group.complete, group.runs)
    for _, name in ipairs(shown_results) do cells[#cells + 1] = mean_text(group.statistics[name]) end
    body[g] = cells
  end
  return table_of(head, body)
end

local function run_table(found)
  local head = {"run", "status"}
  for _, name in ipairs(shown_results) do head[#head + 1] = cell(name) end
  local body = {}
  for i, row in ipairs(found.runs) do
    local cells = {cell(row.name) .. (row.name == found.best and " (best)" or ""),
      row.reason and ("%s: %s"):format(row.status, cell(row.reason)) or row.status}
    for _, name in ipairs(shown_results) do cells[#cells + 1] = show(row.result and row.result[name]) end
    body[i] = cells
  end
  return table_of(head, body)
end

--- "10 complete, 2 failed" of a summary.
function summary.counts_text(found)
  local parts = {}
  for _, status in ipairs {"complete", "failed", "running", "interrupted", "new"} do
    if found.counts[status] then parts[#parts + 1] = ("%d %s"):format(found.counts[status], status) end
  end
  return table.concat(parts, ", ")
end

local function markdown(found)
  return table.concat({
    "# Sweep", "", ("%d runs: %s."):format(#found.runs, summary.counts_text(found)),
    found.best and ("The least validation loss of the average has %s."):format(cell(found.best)) or "", "",
    "## Settings", "", "Mean ± standard deviation over seeds.", "", group_table(found), "",
    "## Runs", "", run_table(found), "",
  }, "\n")
end

--- Writes summary.json, summary.csv and report.md of a summary into the sweep's folder.
function summary.write(found, folder)
  json.write(files.join(folder, "summary.json"), found)
  files.write(files.join(folder, "summary.csv"), csv(found))
  files.write(files.join(folder, "report.md"), markdown(found))
end

return summary
