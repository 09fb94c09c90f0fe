#!/usr/bin/env packlua
-- Reports on runs and sweeps, as a page and as Markdown:
--   packlua recipes/report.lua [--output DIR] RUN|SWEEP...
local pack = require "pack"

local options = pack.options.parse {
  recipe = "report",
  summary = "Reports on runs and sweeps: curves, tables and maps, as one HTML file and as Markdown.",
  arg = arg,
  config = false,
  extra = {
    {name = "output", value = "DIR", help = "folder of the report (default: that of the first RUN or SWEEP)"},
  },
  positional = {name = "RUN|SWEEP", min = 1, help = "folder of a run, or a folder of runs, such as a sweep's"},
}

local document = pack.report.create(options.positional)
if document.reason then print("without charts: " .. pack.utf8.printable(document.reason)) end
local html, markdown = pack.report.write(document, options.output or options.positional[1])
print("report: " .. pack.utf8.printable(html))
print("report: " .. pack.utf8.printable(markdown))
