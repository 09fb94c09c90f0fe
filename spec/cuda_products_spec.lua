-- Matrix products of the CUDA device, on the emulated cuBLASLt: how an algorithm is chosen and remembered, and
-- products that the comparison of all operations does not reach.
local bit = require "bit"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"

local emu = require("spec.support.emu").open()
if not emu then
  pending("the emulated device is not part of this build", function() end)
  return
end

local function on_emu(value, dtype)
  return tensor.from(value, dtype, {context = emu})
end

describe("matrix products of the CUDA device", function()
  support.watch()

  it("are 0 where they sum nothing, and leave alone what they are added to", function()
    local a, b = tensor.zeros({2, 3, 0}, "f32", {context = emu}), tensor.zeros({2, 0, 4}, "f32", {context = emu})
    local expected, kept = {}, {}
    for i = 1, 24 do expected[i], kept[i] = 0, 7 end
    assert.same(expected, numbers.flat(ops.matmul(a, b)))
    local c = tensor.zeros({2, 3, 4}, "f32", {context = emu})
    c:write_numbers(require("ffi").new("double[24]", kept))
    ops.matmul(a, b, {out = c, accumulate = true})
    assert.same(kept, numbers.flat(c))
    ops.matmul(a, b, {out = c})
    assert.same(expected, numbers.flat(c))
  end)

  it("clear only their own columns of matrices whose rows are apart", function()
    local base = tensor.zeros({4 * 5}, "f32", {context = emu})
    base:write_numbers(require("ffi").new("double[20]", {9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}))
    local c = base:view {shape = {4, 2}, stride = 5, offset = 1}
    ops.matmul(tensor.zeros({4, 0}, "f32", {context = emu}), tensor.zeros({0, 2}, "f32", {context = emu}), {out = c})
    assert.same({9, 0, 0, 9, 9, 9, 0, 0, 9, 9, 9, 0, 0, 9, 9, 9, 0, 0, 9, 9}, numbers.flat(base))
  end)

  it("do not round operands of f32", function()
    local value = 1 + 2 ^ -20 -- more digits than TF32 has
    assert.same({value}, numbers.flat(ops.matmul(on_emu({{value}}), on_emu({{1}}))))
  end)
end)

