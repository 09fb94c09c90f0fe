-- The benchmark from end to end at tiny shapes: numbers, files, faults, interruptions, refusals, tuning.
local config_module = require "pack.config"
local json = require "pack.io.json"
local numbers = require "spec.support.numbers"
local process = require "pack.io.process"
local sequential = require "pack.benchmark.sequential"
local summaries = require "pack.benchmark.summary"
local support = require "spec.support.helper"
local trainer = require "pack.train.trainer"

-- The memory has no room for the products that make the ceiling, which take longer than all else.
local tiny = [[return {
  model = {vocab_size = 257, layers = 2, width = 16, heads = 2, ffn_width = 24, context_length = 16},
  training = {batch_tokens = 256, micro_batch_size = 16},
  decentralized = {topology = "one_peer_exponential"},
  runtime = {memory_limit_mib = 8},
}]]
local with_ceiling = " --set runtime.memory_limit_mib=off"


local folder

local function run(arguments)
  return support.run(("packlua recipes/benchmark.lua --config %s/tiny.lua --output %s/out %s"):format(folder, folder,
    arguments))
end

local function start(arguments)
  local command = {support.program, "recipes/benchmark.lua", "--config", folder .. "/tiny.lua", "--output",
    folder .. "/out"}
  for word in arguments:gmatch("%S+") do command[#command + 1] = word end
  return process.start {command = command, log = folder .. "/printed"}
end

local function read(name)
  local text = support.read(folder .. "/out/" .. name)
  return text and json.decode(text)
end

local function exists(name)
  return support.read(folder .. "/out/" .. name) ~= nil
end

-- What condition() returns once that is true, within a minute.
local function wait_for(condition)
  for _ = 1, 6000 do
    local found = condition()
    if found then return found end
    os.execute("sleep 0.01")
  end
  error("what is waited for did not come", 2)
end

-- The number of the process that measures a candidate.
local function process_of(name)
  local pipe = io.popen(("grep -l -a -s '%s/out/%s.job' /proc/[0-9]*/cmdline"):format(folder, name))
  local found
  for path in pipe:lines() do
    local id = path:match("^/proc/(%d+)/")
    if (support.read(path) or ""):find("pack.benchmark.candidate", 1, true) then found = tonumber(id) end
  end
  pipe:close()
  return found
end


describe("the benchmark", function()
  before_each(function()
    folder = support.temporary()
    support.write(folder .. "/tiny.lua", tiny)
  end)
  after_each(function() support.remove(folder) end)

  describe("of two workers in f64", function()
    local arguments = "--num-models 2 --warmup 1 --steps 3 --repeats 2 --dtype f64"

    -- Everything about one finished benchmark.
    it("measures both modes and executions, compares them, and leaves files that agree with each other", function()
      local code, out, err = run(arguments)
      assert.equal("", err)
      assert.equal(0, code)
      local summary = read("summary.json")
      assert.equal(2, #summary.comparisons)
      for _, row in ipairs(summary.comparisons) do
        assert.equal(2, row.num_models)
        assert.is_true(row.parity <= 1e-10)
        for _, mode in ipairs {"sequential", "packed"} do
          local name = ("n-2-%s-%s"):format(mode, row.execution)
          local whole, brief = read(name .. ".json"), row[mode]
          assert.equal("ok", whole.status)
          assert.equal(2, #whole.repeats)
          assert.same(whole.tokens_per_second, brief.tokens_per_second)
          assert.equal(whole.peak_bytes, brief.peak_bytes)
          assert.equal(row.parity, whole.parity.value)
          local speeds = {}
          for i, one in ipairs(whole.repeats) do
            speeds[i] = one.tokens_per_second
            local steps = 0
            for _, seconds in ipairs(one.step_seconds) do steps = steps + seconds end
            assert.equal(3, #one.step_seconds)
            assert.is_true(steps <= one.window_seconds and one.window_seconds < one.process.seconds)
            assert.equal(3 * 256 / one.window_seconds, one.tokens_per_second)
          end
          local speed = whole.tokens_per_second
          assert.equal(math.min(unpack(speeds)), speed.min)
          assert.equal(math.max(unpack(speeds)), speed.max)
          assert.equal((speeds[1] + speeds[2]) / 2, speed.median)
          assert.is_true(out:find(("2  %-10s  %-8s"):format(mode, row.execution)) ~= nil)
        end
        assert.equal(row.packed.tokens_per_second.median / row.sequential.tokens_per_second.median, row.speedup)
      end
      for _, name in ipairs {"n-2-packed-compiled.weights.safetensors", "n-2-packed-compiled.job.json",
        "n-2-packed-compiled.result.json"} do
        assert.is_false(exists(name))
      end
      assert.is_true(support.read(folder .. "/out/summary.md"):find("| 2 | packed | compiled |", 1, true) ~= nil)
    end)

    it("keeps what was asked for and what was measured of each candidate", function()
      assert.equal(0, (run("--num-models 2 --warmup 1 --steps 2 --repeats 1 --executions compiled --modes packed --dtype f64"
        .. with_ceiling)))
      local config = config_module.load(folder .. "/out/n-2.json")
      assert.equal(2, config.decentralized.num_models)
      assert.equal(8, config.training.micro_batch_size)
      assert.is_false(config.runtime.amp)
      local one = read("n-2-packed-compiled.json")
      for _, name in ipairs {"warmup_seconds", "setup_seconds", "compile_seconds"} do
        assert.is_true(one[name] > 0, name)
      end
      for _, name in ipairs {"compute", "clip", "mix", "optimizer"} do
        assert.is_true(one.component_seconds[name] > 0, name)
      end
      assert.equal("f64", one.dtype)
      assert.equal(one.planned_bytes, one.peak_bytes)
      assert.is_true(one.reserved_bytes >= one.peak_bytes and one.peak_rss_bytes > one.peak_bytes)
      -- 6 for each weight of a matrix and 6 (T + 1) d in each layer, for each target
      local matrices = 257 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 24)
      assert.equal(256 * (6 * matrices + 6 * 2 * 17 * 16), one.flops)
      assert.is_true(one.executed_flops > one.flops)
      local share = one.repeats[1].flops * 2 / one.repeats[1].window_seconds / one.ceiling_flops_per_second
      assert.is_true(math.abs(one.share_of_ceiling / share - 1) < 1e-12)
      assert.equal("cpu", one.environment.device)
    end)

    it("computes all workers of a product at once when packed, and one after the other when not", function()
      local counts = {}
      assert.equal(0, (run("--num-models 2 4 --warmup 1 --steps 1 --repeats 1 --executions eager")))
      for _, workers in ipairs {2, 4} do
        for _, mode in ipairs {"packed", "sequential"} do
          local total, name = 0, ("n-%d-%s-eager"):format(workers, mode)
          for _, row in ipairs(read(name .. ".json").operators) do
            if row.name == "matmul" then
              assert.equal(mode == "packed" and workers or 1, tonumber(row.shape:match("^%a+%d+ %[(%d+), ")), row.shape)
              total = total + row.count
            end
          end
          counts[workers .. mode] = total
          local trace = read(name .. ".trace.json")
          local shown = 0
          for _, event in ipairs(trace.traceEvents or trace) do
            if event.name == "matmul" and event.args and event.args.flops then shown = shown + 1 end
          end
          assert.equal(total, shown)
        end
      end
      -- two layers of four projections (q, k and v are one, and so are gate and up), three products each
      assert.equal(24, counts["2packed"])
      assert.equal(24, counts["4packed"])
      assert.equal(48, counts["2sequential"])
      assert.equal(96, counts["4sequential"])
    end)
  end)

  describe("when a candidate fails", function()
    it("goes on, says why in its row, and ends with 1", function()
      local bench = start("--num-models 2 --executions compiled --warmup 1 --steps 1000000 --repeats 2 --timeout 2 "
        .. "--set training.tokens_per_parameters=100000")
      local id = wait_for(function() return process_of("n-2-sequential-compiled") end)
      os.execute("kill -KILL " .. id)
      assert.is_true(bench:poll(60))
      assert.equal(1, bench.code)
      local summary = read("summary.json")
      local row = summary.comparisons[1]
      assert.equal("killed", row.sequential.status)
      assert.is_truthy(row.sequential.reason:find("SIGKILL", 1, true))
      assert.equal("timed_out", row.packed.status)
      assert.is_truthy(row.packed.reason:find("longer than --timeout 2 s", 1, true))
      assert.equal(json.null, row.speedup)
      assert.is_nil(process_of("n-2-packed-compiled"))
      local printed = support.read(folder .. "/printed")
      assert.is_truthy(printed:find("2 of 2 candidates have no result", 1, true))
      assert.is_truthy(printed:find("2  packed      compiled   timed out", 1, true))
    end)

    it("has written what the timed steps gave before it looks more closely", function()
      support.write(folder .. "/script.lua", ([[
        local config = require("pack.config").load("%s/tiny.lua", {"runtime.amp=off"}) -- auto would be remarked on
        require("pack.benchmark.candidate").measure({config = config, mode = "packed", execution = "eager", warmup = 1,
          steps = 2, data = "synthetic", started = 0, closer = true, trace = "%s/missing/trace.json"}, function(result)
            print(result.status, result.tokens_per_second > 0, result.peak_bytes > 0, result.component_seconds)
          end)]]):format(folder, folder))
      local code, out, err = support.run(("packlua %s/script.lua"):format(folder))
      assert.equal(1, code)
      assert.equal("ok\ttrue\ttrue\tnil\n", out)
      assert.is_truthy(err:find("missing/trace.json", 1, true))
    end)

    it("tells running out of memory from other failures", function()
      local code, out = run("--num-models 2 --executions compiled --warmup 1 --steps 1 --repeats 1 "
        .. "--set runtime.memory_limit_mib=1 --set model.width=64")
      assert.equal(1, code)
      local one = read("n-2-packed-compiled.json")
      assert.equal("out_of_memory", one.status)
      assert.is_truthy(one.reason:find("would pass the limit of 1.0 MiB", 1, true))
      assert.is_truthy(support.read(folder .. "/out/n-2-packed-compiled.log"):find("out of memory", 1, true))
      assert.is_truthy(out:find("out of memory after 0 of 1 rounds; out of memory: ", 1, true))
    end)

    it("measures within a memory limit that has no room for the ceiling's products", function()
      assert.equal(0, (run("--num-models 2 --executions compiled --modes packed --warmup 1 --steps 1 --repeats 1")))
      local one = read("n-2-packed-compiled.json")
      assert.is_nil(one.share_of_ceiling)
      assert.is_true(one.tokens_per_second.median > 0)
    end)

    -- What ran out of memory runs with more of it, as the same settings would on another machine.
    it("keeps the weights of the other mode, to compare them when --resume succeeds", function()
      local arguments = "--num-models 4 --executions compiled --warmup 1 --steps 1 --repeats 1 --set training.batch_tokens=8192 "
        .. "--set training.micro_batch_size=512 --set runtime.memory_limit_mib="
      assert.equal(1, (run(arguments .. 9)))
      local row = read("summary.json").comparisons[1]
      assert.equal("ok", row.sequential.status)
      assert.equal("out_of_memory", row.packed.status)
      local path = folder .. "/out/n-4.json"
      support.write(path, (support.read(path):gsub('("memory_limit_mib": *)9', "%1 100")))
      assert.equal(0, (run(arguments .. "100 --resume")))
      assert.equal(0, read("summary.json").comparisons[1].parity)
      assert.is_false(exists("n-4-sequential-compiled.weights.safetensors"))
    end)

    it("goes on with the rounds that succeeded, and their comparison", function()
      local arguments = "--num-models 2 --executions compiled --warmup 1 --steps 1 --repeats 2"
      assert.equal(0, (run(arguments)))
      local path, before = folder .. "/out/n-2-packed-compiled.json", read("n-2-packed-compiled.json")
      local second = table.remove(before.repeats)
      before.status, before.reason, before.parity.value = "killed", "killed by SIGKILL", 0.5
      support.write(path, json.encode(before))
      assert.equal(0, (run(arguments .. " --resume")))
      local after = read("n-2-packed-compiled.json")
      assert.equal("ok", after.status)
      assert.is_nil(after.reason)
      assert.equal(2, #after.repeats)
      assert.same(before.repeats[1], after.repeats[1])
      assert.not_equal(second.window_seconds, after.repeats[2].window_seconds)
      assert.equal(0.5, read("summary.json").comparisons[1].parity)
    end)

    it("starts none for which there is no time", function()
      local code = run("--num-models 2 --executions compiled --budget-minutes 0")
      assert.equal(1, code)
      for _, row in ipairs(read("summary.json").candidates) do
        assert.equal("not_started", row.status)
        assert.equal("the budget of --budget-minutes was used up", row.reason)
      end
    end)
  end)

  it("sums up what is finished at ^C, and goes on later with --resume", function()
    local arguments = "--num-models 2 --executions compiled --warmup 1 --steps 20 --repeats 3"
    local bench = start(arguments .. " --resume") -- nothing is there yet
    wait_for(function()
      local one = exists("n-2-sequential-compiled.json") and read("n-2-sequential-compiled.json")
      return one and one.status == "ok" and process_of("n-2-packed-compiled")
    end)
    bench:send("INT")
    assert.is_true(bench:poll(60))
    assert.equal(130, bench.code)
    assert.is_nil(process_of("n-2-packed-compiled"))
    local before = read("n-2-sequential-compiled.json")
    local row = read("summary.json").comparisons[1]
    assert.same(before.tokens_per_second, row.sequential.tokens_per_second)
    assert.is_truthy(support.read(folder .. "/printed"):find("--resume --output " .. folder .. "/out goes on", 1, true))
    local code, _, err = run(arguments)
    assert.equal(2, code)
    assert.is_truthy(err:find("the folder is not empty; --resume goes on", 1, true))
    code, _, err = run(arguments:gsub("--steps 20", "--steps 21") .. " --resume")
    assert.equal(2, code)
    assert.is_truthy(err:find("has results of steps 20, and 21 is asked for now", 1, true))
    code, _, err = run(arguments .. " --resume --set optimizer.lr=0.5")
    assert.equal(2, code)
    assert.is_truthy(err:find("optimizer.lr 0.001, and 0.5 is asked for now", 1, true))
    assert.equal(0, (run(arguments .. " --resume")))
    local after = read("n-2-sequential-compiled.json")
    assert.equal(3, #after.repeats)
    assert.same(before.repeats[1], after.repeats[1])
    row = read("summary.json").comparisons[1]
    assert.equal(3, row.packed.repeats)
    assert.equal(0, row.parity)
    assert.is_false(exists("n-2-sequential-compiled.weights.safetensors"))
  end)

  describe("refuses", function()
    local function refuses(message, arguments)
      local code, _, err = run(arguments)
      assert.equal(2, code)
      assert.is_truthy(err:find(message, 1, true), ("%q does not contain %q"):format(err, message))
    end

    it("workers that cannot share the batch, and names those that can", function()
      refuses("16 sequences of model.context_length 16, which 3 workers cannot share out evenly; "
        .. "possible are 1, 2, 4, 8, 16", "--num-models 3")
    end)

    it("adaptive consensus, as it needs a real schedule", function()
      refuses("decentralized.adaptive_consensus needs the learning rates of a real run",
        "--set decentralized.adaptive_consensus.p=1")
    end)

    it("names it does not know, more steps than there are, and a cache that is not named", function()
      refuses("--modes packed,lazy: there is no 'lazy'; there are sequential, packed", "--modes packed,lazy")
      refuses("--executions fast: there is no 'fast'", "--executions fast")
      refuses("--topology circle: there is no 'circle'", "--topology circle")
      refuses("--scheme abc: expected one of awc, atc", "--scheme abc")
      refuses("--warmup 2 and --steps 100 are more than the 4 steps", "--steps 100 --set training.max_tokens=1024")
      refuses("--data cache needs data.cache_dir", "--data cache")
      refuses("nowhere: not a token cache", "--data cache --set data.cache_dir=nowhere")
      refuses("--tune is for one number of workers; --num-models names 2", "--tune --num-models 2 4")
      local code, _, err = support.run("packlua recipes/benchmark.lua --resume")
      assert.equal(2, code)
      assert.is_truthy(err:find("--resume needs --output DIR", 1, true))
      os.execute("mkdir -p " .. folder .. "/out")
      support.write(folder .. "/out/summary.json", '{"runs": 3}')
      refuses("summary.json is not the summary of a benchmark", "--resume")
    end)
  end)

  it("finds a configuration that train accepts", function()
    local code, out, err = run("--tune --num-models 2 --warmup 1 --steps 1 --repeats 1")
    assert.equal("", err)
    assert.equal(0, code)
    local tuned = read("tuning.json")
    local config = config_module.load(folder .. "/out/selected.json")
    local found = {}
    for _, axis in ipairs(tuned.axes) do
      found[axis.key] = axis.chosen
      local fastest, chosen = 0, nil
      assert.equal(axis.before, axis.trials[1].value) -- the first to be measured
      for _, trial in ipairs(axis.trials) do
        assert.equal("ok", trial.status)
        fastest = math.max(fastest, trial.tokens_per_second.median)
        if trial.value == axis.chosen then chosen = trial.tokens_per_second.median end
      end
      assert.is_true(chosen >= 0.98 * fastest)
    end
    assert.equal(4, #tuned.axes[1].trials) -- 1, 2, 4 and 8 sequences
    assert.equal(2, config.decentralized.num_models)
    assert.equal(found["training.micro_batch_size"], config.training.micro_batch_size)
    assert.equal(found["runtime.threads"], config.runtime.threads)
    assert.is_truthy(out:find("recipes/train.lua --config " .. folder .. "/out/selected.json", 1, true))
    assert.equal(0, (support.run(("packlua recipes/train.lua --config %s/out/selected.json --plan"):format(folder))))
  end)

  it("measures with real loading from a cache", function()
    local cache = require "pack.data.prepare"
    support.write(folder .. "/text.txt", ("all work and no play makes jack a dull boy. "):rep(100))
    cache.run {output = folder .. "/cache", tokenizer = "bytes", train = {folder .. "/text.txt"},
      validation = {folder .. "/text.txt"}}
    assert.equal(0, (run("--data cache --num-models 2 --executions compiled --warmup 1 --steps 2 --repeats 1 --set data.cache_dir="
      .. folder .. "/cache")))
    local row = read("summary.json").comparisons[1]
    assert.equal(0, row.parity)
    assert.is_true(row.speedup > 0)
  end)
end)

describe("the benchmark's table", function()
  local function record_of(mode, speeds)
    local record = {name = "n-2-" .. mode .. "-compiled", num_models = 2, mode = mode, execution = "compiled",
      status = "ok", repeats = {}}
    for i, speed in ipairs(speeds) do
      record.repeats[i] = {tokens_per_second = speed, step_seconds = {1 / speed, 3 / speed}, peak_bytes = i * 2 ^ 20,
        reserved_bytes = 0, peak_rss_bytes = 0, share_of_ceiling = i / 10}
    end
    summaries.derive(record)
    return record
  end

  local function text_of(sequential_speeds, packed_speeds)
    local config = config_module.resolve {table = {}}
    local plan = {settings = {num_models = {2}, modes = {"sequential", "packed"}, executions = {"compiled"}, warmup = 1,
      steps = 2, repeats = 3, data = "synthetic"}, base = config,
      candidates = {{name = "n-2-sequential-compiled"}, {name = "n-2-packed-compiled"}}}
    local records = {["n-2-sequential-compiled"] = record_of("sequential", sequential_speeds),
      ["n-2-packed-compiled"] = record_of("packed", packed_speeds)}
    return summaries.text(summaries.of(plan, records)), records["n-2-packed-compiled"]
  end

  it("has medians, ranges, the largest peak, and the speedup of the medians", function()
    local text, packed = text_of({100, 80, 90}, {150, 270, 180})
    assert.is_truthy(text:find("\n2  sequential  compiled      90   80 .. 100        -       3.0       20.0%       -\n", 1, true))
    assert.is_truthy(text:find("\n2  packed      compiled     180  150 .. 270     2.00       3.0       20.0%       -", 1, true))
    assert.is_nil(text:find("?", 1, true))
    assert.same({min = 1 / 270, median = (1 / 150 + 3 / 270) / 2, max = 3 / 150}, packed.seconds_per_step)
  end)

  it("marks a speedup that may be chance", function()
    local text = text_of({100, 80, 90}, {95, 100, 105})
    assert.is_truthy(text:find("1.11?", 1, true))
    assert.is_truthy(text:find("the ranges of both modes overlap", 1, true))
  end)

  it("takes the mean of the middle two of an even number", function()
    local text = text_of({100, 80}, {300, 200})
    assert.is_truthy(text:find("2.78", 1, true))
    assert.is_truthy(text:find("n-2-packed-compiled: ok after 2 of 3 rounds", 1, true))
  end)
end)

describe("a sequential step", function()
  support.watch()

  -- The bytes of the weights after some steps, and the workers' losses at each.
  local function train(config, dtype, mode)
    local function nothing() end
    local function next_batch(_, tokens, targets)
      for i = 0, config.training.batch_tokens - 1 do
        tokens[i], targets[i] = i * 7 % 257, i % 5 == 0 and -100 or i * 11 % 257
      end
    end
    local one = trainer.create(config, {context = require("pack.core.context").default(), dtype = dtype,
      compute = mode == "sequential" and sequential.compute or nil,
      batches = {next = next_batch, close = nothing, set_cursor = nothing, cursor = function() return 0 end}})
    local losses = {}
    for t = 1, 3 do losses[t] = one:step().loss_worker end
    local weights = numbers.bytes(one.model.arena.tensor)
    one:free()
    return weights, losses
  end

  for _, compile in ipairs {true, false} do
    for _, dtype in ipairs {"f64", "f32", "amp"} do
      it(("gives what the packed one does, with micro-steps and ignored targets, %s in %s"):format(
        compile and "recorded" or "eager", dtype), function()
        local config = config_module.resolve {table = {
          model = {vocab_size = 257, layers = 1, width = 16, heads = 2, ffn_width = 24, context_length = 16},
          training = {batch_tokens = 192, micro_batch_size = 2},
          decentralized = {num_models = 3, topology = "complete", mix_every = 2},
          runtime = {compile = compile, amp = dtype == "amp"}}}
        local packed, losses = train(config, dtype == "f64" and "f64" or nil, "packed")
        local one_by_one, same = train(config, dtype == "f64" and "f64" or nil, "sequential")
        assert.same(losses, same)
        assert.equal(packed, one_by_one)
      end)
    end
  end
end)
