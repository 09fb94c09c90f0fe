-- Files, folders and locks.
local ffi = require "ffi"
local files = require "pack.io.files"
local native = require "pack.native"
local support = require "spec.support.helper"

local C = native.C

describe("Files", function()
  local folder
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  it("come back as they were written, any bytes and none", function()
    for _, text in ipairs {"", "a", "a\0b\r\n\255", ("x"):rep(100000)} do
      files.write(folder .. "/f", text)
      assert.equal(text, files.read(folder .. "/f"))
      assert.equal(#text, files.size(folder .. "/f"))
    end
    assert.same({"f"}, files.list(folder))
  end)

  it("are read to their end where the system states no size", function()
    assert.is_truthy(files.read("/proc/self/status"):find("VmPeak"))
  end)

  it("are found behind a leading ~/, which shells do not expand behind an = sign", function()
    local home = os.getenv("HOME")
    assert.equal(home .. "/runs/a", (files.expand("~/runs/a")))
    assert.equal(home, (files.expand("~")))
    for _, path in ipairs {"a/~/b", "/x", "./~", ""} do assert.equal(path, (files.expand(path))) end
    local path, message = files.expand("~somebody/a")
    assert.is_nil(path)
    assert.is_truthy(message:find("only ~/ is known", 1, true), message)
    local code, _, err = support.run([[unset HOME; packlua -e 'print(select(2, require("pack.io.files").expand("~/a")))' >&2]])
    assert.equal(0, code)
    assert.is_truthy(err:find("HOME is not set", 1, true), err)
  end)

  it("claim folders, each process another one", function()
    assert.equal(folder .. "/deep/run", files.claim(folder .. "/deep/run"))
    assert.equal(folder .. "/deep/run-2", files.claim(folder .. "/deep/run"))
    files.write(folder .. "/file", "")
    assert.equal(folder .. "/file-2", files.claim(folder .. "/file"))
    local path, message = files.claim(folder .. "/file/under")
    assert.is_nil(path)
    assert.is_truthy(message:find(folder .. "/file", 1, true), message)
  end)

  it("have a temporary folder under TMPDIR, which goes with what is in it", function()
    local code, out, err = support.run(("TMPDIR=%s packlua -e %s"):format(folder, support.quote([[
      local files = require "pack.io.files"
      print(files.with_temporary(function(path) files.write(path .. "/a", "x") return path end))
      print(files.with_temporary(function() error("no") end))]])))
    assert.equal(0, code, err)
    assert.equal(folder .. "/packlua-", out:match("^(.-/packlua%-)%w+%s"))
    assert.is_truthy(out:find("nil\t.*no"), out)
    assert.same({}, files.list(folder))
  end)

  it("show their ends", function()
    files.write(folder .. "/f", "one\ntwo\0\n")
    assert.equal("two\0\n", files.tail(folder .. "/f", 5))
    assert.equal("one\ntwo\0\n", files.tail(folder .. "/f", 100))
    assert.is_nil(files.tail(folder .. "/none", 5))
  end)

  it("are refused above the limit, and read at it", function()
    files.write(folder .. "/f", ("x"):rep(5000))
    assert.equal(5000, #files.read(folder .. "/f", 5000))
    local text, message = files.read(folder .. "/f", 4999)
    assert.is_nil(text)
    assert.equal(folder .. "/f: 5000 bytes, more than the limit of 4999", message)
  end)

  it("that are pipes or devices are refused and never waited for", function()
    local text, message = files.read("/dev/zero", 100000)
    assert.is_nil(text)
    assert.equal("/dev/zero: is not a regular file: it is a device", message)
    os.execute("mkfifo " .. folder .. "/pipe")
    text, message = files.read(folder .. "/pipe")
    assert.is_nil(text)
    assert.equal(folder .. "/pipe: is not a regular file: it is a pipe", message)
    for _, act in ipairs {files.write, files.append} do
      local good, problem = pcall(act, folder .. "/pipe", "x")
      assert.is_false(good)
      assert.is_truthy(tostring(problem):find("is not a regular file: it is a pipe", 1, true)
        or tostring(problem):find("cannot be written: it is not a regular file", 1, true), problem)
    end
    assert.is_nil((files.lock(folder .. "/pipe")))
  end)

  it("that are missing, directories or unreadable give nil and the reason", function()
    local text, message = files.read(folder .. "/none")
    assert.is_nil(text)
    assert.equal(folder .. "/none: cannot be opened: No such file or directory", message)
    text, message = files.read(folder)
    assert.is_nil(text)
    assert.equal(folder .. ": is not a regular file: it is a directory", message)
  end)

  it("are written over only as a whole", function()
    files.write(folder .. "/f", "old")
    local code, _, err = support.run(("trap '' XFSZ; ulimit -f 8; packlua -e %s"):format(support.quote(
      ("require('pack.io.files').write(%q, ('x'):rep(100000))"):format(folder .. "/f"))))
    assert.equal(1, code)
    assert.is_truthy(err:find(folder .. "/f: cannot be written: File too large", 1, true), err)
    assert.equal("old", files.read(folder .. "/f"))
    assert.same({"f"}, files.list(folder))
  end)

  it("are not written over directories and devices", function()
    local good, message = pcall(function() files.write(folder, "x") end)
    assert.is_false(good)
    assert.is_truthy(message:find("^spec/files_spec.lua:%d+: " .. folder:gsub("%p", "%%%0")
      .. ": cannot be written: it is a directory$"), message)
    assert.is_false((pcall(files.write, "/dev/null", "x")))
    assert.equal("other", files.kind("/dev/null"))
    assert.is_false((pcall(files.write, folder .. "/none/f", "x")))
  end)

  it("grow at the end", function()
    files.append(folder .. "/f", "a\n")
    files.append(folder .. "/f", "b\n")
    assert.equal("a\nb\n", files.read(folder .. "/f"))
    assert.is_false((pcall(files.append, "/dev/full", "x")))
    assert.is_truthy(native.message():find("/dev/full: is not a regular file: it is a device", 1, true))
  end)

  -- Fails unless fn, which must not wait, refuses the path with this reason.
  local function refused(reason, fn, path, ...)
    local good, message = pcall(fn, path, ...)
    local text = good and native.message() or tostring(message)
    assert.is_truthy(text:find(path .. ": is not a regular file: it is " .. reason, 1, true), text)
  end

  it("are regular files: pipes and devices are neither read, nor grown, nor locked, nor waited for", function()
    assert.equal(0, os.execute("mkfifo " .. folder .. "/pipe"))
    for path, kind in pairs {[folder .. "/pipe"] = "a pipe", ["/dev/zero"] = "a device"} do
      for _, name in ipairs {"read", "append", "appending", "lock", "cut", "lines"} do
        refused(kind, files[name], path, name == "append" and "x" or 1)
      end
      refused(kind, files.copy, path, 1, folder .. "/copy")
      assert.is_nil((files.open(path)))
      assert.is_nil(files.tail(path, 10))
    end
    assert.same({"pipe"}, files.list(folder))
  end)

  it("that grow for long, locks and what is cut are reached through no link", function()
    files.write(folder .. "/own", "mine\n")
    for _, target in ipairs {"own", "none"} do
      os.execute(("ln -sfn %s %s/link"):format(target, folder))
      for _, name in ipairs {"appending", "lock", "cut"} do refused("a link", files[name], folder .. "/link", 0) end
    end
    assert.equal("mine\n", files.read(folder .. "/own"))
    assert.is_true(files.is_link(folder .. "/link"))
    assert.is_false(files.is_link(folder .. "/own"))
    assert.same({"link", "own"}, files.list(folder))
  end)

  it("are cut and copied by lines, however large they are", function()
    files.write(folder .. "/f", "one\n\nthree " .. ("x"):rep(2 ^ 21) .. "\nhalf")
    local size = 4 + 1 + 6 + 2 ^ 21 + 1
    for most, expected in pairs {[0] = {0, 0}, [1] = {1, 4}, [2] = {2, 5}, [3] = {3, size}, [9] = {3, size}} do
      assert.same(expected, {files.lines(folder .. "/f", most)})
    end
    files.copy(folder .. "/f", size, folder .. "/g")
    assert.equal(files.read(folder .. "/f"):sub(1, size), files.read(folder .. "/g"))
    assert.is_false((pcall(files.copy, folder .. "/f", size + 5, folder .. "/h")))
    assert.is_nil(files.kind(folder .. "/h"))
    files.cut(folder .. "/f", 5)
    assert.equal("one\n\n", files.read(folder .. "/f"))
    local found, message = files.lines(folder .. "/none", 1)
    assert.is_nil(found)
    assert.is_truthy(message:find("No such file", 1, true))
  end)

  it("that are damaged are set aside under names of their own", function()
    for i, name in ipairs {"f.damaged", "f.damaged-2", "f.damaged-3"} do
      files.write(folder .. "/f", tostring(i))
      assert.equal(folder .. "/" .. name, files.set_aside(folder .. "/f"))
    end
    assert.equal("1", files.read(folder .. "/f.damaged"))
  end)

  it("have kinds", function()
    files.write(folder .. "/f", "")
    assert.equal("file", files.kind(folder .. "/f"))
    assert.equal("directory", files.kind(folder))
    assert.is_nil(files.kind(folder .. "/none"))
    assert.is_true(files.exists(folder))
    assert.is_false(files.exists(folder .. "/none"))
    assert.is_nil(files.size(folder))
  end)

  it("refuse a path that is not a string", function()
    assert.is_false((pcall(files.read)))
    assert.is_false((pcall(files.write, nil, "x")))
    assert.is_false((pcall(files.kind, {})))
  end)
end)

describe("Folders", function()
  local folder
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  it("are made with those above them, twice if need be", function()
    files.mkdir(folder .. "/a//b/c/")
    files.mkdir(folder .. "/a/b/c")
    assert.equal("directory", files.kind(folder .. "/a/b/c"))
  end)

  it("are not made below files", function()
    files.write(folder .. "/f", "")
    assert.is_false((pcall(files.mkdir, folder .. "/f/a")))
    assert.is_truthy(native.message():find(folder .. "/f: cannot be made a directory: Not a directory", 1, true))
  end)

  it("are listed in the order of bytes", function()
    for _, name in ipairs {"b", "a", "B", ".hidden", "\195\169"} do files.write(folder .. "/" .. name, "") end
    assert.same({".hidden", "B", "a", "b", "\195\169"}, files.list(folder))
    local list, message = files.list(folder .. "/none")
    assert.is_nil(list)
    assert.is_truthy(message:find("cannot be listed: No such file or directory", 1, true))
  end)

  it("with a line break in a name are refused, as a list could not show it", function()
    support.write(folder .. "/a\nb", "")
    local list, message = files.list(folder)
    assert.is_nil(list)
    assert.is_truthy(message:find("a name in it has a line break", 1, true))
  end)

  it("and names are taken out of paths", function()
    assert.equal("c", files.basename("/a/b/c"))
    assert.equal("b", files.basename("/a/b/"))
    assert.equal("/", files.basename("/"))
    assert.equal("/a/b", files.dirname("/a/b/c"))
    assert.equal("/", files.dirname("/a"))
    assert.equal(".", files.dirname("a"))
    assert.equal("a/b", files.join("a", "b"))
    assert.equal("a/b", files.join("a/", "b"))
    assert.equal("/b", files.join("a", "/b"))
  end)
end)

describe("A lock", function()
  it("can be taken, looked at and given up from Lua", function()
    local folder = support.temporary()
    local path = folder .. "/lock"
    assert.is_false(files.is_locked(path))
    local held = assert(files.lock(path))
    assert.is_true(files.is_locked(path))
    local other, message = files.lock(path)
    assert.is_nil(other)
    assert.is_truthy(message:find("locked by another process", 1, true), message)
    files.unlock(held)
    assert.is_false(files.is_locked(path))
    assert.is_nil((files.lock(folder .. "/none/lock")))
    support.remove(folder)
  end)

  it("neither follows a link nor overwrites a file that is no lock", function()
    local folder = support.temporary()
    support.write(folder .. "/mine", "process of peace\n")
    os.execute(("ln -s mine %s/link"):format(folder))
    local lock, message = files.lock(folder .. "/link")
    assert.is_nil(lock)
    assert.is_truthy(message:find("/link: is not a regular file: it is a link", 1, true), message)
    support.write(folder .. "/mine", "my words\n")
    lock, message = files.lock(folder .. "/mine")
    assert.is_nil(lock)
    assert.is_truthy(message:find("/mine: is there and is no lock of packlua's: move it away", 1, true), message)
    assert.equal("my words\n", support.read(folder .. "/mine"))
    support.remove(folder)
  end)

  it("keeps out other holders until it is given up", function()
    local folder = support.temporary()
    local first, second = ffi.new("int[1]"), ffi.new("int[1]")
    assert.equal(C.PK_OK, C.pk_file_lock(folder .. "/lock", first))
    assert.equal(C.PK_INVALID, C.pk_file_lock(folder .. "/lock", second))
    assert.is_truthy(native.message():find("locked by another process %(process %d+ on "), native.message())
    assert.equal(-1, second[0])
    C.pk_file_unlock(first[0])
    assert.equal(C.PK_OK, C.pk_file_lock(folder .. "/lock", second))
    C.pk_file_unlock(second[0])
    support.remove(folder)
  end)

  it("ends with its process", function()
    local folder = support.temporary()
    local code = support.run(("packlua -e %s"):format(support.quote(
      ("local ffi = require 'ffi' local C = require('pack.native').C " ..
        "os.exit(C.pk_file_lock(%q, ffi.new('int[1]')) == C.PK_OK and 7 or 1)"):format(folder .. "/lock"))))
    assert.equal(7, code)
    local lock = ffi.new("int[1]")
    assert.equal(C.PK_OK, C.pk_file_lock(folder .. "/lock", lock))
    C.pk_file_unlock(lock[0])
    support.remove(folder)
  end)
end)

describe("Clocks", function()
  it("tell time since 1970, and time that never goes back", function()
    assert.is_true(math.abs(C.pk_time() - os.time()) <= 2)
    local before = C.pk_clock()
    for _ = 1, 1000 do
      local now = C.pk_clock()
      assert.is_true(now >= before)
      before = now
    end
  end)
end)
