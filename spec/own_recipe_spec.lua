-- A recipe of a user's own, with an algorithm, a topology and a split of the data: it trains, is killed, resumes, sweeps and
-- is in reports. And the algorithm that docs/algorithms.md writes out.
local files = require "pack.io.files"
local json = require "pack.io.json"
local safetensors = require "pack.io.safetensors"
local support = require "spec.support.helper"

local folder, sources
local own = "spec/fixtures/own.lua"

local function packlua(arguments, environment)
  return support.run(("%s %s %s"):format(environment or "", support.quote(support.program), arguments))
end

setup(function()
  folder = support.temporary()
  local paths = {}
  for i = 1, 3 do
    local lines = {}
    for j = 1, 300 do lines[j] = ("source %d says line %d\n"):format(i, j * j % (11 + i)) end
    paths[i] = ("%s/%d.txt"):format(folder, i)
    support.write(paths[i], table.concat(lines))
  end
  sources = " --set data.sources=" .. table.concat(paths, ",")
end)
teardown(function() support.remove(folder) end)

-- Ends with a signal in the step of this number.
local function killed_at(step, signal)
  return "-e " .. support.quote(([[
    local ffi = require "ffi"
    ffi.cdef "int kill(int pid, int signal); int getpid(void);"
    require("pack").study.watch {step = function(row)
      if row.step == %d then ffi.C.kill(ffi.C.getpid(), %d) end
    end}]]):format(step, signal))
end

local function weights(path)
  local file = safetensors.open(path)
  local values, count = file:read_doubles(file:names()[1])
  file:close()
  return require("ffi").string(values, 8 * count)
end

describe("a recipe of one's own", function()
  it("is short", function()
    assert.is_true(select(2, support.read(own):gsub("\n", "")) < 40)
  end)

  it("trains, is ended by signals and a kill, and goes on to the same bits", function()
    local code, _, err = packlua(own .. sources .. " --output " .. folder .. "/whole")
    assert.equal(0, code, err)
    local run = folder .. "/run"
    code, _, err = packlua(killed_at(3, 15) .. " " .. own .. sources .. " --output " .. run)
    assert.equal(75, code, err)
    code, _, err = packlua(killed_at(6, 10) .. " " .. own .. " --resume " .. run)
    assert.equal(75, code, err)
    code = packlua(killed_at(9, 9) .. " recipes/resume.lua " .. run)
    assert.is_true(code ~= 0)
    code, _, err = packlua("recipes/resume.lua " .. run) -- which runs the recipe that the state names
    assert.equal(0, code, err)
    assert.equal(weights(folder .. "/whole/epoch-003.safetensors"), weights(run .. "/epoch-003.safetensors"))
    local rows = 0
    for line in files.read(run .. "/metrics.jsonl"):gmatch("[^\n]+") do
      local row = json.decode(line)
      if row.spread then rows = rows + 1 end
    end
    assert.equal(12, rows)
    local resolved = json.decode(files.read(run .. "/resolved.json")).decentralized
    assert.same({name = "sign_gossip", defined_by = "own.lua", step = 0.1}, resolved.algorithm)
    assert.same({name = "in_turn", defined_by = "own.lua"}, resolved.topology)
  end)

  it("shows its options, plans its memory, and sweeps over them", function()
    local code, out, err = packlua(own .. " --help")
    assert.equal(0, code, err)
    assert.is_truthy(out:find("sign_gossip", 1, true))
    assert.is_truthy(out:find("%.step +0%.1 +over the learning rate"), out)
    code, out, err = packlua(own .. sources .. " --plan")
    assert.equal(0, code, err)
    assert.is_truthy(out:find("workers", 1, true))
    code, out, err = packlua(own .. sources .. " --over decentralized.algorithm.step=0,0.5 --output " .. folder .. "/sweep")
    assert.equal(0, code, out .. err)
    code, out, err = packlua("recipes/report.lua " .. folder .. "/sweep")
    assert.equal(0, code, err)
    local report = files.read(folder .. "/sweep/report.html") or out
    assert.is_truthy(report:find("sign_gossip", 1, true) or report:find("step=0.5", 1, true), report:sub(1, 2000))
  end)
end)

describe("the algorithm of docs/algorithms.md", function()
  it("has at most 25 lines and is DiLoCo", function()
    local text = support.read("docs/algorithms.md")
    local code = text:match("own algorithm: begin %-%->\n```lua\n(.-)```")
    local lines = select(2, code:match("pack.algorithms.*"):gsub("\n", ""))
    assert.is_true(lines <= 25, lines)
    local recipe = folder .. "/mine.lua"
    support.write(recipe, code .. [[
      local options = pack.options.parse {recipe = "mine", summary = "", arg = arg, resume = true}
      local study = pack.study.open(options)
      study:train()
      study:conclude()
      study:close()]])
    support.write(folder .. "/plain.lua", (support.read("spec/fixtures/own_config.lua"):gsub('topology = .-}', "}")))
    local settings = (" --config %s/plain.lua"):format(folder) .. sources
    for name, program in pairs {my_diloco = recipe, diloco = "recipes/train.lua --sample 0"} do
      local code_of, _, err = packlua(("%s%s --set decentralized.algorithm=%s --set decentralized.algorithm.every=4 "
        .. "--output %s/%s"):format(program, settings, name, folder, name))
      assert.equal(0, code_of, err)
    end
    assert.equal(weights(folder .. "/diloco/epoch-003.safetensors"), weights(folder .. "/my_diloco/epoch-003.safetensors"))
  end)
end)
