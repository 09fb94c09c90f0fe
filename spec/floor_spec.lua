-- The floor model of a training step (scripts/floor.lua), which docs/performance.md quotes.
local support = require "spec.support.helper"

-- The cells of the row of an operation, or of all.
local function floor(name, arguments)
  local code, out, err = support.run("packlua scripts/floor.lua --set runtime.recompute=none " .. arguments)
  assert.equal(0, code, err)
  local cells = {}
  local line = assert(out:match("\n| " .. name .. " |([^\n]*)"), out)
  for cell in line:gmatch("([%d.]+)%%? |") do cells[#cells + 1] = tonumber(cell) end
  return cells
end

describe("the floor model", function()
  it("counts the products of a step: 6 for each weight and target, attention, and its scores once more", function()
    local targets, width, layers, length = 32768, 320, 8, 1024
    local matrices = 20403520 - (2 * layers + 1) * width
    local seen = targets * (length + 1) * width * layers -- a product of the positions that see each other, twice
    local flops = 6 * targets * matrices + 6 * seen + seen
    local all = floor("all", "--workers 4")
    assert.equal(("%.3f"):format(flops / 1e12), ("%.3f"):format(all[3]))
    assert.equal(("%.3f"):format(flops / 750e12 * 1e3), ("%.3f"):format(all[5]))
    assert.equal(100, all[7])
  end)

  it("takes the slower of moving and multiplying, at the rates that are given", function()
    -- The update reads weights, gradients, both moments and writes three of them and the bf16 copy: 30 bytes each,
    -- of 4 x 20,403,520 parameters and a little padding.
    local update = floor("update", "--workers 4 --bandwidth 1")
    assert.is_true(math.abs(update[2] - 30 * 4 * 20403520 / 1e9) < 0.02)
    assert.is_true(math.abs(update[6] - update[2]) < 0.01)
    -- The head's three products of [32768, 320] and [32000, 320].
    local head = floor("linear_cross_entropy_step", "--workers 8 --products 1")
    local flops = 3 * 2 * 32768 * 320 * 32000
    assert.is_true(math.abs(head[6] - flops / 1e9) < 0.01)
  end)
end)
