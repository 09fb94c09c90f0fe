-- The interpreter's memory when there is no more: garbage goes first, then an error that work can go on after.
local ffi = require "ffi"
local support = require "spec.support.helper"

local function is_sanitized()
  return pcall(function() return ffi.C.__asan_init end) or pcall(function() return ffi.C.__tsan_init end)
end

describe("the interpreter without memory", function()
  -- Sanitizers map memory of their own, and end where they cannot.
  if is_sanitized() then
    pending("cannot be under a sanitizer")
    return
  end

  local function run(code)
    return support.run("packlua -e " .. support.quote(code))
  end

  it("raises an error with its place, once what is held is too much", function()
    local exit, _, err = run [[
      local ffi = require "ffi"
      ffi.cdef "int setrlimit(int, const unsigned long *);"
      local held = {}
      ffi.C.setrlimit(9, ffi.new("unsigned long[2]", 1, 1)) -- from here on nothing can be mapped
      for i = 1, 1e7 do held[i] = {i} end]]
    assert.equal(1, exit)
    assert.is_truthy(err:find("not enough memory", 1, true), err)
  end)

  it("goes on where collecting garbage makes room", function()
    local exit, out, err = run [[
      local ffi = require "ffi"
      ffi.cdef "int setrlimit(int, const unsigned long *);"
      collectgarbage("stop")
      ffi.C.setrlimit(9, ffi.new("unsigned long[2]", 1, 1))
      local last
      for i = 1, 1e6 do last = {i} end
      print(last[1])]]
    assert.equal("", err)
    assert.equal(0, exit)
    assert.equal("1000000\n", out)
  end)

  it("raises an error at the prompt, which can be worked at afterwards", function()
    local _, out, err = support.run([[printf '%s\n' 'ffi = require "ffi"' \
      'ffi.cdef "int setrlimit(int, const unsigned long *);"' \
      'do local t = {}; ffi.C.setrlimit(9, ffi.new("unsigned long[2]", 1, 1)); for i = 1, 1e7 do t[i] = {i} end end' \
      '1 + 1' | packlua -i]])
    assert.is_truthy(err:find("not enough memory", 1, true), err)
    assert.is_truthy(out:find("2\n", 1, true), out)
  end)
end)
