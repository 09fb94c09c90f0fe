--- One tape: the operations that led from the tracked leaves to a result, and the walk back.
--
-- A tape names tensors by numbers, so that it keeps alive only what the rules read again. Walking back,
-- it knows of every cotangent whether something else may see its memory; what nothing else sees is
-- added to in place and freed as soon as it is used up. While another tape is active around the walk
-- (nested gradients) all of that is off, because that tape may keep any tensor.
local caller = require "pack.core.caller"
local dispatch = require "pack.core.dispatch"
local ffi = require "ffi"
local native = require "pack.native"
local ops = require "pack.core.ops"
local rules = require "pack.grad.rules"

caller.register()

local C = native.C
local F32, BF16, I32 = 1, 2, 3

local Tape = {}
Tape.__index = Tape

local tape = {}

--- The dtype of a cotangent: f32 for bf16 tensors, else the tensor's own.
function tape.gradient_dtype(dtype)
  return dtype == BF16 and F32 or dtype
end

local gradient_dtype = tape.gradient_dtype

local function weak(mode)
  return setmetatable({}, {__mode = mode})
end

--- A tape that tracks the leaves.
function tape.create(leaves)
  if type(leaves) ~= "table" then caller.raise("grad: leaves are a list of tensors, not a %s", type(leaves)) end
  local self = setmetatable({}, Tape)
  self.ids = weak "k"
  self.missing = weak "k" -- outputs whose gradient would be incomplete, with their names
  self.forward, self.position = weak "v", {} -- forward results, and the node before which each is used up
  self.nodes, self.count = {}, 0
  for i, leaf in ipairs(leaves) do
    if not dispatch.is_tensor(leaf) then
      caller.raise("grad: leaf %d is a %s, not a tensor", i, type(leaf))
    end
    if leaf.raw_dtype == I32 then caller.raise("grad: leaf %d is i32: only floats have gradients", i) end
    self:track(leaf)
  end
  return self
end

-- Notes a forward result that nothing but node number position or later reads.
function Tape:note_forward(t, position)
  local place = #self.position + 1
  self.position[place], self.forward[place] = position, t
end

-- The id of a tensor that is tracked from now on.
function Tape:track(t)
  local id = self.ids[t]
  if not id then
    self.count = self.count + 1
    id = self.count
    self.ids[t] = id
  end
  return id
end

--- Tells the tape that copy holds what source does, as a cast to bf16 would have made it: a gradient of one is a
-- gradient of the other.
function Tape:alias(source, copy)
  if self.ids[source] then self.ids[copy] = self.ids[source] end
end

-- Recording --------------------------------------------------------------------------------------

