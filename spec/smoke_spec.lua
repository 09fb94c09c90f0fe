-- recipes/smoke.lua at the size that takes seconds, as CI runs it.
local cache = require "spec.support.cache"
local checkpoint = require "pack.run.checkpoint"
local files = require "pack.io.files"
local json = require "pack.io.json"
local support = require "spec.support.helper"

local stages = {"cache", "train", "weights", "states", "resume", "evaluate"}

-- The verdict of each stage that was printed, and how many there are.
local function verdicts(out)
  local found, count = {}, 0
  for verdict, name in ("\n" .. out):gmatch("\n(%u%u%u%u) (%l+) +[^\n]*") do
    found[name], count = verdict, count + 1
  end
  return found, count
end

describe("recipes/smoke.lua", function()
  local folder, source, made
  local function smoke(output, arguments, before)
    return support.run(("packlua %s recipes/smoke.lua --config configs/smoke.lua --output %s/%s --set data.text=%s %s")
      :format(before and "-e " .. support.quote(before) or "", folder, output, source, arguments or ""))
  end

  setup(function()
    folder = support.temporary()
    source = folder .. "/text.txt"
    local lines = {}
    for i = 1, 600 do lines[i] = ("the %d workers of the ring mix, line %d\n%s"):format(i % 7, i, i % 5 == 0 and "\n" or "") end
    support.write(source, table.concat(lines))
    made = {smoke "made"}
  end)
  teardown(function() support.remove(folder) end)

  it("passes every stage, with a cache that it makes of text", function()
    local code, out, err = unpack(made)
    assert.equal("", err)
    assert.equal(0, code, out)
    local found, count = verdicts(out)
    assert.equal(#stages, count)
    for _, name in ipairs(stages) do assert.equal("PASS", found[name], name) end
    assert.is_truthy(out:find("\nPASS: all stages; " .. folder .. "/made\n", 1, true), out)
    assert.is_truthy(out:find("4 workers, 2 updates, 4096 targets", 1, true), out)
  end)

  it("cuts the cache's validation off, marks it as incomplete, and says so in every evaluation", function()
    assert.is_false(cache.manifest(folder .. "/made/cache").validation_complete)
    local evaluations = 0
    for _, run in ipairs {"run", "resumed"} do
      for line in files.read(folder .. "/made/" .. run .. "/metrics.jsonl"):gmatch("[^\n]+") do
        local row = json.decode(line)
        if row.split then
          assert.is_false(row.validation_complete)
          evaluations = evaluations + 1
        end
      end
    end
    assert.equal(4, evaluations)
  end)

  it("leaves weights of the average and of each worker, and states that resume", function()
    for _, name in ipairs {"run/epoch-002.safetensors", "run/node-000/epoch-002.safetensors",
      "run/node-003/epoch-002.safetensors", "resumed/epoch-002.safetensors"} do
      assert.is_true(files.exists(folder .. "/made/" .. name), name)
    end
    local states = checkpoint.list(folder .. "/made/run")
    assert.equal(2, #states)
    assert.equal(2, states[1].step)
    assert.equal(1, states[2].step)
    -- Only what came after the state was done again.
    assert.equal(1, #checkpoint.list(folder .. "/made/resumed"))
  end)

  it("uses a cache that is given", function()
    local code, out = smoke("given", "--cache " .. folder .. "/made/cache")
    assert.equal(0, code, out)
    assert.is_false(files.exists(folder .. "/given/cache"))
    assert.is_truthy(out:find("the state gives the run's losses; validation_complete: false", 1, true), out)
  end)

  it("fails the stage, and exits with 1, when a resumed run goes another way", function()
    local code, out = smoke("astray", "", [[
      local runs = 0
      require("pack").study.watch {opened = function(study)
        runs = runs + 1
        if runs == 2 then study.config.optimizer.lr = study.config.optimizer.lr * 1.001 end
      end}]])
    assert.equal(1, code)
    local found = verdicts(out)
    assert.equal("PASS", found.train)
    assert.equal("FAIL", found.resume)
    assert.equal("PASS", found.evaluate)
    assert.is_truthy(out:find("/resumed/metrics.jsonl it is {", 1, true), out)
    assert.is_truthy(out:find("\nFAIL: 1 stages; ", 1, true), out)
  end)

  it("fails the stage when the average is not the workers' mean", function()
    local code, out = smoke("uneven", "", [[
      local Model = require("pack.model.packed").Model
      local average = Model.average
      function Model:average()
        local mean = average(self)
        mean.weight["norm.weight"]:seed_normal(1, "x", 1, 1e-6)
        return mean
      end]])
    assert.equal(1, code)
    assert.equal("FAIL", verdicts(out).weights)
    assert.is_truthy(out:find("'norm.weight' of " .. folder, 1, true), out)
  end)

  it("fails the stage when a state is damaged", function()
    local code, out = smoke("damaged", "", [[
      local compare, files = require "pack.run.compare", require "pack.io.files"
      local mean = compare.mean
      compare.mean = function(path, workers)
        local state = files.dirname(path) .. "/epoch-002.state.safetensors.zst"
        local text = files.read(state)
        files.write(state, text:sub(1, 999) .. string.char((text:byte(1000) + 1) % 256) .. text:sub(1001))
        return mean(path, workers)
      end]])
    assert.equal(1, code)
    local found = verdicts(out)
    assert.equal("PASS", found.weights)
    assert.equal("FAIL", found.states)
  end)

  it("refuses a folder that is there, and configurations that it cannot judge", function()
    local code, _, err = smoke "made"
    assert.equal(2, code)
    assert.is_truthy(err:find(folder .. "/made: there is such a folder", 1, true), err)
    code, _, err = smoke("three", "--set training.max_tokens=6144")
    assert.equal(2, code)
    assert.is_truthy(err:find("two updates", 1, true), err)
    assert.is_false(files.exists(folder .. "/three"))
  end)

  it("refuses a cache that is not there as a usage error", function()
    local code, _, err = smoke("none", "--cache " .. folder .. "/nothing")
    assert.equal(2, code)
    assert.is_truthy(err:find("/nothing", 1, true), err)
  end)
end)