-- A process that multiplies [2, 3] x [3, 2], and what it prints.
local product = [[packlua -e '
  local c = require("pack.core.context").create {device = "emu"%s}
  local t = require("pack.core.tensor")
  local a = t.from({{1, 2, 3}, {4, 5, 6}}, "f32", {context = c})
  local b = t.from({{1, 2}, {3, 4}, {5, 6}}, "f32", {context = c})
  %s
  print(unpack(require("spec.support.numbers").flat(require("pack.core.ops").matmul(a, b))))']]

-- The file's text with another algorithm in its line, whose last number is the FNV-1a of those before it, which
-- are 64 bits each, written in base 16.
local function with_algorithm(text, algorithm)
  local header, line = text:match("^(.-\n)(.*)\n$")
  local words, hash = {}, 14695981039346656037ULL
  for word in line:gmatch("%x+") do words[#words + 1] = word end
  words[#words] = nil
  words[#words - 7] = ("%x"):format(algorithm)
  for _, word in ipairs(words) do
    local digits = ("0"):rep(16 - #word) .. word
    for at = 15, 1, -2 do
      hash = bit.bxor(hash, tonumber(digits:sub(at, at + 1), 16) + 0ULL) * 1099511628211ULL
    end
  end
  words[#words + 1] = bit.tohex(hash, 16):gsub("^0+", "")
  return header .. table.concat(words, " ") .. "\n"
end

describe("algorithms of products", function()
  local folder
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  local function multiply(settings, options, before)
    local code, out, err = support.run(("XDG_CACHE_HOME=%s/cache %s %s"):format(folder, settings,
      product:format(options or "", before or "")))
    assert.equal(0, code, err)
    assert.equal("22\t28\t49\t64\n", out)
  end

  local function cache_file()
    local _, list = support.run(("find %s -type f"):format(folder))
    local path, rest = list:match("^(%S+)\n(.*)$")
    assert.equal("", rest or "", "more than one file")
    return path, path and support.read(path)
  end

  it("are timed when a product of a form is first run, and remembered on disk", function()
    multiply("PACKLUA_EMU_ALGORITHMS=3")
    local path, text = cache_file()
    assert.truthy(path:find("/cache/packlua/cublaslt-GPU-e0e0e0e0-", 1, true))
    local _, lines = text:gsub("\n", "")
    assert.equal(2, lines)
    -- all of the emulation's are equally fast: the first, whose only word is 1
    assert.truthy(text:find(" 1 0 0 0 0 0 0 0 %x+\n$"))
  end)

  it("are read from there by the next process, if the library would run them", function()
    multiply("PACKLUA_EMU_ALGORITHMS=3")
    local path, text = cache_file()
    local second, unknown = with_algorithm(text, 2), with_algorithm(text, 99)
    support.write(path, second)
    multiply("PACKLUA_EMU_ALGORITHMS=3")
    assert.equal(second, support.read(path))
    support.write(path, unknown)
    multiply("PACKLUA_EMU_ALGORITHMS=3")
    assert.equal(text, support.read(path))
  end)

  it("are chosen anew where the file is damaged or another library's", function()
    multiply("PACKLUA_EMU_ALGORITHMS=3")
    local path, text = cache_file()
    local turned = text:gsub("(%x)\n$", function(digit) return digit == "0" and "1\n" or "0\n" end)
    for _, damage in ipairs {turned, text:sub(1, -3), (text:gsub("cublaslt 1", "cublaslt 9")), text .. "rest\n", "\0\0\n", ""} do
      support.write(path, damage)
      multiply("PACKLUA_EMU_ALGORITHMS=3")
      local _, after = cache_file()
      assert.equal(text, after)
    end
  end)

  it("are the library's first without timing: with PACKLUA_TUNE=0, deterministic, or a choice of one", function()
    multiply("PACKLUA_EMU_ALGORITHMS=3 PACKLUA_TUNE=0")
    assert.is_nil(cache_file())
    multiply("PACKLUA_EMU_ALGORITHMS=3", ", deterministic = true")
    assert.is_nil(cache_file())
    multiply("PACKLUA_EMU_ALGORITHMS=1")
    assert.is_nil(cache_file())
  end)

  it("are timed in memory of their own only where the result is added to", function()
    local code, out, err = support.run(("XDG_CACHE_HOME=%s PACKLUA_EMU_ALGORITHMS=3 packlua -e %s"):format(folder,
      support.quote [[
        local emu, ops, tensor = require "spec.support.emu", require "pack.core.ops", require "pack.core.tensor"
        local c = require("pack.core.context").create {device = "emu"}
        local a = tensor.from({{1, 2}, {3, 4}}, "f32", {context = c})
        local sum = ops.matmul(a, a)
        local function multiply(options)
          options.out = sum
          print(emu.count(function() ops.matmul(a, a, options) end).allocations)
          print(unpack(require("spec.support.numbers").flat(sum)))
        end
        multiply {transpose_a = true}
        multiply {transpose_b = true, accumulate = true}]]))
    assert.equal(0, code, err)
    assert.equal("0\n10\t14\t14\t20\n1\n15\t25\t25\t45\n", out)
  end)

  it("are not remembered where they could not be timed", function()
    multiply("PACKLUA_EMU_ALGORITHMS=3", "", [[local emu = require "spec.support.emu"
      emu.fail("cudaEventCreateWithFlags", emu.errors.memory)]])
    assert.is_nil(cache_file())
  end)

  it("need no place for the file", function()
    local code, out = support.run("unset HOME XDG_CACHE_HOME; PACKLUA_EMU_ALGORITHMS=3 " .. product:format("", ""))
    assert.equal(0, code)
    assert.equal("22\t28\t49\t64\n", out)
    code, out = support.run("XDG_CACHE_HOME=/proc/none PACKLUA_EMU_ALGORITHMS=3 " .. product:format("", ""))
    assert.equal(0, code)
    assert.equal("22\t28\t49\t64\n", out)
  end)
end)
