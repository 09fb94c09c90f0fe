-- Studies: the loop over steps, and what happens when it or training fails.
local config = require "pack.config"
local context = require "pack.core.context"
local ffi = require "ffi"
local files = require "pack.io.files"
local json = require "pack.io.json"
local native = require "pack.native"
local run = require "pack.run.folder"
local study = require "pack.run.study"
local support = require "spec.support.helper"
local trainer = require "pack.train.trainer"

local settings = {
  "model.vocab_size=257", "model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24",
  "model.context_length=8", "training.micro_batch_size=2", "training.batch_tokens=64", "training.max_tokens=384",
  "training.epoch_tokens=128", "training.log_every=4", "evaluation.subset_blocks=2", "evaluation.batch_size=2",
  "runtime.amp=false", "runtime.attention=flash", "runtime.device=cpu", "training.checkpoint_policy=none",
}

local function stream(count)
  local tokens = ffi.new("uint16_t[?]", count)
  for i = 0, count - 1 do tokens[i] = (i * i + 3 * i) % 13 end
  return {tokens = tokens, count = count}
end

describe("A training run", function()
  local folder, owner, one
  before_each(function()
    folder = support.temporary()
    local resolved = config.load("configs/tiny.lua", settings)
    one = trainer.create(resolved, {context = context.default(), train = stream(400), validation = stream(100)})
    owner = run.create {recipe = "train", output = folder .. "/run", config = resolved}
    owner:print_through(function() end)
  end)
  after_each(function()
    native.C.pk_signals_release()
    owner:close()
    support.remove(folder)
  end)

  local function rows()
    local list = {}
    for line in files.read(folder .. "/run/metrics.jsonl"):gmatch("[^\n]+") do list[#list + 1] = json.decode(line) end
    return list
  end

  local function open()
    return study.of {trainer = one, run = owner, data = {}, identity = "data"}
  end

  it("gives the loop each step's row and each epoch's evaluation, and records what the loop adds", function()
    local steps, epochs = 0, 0
    for row, held_out in open():steps() do
      assert.equal(steps, row.step)
      steps = steps + 1
      row.spread = row.step * 2
      if held_out then
        epochs = epochs + 1
        held_out.note = "epoch " .. epochs
      end
    end
    assert.same({6, 2}, {steps, epochs})
    local spreads, notes = {}, {}
    for _, row in ipairs(rows()) do
      spreads[#spreads + 1] = row.spread
      notes[#notes + 1] = row.note
    end
    assert.same({0, 2, 4, 6, 8, 10}, spreads)
    assert.same({"epoch 1", "epoch 2"}, notes)
    assert.same({}, require("pack.run.checkpoint").list(folder .. "/run"))
  end)

  it("tells watchers of every study that is opened and every row", function()
    local opened, seen = {}, {}
    study.watch {opened = function(given) opened[#opened + 1] = given end,
      step = function(row, given) if given.trainer == one then seen[#seen + 1] = row.step end end}
    local mine = open()
    assert.equal(6, mine:train())
    assert.equal(mine, opened[1])
    assert.same({0, 1, 2, 3, 4, 5}, seen)
  end)

  it("cannot be concluded before its steps are taken, nor take them twice at once", function()
    local mine = open()
    local next_row = mine:steps()
    next_row()
    assert.has_error(function() mine:steps() end)
    assert.has_error(function() mine:conclude() end)
  end)

  it("ends with the error of the loop, which names file and line, noted in run.log once", function()
    support.write(folder .. "/mine.lua", [[
      local pack = require "pack"
      local options = pack.options.parse {recipe = "mine", summary = "", arg = arg, resume = true}
      local study = pack.study.open(options)
      for row in study:steps() do
        if row.step == 2 then error("mine") end
      end]])
    local code, _, err = support.run(("%s %s/mine.lua --set %s --output %s/loop"):format(support.quote(support.program), folder,
      table.concat(settings, " --set "), folder))
    assert.equal(1, code)
    assert.is_truthy(err:find("mine.lua:%d+: mine"), err)
    local log = files.read(folder .. "/loop/run.log")
    assert.is_truthy(log:find("Z failed: [^\n]*mine%.lua:%d+: mine\n$"), log)
    assert.equal(1, select(2, log:gsub("failed:", "")))
    local count = select(2, files.read(folder .. "/loop/metrics.jsonl"):gsub("\n", ""))
    assert.equal(3, count) -- two steps and an evaluation
  end)

  it("stops at a loss that is not a number, before it is mixed, with whole lines behind it", function()
    local weights = one.model.arena.tensor
    require("pack.core.ops").fill {shape = {weights:size(0), weights:size(1)}, value = 0 / 0, dtype = "f32", out = weights}
    local good, problem = pcall(function() open():train() end)
    assert.is_false(good)
    assert.is_truthy(tostring(problem):find("not finite", 1, true), problem)
    assert.same({}, rows())
    local log = files.read(folder .. "/run/run.log")
    assert.is_truthy(log:find("Z failed: worker %d+: [^\n]* not finite at step 0"), log)
  end)

  it("has null and a flag in its result where a loss is not a number", function()
    owner:result {loss = 0 / 0, loss_worker = {1, 1 / 0}}
    local result = assert(json.decode(files.read(folder .. "/run/result.json")))
    assert.equal(json.null, result.loss)
    assert.same({1, json.null}, result.loss_worker)
    assert.same({loss = "nan", ["loss_worker[2]"] = "inf"}, result.nonfinite)
  end)
end)
