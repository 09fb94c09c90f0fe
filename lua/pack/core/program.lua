--- Recorded programs: a function's operations, recorded once for each set of input shapes and replayed from C.
--
-- The function runs once under recording: its operations are checked and noted, nothing is computed, so it must not look
-- at values. What it computes may depend on its inputs (copied in by every call), on tensors from outside (read and
-- written in place: parameters, moments, scalars) and on Lua values, which are frozen into the program.
local caller = require "pack.core.caller"
local context = require "pack.core.context"
local dispatch = require "pack.core.dispatch"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local native = require "pack.native"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"
local whole = require "pack.core.whole"

caller.register()

local C = native.C

local program = {}

local Program = {}
Program.__index = Program

local function check_ok(status)
  if status ~= 0 then caller.raise("%s", native.message()) end
end

-- Tensors like those given, for the program to read its inputs from.
local function inputs_like(given)
  local inputs = {}
  for i, one in ipairs(given) do
    inputs[i] = tensor.zeros(one:sizes(), one.dtype, {category = "data", context = {handle = one.context}})
  end
  return inputs
end

-- All values up to the last that is not nil: their number as n.
local function pack_values(...)
  local values, n = {...}, select("#", ...)
  while n > 0 and values[n] == nil do n = n - 1 end
  values.n = n
  return values
end

local function check_results(results, count)
  for i = 1, count do
    if not dispatch.is_tensor(results[i]) then
      caller.raise("compile: result %d is a %s, not a tensor", i, type(results[i]))
    end
  end
end

-- Refuses what a gradient is being taken of, which would not pass through a program.
local function refuse_tracked(tensors)
  if not dispatch.is_tracked then return end
  for one in pairs(tensors) do
    if dispatch.is_tracked(one) then
      caller.raise("a gradient is being taken of a tensor that a recorded program uses, and would not pass through the "
        .. "program. Take the gradient inside, pack.compile(function(x) return pack.grad(...) end), or detach the tensor")
    end
  end
end

-- Ends the recording with the results, and has the program planned.
local function finish(self, count, level)
  check_results(self.results, count)
  refuse_tracked(self.used)
  local pointers = ffi.new("const pk_tensor *[?]", count + 1)
  for i, result in ipairs(self.results) do pointers[i - 1] = result end
  local status = C.pk_program_end(self.handle, pointers, count, level)
  if status == C.PK_INTERRUPTED then failure.interrupted() end
  check_ok(status)
end

local levels = {none = C.PK_RECOMPUTE_NONE, cheap = C.PK_RECOMPUTE_CHEAP, auto = C.PK_RECOMPUTE_AUTO,
  products = C.PK_RECOMPUTE_PRODUCTS}

local function level_of(options)
  local name = options and options.recompute or "auto"
  return levels[name] or caller.raise("recompute '%s' is not none, cheap, auto or products", tostring(name))
end

-- Runs fn under recording. Returns whether it came to its end, what it returned as pack_values does, and the set of
-- tensors that its operations were given.
local function note(fn, inputs)
  local outer, used = dispatch.recording, setmetatable({}, {__mode = "k"})
  dispatch.recording = used
  local outcome = pack_values(dispatch.untracked(function() return whole("compile", fn, unpack(inputs)) end))
  dispatch.recording = outer
  return outcome, used
end

