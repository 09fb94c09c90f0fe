-- A run's folder: its files, its lock, and which folders it takes.
local config = require "pack.config"
local context = require "pack.core.context"
local files = require "pack.io.files"
local json = require "pack.io.json"
local run = require "pack.run.folder"
local support = require "spec.support.helper"

-- Captures what is printed while fn runs.
local function printed(one, fn)
  local lines = {}
  one:print_through(function(line) lines[#lines + 1] = line end)
  fn()
  one:print_through(nil)
  return lines
end

local function lines_of(path)
  local lines = {}
  for line in files.read(path):gmatch("([^\n]*)\n") do lines[#lines + 1] = line end
  return lines
end

local function refused(options, message)
  local good, object = pcall(run.create, options)
  assert.is_false(good)
  assert.equal(2, object.exit, tostring(object))
  assert.is_truthy(tostring(object):find(message, 1, true), tostring(object))
end

describe("A run's folder", function()
  local folder, output
  before_each(function()
    folder = support.temporary()
    output = folder .. "/deep/run"
  end)
  after_each(function() support.remove(folder) end)
  support.watch()

  it("holds the configuration, which reads back to the same", function()
    local resolved = config.load("configs/tiny.lua", {"optimizer.grad_clip=off", "training.log_every=7"})
    run.create({recipe = "train", output = output, config = resolved}):close()
    local again = config.load(output .. "/resolved.json", {})
    assert.same(resolved, again)
  end)

  it("holds where and how it ran", function()
    local own = context.create {threads = 1}
    run.create({recipe = "train", output = output, context = own,
      arguments = {[-1] = "packlua", [0] = "recipes/train.lua", "--set", "a=b c"}}):close()
    local found = json.decode(files.read(output .. "/environment.json"))
    assert.same({"packlua", "recipes/train.lua", "--set", "a=b c"}, found.command)
    assert.equal("cpu", found.device)
    assert.equal(1, found.threads)
    assert.equal(own:isa(), found.instruction_set)
    assert.equal(own:describe(), found.device_description)
    assert.equal(require("pack.version"), found.packlua)
    assert.is_truthy(found.versions.luajit:find("^2%.1"))
    assert.is_truthy(found.started:find("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%dZ$"))
    assert.is_truthy(found.host)
    own:close()
  end)

  it("holds the cluster's names of job and node", function()
    local code, _, err = support.run(([[SLURM_JOB_ID=123 SLURMD_NODENAME=n7 packlua -e '
      require("pack.run.folder").create({recipe = "x", output = %q}):close()']]):format(output))
    assert.equal(0, code, err)
    local found = json.decode(files.read(output .. "/environment.json"))
    assert.equal("123", found.slurm.job)
    assert.equal("n7", found.slurm.node)
    assert.equal(json.null, found.device)
  end)

  it("holds what was printed, with the time", function()
    local one = run.create {recipe = "train", output = output}
    local lines = printed(one, function()
      one:log("loss %.2f", 1.5)
      one:log("100%d\nsecond")
      one:note("only in the file: %s", "x")
    end)
    assert.same({"loss 1.50", "100%d\nsecond"}, lines)
    local stamp = "^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%dZ "
    local logged = lines_of(output .. "/run.log")
    assert.is_truthy(logged[1]:find(stamp .. "loss 1.50$"))
    assert.is_truthy(logged[2]:find(stamp .. "100%%d$"))
    assert.equal("  second", logged[3])
    assert.is_truthy(logged[4]:find(stamp .. "only in the file: x$"))
    one:close()
  end)

  it("holds a line of metrics per row as soon as it is there, with NaN told apart", function()
    local one = run.create {recipe = "train", output = output}
    local row = {step = 0, loss = 1.25, loss_worker = {1, 1.5}}
    assert.equal(row, one:metrics(row))
    assert.same({'{"loss":1.25,"loss_worker":[1,1.5],"step":0}'}, lines_of(output .. "/metrics.jsonl"))
    one:metrics {step = 1, loss = 0 / 0}
    assert.equal('{"loss":null,"nonfinite":{"loss":"nan"},"step":1}', lines_of(output .. "/metrics.jsonl")[2])
    one:close()
  end)

  it("holds the evaluation with the smallest loss, and the result", function()
    local one = run.create {recipe = "train", output = output}
    one:metrics {step = 1, loss = 0.5}
    assert.is_false(files.exists(output .. "/best.json"))
    for step, loss in ipairs {3, 2, 0 / 0, 2.5, 2} do
      one:metrics {step = step, split = "validation", loss = loss}
    end
    assert.same({step = 2, split = "validation", loss = 2}, json.decode(files.read(output .. "/best.json")))
    one:result {loss = 2.5}
    local result = json.decode(files.read(output .. "/result.json"))
    assert.equal(2.5, result.loss)
    assert.equal(2, result.best.loss)
    assert.equal("train", result.recipe)
    assert.is_true(result.run_seconds >= 0)
    one:close()
  end)

  it("is named after recipe and time, each run its own", function()
    local code, out, err = support.run(([[cd %s && packlua -e '
      local run = require "pack.run.folder"
      for i = 1, 3 do local one = run.create {recipe = "smoke"} print(one.folder) if i == 2 then one:close() end end']])
      :format(folder))
    assert.equal(0, code, err)
    local seen = {}
    for name in out:gmatch("[^\n]+") do
      assert.is_truthy(name:find("^runs/smoke%-%d%d%d%d%d%d%d%dT%d%d%d%d%d%dZ"), name)
      assert.is_nil(seen[name])
      seen[name] = true
      assert.is_true(files.exists(folder .. "/" .. name .. "/run.log"))
    end
    assert.equal(3, #files.list(folder .. "/runs"))
  end)

  it("is refused when another run was there", function()
    run.create({recipe = "train", output = output}):close()
    refused({recipe = "train", output = output}, output .. ": the folder holds another run")
    refused({recipe = "train", output = output}, "--output DIR chooses another folder")
  end)

  it("is refused, and left as it is, when it holds anything else", function()
    files.mkdir(output)
    files.write(output .. "/thesis.txt", "x")
    refused({recipe = "train", output = output}, output .. ": the folder is not empty")
    assert.same({"thesis.txt"}, files.list(output))
  end)

  it("may be there already if it is empty", function()
    files.mkdir(output)
    run.create({recipe = "train", output = output}):close()
    assert.is_true(files.exists(output .. "/run.log"))
  end)

  it("is refused when it is a file, or cannot be made", function()
    files.write(folder .. "/file", "x")
    refused({recipe = "train", output = folder .. "/file"}, folder .. "/file: is not a directory")
    refused({recipe = "train", output = folder .. "/file/run"},
      ": cannot be made a directory: Not a directory\n--output DIR chooses another folder")
  end)

  it("is refused to a second process while the first one runs, even if that has written nothing", function()
    files.mkdir(output)
    local command = ("packlua -e %s"):format(support.quote(
      ("require('pack.run.folder').create {recipe = 'train', output = %q}"):format(output)))
    local one = run.create {recipe = "train", output = output}
    local code, _, err = support.run(command)
    assert.equal(2, code)
    assert.is_truthy(err:find(output .. "/run.lock: locked by another process (process ", 1, true), err)
    one:close()
    for _, name in ipairs(files.list(output)) do
      if name ~= "run.lock" then os.remove(output .. "/" .. name) end
    end
    code, _, err = support.run(command)
    assert.equal(0, code, err)
  end)

  it("is not named in its configuration, which makes further runs wherever it is moved to", function()
    local resolved = config.resolve {set = {"runtime.output_dir=" .. output, "model.layers=3"}}
    run.create({recipe = "train", output = output, config = resolved}):close()
    local saved = config.load(output .. "/resolved.json")
    assert.is_false(saved.runtime.output_dir)
    assert.equal(3, saved.model.layers)
    assert.equal(output, resolved.runtime.output_dir)
  end)

  it("takes nothing more once it is closed", function()
    local one = run.create {recipe = "train", output = output}
    one:close()
    one:close()
    for _, name in ipairs {"log", "note", "metrics", "result"} do
      assert.has_error(function() one[name](one, {}) end, ("the run in %s is closed"):format(output))
    end
  end)

  it("says so when the disk is full", function()
    local code, _, err = support.run(("trap '' XFSZ; ulimit -f 8; packlua -e %s"):format(support.quote(([[
      local one = require("pack.run.folder").create {recipe = "train", output = %q}
      for step = 1, 1000 do one:metrics {step = step, text = ("x"):rep(100)} end]]):format(output))))
    assert.equal(1, code)
    assert.is_truthy(err:find(output .. "/metrics.jsonl: cannot be written: File too large", 1, true), err)
  end)
end)
