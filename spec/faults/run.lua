-- Fails every allocation and every call on a file of some scenarios, one at a time, and looks at what becomes of it:
--   packlua spec/faults/run.lua --shim LIBRARY [--kinds memory,EIO,...] [--scenario NAME] [--points N] [--part I/P]
-- The shim (shim.c) fails the n-th call of a kind, for n = 1 until a run has fewer. Each run must end by itself, with an
-- error that says what failed, or with the result that it has without a fault; then the scenario goes on without
-- a fault to the undisturbed result. --points: at most so many n, evenly spread; --part: every P-th of them, from I.
-- Exit code 1: some n did not do so; they are listed.
local failure = require "pack.core.failure"
local ffi = require "ffi"
local files = require "pack.io.files"
local scenarios = require "spec.faults.scenarios"
local support = require "spec.support.helper"

local SECONDS = 60 -- longest run
local LISTED = 3 -- failures of one origin that are shown
local REPORT_BYTES = 4096

--- What the kinds fail, and texts of which an error of theirs has one, if not the file's name. always: every scenario
-- has some; files: a file may be damaged; points: so many of them are enough.
local kinds = {
  {name = "memory", always = true, says = {"memory", "cannot start"}},
  {name = "libraries", says = {"memory", "cannot"}},
  {name = "lua", says = {"memory"}, points = 150}, -- each is a few hundred bytes of the same tables and strings
  {name = "EIO", files = true, says = {"Input/output error"}},
  {name = "ENOSPC", files = true, says = {"No space left on device"}},
  {name = "EINTR", files = true, says = {"Interrupted system call"}},
  {name = "short", files = true, says = {}},
}

local function read_options()
  local options = {part = 1, parts = 1}
  local i = 1
  while arg[i] do
    local name, value = arg[i]:match("^%-%-(%w+)$"), arg[i + 1]
    if not name or not value then failure.usage("%s: not an option with a value", arg[i]) end
    options[name] = value
    i = i + 2
  end
  local part, parts = tostring(options.part):match("^(%d+)/(%d+)$")
  options.part, options.parts = tonumber(part or 1), tonumber(parts or 1)
  options.points = tonumber(options.points)
  if not options.shim or not files.exists(options.shim) then failure.usage("--shim: no such library: %s", options.shim) end
  return options
end

local options = read_options()
local folder = support.temporary()

-- Runs a scenario's words in a folder. faults: variables for the shim, or nil. Returns exit code, output, errors.
local function shell(where, words, faults)
  local preload = ""
  if faults then
    preload = ("env LD_PRELOAD=%s PACKLUA_FAULT=%s PACKLUA_FAULT_AT=%d PACKLUA_FAULT_REPORT=%s/report"):format(
      support.quote(os.getenv("PACKLUA_FAULT_PRELOAD") or options.shim), faults.kind, faults.at, folder)
  end
  support.write(folder .. "/words", ("cd %s\npacklua() { %s timeout -k 1 %d %s \"$@\"; }\n%s\n"):format(
    where, preload, SECONDS, support.quote(support.program), words))
  local status = os.execute(("OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 sh %s/words < /dev/null > %s/out 2> %s/err")
    :format(folder, folder, folder))
  return status >= 256 and math.floor(status / 256) or (status == 0 and 0 or 128 + status % 128),
    support.read(folder .. "/out"), support.read(folder .. "/err")
end

-- Runs a scenario with its n-th call failed: exit code, output, errors, and what the shim says.
local function run_with_fault(scenario, work, kind, n)
  support.write(folder .. "/report", ("\0"):rep(REPORT_BYTES))
  local code, out, err = shell(work, scenario.run, {kind = kind.name, at = n})
  local report = ffi.new("char[?]", REPORT_BYTES + 1, support.read(folder .. "/report"))
  local numbers = ffi.cast("const int64_t *", report)
  return code, out, err, {seen = tonumber(numbers[0]), failed = tonumber(numbers[1]), what = ffi.string(report + 16)}
end

local function outcome_of(scenario, work, out)
  if scenario.outcome then return scenario.outcome(work) end
  return {output = out}
end

-- Why two outcomes differ, or nil.
local function difference(expected, got)
  for name, text in pairs(expected) do
    if got[name] ~= text then return name .. " differs" end
  end
  for name in pairs(got) do
    if not expected[name] then return name .. " is new" end
  end
end

-- Whether errors say what failed: by a text of the kind, or by the name of the file (or module) of the call.
local function says(kind, err, report)
  for _, pattern in ipairs(kind.says) do
    if err:find(pattern) then return true end
  end
  local path = report.what:match("%((/[^)]*)%)") or report.what:match("%(([^)]*)%)")
  local name = path and files.basename(path):gsub("%.lua$", ""):gsub("%.tmp%-.*$", "")
  return name and name ~= "" and err:find(name, 1, true) ~= nil
end

