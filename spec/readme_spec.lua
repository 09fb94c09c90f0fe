-- What README.md shows runs as it stands there.
local support = require "spec.support.helper"

local readme = support.read("README.md")

-- Settings that make the README's runs small.
local small = {
  "model.layers=1", "model.width=16", "model.heads=2", "model.ffn_width=24", "model.context_length=16",
  "training.batch_tokens=128", "training.micro_batch_size=2", "training.max_tokens=1280",
  "training.epoch_tokens=640",
}

describe("README.md", function()
  it("is short, and opens with the two commands", function()
    local _, lines = readme:gsub("\n", "")
    assert.is_true(lines < 150)
    local first = readme:find("\n    scripts/quickstart.sh\n", 1, true)
    local second = readme:find("\n    scripts/test.sh\n", 1, true)
    assert.is_true(first < 20 and second > first)
  end)

  it("shows a recipe that runs", function()
    local folder = support.temporary()
    support.write(folder .. "/ten.lua", readme:match("```lua\n(.-)```"))
    support.write(folder .. "/text.txt", ("a line of text, and another one\n"):rep(200))
    local code, out, err = support.run(("packlua %s/ten.lua %s data.text=%s/text.txt")
      :format(folder, table.concat(small, " "), folder))
    support.remove(folder)
    assert.equal("", err)
    assert.equal(0, code)
    local first, last = out:match("^0\t([%d.]+)\t.*\n9\t([%d.]+)\t")
    assert.is_true(tonumber(first) > tonumber(last), out)
    assert.is_truthy(out:find("\nheld out\t%d"))
  end)

  it("shows lines for the prompt that work, and what they answer", function()
    local session, typed = readme:match("```\n(> run = .-)```"), {}
    for line in session:gmatch("[^\n]+") do
      if line:find("^> ") then typed[#typed + 1] = line:sub(3) end
    end
    local input = table.concat(typed, "\n")
    local folder = support.temporary()
    support.write(folder .. "/input", input:gsub('open "configs/tiny.lua"',
      ('open("configs/tiny.lua", {"%s"})'):format(table.concat(small, '", "'))) .. "\n")
    local code, out, err = support.run(("packlua -i < %s/input"):format(folder))
    support.remove(folder)
    assert.equal(0, code)
    assert.equal("", err)
    assert.is_truthy(out:find("^%d%.%d+\t25\t200\n"), out)
    assert.is_truthy(out:find("f32 {4, 16} on cpu", 1, true))
    assert.is_truthy(out:find(session:match("\n(ring, 4 workers.*)"), 1, true), out)
  end)

  it("names files that are there", function()
    for path in readme:gmatch("%]%(([%w/._-]+)%)") do
      assert.is_truthy(support.read(path), path .. " is not there")
    end
    for path in readme:gmatch("[%s`]([%w/]+%.sh)%s") do assert.is_truthy(support.read(path), path) end
  end)
end)
