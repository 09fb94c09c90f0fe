--- What is asked of a random program: the same bits eager and recorded, with one thread and two, on each device; values
-- and gradients near those of the same program in f64; and gradients near differences.
local context = require "pack.core.context"
local differences = require "spec.random.differences"
local emu = require "spec.support.emu"
local execute = require "spec.random.execute"

local compare = {}

local levels = {"none", "cheap", "auto", "products"}

local contexts = {}

-- A context of the checks' own: "cpu" with some threads, or "emu"; false where there is none.
local function device(name, threads)
  local key = name .. threads
  if contexts[key] == nil then
    if name == "emu" then
      contexts[key] = emu.open() or false
    else
      contexts[key] = context {device = name, threads = threads}
    end
  end
  return contexts[key]
end

--- Closes the devices that were opened.
function compare.close()
  for _, one in pairs(contexts) do
    if one then one:close() end
  end
  contexts = {}
end

-- Differences -------------------------------------------------------------------------------------

-- The first element in which two tensors differ by more than allowed(a, b), as text; NaN is as good as NaN.
local function first_difference(a, b, allowed)
  local x, count = execute.numbers(a)
  local y, other = execute.numbers(b)
  if count ~= other then return ("%s has %d elements, not %d"):format(a.name, other, count) end
  for i = 0, count - 1 do
    local same = x[i] == y[i] or x[i] ~= x[i] and y[i] ~= y[i]
    if not same and not (allowed and math.abs(x[i] - y[i]) <= allowed) then
      return ("element %d of %s, %s, is %.9g, not %.9g"):format(i + 1, a.name, a.text, y[i], x[i])
    end
  end
end

local function bits_differ(expected, got)
  for run = 1, #expected do
    for i, a in ipairs(expected[run]) do
      local b = got[run][i]
      if not b then return ("run %d: there is no %s"):format(run, a.name) end
      if a.bytes ~= b.bytes then
        local text = first_difference(a, b)
        if text then return ("run %d: %s"):format(run, text) end
      end
    end
    for i, bytes in ipairs(got[run].escaped) do
      if bytes and bytes ~= expected[run].escaped[i] then
        return ("run %d: tensor %d that escaped is read without an error, and wrong"):format(run, i)
      end
    end
  end
end

-- How far values may be from those in f64, of the largest among them (at least 1).
local tolerances = {f64 = 1e-9, f32 = 2e-4, amp = 0.08}

local function values_differ(program, expected, got)
  local results = #program.results
  for i, a in ipairs(expected) do
    local known = program.results[i] or {}
    local skip = i <= results and known.rough or i > results and (program.rough or got[i].dtype == "bf16" or a.dtype == "bf16")
    if not skip then
      local largest, values, count = 1, execute.numbers(a)
      for k = 0, count - 1 do
        local size = math.abs(values[k])
        if size > largest and size < math.huge then largest = size end
      end
      local text = first_difference(a, got[i], tolerances[program.flavour] * largest)
      if text then return text end
    end
  end
end

local function exact_differ(program, expected, got)
  for i, known in ipairs(program.results) do
    local a, b = expected[i], got[i]
    if known.exact and a.bytes ~= b.bytes then
      local text = first_difference(a, b)
      if text then return text end
    end
  end
end

-- Ways --------------------------------------------------------------------------------------------

local function way_of(program, name, chosen, more)
  local way = {name = name, device = chosen, F = program.flavour == "f64" and "f64" or "f32", H = "bf16",
    rounded = program.flavour ~= "f64"}
  for key, value in pairs(more or {}) do way[key] = value end
  return way
end

-- Compares one more way with the first: bits agree.
local function check_way(program, way, first)
  local seen, message = execute.run(program.text, way)
  if not seen then return {way = way.name, what = "an error: " .. message} end
  local what = bits_differ(first, seen)
  if what then return {way = way.name, what = what} end
end

local function check_recorded(program, first)
  for _, level in ipairs(levels) do
    local threads = (program.seed % 4 == 0 and level == "auto" or program.seed % 4 == 1 and level == "products") and 2 or 1
    local name = ("recorded, recompute %s, %d threads"):format(level, threads)
    local failure = check_way(program, way_of(program, name, device("cpu", threads), {level = level}), first)
    if failure then return failure end
  end
end

local function check_emulated(program, first)
  local chosen = device("emu", 1)
  if not chosen then return nil end
  local eager, message = execute.run(program.text, way_of(program, "emu", chosen, {runs = 3}))
  if not eager then return {way = "emu", what = "an error: " .. message} end
  local what = values_differ(program, first[1], eager[1]) or exact_differ(program, first[1], eager[1])
  if what then return {way = "emu", what = what} end
  local level = levels[program.seed % 4 + 1]
  local name = "emu, recorded, recompute " .. level
  return check_way(program, way_of(program, name, chosen, {level = level, runs = 3}), eager)
end

local function check_twin(program, first, differ)
  local watch = differ and program.smooth and differences.watch() or nil
  local twin, message = execute.run(program.text, way_of(program, "in f64", device("cpu", 1),
    {F = "f64", H = "f64", runs = 1, watch = watch}))
  if not twin then return {way = "in f64", what = "an error: " .. message} end
  if watch and watch.failure then return {way = "by differences", what = watch.failure} end
  local what = values_differ(program, twin[1], first[1])
  if what then return {way = "in f64", what = what} end
end

--- Checks a program (generate.program). options: emulated (on the emulated device too), differences (gradients by
-- differences too). Returns nil, or {way, what} of the first thing that is wrong.
function compare.check(program, options)
  local first, message = execute.run(program.text, way_of(program, "eager", device("cpu", 1)))
  if not first then return {way = "eager", what = "an error: " .. message} end
  return check_way(program, way_of(program, "eager, 2 threads", device("cpu", 2)), first)
    or check_recorded(program, first)
    or check_twin(program, first, options.differences)
    or options.emulated and check_emulated(program, first)
    or nil
end

return compare
