-- Reports: numbers, groups and states of runs, and pages in which nothing that runs contain is markup.
local charts = require "pack.report.charts"
local files = require "pack.io.files"
local groups = require "pack.report.groups"
local html = require "pack.report.html"
local json = require "pack.io.json"
local markdown = require "pack.report.markdown"
local report = require "pack.report"
local report_runs = require "pack.report.runs"
local support = require "spec.support.helper"

local config = require("pack.config").load("configs/tiny.lua", {})

-- A copy of a configuration with changed keys.
local function changed(settings)
  local copy = json.decode(json.encode(config))
  for key, x in pairs(settings) do
    local section, name = key:match("(%w+)%.([%w_]+)")
    copy[section][name] = x
  end
  return copy
end

-- Makes a run's folder: options are settings, steps (a list of losses), result, log.
local function make_run(folder, options)
  files.mkdir(folder)
  files.write(folder .. "/resolved.json", json.encode(changed(options.settings or {})))
  files.write(folder .. "/environment.json", json.encode {packlua = "0.1.0", host = options.host or "node1"})
  local lines = {}
  for i, loss in ipairs(options.steps or {}) do
    lines[#lines + 1] = json.encode {step = i - 1, tokens = i * 100, loss = loss, lr = 0.1, gamma = 1, tokens_per_second = 1000 * i,
      memory_bytes = 2 ^ 20 * i, consensus_distance = i % 2 == 0 and i / 10 or nil}
  end
  if options.held_out then
    lines[#lines + 1] = json.encode {step = 1, tokens = 100, split = "validation", loss = options.held_out}
  end
  files.write(folder .. "/metrics.jsonl", table.concat(lines, "\n") .. "\n" .. (options.tail or ""))
  if options.result then files.write(folder .. "/result.json", json.encode(options.result)) end
  files.write(folder .. "/run.log", options.log or "2026-01-01T00:00:00Z started\n")
end

-- Elements that never have an end.
local void = {meta = true, br = true, hr = true, img = true, link = true, input = true}

-- Refuses a page whose elements are not closed in order, or that asks for anything from outside.
local function check_page(page)
  local open = {}
  page = page:gsub("^<!DOCTYPE html>", ""):gsub("<!%-%-.-%-%->", ""):gsub("(<style>).-(</style>)", "%1%2")
  for slash, name, rest in page:gmatch("<(/?)([%a][%w:]*)([^>]*)>") do
    if slash == "/" then
      assert.equal(table.remove(open), name)
    elseif not void[name] and rest:sub(-1) ~= "/" then
      open[#open + 1] = name
    end
  end
  assert.same({}, open)
  assert.is_nil(page:find("<%s") or page:find("<$"))
  for _, what in ipairs {"://", "<script", "<link", "<img", "url(http", "@import", "src="} do
    assert.is_nil(page:find(what, 1, true), what)
  end
end

describe("runs read for a report", function()
  local folder
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  it("have the steps, evaluations and result of their files", function()
    make_run(folder .. "/a", {steps = {5, 4, 3}, held_out = 3.5, result = {loss = 3.25, steps = 3}})
    local run = report_runs.read(folder .. "/a/")
    assert.equal("a", run.name)
    assert.same({100, 200, 300}, run.steps.tokens)
    assert.same({5, 4, 3}, run.steps.loss)
    assert.same({tokens = {200}, distance = {0.2}}, run.consensus)
    assert.same({3.5}, run.evaluations.loss)
    assert.same({"complete"}, {run.status, run.reason})
    local numbers = groups.numbers(run)
    assert.equal(3.25, numbers.loss)
    assert.equal(2000, numbers.tokens_per_second)
    assert.equal(3 * 2 ^ 20, numbers.memory_bytes)
  end)

  it("are failed, with the reason in their log or beside them", function()
    make_run(folder .. "/a", {steps = {5}, log = "2026-01-01T00:00:00Z x\n2026-01-01T00:00:01Z failed: worker 3: no | memory\n  more\n"})
    make_run(folder .. "/b", {steps = {5}})
    files.write(folder .. "/b.failed.json", json.encode {reason = "ended by SIGKILL"})
    files.write(folder .. "/c.failed.json", json.encode {reason = "no data"})
    local a, b = report_runs.read(folder .. "/a"), report_runs.read(folder .. "/b")
    assert.same({"failed", "worker 3: no | memory"}, {a.status, a.reason})
    assert.same({"failed", "ended by SIGKILL"}, {b.status, b.reason})
    local found, alone = report_runs.find(folder)
    assert.equal(2, #found)
    assert.same({{name = "c", reason = "no data"}}, alone)
  end)

  it("are unfinished, with how far they came", function()
    make_run(folder .. "/a", {steps = {5, 4}})
    make_run(folder .. "/b", {steps = {5, 4}})
    files.write(folder .. "/b/step-00000002.state.safetensors.zst", "")
    local a, b = report_runs.read(folder .. "/a"), report_runs.read(folder .. "/b")
    assert.same({"unfinished", "2 steps taken; no state is saved"}, {a.status, a.reason})
    assert.same({"unfinished", "2 steps taken; a state is saved"}, {b.status, b.reason})
  end)

  it("leave out what cannot be read, and say so", function()
    make_run(folder .. "/a", {steps = {5, 0 / 0, 3}, tail = '{"step": 3, "tok'})
    files.write(folder .. "/a/result.json", '{"loss": 3')
    local run = report_runs.read(folder .. "/a")
    assert.equal(3, #run.steps.loss)
    assert.truthy(run.steps.loss[2] ~= run.steps.loss[2])
    assert.equal("unfinished", run.status)
    assert.equal(2, #run.remarks)
    assert.truthy(run.remarks[1]:find("^result.json:1:"))
    assert.equal("metrics.jsonl: 1 unreadable line(s) left out", run.remarks[2])
  end)

  it("count as failed where a sweep noted a failure after the result, or the configuration cannot be read", function()
    make_run(folder .. "/a", {steps = {5}, result = {loss = 3}})
    files.write(folder .. "/a.failed.json", '{"reason": "the measurement broke"}')
    make_run(folder .. "/b", {steps = {5}})
    files.write(folder .. "/b/resolved.json", '{"model": ')
    local runs, failed = report_runs.find(folder)
    assert.same({1, "failed", "the measurement broke"}, {#runs, runs[1].status, runs[1].reason})
    assert.equal("b", failed[1].name)
    assert.truthy(failed[1].reason:find("resolved.json:1:", 1, true), failed[1].reason)
  end)

  it("are refused where there are none", function()
    local good, problem = pcall(report_runs.find, folder)
    assert.same({false, 2}, {good, problem.exit})
    assert.truthy(problem.message:find("neither a run (there is no resolved.json) nor a folder of runs", 1, true))
  end)
end)

-- Runs as `report_runs.read` gives them, without files.
local function made(settings, loss, more)
  local run = {name = more and more.name or "run", config = changed(settings), remarks = {}, environment = {},
    result = {loss = loss}, status = "complete", consensus = {tokens = {}, distance = {}},
    steps = {step = {}, tokens = {}, loss = {}, lr = {}, gamma = {}, tokens_per_second = {}, memory_bytes = {}},
    evaluations = {tokens = {}, loss = {}}}
  for key, x in pairs(more or {}) do run[key] = x end
  return run
end

describe("groups of runs", function()
  local N, topology, seed = "decentralized.num_models", "decentralized.topology", "runtime.seed"
  local runs = {}
  for _, n in ipairs {16, 2} do
    for _, name in ipairs {"ring", "complete"} do
      for s = 1, 2 do
        runs[#runs + 1] = made({[N] = n, [topology] = name, [seed] = s, ["training.micro_batch_size"] = 32 / n,
          ["runtime.threads"] = s}, n + s)
      end
    end
  end
  local differing = groups.differing(runs)
  local keys = groups.distinguishing(runs, differing)

  it("are told apart by what differs and follows from nothing else, seeds apart", function()
    assert.same({N, topology, "training.micro_batch_size", seed, "runtime.threads"}, differing)
    assert.same({N, topology}, keys)
  end)

  it("are of one recipe each, by its name and its file's SHA-256", function()
    local function by(recipe, digest, loss)
      return made({[seed] = loss}, loss, {recipe = recipe, recipe_file = recipe .. ".lua", recipe_sha256 = digest})
    end
    local function labels_of(list)
      local found, labels = groups.groups(list, groups.distinguishing(list, groups.differing(list))), {}
      for i, group in ipairs(found) do labels[i] = ("%s: %d"):format(group.label, #group.runs) end
      table.sort(labels)
      return labels
    end
    local a, b = ("a"):rep(64), ("b"):rep(64)
    assert.same({": 2"}, labels_of {by("train", a, 1), by("train", a, 2)})
    assert.same({": 2"}, labels_of {by("train", nil, 1), by("train", a, 2)})
    assert.same({"diloco: 1", "train: 2"}, labels_of {by("train", a, 1), by("diloco", b, 2), by("train", a, 3)})
    assert.same({"train (file not known): 1", "train (train.lua aaaaaaaa): 1", "train (train.lua bbbbbbbb): 2"},
      labels_of {by("train", a, 1), by("train", b, 2), by("train", b, 3), by("train", nil, 4)})
  end)

  it("of different recipes are said not to be averaged, in the report", function()
    local folder = support.temporary()
    for i, recipe in ipairs {"train", "diloco"} do
      make_run(folder .. "/" .. recipe, {settings = {[seed] = i}, result = {loss = i}})
      files.write(folder .. "/" .. recipe .. "/environment.json", json.encode {recipe = recipe})
    end
    local page = markdown.render(report.create {folder}, "charts")
    assert.is_truthy(page:find("those of different ones are not averaged", 1, true), page)
    assert.is_truthy(page:find("with train.", 1, true), page)
    support.remove(folder)
  end)

  it("have means and deviations over seeds, in order of N and topology", function()
    local found = groups.groups(runs, keys)
    local labels = {}
    for i, group in ipairs(found) do labels[i] = group.label end
    assert.same({"N=2 complete", "N=2 ring", "N=16 complete", "N=16 ring"}, labels)
    assert.same({mean = 3.5, std = math.sqrt(0.5), count = 2}, found[1].statistics.loss)
    assert.equal(2, found[1].complete)
    assert.equal(found[1], groups.best(found))
  end)

  it("leave failed runs and losses that are not finite out of means", function()
    local list = {made({[seed] = 1}, 3), made({[seed] = 2}, 1, {status = "failed"}), made({[seed] = 3}, json.null)}
    local found = groups.groups(list, {})
    assert.equal(2, found[1].complete)
    assert.same({mean = 3, count = 1}, found[1].statistics.loss)
    assert.is_nil(require("pack.measure.statistics").moments {})
  end)

  it("share a cell of N and topology with the best of other settings", function()
    local list = {made({[N] = 2, ["optimizer.lr"] = 0.1}, 5), made({[N] = 2, ["optimizer.lr"] = 0.2}, 4),
      made({[N] = 4, ["optimizer.lr"] = 0.2}, 6)}
    local grid = groups.grid(groups.groups(list, {N, "optimizer.lr"}))
    assert.same({"2", "4"}, grid.workers)
    assert.is_true(grid.shared)
    assert.same({{4, 6}}, charts.values(grid, charts.measures[1]))
    assert.is_nil(groups.grid(groups.groups({list[1]}, {})))
  end)

  it("have the spectral gap of their topology", function()
    assert.equal(1, groups.spectral_gap(made({[N] = 4, [topology] = "complete"})))
    assert.near(0, groups.spectral_gap(made({[N] = 4, [topology] = "disconnected"})), 1e-12)
    assert.near(2 / 3, groups.spectral_gap(made({[N] = 4, [topology] = "ring"})), 1e-9) -- 1 - 1/3, from its eigenvalues
    assert.is_nil(groups.spectral_gap(made({[topology] = "no such one"})))
  end)
end)

describe("a thinned curve", function()
  it("keeps the smallest and largest value of every stretch, and gaps", function()
    local xs, ys = {}, {}
    for k = 1, 9000 do xs[k], ys[k] = k, k % 7 end
    ys[1234], ys[5000], ys[7777] = 1000, -1000, 0 / 0
    local x, y = charts.thin(xs, ys, 300)
    assert.truthy(#x <= 300 and #x == #y)
    local found = {}
    for k, at in ipairs(x) do
      assert.truthy(k == 1 or at > x[k - 1])
      found[at] = y[k]
    end
    assert.same({1000, -1000}, {found[1234], found[5000]})
    assert.truthy(found[7777] and found[7777] ~= found[7777])
  end)

  it("is the curve itself where that is short", function()
    local xs, ys = {1, 2}, {3, 4}
    assert.same({xs, ys}, {charts.thin(xs, ys, 10)})
  end)
end)

describe("a report", function()
  local folder
  local odd = "<b>it's|&amp; \"x\" `y` [z](w)"
  local function write_sweep()
    make_run(folder .. "/one", {settings = {["runtime.seed"] = 1}, steps = {5, 4, 3}, held_out = 3.5,
      host = "<script>alert(1)</script>",
      result = {loss = 3.123456789012345, perplexity = 22.7, steps = 3, consensus_distance = 0.25, tokens_per_second = 4321}})
    make_run(folder .. "/two", {settings = {["runtime.seed"] = 2}, steps = {5, 4, 3}, result = {loss = 3.5, steps = 3}})
    make_run(folder .. "/" .. odd, {settings = {["decentralized.num_models"] = 2}, steps = {5},
      log = "2026-01-01T00:00:00Z failed: " .. odd .. "\n"})
  end
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  it("is a page without anything from outside, in which texts are texts", function()
    write_sweep()
    local code, out, err = support.run(("packlua recipes/report.lua --output %s/out %s"):format(folder, folder))
    assert.same({0, ""}, {code, err})
    assert.truthy(out:find("report: " .. folder .. "/out/report.html", 1, true))
    local page = support.read(folder .. "/out/report.html")
    check_page(page)
    assert.truthy(page:find("&lt;script&gt;alert(1)", 1, true))
    assert.truthy(page:find("&lt;b&gt;it&#39;s|&amp;amp; &quot;x&quot;", 1, true))
    assert.truthy(page:find("3 runs: 2 complete, 1 failed.", 1, true))
  end)

  it("is made of configurations that are not what they should be, too", function()
    make_run(folder .. "/a", {steps = {5}, result = {loss = 3}})
    make_run(folder .. "/b", {steps = {5}})
    files.write(folder .. "/b/resolved.json", '{"model": 3, "runtime": "x", "decentralized": [1, 2]}')
    assert.truthy(html.render(report.create {folder}):find("2 runs: 1 complete, 1 unfinished.", 1, true))
  end)

  it("is refused where its folder cannot be", function()
    write_sweep()
    files.write(folder .. "/taken", "")
    local code, _, err = support.run(("packlua recipes/report.lua --output %s/taken %s/one"):format(folder, folder))
    assert.equal(2, code)
    assert.truthy(err:find("taken: cannot be made a directory", 1, true), err)
    assert.is_nil(err:find("traceback", 1, true))
  end)

  it("has the numbers of result.json, all digits of them at hand", function()
    write_sweep()
    local page = html.render(report.create {folder .. "/one"})
    local stored = json.decode(support.read(folder .. "/one/result.json"))
    local exact, shown = page:match('held%-out loss of the average %(nats%)</td><td class="number" title="([^"]+)">([^<]+)<')
    assert.equal(stored.loss, tonumber(exact))
    assert.equal("3.1235", shown)
    for _, x in ipairs {stored.perplexity, stored.consensus_distance, stored.tokens_per_second} do
      assert.truthy(page:find(('title="%.17g"'):format(x), 1, true), x)
    end
    local whole = html.render(report.create {folder})
    assert.truthy(whole:find(('title="%.17g">3.3117 ± 0.27'):format((stored.loss + 3.5) / 2), 1, true))
  end)

  it("says which numbers of a result are not finite", function()
    make_run(folder .. "/nan", {steps = {5, 0 / 0}, result = {loss = 0 / 0, perplexity = 1 / 0, steps = 2}})
    local text = support.read(folder .. "/nan/result.json")
    assert.equal('{"loss":null,"nonfinite":{"loss":"nan","perplexity":"inf"},"perplexity":null,"steps":2}', text)
    local page = html.render(report.create {folder .. "/nan"})
    check_page(page)
    assert.truthy(page:find('<td>loss</td><td class="reason">not finite: nan</td>', 1, true))
  end)

  it("is Markdown whose tables hold, with the charts beside it", function()
    write_sweep()
    local text = markdown.render(report.create {folder}, "report-charts")
    local columns
    for line in text:gmatch("[^\n]+") do
      local _, bars = line:gsub("\\.", ""):gsub("|", "")
      if line:sub(1, 1) == "|" then
        columns = columns or bars
        assert.equal(columns, bars, line)
      else
        columns = nil
      end
    end
    assert.truthy(text:find("\\<b\\>it's\\|\\&amp; \"x\" \\`y\\` \\[z\\](w)", 1, true))
    assert.truthy(text:find("| complete |", 1, true))
  end)

  it("has its tables without gnuplot, and says why it has no charts", function()
    write_sweep()
    local code, out = support.run(("PACKLUA_GNUPLOT=/nowhere/gnuplot packlua recipes/report.lua %s"):format(folder))
    assert.equal(0, code)
    assert.truthy(out:find("without charts: /nowhere/gnuplot is not there", 1, true))
    local page = support.read(folder .. "/report.html")
    check_page(page)
    assert.is_nil(page:find("<svg", 1, true))
    assert.truthy(page:find("Without charts: /nowhere/gnuplot is not there", 1, true))
    assert.truthy(page:find("3.3117 ± 0.27", 1, true))
    assert.is_nil(files.kind(folder .. "/report-charts"))
  end)

  it("refuses folders without runs", function()
    local code, _, err = support.run(("packlua recipes/report.lua %s"):format(folder))
    assert.equal(2, code)
    assert.truthy(err:find("neither a run", 1, true))
    code, _, err = support.run("packlua recipes/report.lua /nowhere")
    assert.same({2, "packlua: /nowhere: there is no such folder\n"}, {code, err})
  end)
end)
