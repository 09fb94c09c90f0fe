--- Random programs: makes, checks and shrinks them, and prints those that fail.
local compare = require "spec.random.compare"
local generate = require "spec.random.generate"
local shrink = require "spec.random.shrink"

local random = {}

-- Which programs are checked in which ways: every so many.
local EMULATED, DIFFERENCES = 8, 2

--- What the program of a seed is asked: options of compare.check.
function random.options(seed)
  return {emulated = seed % EMULATED == 0, differences = seed % DIFFERENCES == 1}
end

-- A list of what is known of results, as text.
local function known_text(results)
  local parts = {}
  for i, known in ipairs(results) do
    parts[i] = ("{kind = %q, exact = %s, rough = %s}"):format(known.kind, tostring(known.exact), tostring(known.rough))
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

-- A program as a file that runs on its own and says what is wrong.
local function as_file(program, failure)
  return ([=[
-- A random program of seed %d that fails: %s
-- %s
-- packlua FILE, in the folder of the sources, checks it again.
print(require("spec.random.programs").again {seed = %d, flavour = %q, rough = %s, smooth = %s,
  results = %s,
  text = [[
%s]]})
]=]):format(program.seed, failure.way, failure.what:gsub("\n", "\n-- "), program.seed, program.flavour, tostring(program.rough),
    tostring(program.smooth), known_text(program.results), program.text)
end

--- Checks a program again in all ways, and raises an error with what is wrong.
function random.again(program)
  local failure = compare.check(program, {emulated = true, differences = true})
  if failure then error(("seed %d, %s: %s"):format(program.seed, failure.way, failure.what), 0) end
  return "all is well"
end

--- Checks the program of a seed. Returns nil if all is well, or a description: seed, way, what, and the program, number of
-- statements and text of a small program that fails in the same way. Returns the seed's program besides.
-- options: those of compare.check (by default as the seed says), and tries, how often the program is made smaller (600).
function random.check(seed, options)
  options = options or random.options(seed)
  local genes = generate.genes(seed)
  local program = generate.program(genes)
  local failure = compare.check(program, options)
  if not failure then return nil, program end
  local last = failure
  local small = shrink.shrink(genes, function(candidate)
    local again = compare.check(candidate, options)
    if not again or again.way ~= failure.way then return false end
    last = again
    return true
  end, options.tries)
  return {seed = seed, way = last.way, what = last.what, program = small, statements = small.statements,
    text = as_file(small, last)}, program
end

--- The text of the program of a seed, for those that end the process.
function random.text(seed)
  local program = generate.program(generate.genes(seed))
  return as_file(program, {way = "not checked", what = "the program as it was made"})
end

--- Gives the devices back.
random.close = compare.close

return random