-- What is wrong with how a run ended, or nil; and whether it did as if nothing had failed.
local function judge(scenario, work, kind, expected, code, out, err, report)
  if code == 124 or code == 137 then return "hangs" end
  if code >= 126 then return "crashes with " .. code end
  if code == 99 then return "a sanitizer's report" end
  if scenario.shows and code <= 1 and says(kind, out .. err, report) then return end
  if code == 0 then
    local good, got = pcall(outcome_of, scenario, work, out)
    if not good then return "exit code 0, but " .. tostring(got) end
    local differs = difference(expected, got)
    return differs and "exit code 0, but " .. differs, true
  end
  if err == "" then return "fails without a word" end
  if not says(kind, err, report) then return "the error does not say what failed" end
end

-- Goes on after a failure, as its user would: nil, or what is wrong.
local function go_on(scenario, work, expected)
  if scenario.checked then
    local good, message = pcall(scenario.checked, work)
    if not good then return "afterwards " .. tostring(message) end
  end
  local words = scenario.again and scenario.again(work)
  if not words then return end
  local code, out, err = shell(work, words)
  if code ~= 0 then return ("going on ends with %d: %s"):format(code, err) end
  local good, got = pcall(outcome_of, scenario, work, out)
  if not good then return "going on leaves " .. tostring(got) end
  local differs = difference(expected, got)
  return differs and "after going on " .. differs
end

local function fresh(template, work)
  os.execute(("rm -rf %s && cp -r %s %s"):format(work, template, work))
end

-- The files below a folder and their sizes, as text; of those that say the time there only is how many lines they have.
local function listing(path)
  local names = {}
  for _, name in ipairs(assert(files.list(path))) do
    local one = path .. "/" .. name
    local shown = name:gsub("%.tmp%-%d+", ".tmp")
    if files.kind(one) == "directory" then
      names[#names + 1] = shown .. "{" .. listing(one) .. "}"
    elseif name:find("%.log$") or name:find("%.jsonl?$") then
      names[#names + 1] = ("%s %d"):format(shown, select(2, (files.read(one) or ""):gsub("\n", "")))
    else
      names[#names + 1] = ("%s %d"):format(shown, files.size(one) or -1)
    end
  end
  return table.concat(names, "\n")
end

local wrong = 0

-- Fails one n after the other: how many there were.
local function scan(scenario, template, work, kind, expected)
  fresh(template, work)
  local code, _, err, whole = run_with_fault(scenario, work, kind, 0)
  if code ~= 0 then failure.raise(1, ("%s under the shim: %s"):format(scenario.name, err)) end
  if whole.seen == 0 and kind.always then failure.raise(1, "the shim sees no calls: is it built for this program?") end
  local most = options.points or kind.points
  local step = most and math.max(1, whole.seen / most) or 1
  local done, tolerated, listed, failures, went_on = 0, 0, {}, 0, {}
  for k = options.part, math.huge, options.parts do
    local n = math.floor((k - 1) * step) + 1
    fresh(template, work)
    local out, report
    code, out, err, report = run_with_fault(scenario, work, kind, n)
    if report.failed == 0 then break end
    local problem, success = judge(scenario, work, kind, expected, code, out, err, report)
    if not problem and not success then
      -- Where memory ran out in many places that leave the same files, one is gone on from.
      local left = kind.files and n or listing(work)
      problem = not went_on[left] and go_on(scenario, work, expected)
      went_on[left] = not problem
    end
    done, tolerated = done + 1, tolerated + (success and not problem and 1 or 0)
    if problem then
      failures = failures + 1
      local origin = report.what:match("from.*") .. problem
      listed[origin] = (listed[origin] or 0) + 1
      if listed[origin] <= LISTED then
        print(("FAULT %s, %s %d: %s: %s"):format(scenario.name, kind.name, n, report.what, problem))
        print("  " .. err:sub(1, 600):gsub("\n", "\n  "))
        io.stdout:flush()
      end
    end
  end
  for origin, count in pairs(listed) do
    if count > LISTED then print(("  %d times %s"):format(count, origin)) end
  end
  wrong = wrong + failures
  print(("COUNT %s|%s|%d|%d|%d|%d"):format(scenario.name, kind.name, whole.seen, done, tolerated, failures))
  io.stdout:flush()
end

local function chosen(list, name)
  return not list or ("," .. list .. ","):find("," .. name .. ",", 1, true)
end

local good, problem = pcall(function()
  for _, scenario in ipairs(scenarios) do
    if chosen(options.scenario, scenario.name) then
      local template, work = folder .. "/template", folder .. "/work"
      os.execute(("rm -rf %s"):format(template))
      files.mkdir(template)
      scenarios.write_inputs(template)
      if scenario.setup then
        local code, _, err = shell(template, scenario.setup)
        if code ~= 0 then failure.raise(1, ("%s: its setup ends with %d: %s"):format(scenario.name, code, err)) end
      end
      fresh(template, work)
      local code, out, err = shell(work, scenario.run)
      if code ~= 0 then failure.raise(1, ("%s: ends with %d: %s"):format(scenario.name, code, err)) end
      local expected = outcome_of(scenario, work, out)
      for _, kind in ipairs(kinds) do
        if chosen(options.kinds, kind.name) then scan(scenario, template, work, kind, expected) end
      end
    end
  end
end)
support.remove(folder)
if not good then error(problem, 0) end
if wrong > 0 then failure.raise(1, ("%d faults end wrongly"):format(wrong)) end
