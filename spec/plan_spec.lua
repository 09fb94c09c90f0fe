-- Memory forecasts: what --plan says is what a step takes.
local config = require "pack.config"
local context = require "pack.core.context"
local ops = require "pack.core.ops"
local plan = require "pack.train.plan"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"
local trainer = require "pack.train.trainer"

local settings = {"training.max_tokens=8192", "runtime.threads=2"}

local function load(...)
  return config.load("configs/tiny.lua", {unpack(settings), ...})
end

describe("a forecast", function()
  support.watch()

  for _, changes in ipairs {{}, {"runtime.amp=true"}, {"decentralized.scheme=atc"},
    {"training.micro_batch_size=2"}} do
    it("is the allocator's peak after a step to the byte: " .. table.concat(changes, " "), function()
      local resolved = load(unpack(changes))
      resolved.runtime.amp = resolved.runtime.amp == true
      local forecast = plan.of(resolved)
      local own = context.create {threads = 2}
      local tokens = require("ffi").new("uint16_t[4000]")
      local one = trainer.create(resolved, {context = own, train = {tokens = tokens, count = 4000}})
      one:step()
      local memory = own:memory()
      assert.equal(memory.total_peak, forecast.total)
      for _, category in ipairs {"parameters", "gradients", "moments", "data"} do
        assert.equal(memory.used[category], forecast[category])
      end
      one:free()
      collectgarbage()
      own:close()
    end)
  end

  for _, compile in ipairs {true, false} do
    for _, amp in ipairs {false, true} do
      local name = (compile and "recorded" or "eager") .. ", " .. (amp and "amp" or "f32")
      it("is a limit under which steps run: " .. name, function()
        local resolved = load("runtime.compile=" .. tostring(compile))
        resolved.runtime.amp = amp
        local forecast = plan.of(resolved)
        local tokens = require("ffi").new("uint16_t[4000]")
        local function try(limit)
          collectgarbage()
          local own = context.create {threads = 2, memory_limit_mib = limit / 2 ^ 20}
          local one
          local good, message = pcall(function()
            one = trainer.create(resolved, {context = own, train = {tokens = tokens, count = 4000}})
            for _ = 1, 3 do one:step() end
          end)
          assert.equal(limit, own:memory().limit)
          assert.is_true(own:memory().total_peak <= limit)
          if one then one:free() end
          collectgarbage()
          own:close()
          return good, tostring(message)
        end
        assert.same({true, "nil"}, {try(forecast.total)})
        if not compile then return end -- what the collector leaves may be less
        local good, message = try(forecast.total - 1)
        assert.is_false(good)
        assert.is_truthy(message:find("would pass the limit", 1, true), message)
      end)
    end
  end

  it("takes no memory and computes nothing", function()
    local own = context.create {forecast = true}
    local t = tensor.zeros({1000, 1000, 1000}, "f64", {context = own})
    assert.equal(8e9, own:memory().total)
    assert.equal(0, own:memory().reserved)
    ops.fill {shape = {1000, 1000, 1000}, value = 1, dtype = "f64", out = t}
    assert.error_matches(function() t:item() end, "one")
    assert.error_matches(function() t:view({shape = {1}}):item() end, "a forecast has no values")
    t:free()
    own:close()
  end)

  it("shows a row for each number of workers and the most that fit, in the recipe", function()
    local code, out = support.run("packlua recipes/train.lua --config configs/20m.lua "
      .. "--set decentralized.num_models=4 --set training.micro_batch_size=8 "
      .. "--plan --num-models 1 4 5 8 --memory 9000")
    assert.equal(0, code)
    assert.is_truthy(out:find("20403520 parameters per worker", 1, true))
    local total = {}
    for line in out:gmatch("[^\n]+") do
      local workers, sum = line:match("^ +(%d+) .* ([%d.]+)$")
      if workers then total[tonumber(workers)] = tonumber(sum) end
    end
    assert.is_true(total[1] < total[4] and total[4] < total[8])
    assert.is_truthy(out:find("cannot be shared out among 5 workers", 1, true))
    assert.is_truthy(out:find("the most workers in 9000.0 MiB: ", 1, true))
  end)

  it("refuses a device that cannot be opened before it shows anything", function()
    local code, out, err = support.run("PACKLUA_ISA=none packlua recipes/train.lua --plan --device cpu")
    assert.equal(2, code)
    assert.equal("", out)
    assert.equal("packlua: PACKLUA_ISA=none is not an instruction set of this build\n", err)
  end)

  it("says when no number of workers fits", function()
    local code, _, err = support.run("packlua recipes/train.lua --plan --memory 1")
    assert.equal(1, code)
    assert.is_truthy(err:find("no number of workers fits in 1.0 MiB", 1, true))
  end)
end)
