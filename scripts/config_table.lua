-- Writes the table of configuration keys into docs/runs.md, between its two marker lines:
--   packlua scripts/config_table.lua           prints the document with the table as it should be
--   packlua scripts/config_table.lua --write   writes it
local files = require "pack.io.files"
local native = require "pack.native"
local schema = require "pack.config.schema"

local path = native.home() .. "/docs/runs.md"
local first, last = "<!-- config table: begin -->\n", "<!-- config table: end -->\n"

-- | is what separates columns.
local function cell(text)
  return (text:gsub("|", "\\|"))
end

local function line(key, default, allowed, resume, help)
  return ("| %s | %s | %s | %s | %s |"):format(key, cell(default), cell(allowed), resume, cell(help))
end

local lines = {line("key", "default", "allowed", "resume", "meaning"), "|---|---|---|---|---|"}
for _, row in ipairs(schema.rows) do
  lines[#lines + 1] = line("`" .. row.key .. "`", schema.show(row.default), schema.expected(row), row.resume, row.help)
  for _, field in ipairs(row.fields or {}) do
    lines[#lines + 1] = line("`" .. field.key .. "`", schema.show(field.default), schema.expected(field), row.resume,
      field.help)
  end
end

local text = assert(files.read(path))
local from, to = text:find(first, 1, true), text:find(last, 1, true)
assert(from and to, path .. " has no marker lines")
local document = text:sub(1, from + #first - 1) .. table.concat(lines, "\n") .. "\n" .. text:sub(to)
if arg[1] == "--write" then
  files.write(path, document)
else
  io.write(document)
end
