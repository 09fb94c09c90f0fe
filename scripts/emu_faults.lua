-- Plants faults in kernels and host code of the CUDA device and checks that specs on the emulated device catch each:
-- packlua scripts/emu_faults.lua BUILD
-- BUILD is a build folder with the emulated device and compile_commands.json; nothing in it is changed. Exit code 1: a
-- fault was not caught, or a spec fails without one; 3: the build has no emulated device.
local files = require "pack.io.files"
local json = require "pack.io.json"

local build = arg[1] or "build"
local device_spec, parity_spec = "spec/cuda_device_spec.lua", "spec/cuda_parity_spec.lua"

-- Each fault: the file, the text that gives way to another, what is compiled anew for it, the spec's cases that must fail,
-- settings of the run, and a text that the failure must show. sanitizer: what is compiled anew, and the emulation, are
-- built with it.
local faults = {
  {name = "a barrier is missing in the sum over a block", file = "kernels/numbers.h",
    old = "parts[threadIdx.x / 32] = x;\n  __syncthreads();", new = "parts[threadIdx.x / 32] = x;",
    compile = "train", spec = parity_spec, filter = "gradient_norm of f32", shows = "gradient_norm of f32"},
  {name = "the same barrier, seen by ThreadSanitizer", file = "kernels/numbers.h", sanitizer = "thread",
    old = "parts[threadIdx.x / 32] = x;\n  __syncthreads();", new = "parts[threadIdx.x / 32] = x;",
    compile = "train", spec = parity_spec, filter = "gradient_norm of f32", shows = "data race"},
  {name = "some threads pass by a barrier", file = "kernels/numbers.h",
    old = "x = pk_warp_sum(x);\n  __syncthreads();", new = "x = pk_warp_sum(x);\n  if (threadIdx.x >= 32) __syncthreads();",
    compile = "train", spec = parity_spec, filter = "gradient_norm of f32", shows = "threads wait at different barriers"},
  {name = "a kernel goes one row too far", file = "kernels/elementwise.cu", sanitizer = "address",
    old = "row < rows; row += gridDim.y", new = "row <= rows; row += gridDim.y", compile = "elementwise",
    spec = parity_spec, filter = "negate of f64", shows = "AddressSanitizer"},
  {name = "a sum reads one value too many of shared memory", file = "kernels/numbers.h", sanitizer = "address",
    old = "warp < threads / 32", new = "warp <= threads / 32", compile = "train", spec = parity_spec,
    filter = "gradient_norm of f32", shows = "AddressSanitizer"},
  {name = "a stream does not wait for a copy on another one", file = "host/cuda/copy.c",
    old = "error = cudaStreamWaitEvent(stream, staging->copied, 0)", new = "error = cudaSuccess",
    spec = device_spec, filter = "leaves the caller free", settings = "PACKLUA_EMU_LAZY=1", shows = "leaves the caller free"},
  {name = "pinned memory is filled again before it was copied", file = "host/cuda/copy.c",
    old = "error = cudaEventSynchronize(other->taken)", new = "error = cudaSuccess",
    spec = device_spec, filter = "leaves the caller free", settings = "PACKLUA_EMU_LAZY=1", shows = "leaves the caller free"},
  {name = "a trace does not know the nodes of an executable graph", file = "host/cuda/cupti.c",
    old = "note_copy(data, graph->node, graph->originalNode)", new = "(void)note_copy",
    spec = "spec/cuda_trace_spec.lua", filter = "as if they had been launched", shows = "kernels of graphs"},
}

local function run(command)
  local pipe = assert(io.popen("(" .. command .. ") 2>&1; echo :$?"))
  local text = pipe:read "*a"
  pipe:close()
  local out, code = text:match("^(.*):(%d+)\n$")
  return tonumber(code), out
end

local function must(command)
  local code, out = run(command)
  if code ~= 0 then error(command .. "\n" .. out, 0) end
  return out
end

if not files.exists(build .. "/libpackemu.so") then
  print(build .. ": there is no emulated device in this build")
  os.exit(3)
end

build = must("cd " .. build .. " && pwd -P"):match "[^\n]+"
local root = must("pwd -P"):match "[^\n]+"
local folder = must("mktemp -d"):match "[^\n]+"

-- How the build compiles each of the device's files.
local commands = {}
for _, entry in ipairs(json.decode(assert(files.read(build .. "/compile_commands.json")))) do
  commands[entry.file] = entry.command
end

-- Compiles a file as the build does, from another place and with more flags.
local function compile(own, source, object, flags)
  local command = assert(commands[own], own .. " is not compiled by this build")
  command = command:gsub("%-I" .. root:gsub("%p", "%%%0") .. "/kernels", "-I" .. folder .. "/kernels")
  command = command:gsub(" %-o .*$", "")
  must(("cd %s && %s %s -o %s -c %s"):format(build, command, flags or "", object, source))
