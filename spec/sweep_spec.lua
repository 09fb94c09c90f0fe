local files = require "pack.io.files"
local json = require "pack.io.json"
local plan = require "pack.sweep.plan"
local process = require "pack.io.process"
local summary = require "pack.sweep.summary"
local sweep_table = require "pack.sweep.table"
local support = require "spec.support.helper"

describe("a sweep", function()
  local folder, text

  setup(function()
    folder = support.temporary()
    text = folder .. "/text.txt"
    support.write(text, ("The quick brown fox jumps over the lazy dog.\n"):rep(60))
    support.write(folder .. "/config.lua", ([[return {
      model = {vocab_size = 257, layers = 1, width = 64, heads = 2, ffn_width = 128, context_length = 16},
      data = {tokenizer = "bytes", text = {%q}},
      training = {max_tokens = 2560, epoch_tokens = 1280, batch_tokens = 256, micro_batch_size = 4, log_every = 5,
        checkpoint_steps = 2},
      evaluation = {subset_blocks = 2, batch_size = 2},
      decentralized = {num_models = 4, topology = "ring"},
    }]]):format(text))
  end)

  teardown(function() support.remove(folder) end)

  local function read_json(path)
    return assert(json.decode(assert(support.read(path)), path))
  end

  local function refused(words, command)
    local code, _, output = support.run("packlua recipes/sweep.lua --config " .. folder .. "/config.lua " .. command)
    assert.equal(2, code, output)
    for _, word in ipairs(words) do assert.is_truthy(output:find(word, 1, true), output) end
    return output
  end

  describe("plans", function()
    local function runs(over, zip, options)
      return plan.runs(folder .. "/config.lua", {}, plan.axes(over, zip), options)
    end

    it("every combination, the last axis changing first", function()
      local names = {}
      for i, run in ipairs(runs {"decentralized.num_models=1,2", "runtime.seed=3,4,5"}) do names[i] = run.name end
      assert.same({"num_models=1,seed=3", "num_models=1,seed=4", "num_models=1,seed=5",
        "num_models=2,seed=3", "num_models=2,seed=4", "num_models=2,seed=5"}, names)
    end)

    it("zipped keys as one axis", function()
      local list = runs({"runtime.seed=1,2"}, {"optimizer.lr=1e-3,2e-3", "optimizer.beta2=0.9,0.99"})
      assert.equal(4, #list)
      assert.same({2e-3, 0.99, 1}, {list[2].config.optimizer.lr, list[2].config.optimizer.beta2,
        list[2].config.runtime.seed})
    end)

    it("the same global batch for every number of workers", function()
      for _, run in ipairs(runs {"decentralized.num_models=1,2,8,16"}) do
        local c = run.config
        assert.equal(16, c.decentralized.num_models * c.training.micro_batch_size)
        assert.equal(256, c.training.batch_tokens)
      end
    end)

    it("accumulation that follows instead, where asked for", function()
      local list = runs({"decentralized.num_models=1,2"}, nil, {fixed_micro_batch = true})
      assert.equal(4, list[1].config.training.micro_batch_size)
    end)

    it("short names, and long ones where two keys end alike", function()
      local list = runs {"decentralized.period=2", "data.shuffle_seed=1", "runtime.seed=9"}
      assert.equal("period=2,shuffle_seed=1,seed=9", list[1].name)
      list = runs {"evaluation.seed=1", "runtime.seed=9"}
      assert.equal("evaluation.seed=1,runtime.seed=9", list[1].name)
    end)
  end)

  describe("refuses", function()
    it("no axes, empty and repeated values, and a key of two axes", function()
      refused({"a sweep needs --over"}, "")
      refused({"--over runtime.seed=1,,2: an empty value"}, "--over runtime.seed=1,,2")
      refused({"the value 1 is there twice"}, "--over runtime.seed=1,1")
      refused({"another axis sets this key"}, "--over runtime.seed=1 --over runtime.seed=2")
      refused({"optimizer.lr has 2 values and runtime.seed has 3"}, "--zip optimizer.lr=1e-3,2e-3 runtime.seed=1,2,3")
    end)

    it("unknown keys and values that some run cannot have, before anything starts", function()
      refused({"there is no key decentralized.topolgy; did you mean decentralized.topology?"},
        "--over decentralized.topolgy=ring")
      refused({"topology=hypercube,num_models=6", "N must be a power of two"},
        "--over decentralized.topology=ring,hypercube --over decentralized.num_models=2,6 --fixed-micro-batch "
        .. "--set training.batch_tokens=768")
      refused({"decentralized.num_models=3", "16 sequences of model.context_length 16, which 3 workers", "possible are 1, 2, 4, 8, 16"},
        "--over decentralized.num_models=2,3")
      refused({"runtime.seed=9007199254740993"}, "--over runtime.seed=42,9007199254740993")
    end)

    it("more combinations than can be meant, before they are made", function()
      local axes = {}
      for i, key in ipairs {"optimizer.lr", "optimizer.beta1", "optimizer.beta2", "optimizer.eps", "runtime.seed",
        "data.shuffle_seed", "evaluation.seed", "decentralized.period", "training.keep", "training.log_every"} do
        axes[i] = "--over " .. key .. "=1,2,3,4,5,6,7,8,9,10"
      end
      refused({"the axes have 10000000000 combinations; a sweep has at most 10000 runs"}, table.concat(axes, " "))
    end)

    it("folders that cannot be made or have no name, and devices that are not there, without traces", function()
      support.write(folder .. "/taken", "")
      local over = "--over runtime.seed=1 --output "
      assert.is_nil(refused({"taken: cannot be made a directory"}, over .. folder .. "/taken"):find("traceback", 1, true))
      refused({"--output needs a name"}, over .. "''")
      refused({"device 'cud:0' is not known"}, over .. folder .. "/devices --devices cpu,cud:0")
      refused({"runtime.device", "cud:0"}, over .. folder .. "/devices --device cud:0")
      assert.is_nil(files.kind(folder .. "/devices"))
    end)

    it("to run where another sweep is running", function()
      local output = folder .. "/twice"
      files.mkdir(output .. "/locks")
      local held = assert(files.lock(output .. "/locks/sweep"))
      refused({"locked by another process"}, "--over runtime.seed=1 --output " .. output)
      local code = support.run(("packlua recipes/sweep.lua --config %s/config.lua --over runtime.seed=1 --output %s --collect")
        :format(folder, output))
      assert.equal(0, code)
      files.unlock(held)
      assert.same({"locks", "report.md", "summary.csv", "summary.json"}, files.list(output))
      refused({"none: there is no such sweep"}, "--over runtime.seed=1 --collect --output " .. folder .. "/none")
    end)

    it("a folder whose runs are of another configuration", function()
      local output = folder .. "/changed"
      local command = "packlua recipes/sweep.lua --config " .. folder .. "/config.lua --over runtime.seed=1 --output "
        .. output
      assert.equal(0, (support.run(command)))
      local code, _, said = support.run(command .. " --set optimizer.lr=0.5")
      assert.equal(2, code)
      assert.is_truthy(said:find("has optimizer.lr = 0.001, and the sweep now says 0.5", 1, true), said)
    end)
  end)

  it("shows its runs with --dry-run and starts nothing", function()
    local output = folder .. "/dry"
    local code, said = support.run(("packlua recipes/sweep.lua --config %s/config.lua --over decentralized.num_models=1,8 "
      .. "--output %s --dry-run"):format(folder, output))
    assert.equal(0, code)
    assert.is_truthy(said:find("1  new          decentralized.num_models=1  (N 1, micro-batch 16, 2.56k targets in all)",
      1, true), said)
    assert.is_nil(files.kind(output))
  end)

  -- Runs a sweep with further arguments in a folder of its own; returns exit code, output and errors.
  local function sweep(output, arguments, recipe)
    return support.run(("packlua %s --config %s/config.lua --output %s %s"):format(recipe or "recipes/sweep.lua", folder,
      support.quote(output), arguments))
  end

  it("without --output takes a folder of its own, also when another one starts in the same second", function()
    local program, config = support.quote(support.program), folder .. "/config.lua"
    local code, out, err = support.run(([[
      mkdir %s/same-second && cd %s/same-second || exit 9
      a="--config %s --set training.max_tokens=512 --over runtime.seed=1"
      %s recipes/sweep.lua $a > 1 2>&1 & first=$!
      %s recipes/sweep.lua $a > 2 2>&1 & second=$!
      wait $first || { cat 1 >&2; exit 1; }
      wait $second || { cat 2 >&2; exit 1; }
      ls runs/*/report.md]]):format(folder, folder, config, program, program))
    assert.equal(0, code, err)
    local _, count = out:gsub("report.md", "")
    assert.equal(2, count, out)
  end)

  it("hands every argument on to its runs as it is", function()
    local odd = folder .. "/it's \"a\" text $HOME.txt"
    support.write(odd, support.read(text))
    local output = folder .. "/an odd folder's"
    local code, said, err = sweep(output, ("--set %s --zip optimizer.lr=1e-3,2e-3 optimizer.beta2=0.9,0.99 --jobs 2")
      :format(support.quote("data.text=" .. odd)))
    assert.equal(0, code, said .. err)
    for i, name in ipairs {"lr=1e-3,beta2=0.9", "lr=2e-3,beta2=0.99"} do
      local config = read_json(output .. "/" .. name .. "/resolved.json")
      assert.same({{odd}, i * 1e-3}, {config.data.text, config.optimizer.lr})
    end
  end)

  it("does not call a run failed that another process is at, and is not done without it", function()
    local output = folder .. "/elsewhere"
    files.mkdir(output .. "/locks")
    local held = assert(files.lock(output .. "/locks/seed=1"))
    local code, _, err = sweep(output, "--over runtime.seed=1,2 --task 1")
    assert.equal(1, code)
    assert.is_truthy(err:find("locked by another process", 1, true), err)
    local said
    code, said, err = sweep(output, "--over runtime.seed=1,2")
    assert.equal(1, code)
    assert.is_truthy(said:find("2 runs: 1 complete, 1 running", 1, true), said)
    assert.equal("packlua: not all runs are complete; the same command goes on\n", err)
    files.unlock(held)
    code, said = sweep(output, "--over runtime.seed=1,2")
    assert.equal(0, code)
    assert.is_truthy(said:find("2 runs: 2 complete", 1, true), said)
  end)

  it("measures all steps of a run, also of one that was interrupted (sweep_spread)", function()
    local output, arguments = folder .. "/spread", {"--set", "training.max_tokens=51200", "--set",
      "training.epoch_tokens=51200", "--over", "decentralized.topology=ring"}
    local command = {support.program, "recipes/sweep_spread.lua", "--config", folder .. "/config.lua", "--output",
      output, unpack(arguments)}
    local metrics = output .. "/topology=ring/metrics.jsonl"
    command[#command + 1] = "--task"
    command[#command + 1] = "1"
    local one = process.start {command = command, log = output .. ".txt"}
    local function taken() return select(2, (support.read(metrics) or ""):gsub("\n", "")) end
    while taken() < 100 and not one:poll(0.005) do end -- past the largest distance
    one:send("USR1")
    while not one:poll(1) do end
    assert.equal(75, one.code, support.read(output .. ".txt"))
    one:close()
    assert.equal(0, (sweep(output, table.concat(arguments, " "), "recipes/sweep_spread.lua")))
    local largest, steps = 0, 0
    for line in support.read(metrics):gmatch("[^\n]+") do
      local row = json.decode(line)
      if not row.split then largest, steps = math.max(largest, row.consensus_distance), steps + 1 end
    end
    assert.equal(200, steps)
    assert.equal(largest, read_json(output .. "/topology=ring/result.json").largest_consensus_distance)
  end)

  it("calls a run failed whose function fails after the training, and does it again with --retry", function()
    local output, recipe = folder .. "/after", folder .. "/after.lua"
    support.write(recipe, [[require("pack").sweep {recipe = "after", summary = "Fails once.", arg = arg,
      over = {"runtime.seed=1"}, run = function(task)
        task:train()
        if not os.getenv "WHOLE" then error("the measurement broke") end
        return {measured = 3}
      end}]])
    local code, said = sweep(output, "", recipe)
    assert.equal(1, code)
    assert.is_truthy(said:find("seed=1: failed: .*the measurement broke"), said)
    code, said = support.run(("export WHOLE=1; packlua %s --config %s/config.lua --output %s --retry"):format(recipe,
      folder, output))
    assert.equal(0, code, said)
    assert.equal(3, read_json(output .. "/summary.json").runs[1].result.measured)
    assert.is_truthy(files.exists(output .. "/set-aside/seed=1-1/result.json"))
  end)

  it("does runs again whose folder is gone or whose result cannot be read", function()
    local output = folder .. "/damaged"
    assert.equal(0, (sweep(output, "--over runtime.seed=1,2,3")))
    local losses = {}
    for i, row in ipairs(read_json(output .. "/summary.json").runs) do losses[i] = row.result.loss end
    os.execute("rm -r " .. support.quote(output .. "/seed=1"))
    support.write(output .. "/seed=2/result.json", '{"loss": 3')
    support.write(output .. "/seed=3/result.json", "")
    os.execute(("rm %s/seed=3/*.state.safetensors.zst"):format(support.quote(output)))
    local code, said = sweep(output, "--over runtime.seed=1,2,3")
    assert.equal(0, code, said)
    for i, row in ipairs(read_json(output .. "/summary.json").runs) do assert.equal(losses[i], row.result.loss) end
    assert.is_truthy(files.exists(output .. "/set-aside/seed=3-1"))
    support.write(output .. "/seed=2/resolved.json", "{")
    local _, _, err = sweep(output, "--over runtime.seed=1,2,3")
    assert.is_truthy(err:find("seed=2/resolved.json:", 1, true), err)
    assert.is_truthy(err:find("without the folder .*seed=2 the run begins again"), err)
  end)

  it("shows the last step of each running one of many workers, and no more runs than can be redrawn", function()
    local losses, running = ("2.25,"):rep(1500), {}
    files.mkdir(folder .. "/shown")
    support.write(folder .. "/shown/metrics.jsonl", ('{"step":%d,"loss":%s,"loss_worker":[%s1],"tokens_per_second":5}\n')
      :rep(3):format(7, "3", losses, 8, "2.5", losses, 9, "null", losses):gsub("\n$", ""))
    local stream = {text = "", write = function(self, ...) self.text = self.text .. table.concat {...} end,
      flush = function() end}
    local display = sweep_table.create(40, {stream = stream, terminal = true})
    for i = 1, 40 do running[i] = {task = {name = "run" .. i, folder = folder .. "/shown"}, began = 0} end
    display:update(running)
    assert.is_truthy(stream.text:find("run1  %S+  step 9  loss 2%.5000  5 tok/s\n"), stream.text)
    assert.equal(18, select(2, stream.text:gsub("\n", "")))
    assert.is_truthy(stream.text:find("  ... and 24 more\n", 1, true))
  end)

  it("sums up over seeds", function()
    local function task(name, lr, seed, loss)
      return {index = 1, name = name, values = {["optimizer.lr"] = lr, ["runtime.seed"] = seed},
        status = function() return loss and "complete" or "failed", not loss and 'out of "memory", that is' or nil end,
        result = function() return {loss = loss, steps = 3} end}
    end
    local axes = plan.axes {"optimizer.lr=1,2", "runtime.seed=7,8"}
    local found = summary.of({task("a", "1", "7", 2.5), task("b", "1", "8", 3.5), task("c", "2", "7", 0 / 0),
      task("d", "2", "8")}, axes)
    assert.equal("a", found.best)
    assert.same({mean = 3, std = math.sqrt(0.5), count = 2}, found.groups[1].statistics.loss)
    assert.equal("a", found.groups[1].best)
    assert.is_nil(found.groups[2].statistics.loss)
    assert.same({complete = 3, failed = 1}, found.counts)
    summary.write(found, folder)
    local lines = {}
    for line in support.read(folder .. "/summary.csv"):gmatch("([^\r\n]+)\r\n") do lines[#lines + 1] = line end
    assert.same({"name,optimizer.lr,runtime.seed,status,reason,loss,steps", "a,1,7,complete,,2.5,3",
      "b,1,8,complete,,3.5,3"}, {lines[1], lines[2], lines[3]})
    assert.equal('d,2,8,failed,"out of ""memory"", that is",,', lines[5])
    local saved = read_json(folder .. "/summary.json")
    assert.equal(json.null, saved.runs[3].result.loss)
    assert.equal("nan", saved.nonfinite["runs[3].result.loss"] or saved.nonfinite["runs[2].result.loss"])
  end)

  -- Twelve runs: the fifth is killed as if the system were out of memory, the eighth has too small a limit.
  local script = [[
    local ffi = require "ffi"
    local pack = require "pack"
    ffi.cdef "int kill(int process, int signal); int getpid(void);"
    local function note(word, task) pack.files.append(task.sweep .. "/course.txt", word .. " " .. task.name .. "\n") end
    pack.sweep {
      recipe = "course", summary = "Twelve runs.", arg = arg,
      over = {"decentralized.num_models=2,4", "decentralized.topology=complete,ring,one_peer_ring", "runtime.seed=1,2"},
      run = function(task)
        note("start", task)
        if task.index == 5 then ffi.C.kill(ffi.C.getpid(), 9) end
        if task.index == 8 then task.config.runtime.memory_limit_mib = 1 end
        task:train()
        note("end", task)
        return {twice_the_loss = 2 * task:result().loss}
      end,
    }
  ]]

  it("of twelve runs survives ^C, kill -9, a crash and an out-of-memory, and does none twice", function()
    local output, log = folder .. "/twelve", folder .. "/twelve.txt"
    support.write(folder .. "/course.lua", script)
    local command = {support.program, folder .. "/course.lua", "--config", folder .. "/config.lua", "--output", output,
      "--jobs", "2"}
    local function pass(until_text, signal)
      os.remove(log)
      local one = process.start {command = command, log = log, env = {PACKLUA_HOME = files.dirname(files.dirname(
        debug.getinfo(1, "S").source:match("^@(.*)$"))):gsub("^$", "."), LUA_PATH = package.path}}
      while not one:poll(0.02) do
        if signal and (support.read(log) or ""):find(until_text, 1, true) then
          one:send(signal)
          signal = nil
        end
      end
      local code, number = one.code, one.signal
      one:close()
      return code, number, support.read(log)
    end
    assert.equal(75, (pass("[2/12]", "INT")))
    assert.equal(9, (select(2, pass("[7/12]", "KILL"))))
    local code, _, said = pass()
    assert.equal(1, code, said)
    assert.is_truthy(said:find("12 runs: 10 complete, 2 failed", 1, true), said)

    local found = read_json(output .. "/summary.json")
    for i, row in ipairs(found.runs) do
      assert.equal((i == 5 or i == 8) and "failed" or "complete", row.status)
    end
    assert.is_truthy(found.runs[5].reason:find("SIGKILL, as when the system is out of memory", 1, true))
    assert.is_truthy(found.runs[8].reason:find("out of memory", 1, true))
    assert.is_truthy(found.runs[8].reason:find("the limit of 1.0 MiB", 1, true))

    -- Each complete run ended once, was never started again after that, and took each of its steps once.
    local ended = {}
    for word, name in support.read(output .. "/course.txt"):gmatch("(%a+) ([^\n]+)\n") do
      assert.is_nil(ended[name], name)
      if word == "end" then ended[name] = true end
    end
    for i, row in ipairs(found.runs) do
      if i ~= 5 and i ~= 8 then
        local steps = {}
        for line in support.read(output .. "/" .. row.name .. "/metrics.jsonl"):gmatch("[^\n]+") do
          local entry = json.decode(line)
          if entry.loss_worker and not entry.split then steps[#steps + 1] = entry.step end
        end
        assert.same({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, steps)
        local result = read_json(output .. "/" .. row.name .. "/result.json")
        assert.equal(result.loss, row.result.loss)
        assert.equal(2 * result.loss, row.result.twice_the_loss)
      end
    end

    local before = support.read(output .. "/course.txt")
    assert.equal(1, (pass()))
    assert.equal(before, support.read(output .. "/course.txt"))
  end)
end)
