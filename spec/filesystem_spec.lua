-- File systems that cannot lock, sync folders, change permissions or say how much room they have. A small library
-- before the system's stands in for them.
local files = require "pack.io.files"
local support = require "spec.support.helper"

local shim = [[
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static int wanted(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : 0;
}

int flock(int fd, int operation) {
  errno = wanted("SHIM_FLOCK");
  return errno ? -1 : ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(fd, operation);
}

int fsync(int fd) {
  struct stat about;
  int folder = fstat(fd, &about) == 0 && S_ISDIR(about.st_mode);
  errno = wanted(folder ? "SHIM_FSYNC_FOLDER" : "SHIM_FSYNC_FILE");
  return errno ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int chmod(const char *path, mode_t mode) {
  errno = wanted("SHIM_CHMOD");
  return errno ? -1 : ((int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "chmod"))(path, mode);
}

int statvfs(const char *path, struct statvfs *disk) {
  int result = ((int (*)(const char *, struct statvfs *))dlsym(RTLD_NEXT, "statvfs"))(path, disk);
  if (wanted("SHIM_BLOCKS") == 1) disk->f_blocks = disk->f_bfree = disk->f_bavail = 0;
  if (wanted("SHIM_BLOCKS") == 2) disk->f_bavail = 3;
  errno = wanted("SHIM_STATVFS");
  return errno ? -1 : result;
}
]]

local EINVAL, ENOSYS, EOPNOTSUPP, ENOLCK, ENOTSUPP, EIO = 22, 38, 95, 37, 524, 5

describe("Training on a file system", function()
  local folder, library
  setup(function()
    folder = support.temporary()
    support.write(folder .. "/shim.c", shim)
    local built = os.execute(("cd %s && cc -shared -fPIC -o shim.so shim.c -ldl 2> /dev/null"):format(folder)) == 0
    local works = built and support.run(("LD_PRELOAD=%s/shim.so packlua -e 'x = 1'"):format(folder)) == 0
    library = works and folder .. "/shim.so"
    local lines = {}
    for i = 1, 300 do lines[i] = ("the %d workers of the ring mix, line %d\n"):format(i % 7, i) end
    support.write(folder .. "/text.txt", table.concat(lines))
  end)
  teardown(function() support.remove(folder) end)

  local count = 0

  -- Trains two short steps where the system answers so; returns exit code, output and errors, and the run's folder.
  local function train(environment, settings)
    count = count + 1
    local output = ("%s/run%d"):format(folder, count)
    local code, out, err = support.run(("LD_PRELOAD=%s %s packlua recipes/train.lua --config configs/smoke.lua "
      .. "--sample 0 --output %s --set data.text=%s/text.txt %s")
      :format(library, environment, output, folder, settings or ""))
    return code, out, err, output
  end

  -- Fails unless training ends well, with its files there, and says `remark` once.
  local function goes_on(environment, remark)
    local code, out, err, output = train(environment)
    assert.equal(0, code, err)
    assert.is_true(files.exists(output .. "/result.json"))
    assert.is_true(files.exists(output .. "/step-00000001.state.safetensors.zst"))
    local log, found = files.read(output .. "/run.log"), 0
    for _ in log:gmatch(remark:gsub("%p", "%%%0")) do found = found + 1 end
    assert.equal(1, found, environment .. ": " .. out .. log)
  end

  for _, reason in ipairs {ENOLCK, ENOSYS, EOPNOTSUPP, ENOTSUPP} do
    it(("without locks, errno %d, goes on and says so"):format(reason), function()
      if not library then return pending("no C compiler, or no library can be put before the system's") end
      goes_on("SHIM_FLOCK=" .. reason, "this file system has no locks; nothing keeps other processes out")
    end)
  end

  for _, reason in ipairs {EINVAL, ENOSYS, EOPNOTSUPP, ENOTSUPP} do
    it(("that cannot sync folders, errno %d, saves and says so"):format(reason), function()
      if not library then return pending("no C compiler, or no library can be put before the system's") end
      goes_on("SHIM_FSYNC_FOLDER=" .. reason, "this file system cannot bring what is written to disk")
    end)
  end

  it("that cannot sync files saves and says so", function()
    if not library then return pending("no C compiler, or no library can be put before the system's") end
    goes_on("SHIM_FSYNC_FILE=" .. ENOSYS, "this file system cannot bring what is written to disk")
  end)

  it("that lacks such things goes on with a cache prepared there", function()
    if not library then return pending("no C compiler") end
    local EPERM = 1
    for number, case in ipairs {
      {"SHIM_FLOCK=" .. ENOLCK, "has no locks"}, {"SHIM_FLOCK=" .. ENOTSUPP, "has no locks"},
      {"SHIM_FSYNC_FOLDER=" .. EOPNOTSUPP, "cannot bring what is written to disk"},
      {"SHIM_CHMOD=" .. EPERM, "refuses to change permissions"},
    } do
      local cache = ("%s/cache%d"):format(folder, number)
      local code, out, err = support.run(("LD_PRELOAD=%s %s packlua recipes/prepare.lua --tokenizer bytes --train %s/text.txt "
        .. "--output %s"):format(library, case[1], folder, cache))
      assert.equal(0, code, err)
      assert.is_truthy(out:find("note: .*" .. case[2]), out)
      assert.is_truthy(files.exists(cache .. "/manifest.json"))
    end
  end)

  it("that has no locks keeps a folder that another preparation may be writing", function()
    if not library then return pending("no C compiler") end
    local cache = folder .. "/cache-shared"
    local function prepare(note)
      os.execute("mkdir -p " .. cache .. ".partial")
      support.write(cache .. ".partial/.packlua-preparing", note)
      return support.run(("LD_PRELOAD=%s SHIM_FLOCK=%d packlua recipes/prepare.lua --tokenizer bytes --train %s/text.txt "
        .. "--output %s"):format(library, ENOSYS, folder, cache))
    end
    local code, _, err = prepare("process 1 on elsewhere\n")
    assert.equal(1, code)
    assert.is_truthy(err:find("process 1 on elsewhere may be writing it", 1, true), err)
    local name = support.read("/proc/sys/kernel/hostname")
    code, _, err = prepare("process 1 on " .. name)
    assert.equal(1, code)
    assert.is_truthy(err:find("may be writing it", 1, true), err)
    code, _, err = prepare("process 999999999 on " .. name) -- more than any process has
    assert.equal(0, code, err)
  end)

  it("that fails to sync is told apart", function()
    if not library then return pending("no C compiler, or no library can be put before the system's") end
    local code, _, err = train("SHIM_FSYNC_FILE=" .. EIO)
    assert.equal(1, code)
    assert.is_truthy(err:find("cannot be brought to disk: Input/output error", 1, true), err)
  end)

  for _, answer in ipairs {"SHIM_BLOCKS=1", "SHIM_STATVFS=" .. ENOSYS} do
    it(("that does not say how much room it has, %s, saves and says so"):format(answer), function()
      if not library then return pending("no C compiler, or no library can be put before the system's") end
      goes_on(answer, "this file system does not say how much room it has")
    end)
  end

  it("without room for what is to be saved is refused before the first step", function()
    if not library then return pending("no C compiler, or no library can be put before the system's") end
    local code, _, err, output = train("SHIM_BLOCKS=2")
    assert.equal(1, code)
    assert.is_truthy(err:find("the run saves [%d.]+ MiB at once, and the disk has 0%.0 MiB left"), err)
    assert.equal("", files.read(output .. "/metrics.jsonl"))
  end)

  it("without room trains if nothing is to be saved, and says what a signal would do", function()
    if not library then return pending("no C compiler, or no library can be put before the system's") end
    local code, out, err = train("SHIM_BLOCKS=2", "--set training.checkpoint_policy=none --set training.checkpoint_steps=off")
    assert.equal(0, code, err)
    assert.is_truthy(out:find("on a signal the run could not be saved", 1, true), out)
  end)
end)
