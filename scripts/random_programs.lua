-- Checks random programs, as spec/random_programs_spec.lua does, for as long as is wanted:
--   packlua scripts/random_programs.lua [--programs N] [--seed S] [--keep FILE] [--failures N]
-- A program that fails is made small and printed as a file that runs on its own. Exit code 1: programs failed.
local options = require "pack.run.options"
local random = require "spec.random.programs"

local given = options.parse {
  recipe = "random_programs", summary = "Checks random programs against each other, f64 and differences.", arg = arg, config = false,
  extra = {
    {name = "programs", value = "N", type = "integer", minimum = 1, default = 10000, help = "how many"},
    {name = "seed", value = "S", type = "integer", minimum = 1, default = 1, help = "of the first one; the others' follow it"},
    {name = "keep", value = "FILE", help = "each program's text is there while it is checked, should it end the process"},
    {name = "failures", value = "N", type = "integer", minimum = 1, default = 5, help = "ends after so many"},
  },
}

local function keep(seed)
  local file = assert(io.open(given.keep, "w"))
  file:write(random.text(seed))
  file:close()
end

io.stdout:setvbuf "line"
local failures, statements = 0, 0
for seed = given.seed, given.seed + given.programs - 1 do
  if given.keep then keep(seed) end
  local failure, program = random.check(seed)
  statements = statements + program.statements
  if failure then
    failures = failures + 1
    print(failure.text)
    if failures == given.failures then break end
  end
  local done = seed - given.seed + 1
  if done % 1000 == 0 then print(("%d programs, %d statements, %d failed"):format(done, statements, failures)) end
end
random.close()
print(("%d failed"):format(failures))
os.exit(failures == 0 and 0 or 1)
