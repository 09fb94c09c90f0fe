-- recipes/resume.lua as users run it: runs that are stopped or killed and go on as if they had not been.
local checkpoint = require "pack.run.checkpoint"
local config = require "pack.config"
local files = require "pack.io.files"
local json = require "pack.io.json"
local safetensors = require "pack.io.safetensors"
local support = require "spec.support.helper"

local STEPS = 12

local settings = {
  "model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24", "model.context_length=16",
  "training.batch_tokens=128", "training.micro_batch_size=2", "training.max_tokens=" .. STEPS * 128,
  "training.epoch_tokens=512", "training.log_every=5", "optimizer.lr=0.02", "evaluation.subset_blocks=8",
  "evaluation.batch_size=8", "training.checkpoint_policy=interval", "training.checkpoint_epochs=2",
}

-- Code for packlua -e that has `action` done in the step of this number (from 0), before it is recorded.
local function at_step(step, action)
  return support.quote(([[
    local ffi = require "ffi"
    ffi.cdef "int kill(int pid, int signal); int getpid(void); int usleep(unsigned useconds);"
    require("pack").study.watch {step = function(row, study)
      if row.step == %d then %s end
    end}]]):format(step, action))
end

local function send(number)
  return ("ffi.C.kill(ffi.C.getpid(), %d)"):format(number)
end

