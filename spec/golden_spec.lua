-- Golden cases: whole training steps against the numbers of an independent f64 program.
local context = require "pack.core.context"
local golden = require "pack.train.golden"
local native = require "pack.native"

local folders = {"spec/fixtures/golden", "../shared/golden"}

local function cases()
  local list, seen = {}, {}
  for _, folder in ipairs(folders) do
    local found = native.C.pk_path_kind(folder) == string.byte("d")
    for _, name in ipairs(found and require("pack.io.files").list(folder) or {}) do
      if name:match("%.safetensors$") and not seen[name] then
        seen[name] = true
        list[#list + 1] = folder .. "/" .. name
      end
    end
  end
  return list
end

local function check(path, options)
  local result = golden.run(path, options)
  for _, quantity in ipairs(golden.quantities) do
    local bound = golden.tolerance(options.dtype, quantity)
    local worst = result[quantity]
    assert.is_truthy(worst, quantity .. " was not compared")
    if bound then
      assert.is_true(worst.value <= bound, ("%s of %s: %.3g > %g (%s)"):format(quantity, path,
        worst.value, bound, worst.name))
    end
  end
end

describe("golden cases", function()
  it("are there", function()
    assert.is_true(#cases() >= 5)
  end)

  for _, path in ipairs(cases()) do
    local name = path:match("[^/]+$")
    it("agree in f64 within 1e-9: " .. name, function() check(path, {dtype = "f64"}) end)
    it("agree in f32 within 1e-4: " .. name, function() check(path, {dtype = "f32"}) end)
    it("agree in amp within 3e-2 on losses and gradients: " .. name, function()
      check(path, {dtype = "amp"})
    end)
    it("agree with the separate clip, mix and adamw: " .. name, function()
      check(path, {dtype = "f64", fused = false})
    end)
  end

  it("agree on one thread and on two #threads", function()
    for _, threads in ipairs {1, 2} do
      local own = context.create {threads = threads}
      check(cases()[1], {dtype = "f64", context = own})
      collectgarbage()
      own:close()
    end
  end)

  it("hold a case with wrong numbers to its tolerance", function()
    local result = golden.run(cases()[1], {dtype = "f32"})
    assert.is_true(result.loss.value > 1e-12, "f32 cannot agree to the last bit of f64")
  end)
end)
