-- Attention by cuDNN, on an emulated one that computes the graphs that cuDNN would be given, operation by operation.
-- Expected values are the CPU's. scripts/cudnn_check.sh asks the real one whether it has plans for such graphs.
local context = require "pack.core.context"
local ffi = require "ffi"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"

ffi.cdef [[
  int setenv(const char *name, const char *value, int overwrite);
  int unsetenv(const char *name);
]]

local plain = require("spec.support.emu").open()
if not plain then
  pending("the emulated device is not part of this build", function() end)
  return
end

-- A context on the emulated device that has cuDNN.
local function with_cudnn(options)
  ffi.C.setenv("PACKLUA_EMU_CUDNN", "1", 1)
  options.device = "emu"
  local good, opened = pcall(context, options)
  ffi.C.unsetenv "PACKLUA_EMU_CUDNN"
  return good, opened
end

local good, found = with_cudnn {}
assert(good, found)
if found:attention() ~= "cudnn" then
  pending("this build is without cuDNN's headers", function() end)
  return
end

local cpu = context {device = "cpu"}
local contexts = {["in any order"] = found}
contexts.deterministic = select(2, with_cudnn {deterministic = true})

-- A tensor whose workers are `gap` elements further apart than they are long.
local function place(chosen, shape, dtype, values, gap)
  local inner = 1
  for d = 2, #shape do inner = inner * shape[d] end
  local base = tensor.zeros({shape[1] * (inner + gap)}, dtype, {context = chosen})
  local made = base:view {shape = shape, stride = inner + gap, offset = 0}
  return made:write_numbers(ffi.new("double[?]", #values, values))
end

local function attend(chosen, shape, gap)
  local function random(seed, dtype)
    return place(chosen, shape, dtype, numbers.list(numbers.count(shape), seed, -1, 1), gap)
  end
  local q, k, v, g = random(1, "bf16"), random(2, "bf16"), random(3, "bf16"), random(4, "f32")
  local scale = {scale = 1 / math.sqrt(shape[5])}
  local o, lse = ops.attention(q, k, v, scale)
  return {o, lse, ops.attention_grad(g, q, k, v, o, lse, scale)}
end

-- Results and weights are rounded to bf16 on the way.
local function close(expected, got)
  local a, b, largest = numbers.flat(expected), numbers.flat(got), 0
  assert.equal(#a, #b)
  for i = 1, #a do largest = math.max(largest, math.abs(a[i])) end
  for i = 1, #a do
    if not (math.abs(a[i] - b[i]) <= 1e-2 * largest) then
      error(("element %d is %.9g, not %.9g (largest %.3g)"):format(i, b[i], a[i], largest))
    end
  end
end

describe("attention by cuDNN", function()
  support.watch()

  for name, chosen in pairs(contexts) do
    for _, case in ipairs {
      {{2, 3, 20, 2, 16}, 0, "workers that lie together"}, {{3, 2, 17, 2, 8}, 8, "workers that lie apart"},
      {{1, 1, 1, 1, 64}, 0, "one position"}, {{1, 2, 33, 1, 128}, 0, "wide heads"},
    } do
      it(("is the CPU's: %s, %s"):format(name, case[3]), function()
        local expected, got = attend(cpu, case[1], case[2]), attend(chosen, case[1], case[2])
        for i = 1, 5 do close(expected[i], got[i]) end
        -- o is of bf16 values, as cuDNN writes it, where the own kernels have f32
        for _, value in ipairs(numbers.flat(got[1])) do
          assert.equal(value, numbers.flat(ops.cast(tensor.from(value, "f32"), {dtype = "bf16"}))[1])
        end
      end)
    end
  end

  it("leaves to the device's own kernels what cuDNN does not take", function()
    -- heads of width 12 and addresses that are not multiples of 16 bytes
    for _, case in ipairs {{{2, 1, 9, 2, 12}, 0}, {{2, 1, 9, 2, 8}, 1}} do
      local own, got = attend(plain, case[1], case[2]), attend(found, case[1], case[2])
      for i = 1, 5 do assert.same(numbers.flat(own[i]), numbers.flat(got[i])) end
    end
  end)

  it("is refused where it was asked for and there is none", function()
    local opened, message = pcall(context, {device = "emu", attention = "cudnn"})
    assert.is_false(opened)
    assert.truthy(tostring(message):find("libcudnn", 1, true), tostring(message))
    assert.equal("flash", plain:attention())
    local _, must = with_cudnn {attention = "cudnn"}
    assert.equal("cudnn", must:attention())
    opened, message = pcall(attend, must, {2, 1, 9, 2, 8}, 1)
    assert.is_false(opened)
    assert.truthy(tostring(message):find("attention: cuDNN %d+ has no plan for %[1, 9, 2, 8%]"), tostring(message))
    must:close()
    local _, flash = with_cudnn {attention = "flash"}
    assert.equal("flash", flash:attention())
    flash:close()
  end)
end)
