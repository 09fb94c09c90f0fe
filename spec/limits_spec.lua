-- How much memory the cgroups of a process leave it.
local ffi = require "ffi"
local native = require "pack.native"
local support = require "spec.support.helper"

ffi.cdef "int64_t pk_cpu_cgroup_left(const char *groups, const char *root);"

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
