-- Child processes: how they end, what they cost, and that none is left behind.
local ffi = require "ffi"
local process = require "pack.io.process"
local support = require "spec.support.helper"

ffi.cdef "int kill(int pid, int number); int getpid(void);"

local ESRCH = 3

local function exists(id)
  return ffi.C.kill(id, 0) == 0 or ffi.errno() ~= ESRCH
end

-- Whether a condition comes true within ten seconds.
local function eventually(condition)
  for _ = 1, 1000 do
    if condition() then return true end
    os.execute("sleep 0.01")
  end
  return false
end

-- The number in a file, once it is there.
local function number_in(path)
  local number
  assert.is_true(eventually(function()
    number = tonumber(support.read(path))
    return number ~= nil
  end))
  return number
end

describe("a child process", function()
  local folder

  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  local function shell(script, options)
    local all = {command = {"sh", "-c", script}, log = folder .. "/log"}
    for key, x in pairs(options or {}) do all[key] = x end
    return process.start(all)
  end

  it("runs a program with arguments and variables, and appends what it prints to a file", function()
    support.write(folder .. "/log", "before\n")
    local child = process.start {command = {"sh", "-c", 'echo "$1 $COLOUR"; echo "$HOME" >&2', "sh", "two words"},
      log = folder .. "/log", env = {COLOUR = "blue", HOME = "/elsewhere"}}
    assert.is_true(child:poll(60))
    assert.equal(0, child.code)
    assert.is_nil(child.signal)
    assert.equal("before\ntwo words blue\n/elsewhere\n", support.read(folder .. "/log"))
  end)

  it("has nothing on its standard input", function()
    local child = shell("cat; echo end")
    assert.is_true(child:poll(60))
    assert.equal("end\n", support.read(folder .. "/log"))
  end)

  it("tells its exit code, or the signal that ended it", function()
    for _, code in ipairs {0, 1, 75, 255} do
      local child = shell("exit " .. code)
      assert.is_true(child:poll(60))
      assert.equal(code, child.code)
    end
    local child = shell("kill -SEGV $$")
    assert.is_true(child:poll(60))
    assert.is_nil(child.code)
    assert.equal(11, child.signal)
    assert.equal("SIGSEGV", process.signal_name(child.signal))
  end)

  it("is still running when a poll ends before it", function()
    local child = shell("sleep 60")
    assert.is_false(child:poll())
    assert.is_false(child:poll(0.05))
    assert.is_true(exists(child.id))
    child:send("KILL")
    assert.is_true(child:poll(60))
    assert.equal(9, child.signal)
    assert.is_true(child:poll())
    child:send("KILL") -- harmless by then
  end)

  it("tells the memory and the processor time it took", function()
    local child = process.start {command = {support.program, "-e", [[
      local ffi = require "ffi"
      local block = ffi.new("char[?]", 300 * 2 ^ 20)
      ffi.fill(block, 300 * 2 ^ 20, 1)
      local began = os.clock()
      repeat until os.clock() - began > 0.2]]}, log = folder .. "/log"}
    assert.is_true(child:poll(60))
    assert.equal("", support.read(folder .. "/log"))
    assert.is_true(child.peak_rss >= 300 * 2 ^ 20)
    assert.is_true(child.user_seconds + child.system_seconds >= 0.2)
    assert.is_true(child.user_seconds > 0 and child.system_seconds >= 0 and child.seconds >= 0.2)
  end)

  it("is refused with the reason when there is no such program or no place for the log", function()
    local good, message = pcall(process.start, {command = {"no-such-program-here", "x"}})
    assert.is_false(good)
    assert.is_truthy(message:find("no-such-program-here: the program cannot be started: No such file", 1, true))
    good, message = pcall(process.start, {command = {"true"}, log = folder .. "/missing/log"})
    assert.is_false(good)
    assert.is_truthy(message:find(folder .. "/missing/log: cannot be opened: No such file", 1, true))
    good, message = pcall(process.start, {command = {}})
    assert.is_false(good)
    assert.is_truthy(message:find("a process needs a command", 1, true))
  end)

  it("is killed when it does not end in the time it is given", function()
    local child = shell("trap '' TERM; echo $$ > " .. folder .. "/id; while true; do sleep 1; done")
    assert.equal(child.id, number_in(folder .. "/id"))
    child:stop(0.05)
    assert.equal(9, child.signal)
    assert.is_false(exists(child.id))
  end)

  it("ends by itself when it is asked to", function()
    local child = shell("trap 'exit 4' TERM; echo $$ > " .. folder .. "/id; while true; do sleep 0.01; done")
    number_in(folder .. "/id")
    child:stop(60)
    assert.equal(4, child.code)
  end)

  it("takes with it what it started, also when it ends before that", function()
    local child = shell("sleep 60 & echo $! > " .. folder .. "/id")
    local grandchild = number_in(folder .. "/id")
    assert.is_true(child:poll(60))
    assert.equal(0, child.code)
    assert.is_true(eventually(function() return not exists(grandchild) end))
    child = shell("sleep 60 & echo $! > " .. folder .. "/again; wait")
    grandchild = number_in(folder .. "/again")
    child:send("TERM")
    assert.is_true(child:poll(60))
    assert.is_true(eventually(function() return not exists(grandchild) end))
  end)

  it("ends with the object", function()
    local child = shell("sleep 60")
    local id = child.id
    child:close()
    child:close()
    assert.is_false(exists(id))
    id = shell("sleep 60").id
    jit.flush()
    collectgarbage()
    collectgarbage()
    assert.is_false(exists(id))
  end)

  it("ends with the program, however that ends", function()
    support.write(folder .. "/parent.lua", ([[
      local process = require "pack.io.process"
      local child = process.start {command = {"sleep", "60"}}
      local file = io.open(%q, "w")
      file:write(child.id)
      file:close()
      child:poll(60)]]):format(folder .. "/id"))
    local parent = process.start {command = {process.program(), folder .. "/parent.lua"}, log = folder .. "/log"}
    local id = number_in(folder .. "/id")
    assert.is_true(exists(id))
    ffi.C.kill(parent.id, process.signals.KILL)
    assert.is_true(parent:poll(60))
    assert.is_true(eventually(function() return not exists(id) end))
  end)

  it("leaves its group to this program's when it is not to have one of its own", function()
    local own = shell('cut -d" " -f5 /proc/$$/stat')
    local shared = shell('cut -d" " -f5 /proc/$$/stat', {own_group = false, log = folder .. "/shared"})
    assert.is_true(own:poll(60) and shared:poll(60))
    assert.equal(own.id, tonumber(support.read(folder .. "/log")))
    assert.not_equal(shared.id, tonumber(support.read(folder .. "/shared")))
  end)

  it("knows the program that it may run again", function()
    assert.equal(support.program, process.program())
    local child = process.start {command = {process.program(), "-e", "print(6 * 7)"}, log = folder .. "/log"}
    assert.is_true(child:poll(60))
    assert.equal("42\n", support.read(folder .. "/log"))
  end)
end)