-- What a run left: rows of metrics without times, the weights' bytes, the result.
local function outcome(output)
  local rows = {}
  for line in files.read(output .. "/metrics.jsonl"):gmatch("([^\n]*)\n") do
    local row = json.decode(line)
    row.step_seconds, row.tokens_per_second, row.memory_bytes = nil, nil, nil
    rows[#rows + 1] = row
  end
  local weights = {}
  for _, name in ipairs {"epoch-002.safetensors", "epoch-003.safetensors", "node-001/epoch-003.safetensors"} do
    local file = safetensors.open(output .. "/" .. name)
    for _, key in ipairs(file:names()) do weights[name .. key] = file:read_tensor(key):totable() end
    file:close()
  end
  local result = json.decode(files.read(output .. "/result.json"))
  return {rows = rows, weights = weights, loss = result.loss, workers = result.loss_worker,
    best = json.decode(files.read(output .. "/best.json"))}
end

describe("recipes/resume.lua", function()
  local folder, source, whole
  local count = 0

  -- The command of a run in `output` with more arguments; before: options of packlua before the script.
  local function train(output, arguments, before)
    local words = {"packlua", before and "-e " .. before or "", "recipes/train.lua --sample 0 --output", output,
      "--set data.text=" .. source}
    for _, setting in ipairs(settings) do words[#words + 1] = "--set " .. setting end
    words[#words + 1] = arguments or ""
    return table.concat(words, " ")
  end

  -- The command with the program itself, so that $! is its process and not a shell's.
  local function in_background(command)
    return (command:gsub("^packlua", (support.quote(support.program):gsub("%%", "%%%%"))))
  end

  local function new_output()
    count = count + 1
    return folder .. "/run" .. count
  end

  setup(function()
    folder = support.temporary()
    source = folder .. "/text.txt"
    local lines = {}
    for i = 1, 300 do lines[i] = ("the %d workers of the ring mix, line %d\n"):format(i % 7, i) end
    support.write(source, table.concat(lines))
    local output = new_output()
    local code, _, err = support.run(train(output))
    assert.equal("", err)
    assert.equal(0, code)
    whole = outcome(output)
  end)
  teardown(function() support.remove(folder) end)

  local function resume(arguments, before)
    return support.run(("packlua %s recipes/resume.lua %s"):format(before and "-e " .. before or "", arguments))
  end

  -- Fails unless the run goes on to the end and to what the uninterrupted one left.
  local function assert_finishes(output, arguments)
    local code, _, err = resume(output .. " " .. (arguments or ""))
    assert.equal("", err)
    assert.equal(0, code)
    assert.same(whole, outcome(output))
    for _, name in ipairs(files.list(output)) do assert.is_falsy(name:find("tmp", 1, true), name) end
  end

  describe("continues to the same numbers a run that", function()
    for _, signal in ipairs {{"SIGTERM", 15}, {"SIGINT", 2}, {"SIGUSR1", 10}, {"SIGUSR2", 12}, {"SIGHUP", 1},
      {"SIGXCPU", 24}} do
      it("was stopped by " .. signal[1] .. ", which exited with 75 after its step", function()
        local output = new_output()
        local code, _, err = support.run(train(output, "", at_step(5, send(signal[2]))))
        assert.equal(75, code, err)
        assert.is_truthy(err:find(signal[1] .. ": stopped after 6 steps", 1, true), err)
        assert.is_truthy(err:find("recipes/resume.lua " .. output, 1, true), err)
        assert.is_true(files.exists(output .. "/step-00000006.state.safetensors.zst"))
        assert_finishes(output)
      end)
    end

    it("was stopped as nobody read its output any more", function()
      local output = new_output()
      local code, _, err = support.run(train(output, "", at_step(5, [[
        ffi.cdef "int pipe(int *ends); int close(int file); int dup2(int file, int as);"
        local ends = ffi.new("int[2]")
        ffi.C.pipe(ends) ffi.C.close(ends[0]) ffi.C.dup2(ends[1], 1)
        print("gone") io.stdout:flush()]])))
      assert.equal(75, code, err)
      assert.is_truthy(err:find("SIGPIPE: stopped after 6 steps", 1, true), err)
      assert_finishes(output)
    end)

    it("was stopped while its first step was recorded, with the state before it", function()
      local output = new_output()
      local during = [["local ffi = require 'ffi'
        ffi.cdef 'int kill(int, int); int getpid(void);'
        require('pack').study.watch {opened = function(study)
          local one = study.trainer
          function one.gradients_of(micro)
            ]] .. send(15) .. [[
            return one.model:backward(one.tokens, one.targets, one.updater.gradients, micro > 1)
          end
        end}"]]
      local code, _, err = support.run(train(output, "--set runtime.compile=true", during))
      assert.equal(75, code, err)
      assert.is_truthy(err:find("SIGTERM: stopped after 0 steps", 1, true), err)
      assert_finishes(output)
    end)

    it("was stopped during its last evaluation, with a state that no policy had asked for", function()
      local output = new_output()
      local during = [["local ffi = require 'ffi'
        ffi.cdef 'int kill(int, int); int getpid(void);'
        require('pack').study.watch {evaluating = function(study) ]] .. send(1) .. [[ end}"]]
      local code, _, err = support.run(train(output, "--set training.save_epoch_training_state=false", during))
      assert.equal(75, code, err)
      assert.is_truthy(err:find(("SIGHUP: stopped after %d steps"):format(STEPS), 1, true), err)
      assert.is_false(files.exists(output .. "/result.json"))
      assert_finishes(output)
    end)

    it("was stopped in the step that ends an epoch", function()
      local output = new_output()
      assert.equal(75, (support.run(train(output, "", at_step(7, send(15))))))
      -- The epoch's own state does.
      assert.is_false(files.exists(output .. "/step-00000008.state.safetensors.zst"))
      assert.is_true(files.exists(output .. "/epoch-002.state.safetensors.zst"))
      assert_finishes(output)
    end)

    it("was stopped in its last step", function()
      local output = new_output()
      assert.equal(75, (support.run(train(output, "", at_step(STEPS - 1, send(15))))))
      assert_finishes(output)
    end)

    it("was stopped while it saved", function()
      local output = new_output()
      local code, _, err = support.run(train(output, "--set training.checkpoint_steps=1",
        at_step(5, send(15) .. send(10))))
      assert.equal(75, code, err)
      assert_finishes(output, "--set training.checkpoint_steps=off")
    end)

    it("was stopped twice, the second time after it was resumed", function()
      local output = new_output()
      assert.equal(75, (support.run(train(output, "", at_step(2, send(15))))))
      assert.equal(75, (resume(output, at_step(9, send(15)))))
      assert_finishes(output)
      assert.equal(2, #json.decode(files.read(output .. "/environment.json")).resumed)
      local log = files.read(output .. "/run.log")
      for _, words in ipairs {"SIGTERM: stopped after 3 steps", "step-00000003", "SIGTERM: stopped after 10 steps"} do
        assert.is_truthy(log:find(words, 1, true), words)
      end
    end)

    for _, step in ipairs {3, 4, 7, 10} do
      it(("was killed in step %d"):format(step), function()
        local output = new_output()
        local code = support.run(train(output, "--set training.checkpoint_steps=1 --set training.keep=1",
          at_step(step, send(9))))
        assert.equal(137, code)
        assert_finishes(output, "--set training.checkpoint_steps=off")
      end)
    end

    it("was killed at some moment, saving all the time", function()
      for moment = 1, 4 do
        local output = new_output()
        local code = support.run(([[%s > /dev/null 2>&1 & pid=$!
          until ls %s/step-*.zst > /dev/null 2>&1; do sleep 0.01; done
          sleep 0.0%d; kill -9 $pid 2> /dev/null; wait $pid]]):format(
          in_background(train(output, "--set training.checkpoint_steps=1 --set training.keep=1")), output, moment * 2))
        local is_finished = files.exists(output .. "/result.json") -- the kill came after all was written
        if code ~= 0 and not is_finished then assert_finishes(output, "--set training.checkpoint_steps=off") end
      end
    end)

    it("read ahead and had two threads, and goes on without and with one", function()
      local output = new_output()
      assert.equal(75, (support.run(train(output, "--set runtime.threads=2", at_step(6, send(15))))))
      assert_finishes(output, "--set runtime.threads=1 --set data.prefetch=off")
    end)
  end)

  it("makes a branch in another folder and leaves the run as it is", function()
    local output, branch = new_output(), new_output()
    assert.equal(75, (support.run(train(output, "", at_step(5, send(15))))))
    local metrics = files.read(output .. "/metrics.jsonl")
    local code, _, err = resume(output .. "/step-00000006.state.safetensors.zst --output " .. branch)
    assert.equal(0, code, err)
    assert.same(whole, outcome(branch))
    assert.equal(metrics, files.read(output .. "/metrics.jsonl"))
    assert.is_false(files.exists(output .. "/result.json"))
  end)

  describe("refuses", function()
    local output
    setup(function()
      output = new_output()
      assert.equal(75, (support.run(train(output, "--set training.checkpoint_steps=2 --set training.keep=5",
        at_step(5, send(15))))))
    end)

    local function refused(expected, arguments, ...)
      local code, _, err = resume(arguments)
      assert.equal(expected, code, err)
      for _, words in ipairs {...} do assert.is_truthy(err:find(words, 1, true), err) end
      assert.is_falsy(err:find("traceback", 1, true), err)
      assert.is_false(files.exists(output .. "/result.json"))
    end

    it("another recipe, naming field and both values", function()
      refused(2, output .. " --set optimizer.lr=0.03", "optimizer.lr = 0.02", "0.03 is wanted")
      refused(2, output .. " --set training.max_tokens=1280", "training.max_tokens = 1536", "1280 is wanted")
    end)

    it("another number of workers, naming both", function()
      refused(2, output .. " --set decentralized.num_models=2 --set training.micro_batch_size=4",
        "num_models 4 workers, and 2 are wanted", "--allow-conversion")
      refused(2, output .. " --set decentralized.num_models=8 --set training.micro_batch_size=1",
        "num_models 4 workers, and 8 are wanted")
    end)

    it("other data, and takes the same data from another place", function()
      local moved, other = folder .. "/moved.txt", folder .. "/other.txt"
      support.write(moved, support.read(source))
      support.write(other, support.read(source) .. "x\n")
      refused(2, output .. " --set data.text=" .. other, "the run was trained on other data")
      local code, _, err = resume(("%s --output %s --set data.text=%s"):format(output, new_output(), moved))
      assert.equal(0, code, err)
    end)

    it("a state that newer ones follow, unless as a branch", function()
      refused(2, output .. "/step-00000002.state.safetensors.zst", "step-00000006.state.safetensors.zst is newer",
        "--output DIR")
    end)

    it("a folder without states, and what is not there", function()
      refused(2, folder, "has no training state")
      refused(2, output .. "x", "there is no such run or state")
    end)

    it("a second process", function()
      local code, out, err = support.run(([[%s -e %s recipes/resume.lua %s > %s/first 2>&1 & first=$!
        until grep -q '^step 7' %s/first; do sleep 0.05; done
        packlua recipes/resume.lua %s; echo second $?
        kill -9 $first; wait $first]]):format(
        support.quote(support.program), at_step(7, "ffi.C.usleep(20000000)"), output, folder, folder, output))
      assert.equal(137, code)
      assert.equal("second 2\n", out)
      assert.is_truthy(err:find("run.lock: locked by another process", 1, true), err)
    end)

    it("a damaged state by name, and passes over it when told to", function()
      local newest = output .. "/step-00000006.state.safetensors.zst"
      local text = support.read(newest)
      support.write(newest, text:sub(1, #text - 100))
      refused(1, output, newest, "cut short", "--fallback continues with an older one")
      assert_finishes(output, "--fallback")
      assert.is_true(files.exists(newest .. ".damaged"))
    end)
  end)

  it("refuses a run that is finished", function()
    local code, _, err = resume(folder .. "/run1")
    assert.equal(2, code)
    assert.is_truthy(err:find("the run is finished", 1, true), err)
  end)

  describe("of a run that another recipe made", function()
    local own, output
    setup(function()
      own, output = folder .. "/mine.lua", new_output()
      support.write(own, support.read("recipes/train.lua") .. "\n-- and an outer step\n")
      assert.equal(75, (support.run((train(output, "", at_step(5, send(15))):gsub("recipes/train.lua", own)))))
    end)

    it("runs that recipe", function()
      local branch = new_output()
      local code, _, err = resume(output .. " --output " .. branch)
      assert.equal(0, code, err)
      assert.is_truthy(files.exists(branch .. "/result.json"))
      code, _, err = support.run(("%s %s --resume %s --output %s"):format(support.quote(support.program), own, output,
        new_output()))
      assert.equal(0, code, err)
    end)

    it("refuses it where the recipe is gone, naming it, and goes on without when told to", function()
      local before, text = files.read(output .. "/environment.json"), support.read(own)
      support.write(own, text .. "-- changed\n")
      local code, _, err = resume(output)
      support.write(own, text)
      assert.equal(2, code, err)
      assert.is_truthy(err:find(("step-00000006.state.safetensors.zst: made by mine.lua (SHA-256 %s...), and what that adds")
        :format(files.sha256(own):sub(1, 12)), 1, true), err)
      assert.equal(before, files.read(output .. "/environment.json"))
      code, _, err = resume(output .. " --allow-recipe --output " .. new_output())
      assert.equal(0, code, err)
    end)

    it("refuses a changed train.lua, and takes one that is only in another place", function()
      files.mkdir(folder .. "/copy")
      support.write(folder .. "/copy/train.lua", support.read(own))
      local changed, copied = new_output(), new_output()
      assert.equal(75, (support.run((train(changed, "", at_step(5, send(15)))
        :gsub("recipes/train.lua", folder .. "/copy/train.lua")))))
      support.write(folder .. "/copy/train.lua", "-- gone")
      local code, _, err = resume(changed)
      assert.equal(2, code, err)
      assert.is_truthy(err:find("made by train.lua, which is not the one that packlua has, (SHA-256", 1, true), err)
      support.write(folder .. "/copy/train.lua", support.read("recipes/train.lua"))
      assert.equal(75, (support.run((train(copied, "", at_step(5, send(15)))
        :gsub("recipes/train.lua", folder .. "/copy/train.lua")))))
      assert_finishes(copied)
      local state = assert(checkpoint.open(checkpoint.list(copied)[1].path))
      assert.same({file = "train.lua", sha256 = files.sha256("recipes/train.lua")}, state.info.made_by)
      state:close()
    end)

    it("goes on from states that name no recipe's file, as older ones do", function()
      local state = assert(checkpoint.open(checkpoint.list(output)[1].path))
      state.info.made_by = nil
      state:check_recipe()
      state:close()
    end)
  end)

  it("knows the recipes that packlua has, whose SHA-256 are in lua/pack/run/plain_recipes.lua", function()
    local plain_recipes = require "pack.run.plain_recipes"
    for _, name in ipairs {"train.lua", "sweep.lua"} do
      local found = files.sha256("recipes/" .. name)
      assert.is_true(plain_recipes.has {file = name, sha256 = found}, ("recipes/%s has changed; if it still adds nothing to "
        .. 'training that recipes/resume.lua lacks, add "%s" to lua/pack/run/plain_recipes.lua'):format(name, found))
    end
  end)

  it("makes other numbers of workers of a state when allowed to", function()
    local output, branch = new_output(), new_output()
    assert.equal(75, (support.run(train(output, "", at_step(5, send(15))))))
    local code, _, err = resume(("%s --output %s --allow-conversion tile --set decentralized.num_models=2 "
      .. "--set training.micro_batch_size=4"):format(output, branch))
    assert.equal(0, code, err)
    assert.equal(2, config.load(branch .. "/resolved.json", {}).decentralized.num_models)
    assert.equal(2, #json.decode(files.read(branch .. "/result.json")).loss_worker)
  end)

  it("stops at once with 130 at a second ^C", function()
    local output = new_output()
    local code = support.run(train(output, "", at_step(5, send(2) .. send(2))))
    assert.equal(130, code)
    assert.same({}, checkpoint.list(output))
  end)

  describe("keeps the last finite states when a worker", function()
    local function assert_stopped(step, value, message, ...)
      local spoil = ("study.trainer.model.weight['norm.weight']:write_numbers(ffi.new('double[64]', %s), 64)"):format(value)
      local output = new_output()
      local code, _, err = support.run(train(output, "--set training.checkpoint_steps=2 --set training.keep=3 "
        .. "--set training.checkpoint_policy=none --set training.checkpoint_epochs=off", at_step(step, spoil)))
      assert.equal(1, code)
      assert.is_truthy(err:find(message, 1, true), err)
      local found = {}
      for _, item in ipairs(checkpoint.list(output)) do
        found[#found + 1] = item.step
        assert(checkpoint.open(item.path)):close()
      end
      -- One more may be there, as what is to go goes when the next state is there.
      assert.same({...}, {found[1], found[2], found[3]})
    end

    it("has a loss that is not finite", function()
      assert_stopped(8, "3e38", "worker 0: the loss is not finite at step 9", 8, 6, 4)
    end)

    it("has weights that are not finite when they are saved", function()
      -- The saver says so, or the next step if it is faster.
      assert_stopped(7, "0/0", "not finite", 6, 4, 2)
    end)
  end)
end)
