-- Every operation of the CUDA device against the CPU's, on random shapes and layouts. PACKLUA_TEST_DEVICE names
-- another device than the emulated one, such as cuda:0; PACKLUA_TEST_CASES says how many shapes (12).
local context = require "pack.core.context"
local dispatch = require "pack.core.dispatch"
local ffi = require "ffi"
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local samples = require "spec.support.samples"
local tensor = require "pack.core.tensor"

local device = os.getenv "PACKLUA_TEST_DEVICE" or "emu"
local CASES = tonumber(os.getenv "PACKLUA_TEST_CASES") or 12

-- Dtypes of the first float input; operations that are not here take f32 and f64.
local dtypes = {
  cast = {"f64", "f32", "bf16", "i32"}, copy = {"f64", "f32", "bf16", "i32"},
  matmul = {"f64", "f32", "bf16"}, attention = {"f64", "f32", "bf16"}, attention_grad = {"f64", "f32", "bf16"},
  linear_cross_entropy = {"f64", "f32", "bf16"}, linear_cross_entropy_grad = {"f64", "f32", "bf16"},
  linear_cross_entropy_step = {"f64", "f32", "bf16"},
  inverse_count = {"f64"},
}
for _, name in ipairs {"transpose", "slice", "pad", "concat", "expand", "reshape", "fill"} do
  dtypes[name] = {"f64", "f32", "bf16", "i32"}
end
for _, name in ipairs {"embedding", "random_normal", "random_uniform"} do dtypes[name] = {"f64", "f32", "bf16"} end

-- How far results may be from the CPU's, relative to the largest: by default what a different order of
-- sums and other approximations of functions make. Operations that round once are exact.
local default_tolerance = {f64 = 1e-13, f32 = 4e-6, bf16 = 2e-5, i32 = 0}
local exact = {f64 = 0, f32 = 0, bf16 = 0, i32 = 0}
-- bf16 operands: probabilities are rounded to bf16 before the second product.
local attention = {f64 = 1e-13, f32 = 4e-6, bf16 = 1e-2}
local tolerances = {attention = attention, attention_grad = attention}
for _, name in ipairs {"add", "subtract", "multiply", "divide", "affine", "negate", "abs", "sign", "round", "floor",
  "minimum", "maximum", "less", "where", "sqrt", "rsqrt", "cast", "copy",
  "max", "reshape", "transpose", "slice", "pad", "concat", "expand", "causal_mask", "fill",
  "random_normal", "random_uniform",
  "embedding", "pick", "unpick", "inverse_count", "check_arena", "check_finite", "clip", "mix", "adamw", "sgd",
  "blend", "gather_columns", "scatter_columns", "topk_mask", "random_columns", "update"} do
  tolerances[name] = exact
end

-- What the device does not have yet.
local missing = {}
for name in ([[
]]):gmatch("%S+") do missing[name] = true end

local other = require("spec.support.emu").open {device = device}
if not other then
  pending("the emulated device is not part of this build", function() end)
  return
end
local cpu = context {device = "cpu"}

-- Whole numbers from a seed (Park and Miller 1988).
local function drawer(seed)
  local state = seed * 7919 + 1
  return function(low, high)
    state = state * 48271 % 2147483647
    return low + state % (high - low + 1)
  end
end

-- Rows of inputs and outputs lie dense, apart by an odd stride, or as in an arena.
local layouts = {
  dense = {},
  odd = {pad = 5, offset = 2},
  arena = {pad = 64, offset = 64, align = 64},
}

