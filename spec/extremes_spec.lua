-- Every numeric key at extreme values: a schedule that can be asked, or a usage error of one line; no hang.
local config = require "pack.config"
local failure = require "pack.core.failure"
local schedule = require "pack.train.schedule"
local schema = require "pack.config.schema"

local MOST_INSTRUCTIONS = 1e8

-- Calls f(...) in interpreted code, and raises if it does not end soon.
local function soon(f, ...)
  jit.off()
  debug.sethook(function() error("it does not end", 0) end, "", MOST_INSTRUCTIONS)
  local good, result = pcall(f, ...)
  debug.sethook()
  jit.on()
  return good, result
end

local function numeric(rows, list)
  for _, row in ipairs(rows) do
    if row.type == "integer" or row.type == "number" or row.type == "epochs" then list[#list + 1] = row end
    if row.fields then numeric(row.fields, list) end
  end
  return list
end

local function extremes(row)
  local list = {"0", "-1", "1", "2", "0.5", "1e-9", "1e-30", "1e-300", "1e9", "2147483647", "4294967296", "9007199254740991",
    "1e300", "-1e300", "nan", "inf", "off"}
  for _, limit in ipairs {"minimum", "maximum", "above", "below"} do
    if row[limit] then list[#list + 1] = ("%.17g"):format(row[limit]) end
  end
  return list
end

-- What a run asks of its schedule, at its ends.
local function ask(settings)
  local resolved = config.load("configs/smoke.lua", settings)
  local course = schedule.create(resolved)
  assert(course.total_steps >= 1 and course.total_steps < 2 ^ 53, "steps")
  assert(course.total_epochs >= 1 and course.total_epochs < 2 ^ 53, "epochs")
  for _, t in ipairs {0, course.total_steps - 1} do
    local epoch = course:epoch_of_step(t)
    local first, count = course:steps_of_epoch(epoch)
    assert(epoch >= 1 and epoch <= course.total_epochs and first <= t and t < first + count, "epoch")
    local rate = course:lr(t)
    assert(rate - rate == 0 and rate >= 0, "learning rate")
    local gamma = course:gamma(t)
    assert(gamma >= 0 and gamma <= 1, "gamma")
    assert(type(course:mixes(t)) == "boolean" and course:mixings(t) <= t, "mixings")
  end
end

describe("a configuration at extremes", function()
  for _, variant in ipairs {{}, {"training.epoch_tokens=off", "training.max_tokens=off"},
    {"training.max_tokens=off", "decentralized.adaptive_consensus.start_frac=0.5"}} do
    it("makes a schedule or one line that says why not " .. table.concat(variant, " "), function()
      for _, row in ipairs(numeric(schema.rows, {})) do
        for _, text in ipairs(extremes(row)) do
          local settings = {unpack(variant)}
          settings[#settings + 1] = row.key .. "=" .. text
          local good, message = soon(ask, settings)
          assert.is_true(good or failure.is(message) and message.exit == 2 and not tostring(message):find("\n"),
            settings[#settings] .. ": " .. tostring(message))
        end
      end
    end)
  end

  it("refuses epochs of less than a token", function()
    local good, message = pcall(config.load, "configs/smoke.lua", {"training.epoch_tokens=off",
      "training.epoch_tokens_per_parameters=1e-30"})
    assert.is_false(good)
    assert.is_truthy(tostring(message):find("an epoch has one at least", 1, true), tostring(message))
  end)
end)
