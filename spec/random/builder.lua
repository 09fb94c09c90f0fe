--- The text of a random program as it grows, and what is known of its variables.
--
-- A variable has a shape, a kind (F: the program's floats, H: halves, D: f64, I: i32) and a store, which views share.
-- Of a store are known bounds of its values, so that statements can keep results finite and smooth; whether its values
-- are exact, so the same on every device; and whether they may jump (rough), so that they tell nothing about precision.
local dispatch = require "pack.core.dispatch"

local builder = {}

local Builder = {}
Builder.__index = Builder

local LARGEST = 400 -- of bounds

--- Operations that round at most once, in the same way on every device.
builder.exact = {}
for name in ([[add subtract multiply divide minimum maximum less where affine negate abs sign round floor sqrt rsqrt
    cast copy max reshape transpose slice pad concat expand causal_mask fill random_normal random_uniform
    embedding pick unpick gather_columns scatter_columns topk_mask inverse_count check_finite clip mix adamw update]]):gmatch "%S+" do
  builder.exact[name] = true
end

--- A builder for programs of sizes (N, B, T, H, K, f, V and what follows from them); halves: whether there are any.
function builder.create(sizes, options)
  return setmetatable({sizes = sizes, halves = options.halves, odd = options.odd, gene = nil, vars = {}, setup = {}, lines = {},
    indent = "    ", count = 0, arenas = {}, arguments = {}, pending = {}, scope = nil, smooth = true,
    statements = 0}, Builder)
end

--- A new store. bounds: lo, hi, exact, rough.
function builder.store(bounds)
  return {lo = bounds.lo or -1, hi = bounds.hi or 1, exact = bounds.exact or false, rough = bounds.rough or false,
    version = 0}
end

-- Names and text ----------------------------------------------------------------------------------

function Builder:name(letter)
  self.count = self.count + 1
  return letter .. self.count
end

--- Adds a line to the function's body.
function Builder:line(format, ...)
  self.lines[#self.lines + 1] = self.indent .. format:format(...)
end

--- Adds a line that runs once, before the function.
function Builder:once(format, ...)
  self.setup[#self.setup + 1] = "  " .. format:format(...)
end

local kinds = {device = "t.device", F = "F", H = "H", D = '"f64"', I = '"i32"'}

--- A value as text: lists, numbers to the bit, and dtypes by their kind, which are written as {kind}.
function builder.text(value)
  if type(value) == "table" and value.kind then return kinds[value.kind] end
  if type(value) == "table" then
    local parts = {}
    for i, one in ipairs(value) do parts[i] = builder.text(one) end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  if type(value) == "number" then
    if value == math.huge then return "math.huge" elseif value == -math.huge then return "-math.huge" end
    return ("%.17g"):format(value)
  end
  return tostring(value)
end

local text = builder.text

local function attributes_text(attributes)
  local names, parts = {}, {}
  for name in pairs(attributes) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do
    local value = attributes[name]
    parts[i] = name .. " = " .. (name == "bf16" and "half" or text(value))
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

-- Choices -----------------------------------------------------------------------------------------

function Builder:draw(low, high) return self.gene:draw(low, high) end

function Builder:chance(times) return self.gene:chance(times) end

function Builder:one_of(list) return self.gene:one_of(list) end

-- Whether a statement may read a variable here.
local function readable(self, one)
  if one.freed then return false end
  local scope = self.scope
  if not scope then return true end
  return not one.missing and (one.tracked or one.detached == scope or not scope.leaves[one.store])
end

--- Whether a variable is one of the function's own, not of a scope that has ended. It is not freed any more.
function Builder:is_there(one)
  for _, other in ipairs(self.vars) do
    if other == one then
      one.outside = true
      return true
    end
  end
  return false
end

--- A variable that fits a filter, or nil.
function Builder:pick(filter)
  local list = {}
  for _, one in ipairs(self.vars) do
    if readable(self, one) and filter(one) then list[#list + 1] = one end
  end
  if self.scope and not self:chance(3) then
    local tracked = {}
    for _, one in ipairs(list) do
      if one.tracked then tracked[#tracked + 1] = one end
    end
    if #tracked > 0 then list = tracked end
  end
  return self.gene:pick(list)
end

function builder.same_shape(a, b)
  if #a ~= #b then return false end
  for d = 1, #a do
    if a[d] ~= b[d] then return false end
  end
  return true
end

function builder.numel(shape)
  local count = 1
  for _, extent in ipairs(shape) do count = count * extent end
  return count
end

function builder.inner(shape)
  local count = 1
  for d = 2, #shape do count = count * shape[d] end
  return count
end

-- Variables ---------------------------------------------------------------------------------------

--- A new variable that statements can pick. fields: shape, kind, store and more.
function Builder:add(name, fields)
  local one = {name = name, stride = builder.inner(fields.shape)}
  for key, value in pairs(fields) do one[key] = value end
  self.statement_vars = (self.statement_vars or 0) + 1
  one.key = self.gene.id .. "." .. self.statement_vars
  self.vars[#self.vars + 1] = one
  return one
end

-- Where the first index of an arena's next column is; the arena is made at its first use.
local function arena_of(self, kind)
  local arena = self.arenas[kind]
  if not arena then
    arena = {name = self:name "p", size = 0, kind = kind, seed = self:draw(1, 9999), columns = {}}
    self.arenas[kind] = arena
  end
  return arena
end

--- A new column of an arena of floats or halves: [N, ...], in -1 .. 1.
function Builder:column(arena, shape, letter)
  local name, count = self:name(letter or "c"), builder.inner(shape)
  self:once("local %s = %s:view {shape = %s, stride = <%s>, offset = %d}", name, arena.name, text(shape), arena.name,
    arena.size)
  local one = self:add(name, {shape = shape, kind = arena.kind, store = builder.store {exact = true}, column = arena,
    outside = true, global = true})
  one.stride_of = arena
  arena.size = arena.size + math.ceil(count / 64) * 64
  arena.columns[#arena.columns + 1] = one
  return one
end

local function make_inside(self, shape, kind, lo, hi)
  local name = self:name "v"
  local value = math.max(lo, math.min(hi, self:draw(-4, 4) / 4))
  if kind == "F" and lo <= 0 and hi >= 1 and self:chance(2) then
    self:line("local %s = ops.random_uniform {shape = %s, seed = %d, dtype = F, context = t.device}", name, text(shape),
      self:draw(0, 99))
    return self:add(name, {shape = shape, kind = kind, store = builder.store {lo = 0, hi = 1, exact = true}})
  end
  self:line("local %s = ops.fill {shape = %s, value = %s, dtype = %s, context = t.device}", name, text(shape), text(value),
    kinds[kind])
  return self:add(name, {shape = shape, kind = kind, store = builder.store {lo = value, hi = value, exact = true}})
end

local function make_strided(self, shape, kind, lo, hi)
  local base, name = self:name "b", self:name "x"
  local stride, offset = builder.inner(shape) + self:draw(1, 7), self:draw(0, 3)
  self:once("local %s = t:floats({%d}, %q, %d, %s, %s)", base, shape[1] * stride + offset, kind, self:draw(1, 9999), text(lo),
    text(hi))
  self:once("local %s = %s:view {shape = %s, stride = %d, offset = %d}", name, base, text(shape), stride, offset)
  return self:add(name, {shape = shape, kind = kind, stride = stride, outside = true, global = true,
    store = builder.store {lo = lo, hi = hi, exact = true}})
end

local make_leaf

--- A new tensor of floats or halves, as such come about: in an arena, an argument, or made by the function, unless it has to
-- be from outside. Values in lo .. hi. Where a gradient is taken, it is mostly one of the leaves.
function Builder:leaf(shape, kind, lo, hi, outside)
  local one, adopted = make_leaf(self, shape, kind, lo or -1, hi or 1, outside), self.scope and self.scope.adopted
  if adopted and one.global and #adopted < 6 and self:draw(0, 2) > 0 then
    adopted[#adopted + 1], self.scope.leaves[one.store], one.tracked = one, true, true
  end
  return one
end

function make_leaf(self, shape, kind, lo, hi, outside)
  local way = self:draw(1, 8)
  if way == 2 and #shape > 0 and #self.arguments < 3 and not (self.scope or self.first or outside) then
    local name = self:name "a"
    self.arguments[#self.arguments + 1] = {name = name,
      made = ("t:floats(%s, %q, SEED + %d, %s, %s)"):format(text(shape), kind, self:draw(1, 9999), text(lo), text(hi))}
    return self:add(name, {shape = shape, kind = kind, argument = true, outside = true,
      store = builder.store {lo = lo, hi = hi, exact = true}})
  elseif way == 3 and not outside then
    return make_inside(self, shape, kind, lo, hi)
  elseif way == 4 and builder.numel(shape) > 0 and #shape > 0 then
    return make_strided(self, shape, kind, lo, hi)
  elseif way > 4 and #shape > 1 and shape[1] == self.sizes.N and shape[1] > 0 and lo <= -1 and hi >= 1 then
    return self:column(arena_of(self, kind), {unpack(shape)})
  end
  local name, odd = self:name "x", self.odd and self:chance(3)
  self:once("local %s = t:floats(%s, %q, %d, %s, %s%s)", name, text(shape), kind, self:draw(1, 9999), text(lo), text(hi),
    odd and ", true" or "")
  return self:add(name, {shape = shape, kind = kind, outside = true, global = true,
    store = builder.store {lo = lo, hi = hi, exact = true, rough = odd}})
end

--- A variable of this shape and kind within bounds: one there is, or a new one.
function Builder:like(shape, kind, lo, hi)
  local found = not self:chance(3) and self:pick(function(one)
    return one.kind == kind and builder.same_shape(one.shape, shape) and (not lo or one.store.lo >= lo)
      and (not hi or one.store.hi <= hi)
  end)
  if lo and lo > 0 then return found or self:leaf(shape, kind, lo, hi) end
  return found or self:leaf(shape, kind, math.max(lo or -1, -1), math.min(hi or 1, 1))
end

--- i32 in 0 .. below - 1, or -100.
function Builder:indices(shape, below, ignored)
  local found = self:pick(function(one)
    return one.kind == "I" and builder.same_shape(one.shape, shape) and one.store.hi < below and not one.store.rough
      and (ignored or one.store.lo >= 0)
  end)
  if found and not self:chance(3) then return found end
  local name = self:name "i"
  self:once("local %s = t:indices(%s, %d, %d, %s)", name, text(shape), self:draw(1, 9999), below, tostring(ignored or false))
  return self:add(name, {shape = shape, kind = "I", outside = true, global = true,
    store = builder.store {lo = ignored and -100 or 0, hi = below - 1, exact = true}})
end

-- Operations --------------------------------------------------------------------------------------

local function bounded(results)
  for _, result in ipairs(results) do
    local lo, hi = result.lo or -1, result.hi or 1
    if not (lo >= -LARGEST and hi <= LARGEST) then return false end
  end
  return true
end

-- Whether a tensor can be written to here.
local function writable(self, one)
  if one.freed or one.argument or (one.kind == "I" and one.outside) then return false end
  if self.scope then return one.fresh end
  return true
end

-- Given outputs for some of the results: a list with false where there is none.
local function choose_outputs(self, inputs, results)
  local out, any, taken = {}, false, {}
  for _, input in ipairs(inputs) do taken[input.store] = true end
  for o, result in ipairs(results) do
    local list = {}
    for _, one in ipairs(self.vars) do
      if writable(self, one) and one.kind == result.kind and builder.same_shape(one.shape, result.shape) and not taken[one.store] then
        list[#list + 1] = one
      end
    end
    out[o] = self.gene:pick(list) or false
    if out[o] then
      any, taken[out[o].store] = true, true
    end
  end
  return any and out
end

-- What is known of a store after a result was written to it.
local function note_write(one, result, adds)
  local store = one.store
  local lo, hi = result.lo or -1, result.hi or 1
  if adds then lo, hi = store.lo + lo, store.hi + hi end
  store.lo, store.hi = math.min(store.lo, lo), math.max(store.hi, hi)
  store.exact, store.rough = store.exact and result.exact, store.rough or result.rough
  store.version = store.version + 1
end

local function output_texts(attributes, out, adds)
  local names, sums = {}, {}
  for o, one in ipairs(out) do
    names[o], sums[o] = one and one.name or "false", tostring(adds and one ~= false)
  end
  local all = #attributes > 2 and attributes:sub(1, -2) .. ", " or "{"
  all = all .. "out = " .. (#out == 1 and names[1] or "{" .. table.concat(names, ", ") .. "}")
  if adds then all = all .. ", accumulate = " .. (#out == 1 and "true" or "{" .. table.concat(sums, ", ") .. "}") end
  return all .. "}"
end

--- Runs an operation. results: a list of {shape, kind, lo, hi, missing}; their variables are returned, or nil where the
-- values could become too large. options: fixed (no given outputs), sums (indices of outputs that can be added to).
function Builder:apply(name, inputs, attributes, results, options)
  if not bounded(results) then return nil end
  options = options or {}
  local operation = dispatch.operations[name]
  local exact, rough, tracked = builder.exact[name] or false, options.rough or false, false
  for _, input in ipairs(inputs) do
    exact, rough = exact and input.store.exact, rough or input.store.rough
    tracked, input.fresh = tracked or input.tracked or false, false
  end
  assert(not tracked or operation.differentiable, name)
  for _, result in ipairs(results) do result.exact, result.rough = exact, rough end
  if rough then
    self.rough = true
    if self.scope then self.scope.rough = true end
  end
  local out = not options.fixed and self:chance(4) and choose_outputs(self, inputs, results)
  local adds = out and operation.accumulates and not self.scope and self:chance(2)
  for o, one in ipairs(out or {}) do
    if one and adds then
      adds = (one.kind == "F" or one.kind == "D") and (not options.sums or options.sums[o])
        and one.store.hi + (results[o].hi or 1) <= LARGEST and one.store.lo + (results[o].lo or -1) >= -LARGEST
    end
  end
  local list, names, made = {}, {}, {}
  for i, input in ipairs(inputs) do list[i] = input.name end
  local given = attributes_text(attributes or {})
  if out then given = output_texts(given, out, adds) end
  if given ~= "{}" then list[#list + 1] = given end
  for o, result in ipairs(results) do
    local one = out and out[o]
    if one then
      note_write(one, result, adds)
      one.fresh, one.tracked = false, tracked and o <= (options.tracked or 1) or one.tracked
      names[o], made[o] = "_", one
    else
      names[o] = self:name "v"
      made[o] = self:add(names[o], {shape = result.shape, kind = result.kind,
        store = builder.store(result), tracked = tracked and o <= (options.tracked or 1),
        missing = tracked and o > (options.tracked or 1) and not result.constant})
    end
  end
  local call = ("ops.%s(%s)"):format(name, table.concat(list, ", "))
  if #names == 0 or table.concat(names):match "^_+$" then
    self:line("%s", call)
  else
    self:line("local %s = %s", table.concat(names, ", "), call)
  end
  self.statements = self.statements + 1
  return unpack(made)
end

--- An operation that writes to inputs: those (by index) that it writes, as apply.
function Builder:write(name, inputs, attributes, written)
  local exact, rough = true, false
  for _, input in ipairs(inputs) do exact, rough = exact and input.store.exact, rough or input.store.rough end
  local list = {}
  for i, input in ipairs(inputs) do list[i] = input.name end
  if attributes then list[#list + 1] = attributes_text(attributes) end
  self:line("ops.%s(%s)", name, table.concat(list, ", "))
  for _, i in ipairs(written) do
    local one = inputs[i]
    for _, part in ipairs(one.parts or {one}) do
      note_write(part, {lo = part.store.lo - 1, hi = part.store.hi + 1, exact = exact and builder.exact[name], rough = rough})
    end
  end
  self.statements = self.statements + 1
end

return builder