--- Records fn(unpack(inputs)) on a device context. Returns the program; its results are those of fn.
-- options: recompute, which results are made again instead of being kept while they wait long: "none", "cheap"
-- (norms, activations, casts), "auto" (the default: also the products that save most memory for their work, up to
-- a twentieth of all products' operations more) or "products" (all that can be).
function program.record(fn, inputs, device, options)
  local handle, level = context.handle_of(device), level_of(options)
  local made = ffi.new("pk_program *[1]")
  check_ok(C.pk_program_begin(handle, made))
  local self = setmetatable({handle = ffi.gc(made[0], C.pk_program_free), inputs = inputs, context = handle}, Program)
  local outcome, used = note(fn, inputs)
  if not outcome[1] then
    self:free()
    error(outcome[2], 0)
  end
  self.results, self.used = {unpack(outcome, 2, outcome.n)}, used
  local ok, message = pcall(finish, self, outcome.n - 1, level)
  if not ok then
    self:free()
    error(message, 0)
  end
  return self
end

local function refuse_freed(self)
  if not self.handle then caller.raise("the program was freed") end
end

--- Runs the program on what its inputs hold. Its results have new values then. What it writes to tensors from
-- outside, other than gradients, is written whole or, when ^C interrupts it, not at all.
function Program:run()
  refuse_freed(self)
  refuse_tracked(self.used)
  if not self.prepared then
    dispatch.attempt(self.context, function() return C.pk_program_prepare(self.handle) end)
    self.prepared = true
  end
  local status = C.pk_program_run(self.handle)
  if status == C.PK_INTERRUPTED then failure.interrupted() end
  check_ok(status)
  if not self.said and C.pk_program_remark(self.handle)[0] ~= 0 then
    self.said = true
    self.say("packlua: a recorded program is run operation by operation: " .. self:remark() .. "\n")
  end
end

--- Takes memory for programs of one context that run one after the other: one piece, as large as the largest needs. The
-- results of one are readable until another runs.
function program.share(programs)
  local handles = ffi.new("pk_program *[?]", #programs + 1)
  for i, one in ipairs(programs) do
    refuse_freed(one)
    handles[i - 1] = one.handle
  end
  if #programs == 0 then return end
  dispatch.attempt(programs[1].context, function() return C.pk_programs_prepare(handles, #programs) end)
  for _, one in ipairs(programs) do one.prepared = true end
end

--- Where a remark goes, once: to standard error. Another function can be put in its place.
function Program.say(text)
  io.stderr:write(text)
end

--- Why the program is run operation by operation although the device could run it as one; "" if there is nothing to say.
function Program:remark()
  refuse_freed(self)
  return ffi.string(C.pk_program_remark(self.handle))
end

--- The plan in bytes and counts: recorded, dropped, merged, fused, recomputed, operations, buffers, activations, workspace, slab.
function Program:memory()
  refuse_freed(self)
  local read = ffi.new("pk_program_plan")
  C.pk_program_read_plan(self.handle, read)
  local plan = {}
  for _, name in ipairs {"recorded", "dropped", "merged", "fused", "recomputed", "operations", "buffers", "activations",
    "workspace", "slab"} do
    plan[name] = tonumber(read[name])
  end
  return plan
end

--- Text with one line per operation: name, dtype, shape and place of inputs and outputs.
function Program:describe()
  local lines, text = {}, ffi.new("char[2048]")
  for i = 0, self:memory().operations - 1 do
    check_ok(C.pk_program_describe(self.handle, i, text, 2048))
    lines[#lines + 1] = ("%4d  %s"):format(i, ffi.string(text))
  end
  return table.concat(lines, "\n")
end

--- Gives the program's memory back now; results that are alive keep it.
function Program:free()
  if not self.handle then return end
  C.pk_program_free(ffi.gc(self.handle, nil))
  self.handle, self.inputs, self.results, self.used = nil, nil, nil, nil
end

-- What tells apart the programs of one function: dtypes and shapes of the inputs.
local function key_of(inputs)
  local parts = {}
  for i, one in ipairs(inputs) do
    if not dispatch.is_tensor(one) then
      caller.raise("compile: input %d is a %s, not a tensor", i, type(one))
    end
    parts[i] = one.dtype .. table.concat(one:sizes(), ",")
  end
  return table.concat(parts, ";")
end

local Compiled = {}
Compiled.__index = Compiled

function Compiled:__call(...)
  local given = {...}
  local key = key_of(given)
  for _, one in ipairs(given) do refuse_tracked {[one] = true} end
  local one = self.programs[key]
  if not one then
    one = program.record(self.fn, inputs_like(given), given[1] and {handle = given[1].context}, self.options)
    self.programs[key] = one
  end
  for i, input in ipairs(given) do ops.copy(input, {out = one.inputs[i]}) end
  one:run()
  return unpack(one.results)
end

--- The program for inputs of these shapes and dtypes, or nil if there is none yet.
function Compiled:program(...)
  return self.programs[key_of({...})]
end

--- Frees all programs; the function is recorded anew when it is called again.
function Compiled:free()
  for _, one in pairs(self.programs) do one:free() end
  self.programs = {}
end

--- A callable object that behaves as fn, a function of tensors that returns tensors: recorded at the first call with inputs
-- of given shapes, replayed from then on. Its results are overwritten by the next call. options: see program.record.
function program.compile(fn, options)
  level_of(options)
  return setmetatable({fn = fn, options = options, programs = {}}, Compiled)
end

return program
