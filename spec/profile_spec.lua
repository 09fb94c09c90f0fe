-- The profile recipe: what it prints and what it writes.
local chrome_trace = require "spec.support.chrome_trace"
local json = require "pack.io.json"
local support = require "spec.support.helper"

local small = "--set model.layers=1 --set model.width=16 --set model.heads=2 --set model.ffn_width=24 "
  .. "--set model.context_length=16 --set training.batch_tokens=256 --set training.micro_batch_size=4 "

describe("The profile recipe", function()
  local folder
  setup(function() folder = support.temporary() end)
  teardown(function() support.remove(folder) end)

  local function profile(name, options)
    local path = folder .. "/" .. name
    local code, out, err = support.run("packlua recipes/profile.lua " .. small .. options .. " --output " .. path)
    assert.equal("", err)
    assert.equal(0, code)
    local result = assert(json.decode(support.read(path .. "/profile.json")))
    return result, chrome_trace.read(path .. "/trace.json"), out
  end

  it("writes a trace and the operations with their share of what the machine can do", function()
    local result, file, out = profile("recorded", "--steps 2 --top 3")
    assert.equal(2, result.steps)
    assert.equal(0, result.dropped_events)
    local share, flops, products = 0, 0, 0
    for _, row in ipairs(result.operations) do
      share, flops = share + row.share, flops + row.model_flops
      if row.product then products = products + 1 end
      if row.flops > 0 or not row.product then assert.is_true(row.of_ceiling > 0) end
    end
    assert.is_true(math.abs(share - 1) < 1e-9)
    assert.equal(result.model_flops, flops)
    assert.is_true(products > 3)
    assert.is_true(result.totals.seconds <= result.seconds)
    assert.is_true(math.abs(result.tokens_per_second - 512 / result.seconds) < 1e-6 * result.tokens_per_second)
    local steps, operations = {}, 0
    for _, slice in ipairs(file.slices) do
      if slice.path:find "^step %d$" and slice.category == "phase" then steps[#steps + 1] = slice.name end
      if slice.category == "operation" then operations = operations + 1 end
    end
    assert.same({"step 1", "step 2"}, steps)
    assert.equal(result.totals.count, operations)
    local rows = 0
    for _ in out:gmatch("GFLOP/s +%d+%%") do rows = rows + 1 end
    for _ in out:gmatch("GB/s +%d+%%") do rows = rows + 1 end
    assert.equal(3, rows)
    assert.truthy(out:find("opens in ui.perfetto.dev", 1, true))
  end)

  it("shows eager operations, with clip, mix and AdamW apart", function()
    local result, _, out = profile("eager", "--steps 1 --warmup 0 --eager --apart")
    local counts = {}
    for _, row in ipairs(result.operations) do counts[row.name] = (counts[row.name] or 0) + row.count end
    assert.equal(1, counts.mix)
    assert.equal(1, counts.adamw)
    assert.is_nil(counts.update)
    assert.is_true(result.phases.mix > 0)
    assert.truthy(out:find("\n  mix ", 1, true))
  end)

  it("refuses a folder that holds something", function()
    support.write(folder .. "/file", "")
    local code, _, err = support.run("packlua recipes/profile.lua --output " .. folder)
    assert.equal(2, code)
    assert.truthy(err:find("the folder is not empty", 1, true))
  end)
end)
