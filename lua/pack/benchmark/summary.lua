--- What came of a benchmark: medians and spread of each candidate, comparisons of the modes, and both as text.
local config_module = require "pack.config"
local json = require "pack.io.json"
local progress = require "pack.io.progress"
local statistics = require "pack.measure.statistics"

local summary = {}

local MIB = 2 ^ 20

local function spread(values)
  local sorted = {unpack(values)}
  table.sort(sorted)
  return {min = sorted[1], max = sorted[#sorted], median = statistics.median(sorted)}
end

-- One field of all repeats.
local function column(record, name)
  local list = {}
  for i, one in ipairs(record.repeats) do list[i] = one[name] end
  return list
end

local function all_steps(record)
  local list = {}
  for _, one in ipairs(record.repeats) do
    for _, seconds in ipairs(one.step_seconds) do list[#list + 1] = seconds end
  end
  return list
end

-- Fields that are the median of the repeats, and those of which the largest counts.
local medians = {"warmup_seconds", "setup_seconds", "compile_seconds", "share_of_ceiling", "ceiling_flops_per_second"}
local largest = {"peak_bytes", "reserved_bytes", "peak_rss_bytes"}
-- Fields that are the same in every repeat, or are measured in one of them only.
local once = {"planned_bytes", "operations", "flops", "executed_flops", "component_seconds", "operators",
  "environment", "loss", "dtype", "ceiling_dtype"}

--- Fills in what follows from a record's repeats: tokens_per_second (of whole windows) and seconds_per_step (of single
-- steps) as {min, median, max}, and the fields that are one number for all.
function summary.derive(record)
  record.tokens_per_second = spread(column(record, "tokens_per_second"))
  record.seconds_per_step = spread(all_steps(record))
  for _, name in ipairs(medians) do
    local values = column(record, name)
    record[name] = #values > 0 and spread(values).median or nil
  end
  for _, name in ipairs(largest) do record[name] = spread(column(record, name)).max end
  for _, one in ipairs(record.repeats) do
    for _, name in ipairs(once) do
      if record[name] == nil then record[name] = one[name] end
    end
    one.operators, one.environment = nil, nil
  end
end

--- The first line of a message, without the place in the library that raised it.
function summary.first_line(message)
  return (tostring(message):match("^[^\n]*"):gsub("^[^ ]*%.lua:%d+: ", ""))
end

-- What the summary says of a candidate.
local function brief(record)
  return {name = record.name, num_models = record.num_models, mode = record.mode, execution = record.execution,
    status = record.status, reason = record.reason, repeats = #record.repeats, dtype = record.dtype,
    tokens_per_second = record.tokens_per_second, seconds_per_step = record.seconds_per_step,
    warmup_seconds = record.warmup_seconds, setup_seconds = record.setup_seconds,
    compile_seconds = record.compile_seconds, peak_bytes = record.peak_bytes, reserved_bytes = record.reserved_bytes,
    planned_bytes = record.planned_bytes, peak_rss_bytes = record.peak_rss_bytes,
    component_seconds = record.component_seconds, flops = record.flops, share_of_ceiling = record.share_of_ceiling,
    ceiling_flops_per_second = record.ceiling_flops_per_second}
end

local function measured(row)
  return row and row.tokens_per_second ~= nil
end

-- The rows of one number of workers and execution, side by side.
local function comparison(workers, execution, sequential, packed, parity)
  local both = measured(sequential) and measured(packed)
  return {num_models = workers, execution = execution, sequential = sequential or json.null, packed = packed or json.null,
    speedup = both and packed.tokens_per_second.median / sequential.tokens_per_second.median or json.null,
    parity = parity and parity.value or json.null, parity_tensor = parity and parity.tensor or json.null}
end

--- The summary of a plan and its records, a table that is summary.json: settings, candidates (their results in
-- brief), comparisons {num_models, execution, sequential, packed, speedup, parity}, model and batch.
function summary.of(plan, records)
  local rows, by_name, comparisons = json.array(), {}, json.array()
  for i, candidate in ipairs(plan.candidates) do
    rows[i] = brief(records[candidate.name])
    by_name[candidate.name] = rows[i]
  end
  for _, workers in ipairs(plan.settings.num_models) do
    for _, execution in ipairs(plan.settings.executions) do
      local names = {}
      for _, mode in ipairs {"sequential", "packed"} do names[mode] = ("n-%d-%s-%s"):format(workers, mode, execution) end
      local one = records[names.packed] or records[names.sequential]
      comparisons[#comparisons + 1] = comparison(workers, execution, by_name[names.sequential], by_name[names.packed],
        one.parity)
    end
  end
  local base = plan.base
  return {settings = plan.settings, candidates = rows, comparisons = comparisons,
    model = base.model, parameters = config_module.parameters(base.model), batch_tokens = base.training.batch_tokens,
    topology = base.decentralized.topology, scheme = base.decentralized.scheme}
end

--- How many candidates failed or were not measured at all.
function summary.count_failed(whole)
  local count = 0
  for _, row in ipairs(whole.candidates) do
    if row.status ~= "ok" then count = count + 1 end
  end
  return count
end

-- As text ----------------------------------------------------------------------------------------

local columns = {"N", "mode", "execution", "tok/s", "min .. max", "speedup", "peak MiB", "of ceiling", "parity"}

local function number(format, x, factor)
  return type(x) == "number" and format:format(x * (factor or 1)) or "-"
end

local function rate(x)
  return x >= 99999.5 and progress.count(x) or ("%.0f"):format(x)
end

-- Whether the ranges of both modes have a value in common.
local function overlap(one)
  local a, b = one.sequential.tokens_per_second, one.packed.tokens_per_second
  return a.min <= b.max and b.min <= a.max
end

-- The speedup, with a mark where it may be chance.
local function speedup_text(one)
  if one.speedup == json.null then return "-" end
  return ("%.2f%s"):format(one.speedup, overlap(one) and "?" or "")
end

local function row_of(comparison_row, row, packed)
  local cells = {tostring(row.num_models), row.mode, row.execution}
  if not measured(row) then
    cells[4] = row.status:gsub("_", " ")
    for i = 5, #columns do cells[i] = "-" end
    return cells
  end
  local speed = row.tokens_per_second
  cells[4], cells[5] = rate(speed.median), ("%s .. %s"):format(rate(speed.min), rate(speed.max))
  cells[6] = packed and speedup_text(comparison_row) or "-"
  cells[7] = number("%.1f", row.peak_bytes, 1 / MIB)
  cells[8] = number("%.1f%%", row.share_of_ceiling, 100)
  cells[9] = packed and number("%.1e", comparison_row.parity) or "-"
  return cells
end

local function table_rows(whole)
  local rows = {}
  for _, one in ipairs(whole.comparisons) do
    for _, mode in ipairs {"sequential", "packed"} do
      if one[mode] ~= json.null then rows[#rows + 1] = row_of(one, one[mode], mode == "packed") end
    end
  end
  return rows
end

-- What the marks mean, and why rows are missing or have fewer repeats than asked for, a line each.
local function remarks(whole)
  local lines = {}
  for _, one in ipairs(whole.comparisons) do
    if #lines == 0 and one.speedup ~= json.null and overlap(one) then
      lines[1] = "? the ranges of both modes overlap: more rounds or an idle machine would tell"
    end
  end
  for _, row in ipairs(whole.candidates) do
    if row.status ~= "ok" or row.repeats < whole.settings.repeats or row.reason then
      lines[#lines + 1] = ("%s: %s after %d of %d rounds%s"):format(row.name, row.status:gsub("_", " "), row.repeats,
        whole.settings.repeats, row.reason and "; " .. summary.first_line(row.reason) or "")
    end
  end
  return lines
end

local function description(whole)
  local settings, model = whole.settings, whole.model
  return ("%d parameters a worker (%d layers of %d), %d targets a step in all, %s, %s, %s data; %d steps after %d of "
    .. "warm-up, median of %d"):format(whole.parameters, model.layers, model.width, whole.batch_tokens, whole.topology,
    whole.scheme, settings.data, settings.steps, settings.warmup, settings.repeats)
end

local function note_small(whole)
  return whole.batch_tokens * whole.parameters < 2 ^ 36
    and "A small model and batch: for the look of it, not for conclusions; --config configs/20m.lua is the real one." or nil
end

--- The table as aligned text with what belongs to it, for a terminal.
function summary.text(whole)
  local rows, widths = {columns, unpack(table_rows(whole))}, {}
  for _, cells in ipairs(rows) do
    for i, cell in ipairs(cells) do widths[i] = math.max(widths[i] or 0, #cell) end
  end
  local lines = {description(whole)}
  for _, cells in ipairs(rows) do
    local parts = {}
    for i, cell in ipairs(cells) do parts[i] = (i == 2 or i == 3) and cell .. (" "):rep(widths[i] - #cell)
      or (" "):rep(widths[i] - #cell) .. cell end
    lines[#lines + 1] = (table.concat(parts, "  "):gsub("%s+$", ""))
  end
  for _, line in ipairs(remarks(whole)) do lines[#lines + 1] = line end
  lines[#lines + 1] = note_small(whole)
  return table.concat(lines, "\n")
end

local component_columns = {"N", "mode", "execution", "compute", "clip", "mix", "optimizer", "set-up", "recording", "warm-up"}

local function component_row(row)
  local parts = row.component_seconds
  return {tostring(row.num_models), row.mode, row.execution, number("%.4f", parts.compute), number("%.4f", parts.clip),
    number("%.4f", parts.mix), number("%.4f", parts.optimizer), number("%.2f", row.setup_seconds),
    number("%.2f", row.compile_seconds), number("%.2f", row.warmup_seconds)}
end

local function markdown_table(head, rows)
  local function line(cells) return "| " .. table.concat(cells, " | ") .. " |" end
  local lines, rule = {line(head)}, {}
  for i = 1, #head do rule[i] = "---" end
  lines[2] = line(rule)
  for _, cells in ipairs(rows) do lines[#lines + 1] = line(cells) end
  return table.concat(lines, "\n")
end

--- The summary as Markdown.
function summary.markdown(whole)
  local parts, components = {"# Benchmark", description(whole) .. "."}, {}
  parts[#parts + 1] = note_small(whole)
  parts[#parts + 1] = markdown_table(columns, table_rows(whole))
  for _, line in ipairs(remarks(whole)) do parts[#parts + 1] = "- " .. line end
  for _, row in ipairs(whole.candidates) do
    if row.component_seconds then components[#components + 1] = component_row(row) end
  end
  if #components > 0 then
    parts[#parts + 1] = "Seconds of a step's parts, from a separate pass in which clip, mixing and AdamW are operations of "
      .. "their own and the device is waited for after each; and of what is outside the timed steps:"
    parts[#parts + 1] = markdown_table(component_columns, components)
  end
  return table.concat(parts, "\n\n") .. "\n"
end

return summary
