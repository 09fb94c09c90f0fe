local files = require "pack.io.files"
local json = require "pack.io.json"
local statistics = require "pack.measure.statistics"
local support = require "spec.support.helper"

describe("figures of lists", function()
  it("have the middle of an odd count and the mean of the two middle ones of an even", function()
    assert.equal(3, statistics.median {9, 1, 3})
    assert.equal(2.5, statistics.median {4, 1, 3, 2})
    assert.equal(7, statistics.median {7})
    assert.is_nil(statistics.median {})
  end)

  it("leave NaN out of the median and the list as it was", function()
    local list = {5, 0 / 0, 1}
    assert.equal(3, statistics.median(list))
    assert.same({5, 1}, {list[1], list[3]})
  end)

  it("have the sample deviation, which one number has not", function()
    assert.same({mean = 3, std = math.sqrt(2), count = 2}, statistics.moments {2, 4})
    assert.same({mean = 2, count = 1}, statistics.moments {2})
    assert.is_nil(statistics.moments {})
  end)
end)

describe("a JSON file", function()
  local folder

  setup(function() folder = support.temporary() end)
  teardown(function() support.remove(folder) end)

  it("reads back as it was written, indented, with a line end", function()
    json.write(folder .. "/a.json", {b = {1, 2.5}, c = "d"})
    assert.same({b = {1, 2.5}, c = "d"}, json.read(folder .. "/a.json"))
    assert.matches('^{\n  "b".*\n}\n$', files.read(folder .. "/a.json"))
  end)

  it("that is missing or damaged gives nil and a message with its name", function()
    support.write(folder .. "/bad.json", "{")
    for _, name in ipairs {"none.json", "bad.json"} do
      local value, message = json.read(folder .. "/" .. name)
      assert.is_nil(value)
      assert.matches(name, message, 1, true)
    end
  end)
end)