-- Positions of the names in a rule's saves: inputs and outputs as {place, condition}.
local function saved_places(operation, rule)
  local places = {inputs = {}, outputs = {}}
  local left = 0
  for _ in pairs(rule.saves or {}) do left = left + 1 end
  local index = {}
  for i, input in ipairs(operation.inputs) do index[input.name] = i end
  for i, input in ipairs(operation.inputs) do
    local condition = rule.saves and rule.saves[input.name]
    if condition then
      left = left - 1
      places.inputs[#places.inputs + 1] = {i, index[condition]}
    end
  end
  for o, name in ipairs(operation.outputs) do
    local condition = rule.saves and rule.saves[name]
    if condition then
      left = left - 1
      places.outputs[#places.outputs + 1] = {o, index[condition]}
    end
  end
  assert(left == 0, operation.name .. ": its rule saves a name that is not there")
  return places
end

local places_of = {}

local function places(operation, rule)
  local found = places_of[operation]
  if not found then
    found = saved_places(operation, rule)
    places_of[operation] = found
  end
  return found
end

-- What of the tensors the rule reads again, by place, and how often each had been written to.
local function saved(node, kept, tensors)
  local list, versions = {}, {}
  for _, place in ipairs(kept) do
    local i = place[1]
    if tensors[i] and (not place[2] or node.ids[place[2]]) then
      list[i], versions[i] = tensors[i], tonumber(C.pk_tensor_version(tensors[i]))
    end
  end
  return list, versions
end

local function save(node, operation, rule, inputs, outputs)
  local kept = places(operation, rule)
  node.inputs, node.input_versions = saved(node, kept.inputs, inputs)
  node.outputs, node.output_versions = saved(node, kept.outputs, outputs)
  if rule.shapes then
    node.shapes, node.dtypes = {}, {}
    for i = 1, #inputs do
      node.shapes[i], node.dtypes[i] = inputs[i]:sizes(), inputs[i].raw_dtype
    end
  end
end

-- Refuses what the tape could not follow.
local function check(self, operation, given, inputs, outputs)
  local name = operation.name
  for i = 1, operation.variadic and #inputs or operation.n_inputs do
    local input = inputs[i]
    local description = operation.inputs[operation.variadic and 1 or i]
    if input and self.ids[input] and description.written then
      caller.raise("%s writes to its input %s, which a gradient is taken of", name, description.name)
    end
    if input and self.missing[input] then
      caller.raise("%s: no gradient flows through %s; detach it if it is meant as a constant", name,
        self.missing[input])
    end
  end
  if operation.differentiable and given.accumulate then
    caller.raise("%s: accumulate loses the gradient of what was there; use ops.add", name)
  end
  if given.out then
    for _, output in ipairs(outputs) do
      if self.ids[output] then
        caller.raise("%s: out is a tensor that a gradient is taken of", name)
      end
    end
  end
end

local function any_tracked(self, inputs, count)
  for i = 1, count do
    local input = inputs[i]
    if input and (self.ids[input] or self.missing[input]) then return true end
  end
  return false
end

-- Tracks the results of the newest node, and notes which other outputs have no gradient.
local function note_outputs(self, node, outputs)
  local rule, operation = node.rule, node.operation
  local tracked = rule.results or 1
  node.results = {}
  for o = 1, tracked do
    node.results[o] = {id = self:track(outputs[o])}
    if tracked > 1 then
      node.results[o].shape, node.results[o].dtype = outputs[o]:sizes(), gradient_dtype(outputs[o].raw_dtype)
    end
    self:note_forward(outputs[o], #self.nodes)
  end
  for o = tracked + 1, #outputs do
    local name = operation.outputs[o]
    if not (rule.constants and rule.constants[name]) then
      self.missing[outputs[o]] = ("%s of %s"):format(name, operation.name)
      self:note_forward(outputs[o], #self.nodes)
    end
  end
end

--- Notes an operation that ran, if it touches what the tape tracks.
function Tape:record(operation, given, inputs, outputs)
  local count = operation.variadic and #inputs or operation.n_inputs
  if not any_tracked(self, inputs, count) then
    if given.out then check(self, operation, {out = given.out}, {}, outputs) end
    return
  end
  check(self, operation, given, inputs, outputs)
  local result = outputs[1]
  if not result or result.raw_dtype == I32 then return end
  if not operation.differentiable then
    caller.raise("%s has no gradient; detach its inputs if it is meant as a constant",
      operation.name)
  end
  local source = inputs[1]
  if operation.name == "cast" and gradient_dtype(source.raw_dtype) == gradient_dtype(result.raw_dtype) then
    self.ids[result] = self.ids[source]
    self:note_forward(result, #self.nodes + 1)
    return
  end
  local rule = rules[operation.name]
  local node = {operation = operation, rule = rule, ids = {}}
  for i = 1, count do node.ids[i] = self.ids[inputs[i]] end
  node.attributes = dispatch.copy_attributes(operation, given)
  save(node, operation, rule, inputs, outputs)
  self.nodes[#self.nodes + 1] = node
  note_outputs(self, node, outputs)
end

-- Walking back -----------------------------------------------------------------------------------

-- The walk: cotangents by id, and who shares what. Rules see it as b.
local Walk = {gradient_dtype = gradient_dtype}
Walk.__index = Walk

-- Whether an attribute is set, as the caller or as C writes it.
function Walk.truth(attribute)
  return attribute == true or attribute == 1
end

local function memory_key(t)
  return tonumber(ffi.cast("intptr_t", t.storage))
end

-- Counts one more use of a cotangent and of its memory.
function Walk:hold(t)
  local key = memory_key(t)
  self.references[t] = (self.references[t] or 0) + 1
  self.sharers[key] = (self.sharers[key] or 0) + 1
end

-- Gives up one use of a cotangent, and its memory with the last one.
function Walk:drop(t)
  local key = memory_key(t)
  self.sharers[key] = self.sharers[key] - 1
  self.references[t] = self.references[t] - 1
  if self.references[t] > 0 then return end
  self.references[t] = nil
  if self.owned[t] then
    self.owned[t] = nil
    t:free()
  end
end

-- Whether nothing but this cotangent sees its memory, so that it may be added to.
function Walk:is_exclusive(t)
  return not self.nested and self.owned[t] and self.sharers[memory_key(t)] == 1
end

--- Whether the gradient of the node's input i is wanted.
function Walk:wants(i)
  return self.node.ids[i] ~= nil
end

-- Adds a contribution to the cotangent of an id.
function Walk:contribute(id, t)
  local destination = self.destinations[id]
  if destination then
    ops.copy(t, {out = destination.tensor, accumulate = destination.written})
    destination.written = true
    return
  end
  local present = self.cotangents[id]
  if not present then
    self:hold(t)
    self.cotangents[id] = t
  elseif self:is_exclusive(present) then
    ops.copy(t, {out = present, accumulate = true})
  else
    local sum = ops.add(present, t)
    self:hold(sum)
    self.cotangents[id] = sum
    self:drop(present)
  end
end

--- Contributes t to the cotangent of the node's input i.
function Walk:give(i, t)
  local id = self.node.ids[i]
  if id then self:contribute(id, t) end
end

-- Where an accumulating operation may write the contribution to an id, and whether it adds there.
function Walk:place_for(id)
  local destination = self.destinations[id]
  if destination then
    local adds = destination.written
    destination.written = true
    return destination.tensor, adds
  end
  local present = self.cotangents[id]
  if present and self:is_exclusive(present) then return present, true end
end

--- Contributes output o of an operation to the cotangent of input targets[o] of the node. The
-- operation does not run if none of them is wanted.
function Walk:emit(targets, name, inputs, attributes)
  if type(targets) == "number" then targets = {targets} end
  local ids, wanted = self.node.ids, false
  for _, target in ipairs(targets) do wanted = wanted or ids[target] ~= nil end
  if not wanted then return end
  local given = attributes or {}
  local placed, seen = {}, {}
  if dispatch.operations[name].accumulates then
    local out, accumulate = {}, {}
    for o, target in ipairs(targets) do
      local id = ids[target]
      out[o], accumulate[o] = false, false
      if id and not seen[id] then
        local place, adds = self:place_for(id)
        if place then out[o], accumulate[o], placed[o] = place, adds, true end
        seen[id] = true
      end
    end
    if next(placed) then given.out, given.accumulate = out, accumulate end
  end
  local results
  if #inputs <= 2 then
    results = {ops[name](inputs[1], inputs[2] or given, inputs[2] and given or nil)}
  else
    inputs[#inputs + 1] = given
    results = {ops[name](unpack(inputs))}
  end
  for o, target in ipairs(targets) do
    local id = ids[target]
    if id and not placed[o] then self:contribute(id, results[o]) end
  end
end

-- Differentiates the reference form of a fused node, so that the tapes around this walk see how its
-- gradient depends on everything.
function Walk:apply_reference(node, g)
  local inputs, leaves, targets, seen = node.inputs, {}, {}, {}
  for i = 1, node.operation.n_inputs do
    if node.ids[i] and not seen[inputs[i]] then
      seen[inputs[i]] = true
      leaves[#leaves + 1], targets[#targets + 1] = inputs[i], i
    end
  end
  local gradients = self.vjp(function()
    local arguments = {unpack(inputs, 1, node.operation.n_inputs)}
    arguments[#arguments + 1] = node.attributes
    return require("pack.grad.reference")[node.rule.second](unpack(arguments))
  end, leaves, g)
  for l, target in ipairs(targets) do self:give(target, gradients[l]) end
end

local function is_seen_around(node, g)
  if dispatch.is_tracked(g) then return true end
  for i = 1, node.operation.n_inputs do
    if node.inputs[i] and dispatch.is_tracked(node.inputs[i]) then return true end
  end
  return false
end

-- Whether a cotangent of one of the node's results is there.
function Walk:reaches(node)
  for _, result in ipairs(node.results) do
    if self.cotangents[result.id] then return true end
  end
  return false
end

-- The cotangent of the node's result, or the list of those of its results, zeros for one that does not matter.
function Walk:cotangents_of(node)
  local results = node.results
  if #results == 1 then return self.cotangents[results[1].id] end
  local list = {}
  for r, result in ipairs(results) do
    if not self.cotangents[result.id] then
      self:contribute(result.id, ops.fill {shape = result.shape, dtype = result.dtype, value = 0, context = self.context})
    end
    list[r] = self.cotangents[result.id]
  end
  return list
end

local function check_versions(node, kind, tensors, versions)
  for i, version in pairs(versions) do
    local t = tensors[i]
    if C.pk_tensor_version(t) ~= version then
      local name = kind == "output" and node.operation.outputs[i] or node.operation.inputs[node.operation.variadic and 1 or i].name
      caller.raise("grad: %s %s of %s, which its gradient reads again, was %s since. Do so after the gradient, or let %s "
        .. "have a copy", kind, name, node.operation.name, t.storage == nil and "freed" or "written to", node.operation.name)
    end
  end
end

-- Refuses to go on with what the rule reads again where it is not what it was.
local function check_saved(node)
  check_versions(node, "input", node.inputs, node.input_versions)
  check_versions(node, "output", node.outputs, node.output_versions)
end

-- Runs the rule of one node.
function Walk:apply(node)
  check_saved(node)
  self.node = node
  local created = {}
  if not self.nested then dispatch.created = created end
  local g = self:cotangents_of(node)
  if self.nested and node.rule.second and is_seen_around(node, g) then
    self:apply_reference(node, g)
  else
    node.rule.backward(self, g, node)
  end
  dispatch.created = nil
  for _, t in ipairs(created) do
    if self.references[t] then self.owned[t] = true else t:free() end
  end
end

local function unwritten_destinations(leaves, self, options)
  local destinations = {}
  for i, into in ipairs(options.into or {}) do
    local id = self.ids[leaves[i]]
    if destinations[id] then caller.raise("grad: leaf %d is there twice, with into", i) end
    destinations[id] = {tensor = into, written = options.accumulate or false}
  end
  return destinations
end

local function zeros_like(leaf, out)
  return ops.fill {shape = leaf:sizes(), dtype = gradient_dtype(leaf.raw_dtype), value = 0, out = out,
    context = {handle = leaf.context}}
end

-- The gradient of each leaf, of which none shares memory with another.
local function collect(walk, self, leaves)
  local gradients, taken = {}, {}
  for i, leaf in ipairs(leaves) do
    local id = self.ids[leaf]
    local destination = walk.destinations[id]
    if destination then
      if not destination.written then zeros_like(leaf, destination.tensor) end
      gradients[i] = destination.tensor
    elseif taken[id] then
      gradients[i] = taken[id]
    else
      local g = walk.cotangents[id]
      if not g then
        g = zeros_like(leaf)
      elseif not walk.nested and not walk:is_exclusive(g) then
        local shared = g
        g = ops.copy(shared)
        walk:drop(shared)
      end
      gradients[i], taken[id] = g, g
    end
  end
  return gradients
end

-- Frees the forward results that no node before number n reads.
function Tape:release(n, kept)
  local position, place = self.position, #self.position
  while place > 0 and position[place] >= n do
    local forward = self.forward[place]
    if forward and not kept[forward] then forward:free() end
    position[place], place = nil, place - 1
  end
end

--- Walks back from result with the cotangent g (nil: ones), and returns the gradients of the leaves.
-- The tape is used up. options: into (tensors that gradients are written to), accumulate (add to what
-- is there), kept (set of tensors) with release (free forward results on the way, except those kept);
-- nested (another tape may see everything); vjp (pack.grad's).
function Tape:backward(result, g, leaves, options)
  local walk = setmetatable({
    nested = options.nested, vjp = options.vjp, context = {handle = result.context},
    cotangents = {}, references = {}, sharers = {}, owned = {}, destinations = unwritten_destinations(leaves, self, options),
  }, Walk)
  local id = self.ids[result]
  if id then
    local seed = g or ops.fill {shape = result:sizes(), dtype = gradient_dtype(result.raw_dtype),
      value = 1, context = walk.context}
    walk.node = {ids = {id}}
    walk:give(1, seed)
    if g then
      walk:hold(seed) -- the caller's: never added to, never freed
    elseif not walk.nested then
      if walk.references[seed] then walk.owned[seed] = true else seed:free() end
    end
  end
  for n = #self.nodes, 1, -1 do
    local node = self.nodes[n]
    self.nodes[n] = nil
    if walk:reaches(node) then
      walk:apply(node)
      for _, one in ipairs(node.results) do
        walk:drop(walk.cotangents[one.id])
        walk.cotangents[one.id] = nil
      end
    end
    if options.release then self:release(n, options.kept) end
  end
  return collect(walk, self, leaves)
end

return tape
