--- A report as Markdown, its charts being files beside it.
local utf8 = require "pack.io.utf8"

local report_markdown = {}

--- Text in which nothing is markup, on one line.
function report_markdown.escape(text)
  text = utf8.clean(tostring(text)):gsub("%s+", " "):gsub("[%c]", "\239\191\189")
  return (text:gsub("[|\\`<>*_%[%]~#&]", "\\%0"))
end

local escape = report_markdown.escape

local function cell(x, best)
  x = type(x) == "table" and x or {x}
  local text = escape(x[1] == nil and "" or x[1])
  return best and text ~= "" and "**" .. text .. "**" or text
end

local function line(cells, count, best)
  local parts = {}
  for i = 1, count do parts[i] = cell(cells[i], best) end
  return "| " .. table.concat(parts, " | ") .. " |"
end

local render = {}

function render.heading(block)
  return "## " .. escape(block.text)
end

function render.text(block)
  return escape(block.text)
end

render.note = render.text

function render.table(block)
  local head = block.head or {}
  local count = math.max(#head, block.rows[1] and #block.rows[1] or 0)
  local rules = {}
  for i = 1, count do
    local sample = block.rows[1] and block.rows[1][i]
    rules[i] = type(sample) == "table" and sample.class == "number" and "---:" or "---"
  end
  local lines = {line(head, count), "|" .. table.concat(rules, "|") .. "|"}
  for _, cells in ipairs(block.rows) do lines[#lines + 1] = line(cells, count, cells.best) end
  return (block.folded and escape(block.folded) .. "\n\n" or "") .. table.concat(lines, "\n")
end

function render.charts(block, folder)
  local lines = {}
  for _, chart in ipairs(block.charts) do
    lines[#lines + 1] = ("![%s](%s/%s.svg)"):format(escape(chart.title), folder, chart.name)
    if chart.caption then lines[#lines + 1] = escape(chart.caption) end
  end
  return table.concat(lines, "\n\n")
end

--- The document (see pack.report) as Markdown; charts are looked for in `folder`, a path beside it.
function report_markdown.render(document, folder)
  local lines = {"# " .. escape(document.title)}
  for _, block in ipairs(document.blocks) do lines[#lines + 1] = render[block.kind](block, folder) end
  return table.concat(lines, "\n\n") .. "\n"
end

return report_markdown
