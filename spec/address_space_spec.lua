-- Little address space (ulimit -v): libraries that hang, crash or abort without it must not take the program along.
local support = require "spec.support.helper"

describe("with little address space", function()
  local folder

  setup(function() folder = support.temporary() end)
  teardown(function() support.remove(folder) end)

  local function run(mib, arguments)
    return support.run(("ulimit -v %d\npacklua %s"):format(mib * 1024, arguments))
  end

  it("the program starts", function()
    for _, mib in ipairs {100, 200, 300, 400} do
      local code, out, err = run(mib, "--version")
      assert.same({0, "packlua"}, {code, out:match("^%w+")}, err)
    end
  end)

  local multiply = [[
    local pack = require "pack"
    local a = pack.arange(4096, 0, 1, arg[1]):reshape {64, 64}
    local ok, message = pcall(pack.ops.matmul, a, a)
    print(ok and pack.ops.matmul(a, a):sum():item() or message)
  ]]

  it("a product without room for its library is an error, and one with room is done", function()
    support.write(folder .. "/multiply.lua", multiply)
    local function answer(mib, dtype)
      local code, out, err = run(mib, ("%s/multiply.lua %s"):format(folder, dtype))
      assert.equal(0, code, err)
      return out
    end
    local plain = {}
    for _, dtype in ipairs {"f64", "f32"} do plain[dtype] = answer(1024 * 1024, dtype) end
    for _, mib in ipairs {80, 100, 150, 200, 250, 300, 350} do
      for _, dtype in ipairs {"f64", "f32"} do
        local out = answer(mib, dtype)
        assert.is_true(out == plain[dtype] or out:find("MiB of address space", 1, true) ~= nil
          or out:find("memory", 1, true) ~= nil, out)
      end
    end
  end)

  it("training ends with a message, or well", function()
    local words = {}
    for i = 1, 4000 do words[i] = "to be or not to be " .. i end
    support.write(folder .. "/text", table.concat(words, "\n"))
    for mib = 80, 140, 6 do
      local code, _, err = run(mib, ("recipes/train.lua --config configs/smoke.lua --sample 0 --set runtime.device=cpu"
        .. " --set training.max_tokens=4096 --set data.text=%s/text --output %s/run-%d"):format(folder, folder, mib))
      assert.is_true(code == 0 or code == 1 and err:find("memory", 1, true) ~= nil
        or err:find("thread", 1, true) ~= nil, ("%d MiB: %d, %s"):format(mib, code, err))
    end
  end)
end)
