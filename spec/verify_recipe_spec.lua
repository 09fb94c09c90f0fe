-- recipes/verify.lua as users run it: golden cases, altered ones, and files that are none.
local safetensors = require "pack.io.safetensors"
local support = require "spec.support.helper"

local fixtures = "spec/fixtures/golden/"
local small = fixtures .. "n1_awc_complete.safetensors"

-- Copies a case, with one tensor's values changed by `change(values, count)`.
local function altered(from, to, name, change)
  local file = safetensors.open(from)
  local contents = {metadata = file:metadata()}
  for _, each in ipairs(file:names()) do
    local t = file:read_tensor(each)
    if each == name then
      local values, count = t:read_numbers()
      change(values, count)
      t:write_numbers(values, count)
    end
    table.insert(contents, {name = each, tensor = t})
  end
  file:close()
  safetensors.write(to, contents)
end

-- The line of a quantity: its value and verdict.
local function line(out, quantity)
  local value, verdict = out:match("\n  " .. quantity .. " +(%d%.%d+e[+-]%d+)  (%a+)")
  return tonumber(value), verdict
end

describe("recipes/verify.lua", function()
  local folder
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  it("agrees with every case of the fixtures in f64, quantity by quantity", function()
    local code, out, err = support.run("packlua recipes/verify.lua " .. fixtures .. "*.safetensors")
    assert.equal("", err)
    assert.equal(0, code)
    local _, cases = out:gsub("%.safetensors %(f64 on cpu%)\n", "")
    assert.equal(5, cases)
    for _, quantity in ipairs {"loss", "grad_norm", "grad0", "final", "exp_avg", "exp_avg_sq", "average_loss", "hvp"} do
      local value, verdict = line(out, quantity)
      assert.equal("ok", verdict, quantity)
      assert.is_true(value < 1e-9)
    end
    assert.is_falsy(out:find("FAILED", 1, true))
  end)

  it("agrees in f32 and amp within what these can", function()
    for dtype, bound in pairs {f32 = 1e-4, amp = 3e-2} do
      local code, out = support.run(("packlua recipes/verify.lua --dtype %s --device cpu %s"):format(dtype, small))
      assert.equal(0, code, out)
      local value, verdict = line(out, "grad0")
      assert.equal("ok", verdict)
      assert.is_true(value > 1e-12 and value < bound)
    end
    local _, out = support.run("packlua recipes/verify.lua --dtype amp " .. small)
    assert.is_truthy(out:find("\n  final +[%d.e+-]+  reported only"))
  end)

  it("ends with 1 when a tolerance is passed, in whichever of several files, naming the tensor", function()
    local path = folder .. "/altered.safetensors"
    altered(small, path, "final/norm.weight", function(values) values[0] = values[0] * (1 + 1e-6) end)
    local code, out, err = support.run(("packlua recipes/verify.lua %s %s"):format(path, small))
    assert.equal("", err)
    assert.equal(1, code)
    assert.is_truthy(out:find("\n  final +[%d.e+-]+  FAILED +norm.weight\n"), out)
    assert.equal("ok", select(2, line(out, "loss")))
    assert.equal(0, (support.run("packlua recipes/verify.lua --dtype f32 " .. path)))
  end)

  it("sees wrong losses, gradients and products with the Hessian", function()
    for quantity, name in pairs {loss = "loss", grad0 = "grad0/blocks.0.ffn.up_proj.weight",
      hvp = "hvp/embedding.weight", average_loss = "average_loss"} do
      local path = folder .. "/altered.safetensors"
      altered(small, path, name, function(values, count) values[count - 1] = values[count - 1] * 1.5 + 1e-3 end)
      local code, out = support.run("packlua recipes/verify.lua " .. path)
      assert.equal(1, code)
      assert.equal("FAILED", select(2, line(out, quantity)), quantity)
    end
  end)

  it("fails on a case with a value that is not finite", function()
    local path = folder .. "/altered.safetensors"
    altered(small, path, "loss", function(values) values[0] = 0 / 0 end)
    assert.equal(1, (support.run("packlua recipes/verify.lua " .. path)))
  end)

  it("fails by name on a file that is no case", function()
    local function fails(path, words)
      local code, _, err = support.run("packlua recipes/verify.lua " .. path)
      assert.equal(1, code)
      assert.is_truthy(err:find(path, 1, true), err)
      assert.is_truthy(err:find(words, 1, true), err)
    end
    fails("CONTRIBUTING.md", "a header of ")
    support.write(folder .. "/empty.safetensors", "")
    fails(folder .. "/empty.safetensors", "0 bytes")
    safetensors.write(folder .. "/weights.safetensors",
      {{name = "x", tensor = require("pack.core.tensor").zeros {2}}})
    fails(folder .. "/weights.safetensors", "not a golden case: its metadata has no 'case'")
  end)

  it("asks for a file, a dtype and a device that are there", function()
    local function refused(arguments, words)
      local code, _, err = support.run("packlua recipes/verify.lua " .. arguments)
      assert.equal(2, code, err)
      assert.is_truthy(err:find(words, 1, true), err)
      assert.is_falsy(err:find("traceback", 1, true))
    end
    refused("", "at least 1 FILE expected, 0 given")
    refused("--dtype f16 " .. small, "--dtype f16: expected one of f64, f32, amp")
    refused("--device gpu " .. small, "gpu")
    refused(folder .. "/none.safetensors", "/none.safetensors: there is no such file")
  end)
end)
