--- A report as one HTML file that needs nothing from outside.
local utf8 = require "pack.io.utf8"

local report_html = {}

local entities = {["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;"}

--- Text as HTML shows it, also in attributes; what is not UTF-8 and control characters become U+FFFD.
function report_html.escape(text)
  text = utf8.clean(tostring(text)):gsub("[%z\1-\8\11\12\14-\31\127]", "\239\191\189")
  return (text:gsub("[&<>\"']", entities))
end

local escape = report_html.escape

local style = [[
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; color: #1c1c1c;
  background: #fff; max-width: 1340px; margin: 2em auto; padding: 0 1.5em; }
h1 { font-size: 1.6em; margin: 0 0 .2em; }
h2 { font-size: 1.2em; margin: 2em 0 .6em; padding-bottom: .2em; border-bottom: 1px solid #ddd; }
p { margin: .4em 0; max-width: 60em; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(560px, 100%), 1fr)); gap: 1.2em 1.6em; }
figure { margin: 0; }
figure svg { width: 100%; height: auto; max-width: 760px; }
figcaption, .note { color: #666; font-size: .88em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92em; margin: .4em 0 1em; }
th, td { padding: .3em .8em; border-bottom: 1px solid #e4e4e4; text-align: left; vertical-align: top; }
th { background: #f5f6f8; font-weight: 600; white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.reason { min-width: 16em; max-width: 34em; overflow-wrap: anywhere; }
tr.best td { background: #eaf5ee; font-weight: 600; }
.status { border-radius: .7em; padding: 0 .6em; white-space: nowrap; font-size: .92em; }
.complete { background: #e2f2e8; color: #14532d; }
.failed { background: #fbe3df; color: #8a1c0d; }
.running, .unfinished { background: #fdf1d3; color: #6b4a00; }
summary { cursor: pointer; color: #333; }
]]

local function cell(x, tag)
  x = type(x) == "table" and x or {x}
  local class = x.class and (' class="%s"'):format(escape(x.class)) or ""
  local exact = x.exact and (' title="%s"'):format(escape(x.exact)) or ""
  local inner = escape(x[1] == nil and "" or x[1])
  if x.status then inner = ('<span class="status %s">%s</span>'):format(escape(x.status), inner) end
  return ("<%s%s%s>%s</%s>"):format(tag, class, exact, inner, tag)
end

local function row(cells, tag, best)
  local parts = {}
  for i = 1, #cells do parts[i] = cell(cells[i], tag) end
  return (best and '<tr class="best">' or "<tr>") .. table.concat(parts) .. "</tr>"
end

local render = {}

function render.heading(block)
  return ("<h2>%s</h2>"):format(escape(block.text))
end

function render.text(block)
  return ("<p>%s</p>"):format(escape(block.text))
end

function render.note(block)
  return ('<p class="note">%s</p>'):format(escape(block.text))
end

function render.table(block)
  local lines = {'<div class="scroll"><table>'}
  if block.head then lines[2] = "<thead>" .. row(block.head, "th") .. "</thead>" end
  lines[#lines + 1] = "<tbody>"
  for _, cells in ipairs(block.rows) do lines[#lines + 1] = row(cells, "td", cells.best) end
  lines[#lines + 1] = "</tbody></table></div>"
  local text = table.concat(lines, "\n")
  if not block.folded then return text end
  return ("<details><summary>%s</summary>\n%s\n</details>"):format(escape(block.folded), text)
end

function render.charts(block)
  local lines = {'<div class="charts">'}
  for _, chart in ipairs(block.charts) do
    local caption = chart.caption and ("<figcaption>%s</figcaption>"):format(escape(chart.caption)) or ""
    -- An <svg> within HTML needs no name spaces, which look like addresses.
    local svg = chart.svg:gsub('%sxmlns[:%w]*="[^"]*"', "")
    lines[#lines + 1] = ("<figure>\n%s%s</figure>"):format(svg, caption)
  end
  lines[#lines + 1] = "</div>"
  return table.concat(lines, "\n")
end

--- The document (see pack.report) as HTML.
function report_html.render(document)
  local lines = {'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    ("<title>%s</title>\n<style>\n%s</style>\n</head>\n<body>"):format(escape(document.title), style),
    ("<h1>%s</h1>"):format(escape(document.title))}
  for _, block in ipairs(document.blocks) do lines[#lines + 1] = render[block.kind](block) end
  lines[#lines + 1] = "</body>\n</html>\n"
  return table.concat(lines, "\n")
end

return report_html
