-- What is printed of names and texts from outside: no control characters, which could set a terminal's modes.
local support = require "spec.support.helper"

describe("control characters in names", function()
  local folder
  local name = "a\27]0;owned\7\27[31mb\194\155c\rd\255"
  setup(function() folder = support.temporary() end)
  teardown(function() support.remove(folder) end)

  local function shows_none(command, word, code)
    local got, out, err = support.run(("cd %s; %s"):format(folder, command))
    local shown = out .. err
    assert.equal(code, got, shown)
    assert.is_nil(shown:find("[%z\1-\8\11-\31\127]"), shown)
    assert.is_nil(shown:find("\194[\128-\159]"), shown)
    assert.is_truthy(shown:find(word, 1, true), shown)
  end

  it("are question marks in errors", function()
    local quoted = support.quote(name)
    shows_none("packlua " .. quoted, "no script 'a?]0;owned??[31mb?c?d", 2)
    shows_none("packlua --" .. quoted, "unknown option", 2)
    shows_none("packlua -e 'error(arg[1])' " .. quoted .. " 2>&1 || packlua -e \"error(('x\\27y'))\"", "x?y", 1)
    shows_none("packlua recipes/train.lua --config " .. quoted, "there is no such file", 2)
    shows_none("packlua recipes/inspect.lua " .. quoted, "there is nothing", 2)
  end)

  it("are question marks in what a run prints and logs", function()
    local words = ("to be or not to be, "):rep(300)
    support.write(folder .. "/text", words)
    local output = support.quote("run" .. name)
    shows_none("packlua recipes/train.lua --config configs/smoke.lua --sample 0 --set data.text=text --set "
      .. "training.max_tokens=2048 --set model.layers=1 --output " .. output, "run: runa?]0;owned?", 0)
    local log = assert(support.read(folder .. "/run" .. name .. "/run.log"))
    assert.is_nil(log:find("[%z\1-\8\11-\31\127]"), log)
  end)
end)
