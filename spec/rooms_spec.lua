-- scripts/rooms.lua: the folders of the code use each other as CONTRIBUTING.md allows.
local support = require "spec.support.helper"

describe("the lint of rooms", function()
  local folder

  local function make(path, text)
    os.execute("mkdir -p " .. support.quote(folder .. "/" .. path:match("^(.*)/")))
    support.write(folder .. "/" .. path, text)
  end

  before_each(function()
    folder = support.temporary()
    support.write(folder .. "/CONTRIBUTING.md", table.concat({
      "| room | what is in it | it may use |", "|---|---|---|",
      "| `lua/pack/core` | tensors | |", "| `lua/pack/train` | steps | `core` |",
      "| `host/base` | files | |", "| `host/core` | tensors | `base` |",
    }, "\n") .. "\n")
    make("lua/pack/core/tensor.lua", 'require "pack.native"\n')
    make("lua/pack/train/trainer.lua", 'require("pack.core.tensor")\n')
    make("host/base/error.c", '#include "base/base.h"\n')
    make("host/core/tensor.c", '#include "core/core.h"\n#include "base/base.h"\n')
  end)

  after_each(function() support.remove(folder) end)

  local function lint()
    local code, out = support.run("packlua scripts/rooms.lua " .. folder)
    return code, out
  end

  it("passes where every use is in the tables", function()
    assert.same({0, ""}, {lint()})
  end)

  it("names a Lua module that uses a room above it", function()
    make("lua/pack/core/tensor.lua", 'local trainer = require "pack.train.trainer"\n')
    assert.same({1, "lua/pack/core/tensor.lua uses lua/pack/train, which CONTRIBUTING.md does not allow\n"}, {lint()})
  end)

  it("names a C file that includes from a folder above it", function()
    make("host/base/error.c", '#include "core/core.h"\n')
    assert.same({1, "host/base/error.c uses host/core, which CONTRIBUTING.md does not allow\n"}, {lint()})
  end)

  it("names a folder that no table has", function()
    make("lua/pack/misc/thing.lua", "return 1\n")
    assert.same({1, "lua/pack/misc: no table of CONTRIBUTING.md names it\n"}, {lint()})
  end)

  it("refuses tables that allow a circle", function()
    local text = support.read(folder .. "/CONTRIBUTING.md"):gsub("| files | |", "| files | `core` |")
    support.write(folder .. "/CONTRIBUTING.md", text)
    local code, out = lint()
    assert.equal(1, code)
    assert.is_truthy(out:find("host/base: the tables of CONTRIBUTING.md let it use itself in a circle", 1, true))
  end)
end)
