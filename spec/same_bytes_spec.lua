-- The same run, done again in another process and folder, leaves the same bytes.
local files = require "pack.io.files"
local json = require "pack.io.json"
local support = require "spec.support.helper"

-- What holds times or places, and so is not the same; all else must be.
local excepted = {
  ["environment.json"] = true, ["resolved.json"] = true, -- where it ran, and what it was told of places
  ["run.log"] = true, ["run.lock"] = true,
  ["metrics.jsonl"] = true, ["result.json"] = true, -- compared without their times
}

-- The files below a folder by their paths in it.
local function contents(folder)
  local _, out = support.run(("cd %s && find . -type f | sort"):format(folder))
  local all = {}
  for name in out:gmatch("%./([^\n]+)") do all[name] = support.read(folder .. "/" .. name) end
  return all
end

local function without_times(row)
  for _, name in ipairs {"step_seconds", "tokens_per_second", "memory_bytes", "run_seconds", "finished"} do row[name] = nil end
  return row
end

describe("Two runs of one configuration, in processes of their own,", function()
  local folder
  setup(function()
    folder = support.temporary()
    local lines = {}
    for i = 1, 300 do lines[i] = ("the %d workers of the ring mix, line %d\n"):format(i % 7, i) end
    support.write(folder .. "/text.txt", table.concat(lines))
    for _, name in ipairs {"a", "another"} do
      local code, _, err = support.run(("packlua recipes/train.lua --config configs/smoke.lua --sample 0 --output %s/%s "
        .. "--set data.text=%s/text.txt --set decentralized.topology=ring && packlua recipes/export.lua "
        .. "--checkpoint %s/%s/epoch-002.safetensors --output %s/%s/export"):format(folder, name, folder, folder, name,
        folder, name))
      assert.equal(0, code, err)
    end
  end)
  teardown(function() support.remove(folder) end)

  it("leave the same files, byte by byte, but for those that hold times and places", function()
    local one, other = contents(folder .. "/a"), contents(folder .. "/another")
    local compared = 0
    for name, text in pairs(one) do
      assert.is_truthy(other[name], name)
      if not excepted[name] then
        compared = compared + 1
        assert.is_true(text == other[name], name .. " differs")
      end
    end
    for name in pairs(other) do assert.is_truthy(one[name], name) end
    assert.is_true(compared >= 10, "only " .. compared .. " files compared")
  end)

  it("leave the same numbers", function()
    local function rows(name)
      local list = {}
      for line in files.read(("%s/%s/metrics.jsonl"):format(folder, name)):gmatch("[^\n]+") do
        list[#list + 1] = without_times(json.decode(line))
      end
      list[#list + 1] = without_times(json.read(("%s/%s/result.json"):format(folder, name)))
      return list
    end
    assert.same(rows("a"), rows("another"))
  end)
end)