-- A tensor in a layout; values may be nil for zeros.
local function place(shape, dtype, values, layout, chosen)
  local inner = 1
  for d = 2, #shape do inner = inner * shape[d] end
  local made
  if layout.pad and #shape > 0 then
    local stride = inner + layout.pad
    if layout.align then stride = math.ceil(stride / layout.align) * layout.align end
    local base = tensor.zeros({shape[1] * stride + layout.offset}, dtype, {context = chosen})
    made = base:view {shape = shape, stride = stride, offset = layout.offset}
  else
    made = tensor.zeros(shape, dtype, {context = chosen})
  end
  if values then
    made:write_numbers(ffi.new("double[?]", math.max(#values, 1), values), #values)
  end
  return made
end

local function inputs_on(chosen, sample, layout)
  local list = {}
  for i, input in ipairs(sample.inputs) do
    list[i] = input and place(input.shape, input.dtype, input.values, layout, chosen) or nil
  end
  return list
end

local function run(name, inputs, attributes)
  local count = dispatch.operations[name].variadic and #inputs or dispatch.operations[name].n_inputs
  local arguments = {}
  for i = 1, count do arguments[i] = inputs[i] end
  arguments[count + 1] = attributes
  return {ops[name](unpack(arguments, 1, count + 1))}
end

-- Appends to the sample what an operation run before it gives, computed on the CPU.
local function complete(sample)
  local after = sample.after
  if not after then return end
  local inputs = {}
  for i = 1, after.count do
    local input = sample.inputs[after.from + i - 1]
    inputs[i] = place(input.shape, input.dtype, input.values, layouts.dense, cpu)
  end
  local results = run(after.name, inputs, after.attributes or {})
  for _, o in ipairs(after.outputs) do
    sample.inputs[#sample.inputs + 1] =
      {shape = results[o]:sizes(), dtype = results[o].dtype, values = numbers.flat(results[o])}
  end
end

-- Results that may be nothing but rounding, such as gradients through a softmax of one score, are of this size.
local sizes = {attention_grad = 1}

local function compare(expected, got, dtype, tolerance, least, what)
  local list, other_list = numbers.flat(expected), numbers.flat(got)
  assert.equal(#list, #other_list)
  local largest = least
  for i = 1, #list do
    local size = math.abs(list[i])
    if size > largest and size < math.huge then largest = size end
  end
  if expected.dtype == "bf16" and tolerance > 0 then tolerance = math.max(tolerance, 2 ^ -8) end
  for i = 1, #list do
    local a, b = list[i], other_list[i]
    local same = a == b or (a ~= a and b ~= b) or math.abs(a - b) <= tolerance * largest
    if not same then
      error(("%s of %s: element %d of %s is %.17g, not %.17g (largest %.3g)"):format(what, dtype, i,
        table.concat(expected:sizes(), " "), b, a, largest), 0)
    end
  end
end

-- Outputs to write into, in a layout, with the same values on both devices.
local function outputs_on(chosen, shapes, layout)
  local list = {}
  for o, shape in ipairs(shapes) do
    local values = numbers.list(shape.count, 40 + o)
    if shape.dtype == "i32" then values = nil end
    list[o] = place(shape.sizes, shape.dtype, values, layout, chosen)
  end
  return list
end

local function with(attributes, more)
  local all = {}
  for key, value in pairs(attributes or {}) do all[key] = value end
  for key, value in pairs(more) do all[key] = value end
  return all
end

-- One call on both devices: new outputs, or given ones that are overwritten or added to.
local function check(name, dtype, sample, layout, accumulate)
  local operation = dispatch.operations[name]
  local on_cpu, on_other = inputs_on(cpu, sample, layout), inputs_on(other, sample, layout)
  local attributes = sample.attributes or {}
  local expected = run(name, on_cpu, with(attributes, {context = #sample.inputs == 0 and cpu or nil}))
  local got
  if layout == layouts.dense or #expected == 0 then
    got = run(name, on_other, with(attributes, {context = #sample.inputs == 0 and other or nil}))
  else
    local shapes = {}
    for o, output in ipairs(expected) do
      shapes[o] = {sizes = output:sizes(), dtype = output.dtype, count = tonumber(output.numel)}
    end
    local adds = accumulate and (sample.accumulate or true) or nil
    if accumulate then
      expected = outputs_on(cpu, shapes, layout)
      run(name, on_cpu, with(attributes, {out = expected, accumulate = adds}))
    end
    got = outputs_on(other, shapes, layout)
    run(name, on_other, with(attributes, {out = got, accumulate = adds}))
  end
  local tolerance, least = (tolerances[name] or default_tolerance)[dtype], sizes[name] or 0
  for o = 1, #expected do compare(expected[o], got[o], dtype, tolerance, least, "output " .. o) end
  for i, input in ipairs(operation.inputs) do
    if input.written and on_cpu[i] then
      compare(on_cpu[i], on_other[i], dtype, tolerance, least, "input " .. i)
    end
  end
end

describe("on " .. device, function()
  helper.watch()

  for _, operation in ipairs(dispatch.list) do
    local name = operation.name
    if not missing[name] then
      for _, dtype in ipairs(dtypes[name] or {"f32", "f64"}) do
        it(("%s of %s is the CPU's"):format(name, dtype), function()
          local make = assert(samples[name], "no sample for " .. name)
          for case = 1, CASES do
            local sample = make(drawer(case * 31), dtype)
            complete(sample)
            for kind, layout in pairs(layouts) do
              for _, accumulate in ipairs(operation.accumulates and dtype ~= "i32" and {false, true} or {false}) do
                local adds = accumulate and not (name == "copy" and dtype == "bf16")
                local good, message = pcall(check, name, dtype, sample, layout, adds)
                if not good then
                  error(("case %d, %s%s: %s"):format(case, kind, adds and ", added" or "", tostring(message)))
                end
              end
            end
          end
        end)
      end
    end
  end

  -- Matrices of several tiles, of parts of one, and of fewer rows than are worth one.
  it("transpose of large matrices is the CPU's", function()
    local cases = {{{33, 70}, {1, 0}}, {{2, 40, 65}, {0, 2, 1}}, {{2, 9, 3, 37}, {0, 3, 2, 1}}, {{8, 8}, {1, 0}},
      {{7, 96}, {1, 0}}, {{2, 3, 35, 4, 33}, {0, 2, 4, 1, 3}}, {{64, 2, 32}, {1, 2, 0}}}
    for _, case in ipairs(cases) do
      for _, dtype in ipairs(dtypes.transpose) do
        local values = {}
        for i = 1, numbers.count(case[1]) do values[i] = i % 251 end -- exact in bf16
        for _, layout in pairs(layouts) do
          check("transpose", dtype, {inputs = {{shape = case[1], dtype = dtype, values = values}},
            attributes = {permutation = case[2]}}, layout)
        end
      end
    end
  end)

  it("lacks only the operations that are known to be missing", function()
    for _, operation in ipairs(dispatch.list) do
      local sample = samples[operation.name](drawer(1), "f32")
      complete(sample)
      local _, message = pcall(check, operation.name, "f32", sample, layouts.odd)
      local lacks = message ~= nil and tostring(message):find("is not available on device", 1, true) ~= nil
      assert.equal(missing[operation.name] or false, lacks, operation.name)
    end
  end)
end)
