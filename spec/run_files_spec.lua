-- Runs that go on although, or are refused because, something happened to their files: large or unreadable records,
-- links and pipes in the place of a run's own files.
local checkpoint = require "pack.run.checkpoint"
local files = require "pack.io.files"
local json = require "pack.io.json"
local support = require "spec.support.helper"

describe("A run that goes on", function()
  local folder, original, output
  local count = 0

  setup(function()
    folder = support.temporary()
    local lines = {}
    for i = 1, 300 do lines[i] = ("the %d workers of the ring mix, line %d\n"):format(i % 7, i) end
    support.write(folder .. "/text.txt", table.concat(lines))
    original = folder .. "/original"
    local code, _, err = support.run(("packlua recipes/train.lua --config configs/smoke.lua --sample 0 --output %s "
      .. "--set data.text=%s/text.txt --set decentralized.topology=one_peer_ring"):format(original, folder))
    assert.equal(0, code, err)
    for _, name in ipairs(files.list(original)) do
      if name:find("^result") or name:find("^epoch%-002") then os.remove(original .. "/" .. name) end
    end
    assert.equal(1, checkpoint.list(original)[1].step)
  end)
  teardown(function() support.remove(folder) end)

  before_each(function()
    count = count + 1
    output = folder .. "/run" .. count
    assert.equal(0, os.execute(("cp -r %s %s"):format(original, output)))
  end)

  local function resume(arguments)
    return support.run(("timeout 20 %s recipes/resume.lua %s %s"):format(support.quote(support.program), output, arguments or ""))
  end

  -- What ls and the contents of all files say.
  local function everything()
    local _, listed = support.run(("cd %s && ls -lR --time-style=+ . | grep -v '^total' && "
      .. "find . -type f ! -name run.lock | sort | xargs cat | md5sum"):format(output))
    return (listed:gsub("[^\n]*run%.lock\n", ""))
  end

  local function assert_refused(...)
    local before = everything()
    local code, _, err = resume()
    assert.is_true(code == 2 or code == 1, code .. err)
    assert.is_falsy(err:find("traceback", 1, true), err)
    for _, words in ipairs {...} do assert.is_truthy(err:find(words, 1, true), err) end
    assert.equal(before, everything())
  end

  it("keeps the lines of metrics.jsonl from before its state, whatever size they are", function()
    local path, text = output .. "/metrics.jsonl", files.read(original .. "/metrics.jsonl")
    local first, rest = text:match("^([^\n]*)(\n.*)$")
    -- A line longer than any limit that reading has; a hole in the file takes no room on disk.
    support.write(path, first)
    assert.equal(0, os.execute(("truncate -s %d %s"):format(2 ^ 30 + 2 ^ 20, path)))
    local file = assert(io.open(path, "ab"))
    file:write(rest)
    file:close()
    local code, out, err = resume()
    assert.equal(0, code, err)
    assert.is_falsy(out:find("metrics.jsonl had only", 1, true), out)
    file = assert(io.open(path, "rb"))
    assert.equal(first, file:read(#first))
    file:seek("set", 2 ^ 30 + 2 ^ 20)
    local steps = {}
    for step in file:read("*a"):gmatch('"step":(%d+)') do steps[#steps + 1] = step end
    file:close()
    assert.same({"1", "1", "2"}, steps) -- the evaluation, the second step, the last evaluation
  end)

  it("says how many lines of metrics.jsonl are missing, and drops one that is not whole", function()
    support.write(output .. "/metrics.jsonl", '{"step":0')
    local code, out, err = resume()
    assert.equal(0, code, err)
    assert.is_truthy(out:find("metrics.jsonl had only 0 of its 2 lines", 1, true), out)
    assert.is_falsy(files.read(output .. "/metrics.jsonl"):find('"step":0', 1, true))
  end)

  it("keeps an environment.json that cannot be read under another name, and says so", function()
    for i, text in ipairs {"{", "[1, 2]", '{"resumed": 5}'} do
      if i > 1 then
        os.execute(("rm -r %s; cp -r %s %s"):format(output, original, output))
      end
      support.write(output .. "/environment.json", text)
      local code, out, err = resume()
      assert.equal(0, code, err)
      assert.is_truthy(out:find("it is kept as " .. output .. "/environment.json.damaged", 1, true), out)
      assert.equal(text, files.read(output .. "/environment.json.damaged"))
      assert.equal(1, #json.read(output .. "/environment.json").resumed)
    end
  end)

  it("is refused, unchanged, when metrics.jsonl cannot be read", function()
    os.remove(output .. "/metrics.jsonl")
    files.mkdir(output .. "/metrics.jsonl")
    assert_refused(output .. "/metrics.jsonl: ", "is a directory")
  end)

  local own = {"run.log", "run.lock", "metrics.jsonl", "resolved.json", "environment.json", "best.json", "result.json",
    "step-00000001.state.safetensors.zst", "epoch-002.safetensors", "events.out.tfevents.1.x", "x.json.tmp-1-0", "node-000"}

  for _, name in ipairs(own) do
    it("is refused, unchanged, when there is a pipe for its " .. name, function()
      os.execute(("rm -rf %s/%s; mkfifo %s/%s"):format(output, name, output, name))
      assert_refused(output .. "/" .. name)
    end)

    it("is refused, and the link not followed, when there is one for its " .. name, function()
      local target = folder .. "/thesis" .. count
      os.execute(("rm -rf %s; if [ -e %s/%s ]; then mv %s/%s %s; else echo mine > %s; fi; ln -s %s %s/%s")
        :format(target, output, name, output, name, target, target, target, output, name))
      local before = name ~= "node-000" and files.read(target)
      assert_refused(output .. "/" .. name, "symbolic link")
      if before then assert.equal(before, files.read(target)) end
      os.execute(("rm -rf %s"):format(target))
      -- One that leads nowhere makes nothing there.
      assert_refused(output .. "/" .. name)
      assert.is_false(files.exists(target))
    end)
  end

  it("may lie behind a link itself", function()
    os.execute(("ln -s %s %s/link"):format(output, folder))
    local code, _, err = support.run(("packlua recipes/resume.lua %s/link"):format(folder))
    assert.equal(0, code, err)
    assert.is_true(files.exists(output .. "/result.json"))
  end)
end)

describe("A report", function()
  it("waits for no pipe in a run's folder", function()
    local folder = support.temporary()
    for _, name in ipairs {"metrics.jsonl", "run.log", "result.json", "environment.json", "run.lock"} do
      os.execute("mkfifo " .. folder .. "/" .. name)
    end
    support.write(folder .. "/resolved.json", "{}")
    local found = require("pack.report.runs").find(folder)
    assert.equal(1, #found)
    assert.equal(3, #found[1].remarks)
    support.remove(folder)
  end)
end)