end

-- A library of the build's objects, some of them replaced: {object's name = path}.
local function link(replaced, flags)
  local objects = {}
  for path in must(("cd %s && find CMakeFiles/packemu.dir CMakeFiles/packcuda_host.dir -name '*.o'"):format(build)):gmatch "[^\n]+" do
    objects[#objects + 1] = replaced[path:match "[^/]*$"] or build .. "/" .. path
  end
  must(("c++ -shared %s -Wl,-Bsymbolic -o %s/libpackemu.so %s -lpthread -ldl -lm"):format(flags, folder,
    table.concat(objects, " ")))
end

local emulation = {"fiber", "pool", "runtime", "scheduler"}

-- Objects of the emulation itself under a sanitizer; the fibers are told to it, see kernels/emu/fiber.h.
local function emulation_with(sanitizer, replaced)
  for _, name in ipairs(emulation) do
    local source = root .. "/kernels/emu/" .. name .. ".cpp"
    local object = ("%s/%s-%s.o"):format(folder, name, sanitizer)
    local own = sanitizer == "thread" and (name == "fiber" or name == "scheduler") and "-DPK_EMU_RACES=1"
      or "-fsanitize=" .. sanitizer
    if not files.exists(object) then compile(source, source, object, own) end
    replaced[name .. ".cpp.o"] = object
  end
end

local function build_with(fault, planted)
  local flags = fault.sanitizer and "-fsanitize=" .. fault.sanitizer or ""
  must(("rm -rf %s/kernels && cp -r kernels %s/kernels"):format(folder, folder))
  local text = assert(files.read(fault.file))
  local first, last = text:find(fault.old, 1, true)
  assert(first, fault.file .. " has no such text: " .. fault.old)
  if planted then text = text:sub(1, first - 1) .. fault.new .. text:sub(last + 1) end
  local replaced = {}
  if fault.compile then -- a family of kernels
    files.write(folder .. "/" .. fault.file, text)
    local source = ("%s/%s.cpp"):format(folder, fault.compile)
    files.write(source, ('#include "%s/kernels/%s.cu"\n'):format(folder, fault.compile))
    compile(("%s/emu/%s.cpp"):format(build, fault.compile), source, folder .. "/changed.o", flags)
    replaced[fault.compile .. ".cpp.o"] = folder .. "/changed.o"
  else
    local source = folder .. "/" .. files.basename(fault.file)
    files.write(source, text)
    compile(root .. "/" .. fault.file, source, folder .. "/changed.o", flags)
    replaced[files.basename(fault.file) .. ".o"] = folder .. "/changed.o"
  end
  if fault.sanitizer then emulation_with(fault.sanitizer, replaced) end
  link(replaced, flags)
end

-- Runs the fault's specs with the library just linked, in a process whose sanitizer is loaded first.
local function run_specs(fault)
  local settings = "PACKLUA_TEST_CASES=2 " .. (fault.settings or "")
  if fault.sanitizer then
    local name = fault.sanitizer == "thread" and "libtsan.so" or "libasan.so"
    settings = settings .. " LD_PRELOAD=" .. must("c++ -print-file-name=" .. name):match "[^\n]+"
      .. " ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1"
  end
  local launcher = run("setarch $(uname -m) -R true") == 0 and "setarch $(uname -m) -R" or ""
  return run(("env %s %s %s/packlua spec/support/busted.lua --filter='%s' %s"):format(settings, launcher, folder,
    fault.filter, fault.spec))
end

local function check(fault)
  build_with(fault, false)
  local code, out = run_specs(fault)
  if code ~= 0 then return "the spec fails without the fault:\n" .. out end
  build_with(fault, true)
  code, out = run_specs(fault)
  if code == 0 then return "not caught" end
  if not out:find(fault.shows, 1, true) then return ("caught, but without '%s':\n%s"):format(fault.shows, out) end
end

local missed = 0
local good, message = pcall(function()
  must(("cp %s/packlua %s/packlua.home %s/"):format(build, build, folder))
  for _, fault in ipairs(faults) do
    local problem = check(fault)
    print(("%-60s %s"):format(fault.name, problem or "caught"))
    if problem then missed = missed + 1 end
  end
end)
must("rm -rf " .. folder)
if not good then
  io.stderr:write("emu_faults.lua: ", tostring(message), "\n")
  os.exit(1)
end
print(("%d of %d faults caught"):format(#faults - missed, #faults))
os.exit(missed == 0 and 0 or 1)
