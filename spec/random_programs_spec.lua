-- Random programs, the same ones each time: what each is asked is in spec/random/compare.lua. PACKLUA_TEST_PROGRAMS says
-- how many; scripts/random_programs.lua checks others.
local dispatch = require "pack.core.dispatch"
local ops = require "pack.core.ops"
local random = require "spec.random.programs"
local rules = require "pack.grad.rules"

local PROGRAMS = tonumber(os.getenv "PACKLUA_TEST_PROGRAMS") or 2000

local function assert_well(seed, options)
  local failure = random.check(seed, options)
  if failure then error(("%s: %s\n%s"):format(failure.way, failure.what, failure.text), 0) end
end

describe("random programs", function()
  teardown(random.close)

  it("give the same bits in every way they are run, and the values and gradients of f64", function()
    for seed = 1, PROGRAMS do assert_well(seed) end
  end)

  it("give the same bits on two threads #threads", function()
    for seed = 1e6 + 1, 1e6 + PROGRAMS / 40 do assert_well(seed, {}) end
  end)

  -- The first program of some that fails with fn in the place of rooms[name] and has a short form: training steps have none.
  local function caught(rooms, name, fn, statements)
    local right = rooms[name]
    rooms[name] = fn
    local good, failure = pcall(function()
      for seed = 1, 400 do
        local failure = random.check(seed)
        if failure and failure.statements <= statements then return failure end
      end
    end)
    rooms[name] = right
    assert(good, failure)
    assert(failure, "no program failed")
    return failure
  end

  it("find a wrong rule for a gradient, and show it in a few statements", function()
    local wrong = {saves = {x = true}, backward = function(b, g, node)
      b:emit(1, "multiply", {g, ops.sigmoid(node.inputs[1])}) -- lacks that silu's sigmoid has a slope
    end}
    local failure = caught(rules, "silu", wrong, 3)
    assert.equal("by differences", failure.way)
    assert.is_truthy(failure.text:find("ops.silu", 1, true))
    assert.truthy(loadstring(failure.text))
    assert.equal("all is well", random.again(failure.program)) -- with the right rule
  end)

  it("find a write that is lost in recorded programs", function()
    local copy = ops.copy
    local failure = caught(ops, "copy", function(x, attributes)
      if dispatch.recording and attributes and attributes.accumulate then return attributes.out end
      return copy(x, attributes)
    end, 4)
    assert.is_truthy(failure.way:find("recorded", 1, true))
  end)
end)
