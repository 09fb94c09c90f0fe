-- How much memory and how many cores a process may use.
local ffi = require "ffi"
local native = require "pack.native"
local support = require "spec.support.helper"

ffi.cdef [[
  int64_t pk_cpu_cgroup_left(const char *groups, const char *root);
  int64_t pk_cores_of(const char *groups, const char *root);
]]

local UNLIMITED = 2 ^ 63 -- as a Lua number

describe("the memory that cgroups leave", function()
  local root

  before_each(function() root = support.temporary() end)
  after_each(function() support.remove(root) end)

  -- Files of one group, and what is left to a process of the groups listed.
  local function group(path, files)
    os.execute("mkdir -p " .. support.quote(root .. path))
    for name, text in pairs(files) do support.write(root .. path .. "/" .. name, text .. "\n") end
  end
  local function left(groups)
    support.write(root .. "/groups", groups)
    return tonumber(native.C.pk_cpu_cgroup_left(root .. "/groups", root))
  end

  it("is the limit less what is used", function()
    group("/job", {["memory.max"] = "1000", ["memory.current"] = "300"})
    assert.equal(700, left "0::/job\n")
  end)

  it("is the least of the group's and of those above it, which is where batch systems set limits", function()
    group("/slurm/job_7", {["memory.max"] = "5000", ["memory.current"] = "4000"})
    group("/slurm/job_7/step_0/task_0", {["memory.max"] = "max", ["memory.current"] = "100"})
    assert.equal(1000, left "0::/slurm/job_7/step_0/task_0\n")
    group("/slurm/job_7/step_0", {["memory.max"] = "600", ["memory.current"] = "100"})
    assert.equal(500, left "0::/slurm/job_7/step_0/task_0\n")
  end)

  it("counts cached files that nobody uses as free", function()
    group("/job", {["memory.max"] = "1000", ["memory.current"] = "900",
      ["memory.stat"] = "anon 100\nactive_file 50\ninactive_file 750"})
    assert.equal(850, left "0::/job\n")
  end)

  it("is found in the memory controller of version 1 too", function()
    group("/memory/slurm/job_7", {["memory.limit_in_bytes"] = "2000", ["memory.usage_in_bytes"] = "500"})
    assert.equal(1500, left "3:cpuset:/x\n2:cpu,memory:/slurm/job_7/task_0\n")
    assert.equal(UNLIMITED, left "2:memory_like:/slurm/job_7\n")
  end)

  it("is nothing when more is used than allowed, and not limited without a limit or a group", function()
    group("/job", {["memory.max"] = "1000", ["memory.current"] = "1200"})
    assert.equal(0, left "0::/job\n")
    group("/free", {["memory.max"] = "max", ["memory.current"] = "1200"})
    assert.equal(UNLIMITED, left "0::/free\n")
    assert.equal(UNLIMITED, left "0::/gone\nnot a line\n")
    assert.equal(UNLIMITED, tonumber(native.C.pk_cpu_cgroup_left(root .. "/none", root)))
  end)
end)

describe("the cores of a process", function()
  local root
  local all = tonumber(native.C.pk_cores_of("/nowhere", "/nowhere"))

  before_each(function() root = support.temporary() end)
  after_each(function() support.remove(root) end)

  local function group(path, files)
    os.execute("mkdir -p " .. support.quote(root .. path))
    for name, text in pairs(files) do support.write(root .. path .. "/" .. name, text .. "\n") end
  end
  local function cores(groups)
    support.write(root .. "/groups", groups)
    return tonumber(native.C.pk_cores_of(root .. "/groups", root))
  end

  it("are those of its affinity mask", function()
    local allowed = 0
    local list = io.open("/proc/self/status"):read("*a"):match("Cpus_allowed_list:%s*(%S+)")
    for first, last in (list .. ","):gmatch("(%d+)%-?(%d*),") do
      allowed = allowed + (last == "" and 1 or last - first + 1)
    end
    assert.equal(allowed, all)
  end)

  it("are no more than the quota of its group, or of one above it, gives time for", function()
    group("/box", {["cpu.max"] = "100000 100000"})
    group("/box/inner/most", {["cpu.max"] = "max 100000"})
    assert.equal(1, cores "0::/box\n")
    assert.equal(1, cores "0::/box/inner/most\n")
    assert.equal(all, cores "0::/elsewhere\n")
  end)

  it("are rounded, and one at least", function()
    group("/half", {["cpu.max"] = "20000 50000"})
    group("/more", {["cpu.max"] = "150000 100000"})
    group("/large", {["cpu.max"] = "100000000 100000"})
    assert.equal(1, cores "0::/half\n")
    assert.equal(math.min(2, all), cores "0::/more\n")
    assert.equal(all, cores "0::/large\n")
  end)

  it("are found in the cpu controller of version 1 under both of its names", function()
    group("/cpu/job", {["cpu.cfs_quota_us"] = "100000", ["cpu.cfs_period_us"] = "100000"})
    group("/cpu,cpuacct/other", {["cpu.cfs_quota_us"] = "100000", ["cpu.cfs_period_us"] = "100000"})
    group("/cpu/free", {["cpu.cfs_quota_us"] = "-1", ["cpu.cfs_period_us"] = "100000"})
    assert.equal(1, cores "4:cpu,cpuacct:/job/step\n")
    assert.equal(1, cores "4:cpu,cpuacct:/other\n")
    assert.equal(all, cores "4:cpu,cpuacct:/free\n")
    assert.equal(all, cores "4:cpuset:/job\n")
  end)

  it("stay the same when a job script asks OpenMP to bind its threads", function()
    local count = [[print(require("pack").context.create {device = "cpu"}:threads(),
      io.open("/proc/self/status"):read("*a"):match("Cpus_allowed_list:%s*(%S+)"))]]
    local function seen(variables)
      local code, out, err = support.run(("env %s %s -e %s"):format(variables, support.quote(support.program),
        support.quote(count)))
      assert.equal(0, code, err)
      return out
    end
    local plain = seen "-u OMP_PROC_BIND -u OMP_PLACES -u GOMP_CPU_AFFINITY"
    assert.equal(all, tonumber(plain:match("^%d+")))
    for _, variables in ipairs {"OMP_PROC_BIND=true", "OMP_PROC_BIND=close OMP_PLACES=cores", "GOMP_CPU_AFFINITY=0"} do
      assert.equal(plain, seen(variables), variables)
    end
  end)
end)
