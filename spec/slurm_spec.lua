-- scripts/slurm.sh and what it submits, with stand-ins for sbatch and scontrol; scripts/slurm_test.sh has the real ones.
local files = require "pack.io.files"
local json = require "pack.io.json"
local native = require "pack.native"
local support = require "spec.support.helper"

local home = native.home()

describe("scripts/slurm.sh", function()
  -- Runs it without the caller's own settings; returns exit code, output and errors.
  local function slurm(arguments, variables)
    return support.run(("env -u PACKLUA_SLURM_GPUS -u PACKLUA_SLURM_ACCOUNT -u PACKLUA_SLURM_TIME %s %s/scripts/slurm.sh %s")
      :format(variables or "", support.quote(home), arguments))
  end

  it("shows with --dry-run the command of sbatch, with one GPU, a log, the warning and room for a requeue", function()
    local code, out, err = slurm("--dry-run recipes/verify.lua 'a b'")
    assert.equal("", err)
    assert.equal(0, code)
    assert.equal(("sbatch --job-name=verify --output=runs/slurm-verify-%%j.log --open-mode=append --nodes=1 --ntasks=1 "
      .. "--requeue --signal=B:USR1@120 --gpus=1 %s/scripts/slurm_job.sh %s '' '' recipes/resume.lua "
      .. "recipes/verify.lua a\\ b\n"):format(home, home), out)
  end)

  it("submits numbers from MaxArraySize on as further arrays, in turn where jobs at once are limited", function()
    local folder = support.temporary()
    support.write(folder .. "/scontrol", '#!/bin/sh\n[ "$1 $2" = "show config" ] && echo "MaxArraySize            = 11"\n')
    os.execute("chmod +x " .. folder .. "/scontrol")
    local function arrays(list)
      local code, out, err = slurm("--dry-run --array " .. list .. " recipes/verify.lua --task %a", "PATH=" .. folder .. ":$PATH")
      assert.equal(0, code, err)
      local found = {}
      for line in out:gmatch("[^\n]+") do
        found[#found + 1] = table.concat({line:match("%-%-array=(%S+)"):gsub("\\", ""), line:match("%-%-offset %d+"),
          line:match("%-%-dependency=%S+")}, " ")
        assert.is_truthy(line:find("recipes/verify.lua --task %a", 1, true), line)
      end
      return found
    end
    assert.same({"1-10"}, arrays "1-10")
    assert.same({"7,9%2"}, arrays "7,9%2")
    assert.same({"0,3-10", "1-4 --offset 10", "5 --offset 20"}, arrays "0,3-14,25")
    assert.same({"1 --offset 20"}, arrays "21")
    assert.same({"1,4,7,10", "3,6,9 --offset 10"}, arrays "1-19:3")
    assert.same({"9-10%4", "1-2%4 --offset 10 --dependency=afterany:JOB"}, arrays "9-12%4")
    local code, _, err = slurm("--dry-run --array 3-x recipes/verify.lua", "PATH=" .. folder .. ":$PATH")
    assert.equal(2, code)
    assert.is_truthy(err:find("--array 3-x: expected a list", 1, true), err)
    support.remove(folder)
  end)

  it("names the folder of a training run after its job", function()
    local _, one = slurm("--dry-run recipes/train.lua --set runtime.seed=1")
    assert.is_truthy(one:find("recipes/train.lua --set runtime.seed=1 --output runs/train-%j\n", 1, true), one)
    local _, array = slurm("--dry-run --array 1-3 --name seeds recipes/train.lua")
    assert.is_truthy(array:find(" --array=1-3 ", 1, true), array)
    assert.is_truthy(array:find(" --output=runs/slurm-seeds-%A_%a.log ", 1, true), array)
    assert.is_truthy(array:find("recipes/train.lua --output runs/seeds-%A-%a\n", 1, true), array)
    local _, given = slurm("--dry-run recipes/train.lua --output=runs/mine")
    assert.is_truthy(given:find("recipes/train.lua --output=runs/mine\n", 1, true), given)
  end)

  it("takes the site's settings from variables, and from options before them", function()
    local variables = "PACKLUA_SLURM_ACCOUNT=theirs PACKLUA_SLURM_TIME=1:00:00 PACKLUA_SLURM_GPUS=0"
    local _, out = slurm("--dry-run recipes/train.lua", variables)
    assert.is_truthy(out:find("--account=theirs --time=1:00:00", 1, true), out)
    assert.is_falsy(out:find("--gpus", 1, true), out)
    _, out = slurm("--dry-run --account=mine --time 2:00:00 --gpus 1 --grace 300 --sbatch --constraint=x recipes/train.lua",
      variables)
    assert.is_truthy(out:find("--signal=B:USR1@300 --gpus=1 --account=mine --time=2:00:00 --constraint=x /", 1, true), out)
    _, out = slurm("--dry-run --cpu --cpus 4 --mem 8G recipes/train.lua")
    assert.is_falsy(out:find("--gpus", 1, true), out)
    assert.is_truthy(out:find("--cpus-per-task=4 --mem=8G", 1, true), out)
  end)

  it("refuses what it does not know, before anything is submitted", function()
    for arguments, message in pairs {
      [""] = "a recipe is missing",
      ["--accont me recipes/train.lua"] = "there is no option --accont",
      ["recipes/trian.lua"] = "recipes/trian.lua: there is no such recipe",
      ["--grace soon recipes/train.lua"] = "--grace soon: expected seconds",
      ["--time"] = "--time needs a value",
    } do
      local code, out, err = slurm(arguments)
      assert.equal(2, code)
      assert.equal("", out)
      assert.is_truthy(err:find(message, 1, true), err)
    end
  end)
