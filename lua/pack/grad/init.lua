--- Gradients: pack.grad(fn, leaves, options) and its relatives. They nest, for second derivatives.
--
-- The module is callable and is grad.grad.
local caller = require "pack.core.caller"
local dispatch = require "pack.core.dispatch"
local ops = require "pack.core.ops"
local phase = require "pack.core.phase"
local tape = require "pack.grad.tape"
local whole = require "pack.core.whole"
require "pack.core.tensor"

caller.register()

local grad = {}

local tapes = {} -- the active ones, outermost first

local function record(operation, given, inputs, outputs)
  for i = 1, #tapes do tapes[i]:record(operation, given, inputs, outputs) end
end

local function is_tracked(t)
  for i = 1, #tapes do
    if tapes[i].ids[t] then return true end
  end
  return false
end

--- Tells gradients that are being taken that copy holds what source does, in bf16.
function grad.alias(source, copy)
  for i = 1, #tapes do tapes[i]:alias(source, copy) end
end

local function set_hooks()
  local active = #tapes > 0
  dispatch.record = active and record or nil
  dispatch.is_tracked = active and is_tracked or nil
end

-- Back to depth active tapes, also when an error left more.
local function unwind(depth)
  for i = #tapes, depth + 1, -1 do tapes[i] = nil end
  dispatch.created = nil
  set_hooks()
end

-- Calls fn and undoes its effect on the active tapes if it raises.
local function guarded(fn)
  local depth = #tapes
  local results = {pcall(fn)}
  if not results[1] then
    unwind(depth)
    error(results[2], 0)
  end
  return unpack(results, 2, table.maxn(results))
end

local function resume(hidden, good, ...)
  tapes = hidden
  set_hooks()
  if not good then error((...), 0) end
  return ...
end

--- Runs fn(...) as if no gradient was being taken: what it computes from tracked tensors is constant. Returns what
-- fn returns.
function grad.untracked(fn, ...)
  local hidden = tapes
  tapes = {}
  set_hooks()
  return resume(hidden, whole("untracked", fn, ...))
end

dispatch.untracked = grad.untracked

local function check_result(result)
  if not dispatch.is_tensor(result) then
    caller.raise("grad: the function returned a %s, not a tensor", type(result))
  end
  if result.raw_dtype == dispatch.dtypes.i32 then
    caller.raise("grad: the function's result is i32: only floats have gradients")
  end
end

-- What a protected call returned, as a list, or its error again.
local function returned(good, ...)
  if not good then error((...), 0) end
  return {...}
end

-- Runs fn(leaves...) under a tape. Returns the list of results.
local function run(fn, leaves, recording)
  tapes[#tapes + 1] = recording
  set_hooks()
  local results = returned(whole("grad", fn, unpack(leaves)))
  tapes[#tapes] = nil
  set_hooks()
  check_result(results[1])
  return results
end

local option_names = {into = true, accumulate = true, release = true}

local function check_options(leaves, options)
  for name in pairs(options) do
    if not option_names[name] then
      caller.raise("grad: unknown option '%s'; known: accumulate, into, release", tostring(name))
    end
  end
  if not options.into then
    if options.accumulate then caller.raise("grad: accumulate needs into") end
    return
  end
  if #tapes > 0 then caller.raise("grad: into is not possible inside another gradient") end
  if #options.into ~= #leaves then
    caller.raise("grad: into has %d tensors for %d leaves", #options.into, #leaves)
  end
  for i, into in ipairs(options.into) do
    local leaf = leaves[i]
    local fits = dispatch.is_tensor(into) and into.rank == leaf.rank
      and into.raw_dtype == tape.gradient_dtype(leaf.raw_dtype)
    for d = 0, leaf.rank - 1 do fits = fits and into:size(d) == leaf:size(d) end
    if not fits then
      caller.raise("grad: into %d does not have the shape and gradient dtype of leaf %d, [%s]", i, i,
        table.concat(leaf:sizes(), ", "))
    end
  end
end

--- The gradients at leaves of <g, fn(leaves...)>, for a cotangent g in fn's result's shape.
-- Returns a list in the order of leaves, zeros for those that do not matter, and fn's result.
function grad.vjp(fn, leaves, g)
  return guarded(function()
    local recording = tape.create(leaves)
    local results = run(fn, leaves, recording)
    local gradients = recording:backward(results[1], g, leaves,
      {nested = #tapes > 0, vjp = grad.vjp})
    return gradients, results[1]
  end)
end

--- Differentiates the sum of the first result of fn(leaves...).
-- leaves is a list of float tensors. Returns what fn returned, then the list of gradients in the order
-- of leaves (zeros for a leaf that does not matter; f32 for bf16 leaves). Gradients may be differentiated
-- again by a pack.grad around this one. In traces the phases are "forward" and "backward". options:
--   into        list of tensors, such as views of a gradient arena, that the gradients are written to:
--               the first contribution overwrites, later ones add, in the order of the walk back
--   accumulate  with into: all contributions add to what is there
--   release     fn promises to keep no tensor but its results: forward results are freed on the way
--               back instead of when Lua's collector next runs
-- Errors: a leaf or result that is not a float tensor, operations on tracked tensors without a rule.
function grad.grad(fn, leaves, options)
  options = options or {}
  return guarded(function()
    local recording = tape.create(leaves)
    check_options(leaves, options)
    local device = leaves[1] and {handle = leaves[1].context}
    local results = phase("forward", function() return run(fn, leaves, recording) end, device)
    local kept = {}
    for _, t in ipairs(leaves) do kept[t] = true end
    for i = 1, table.maxn(results) do
      if results[i] ~= nil then kept[results[i]] = true end
    end
    local nested = #tapes > 0
    results[table.maxn(results) + 1] = phase("backward", function()
      return recording:backward(results[1], nil, leaves, {
        into = options.into, accumulate = options.accumulate, kept = kept, nested = nested,
        release = options.release and not nested, vjp = grad.vjp,
      })
    end, device)
    return unpack(results, 1, table.maxn(results))
  end)
end

--- Hessian-vector products of the sum of fn's first result: the list of (d2f/dleaves dleaves) directions.
function grad.hvp(fn, leaves, directions)
  if #directions ~= #leaves then
    caller.raise("hvp: %d directions for %d leaves", #directions, #leaves)
  end
  local function slope(...)
    local results = {grad.grad(fn, {...})}
    local gradients = results[#results]
    local total
    for i, gradient in ipairs(gradients) do
      local part = ops.sum(ops.multiply(gradient, directions[i]:detach()))
      total = total and ops.add(total, part) or part
    end
    return total
  end
  local _, products = grad.grad(slope, leaves)
  return products
end

return setmetatable(grad, {
  __call = function(_, fn, leaves, options)
    return grad.grad(fn, leaves, options)
  end,
})