end)

describe("scripts/slurm_job.sh", function()
  local folder, settings

  -- A packlua that in step `step` (from 0) does `action`, where job is the process of the job's script.
  local function program_at(step, action)
    local code = ([[
      local ffi = require "ffi"
      ffi.cdef "int kill(int pid, int signal); int getpid(void); int getppid(void); int usleep(unsigned useconds);"
      local job = ffi.C.getppid()
      require("pack").study.watch {step = function(row)
        if row.step == %d then
          %s
          while ffi.C.pk_signals_pending() == 0 do ffi.C.usleep(1000) end
        end
      end}]]):format(step, action)
    local path = folder .. "/packlua-" .. step
    support.write(path, ("#!/bin/sh\nexec %s -e %s \"$@\"\n"):format(support.quote(support.program), support.quote(code)))
    os.execute("chmod +x " .. support.quote(path))
    return path
  end

  -- Runs the job in `folder` as Slurm would; requeues go into the file requeued.
  local function job(number, restarts, program, arguments)
    return support.run(("cd %s && PATH=%s:$PATH SLURM_JOB_ID=%d SLURM_RESTART_COUNT=%d bash %s/scripts/slurm_job.sh %s '' %s "
      .. "recipes/resume.lua %s"):format(folder, folder, number, restarts, support.quote(home), support.quote(home),
      support.quote(program), arguments))
  end

  local function train(output)
    return "recipes/train.lua " .. settings .. " --output " .. output
  end

  local function requeued()
    local text = files.read(folder .. "/requeued") or ""
    os.remove(folder .. "/requeued")
    return text
  end

  local function losses(output)
    local list = {}
    for line in files.read(folder .. "/" .. output .. "/metrics.jsonl"):gmatch("[^\n]+") do
      list[#list + 1] = json.decode(line).loss
    end
    return list
  end

  setup(function()
    folder = support.temporary()
    local lines = {}
    for i = 1, 200 do lines[i] = ("job %d mixes with %d\n"):format(i % 7, i) end
    support.write(folder .. "/text.txt", table.concat(lines))
    support.write(folder .. "/scontrol", "#!/bin/sh\necho \"$@\" >> requeued\n")
    os.execute("chmod +x " .. support.quote(folder .. "/scontrol"))
    local words = {"--sample 0 --set data.text=text.txt"}
    for _, setting in ipairs {"model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24",
      "model.context_length=16", "training.batch_tokens=128", "training.micro_batch_size=2", "training.max_tokens=1024",
      "training.epoch_tokens=512", "evaluation.subset_blocks=4", "evaluation.batch_size=4"} do
      words[#words + 1] = "--set " .. setting
    end
    settings = table.concat(words, " ")
  end)
  teardown(function() support.remove(folder) end)

  it("saves and requeues on the warning, continues when started again, and then knows that it is done", function()
    assert.equal(0, (job(1, 0, support.program, train("whole"))))
    local code, out, err = job(7, 0, program_at(2, "ffi.C.kill(job, 10)"), train("run-%j"))
    assert.equal(75, code, out .. err)
    assert.equal("requeue 7\n", requeued())
    assert.is_true(files.exists(folder .. "/run-7/step-00000003.state.safetensors.zst"))
    code, out, err = job(7, 1, support.program, train("run-%j"))
    assert.equal(0, code, out .. err)
    assert.is_truthy(out:find("continuing the run in run-7", 1, true), out)
    assert.same(losses("whole"), losses("run-7"))
    code, out = job(7, 2, support.program, train("run-%j"))
    assert.equal(0, code)
    assert.is_truthy(out:find("the run in run-7 is finished", 1, true), out)
    assert.equal("", requeued())
  end)

  it("saves, but does not requeue, when it is cancelled", function()
    local code, out, err = job(8, 0, program_at(2, "ffi.C.kill(job, 15)"), train("cancelled"))
    assert.equal(75, code, out .. err)
    assert.equal("", requeued())
    assert.is_true(files.exists(folder .. "/cancelled/step-00000003.state.safetensors.zst"))
  end)

  it("requeues when the program alone was told to stop", function()
    assert.equal(75, (job(9, 0, program_at(1, "ffi.C.kill(ffi.C.getpid(), 15)"), train("told"))))
    assert.equal("requeue 9\n", requeued())
  end)

  it("does not requeue a recipe that cannot save, which would never end", function()
    support.write(folder .. "/endless.lua", "local ffi = require 'ffi' ffi.cdef 'int kill(int, int); int getppid(void);' "
      .. "ffi.C.kill(ffi.C.getppid(), 10) while true do end")
    assert.equal(138, (job(13, 0, support.program, "endless.lua --output nothing")))
    assert.equal("", requeued())
  end)

  it("begins again where nothing was saved, and keeps what was left", function()
    local killed = job(10, 0, program_at(3, "ffi.C.kill(ffi.C.getpid(), 9)"), train("early"))
    assert.equal(137, killed)
    assert.equal("", requeued())
    local code, out, err = job(10, 1, support.program, train("early"))
    assert.equal(0, code, out .. err)
    assert.same(losses("whole"), losses("early"))
    assert.is_true(files.exists(folder .. "/early.attempt-1/run.log"))
  end)

  it("leaves alone what another job began", function()
    assert.equal(137, (job(11, 0, program_at(3, "ffi.C.kill(ffi.C.getpid(), 9)"), train("theirs"))))
    local code, _, err = job(12, 1, support.program, train("theirs"))
    assert.equal(2, code)
    assert.is_truthy(err:find("theirs: the folder holds another run", 1, true), err)
  end)

  it("gives the numbers of an array to the recipe, and starts with the site's setup", function()
    support.write(folder .. "/setup.sh", "echo modules: $UNSET loaded\n")
    support.write(folder .. "/show.lua", "print(table.concat(arg, ' '))")
    local code, out, err = support.run(("cd %s && SLURM_JOB_ID=23 SLURM_ARRAY_JOB_ID=20 SLURM_ARRAY_TASK_ID=3 bash "
      .. "%s/scripts/slurm_job.sh %s %s/setup.sh %s recipes/resume.lua show.lua --task %%a --output runs/%%A-%%a --set 'x=a b'")
      :format(folder, support.quote(home), support.quote(home), folder, support.quote(support.program)))
    assert.equal("", err)
    assert.equal(0, code)
    assert.is_truthy(out:find("modules: loaded\n", 1, true), out)
    assert.is_truthy(out:find("\n--task 3 --output runs/20-3 --set x=a b\n", 1, true), out)
    code, out, err = support.run(("cd %s && SLURM_JOB_ID=23 SLURM_ARRAY_JOB_ID=20 SLURM_ARRAY_TASK_ID=3 bash "
      .. "%s/scripts/slurm_job.sh --offset 1000 %s '' %s recipes/resume.lua show.lua --task %%a")
      :format(folder, support.quote(home), support.quote(home), support.quote(support.program)))
    assert.equal(0, code, err)
    assert.is_truthy(out:find("\n--task 1003\n", 1, true), out)
  end)
end)
