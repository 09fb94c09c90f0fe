--- Statements of plain operations: elementwise, reductions, moves, views, and tensors made, written and freed.
local builder = require "spec.random.builder"

local plain = {}

local function any_float(b, filter)
  return b:pick(function(one) return one.kind == "F" and (not filter or filter(one)) end)
end

-- Bounds ------------------------------------------------------------------------------------------

local function products(a, b)
  local p, q, r, s = a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi
  return math.min(p, q, r, s), math.max(p, q, r, s)
end

local function sigmoid(x) return 1 / (1 + math.exp(-x)) end

-- Elementwise -------------------------------------------------------------------------------------

local function broadcast(a, b)
  local shape, rank = {}, math.max(#a, #b)
  for d = 1, rank do
    local x, y = a[d - rank + #a] or 1, b[d - rank + #b] or 1
    if x ~= y and x ~= 1 and y ~= 1 then return nil end
    shape[d] = x == 1 and y or x
  end
  return shape
end

-- A part of x, which is combined with all of it.
local function own_part(b, x)
  local name, shape = b:name "w", {1, x.shape[2]}
  b:line("local %s = %s:view {shape = %s, offset = %d}", name, x.name, builder.text(shape), 0)
  return b:add(name, {shape = shape, kind = x.kind, store = x.store, argument = x.argument, outside = x.outside,
    detached = x.detached})
end

-- A variable to combine x with.
local function partner(b, x, lo, hi)
  if #x.shape == 2 and builder.numel(x.shape) > 0 and not lo and not x.tracked and b:chance(4) then return own_part(b, x) end
  if b:chance(3) then
    local found = any_float(b, function(one)
      return broadcast(one.shape, x.shape) and (not lo or one.store.lo >= lo) and (not hi or one.store.hi <= hi)
    end)
    if found then return found end
  end
  local shape = {unpack(x.shape)}
  if b:chance(4) then
    for d = 1, #shape do
      if b:chance(2) then shape[d] = 1 end
    end
  end
  if #shape > 1 and b:chance(5) then table.remove(shape, 1) end
  return b:like(shape, "F", lo, hi)
end

-- Statements whose results change by much where values change by little.
local jumps = {}

local function pair(name, lo, hi, bounds, into)
  into = into or plain
  into[name] = function(b)
    local x = any_float(b) or b:leaf({b.sizes.N, b.sizes.R, b.sizes.d}, "F")
    local y = partner(b, x, lo, hi)
    local shape = broadcast(x.shape, y.shape)
    local low, high = bounds(x.store, y.store)
    local swapped = not lo and b:chance(3)
    if swapped then
      x, y = y, x
      low, high = bounds(x.store, y.store)
    end
    b:apply(name, {x, y}, nil, {{shape = shape, kind = "F", lo = low, hi = high}}, {rough = into == jumps})
  end
end

pair("add", nil, nil, function(x, y) return x.lo + y.lo, x.hi + y.hi end)
pair("subtract", nil, nil, function(x, y) return x.lo - y.hi, x.hi - y.lo end)
pair("multiply", nil, nil, products)
pair("divide", 0.25, 4, function(x, y) return products(x, {lo = 1 / y.hi, hi = 1 / y.lo}) end)

pair("minimum", nil, nil, function(x, y) return math.min(x.lo, y.lo), math.min(x.hi, y.hi) end)
pair("maximum", nil, nil, function(x, y) return math.max(x.lo, y.lo), math.max(x.hi, y.hi) end)
pair("less", nil, nil, function() return 0, 1 end, jumps)

function jumps.where(b)
  local x = any_float(b) or b:leaf({b.sizes.N, b.sizes.R, b.sizes.d}, "F")
  local y, condition = partner(b, x), partner(b, x)
  local shape = broadcast(x.shape, y.shape)
  if not broadcast(condition.shape, shape) then return end
  shape = broadcast(condition.shape, shape)
  b:apply("where", {condition, x, y}, nil, {{shape = shape, kind = "F", lo = math.min(x.store.lo, y.store.lo),
    hi = math.max(x.store.hi, y.store.hi)}}, {rough = true})
end

function plain.affine(b)
  local x = any_float(b)
  if not x then return end
  local size = math.max(1, x.store.hi, -x.store.lo)
  local scale = b:draw(-6, 6) / 4 / (size > 4 and size or 1)
  local shift = b:chance(2) and b:draw(-4, 12) / 4 or 0
  local p, q = scale * x.store.lo + shift, scale * x.store.hi + shift
  b:apply("affine", {x}, {scale = scale, shift = shift}, {{shape = x.shape, kind = "F", lo = math.min(p, q), hi = math.max(p, q)}})
end

local function map(name, low, high, bounds, into)
  into = into or plain
  into[name] = function(b)
    local x = any_float(b, function(one) return one.store.lo >= low and one.store.hi <= high end)
      or b:leaf({b.sizes.N, b.sizes.R, b.sizes.d}, "F", math.max(low, -1), math.max(low, -1) + 2)
    local lo, hi = bounds(x.store.lo, x.store.hi)
    b:apply(name, {x}, nil, {{shape = x.shape, kind = "F", lo = lo, hi = hi}}, {rough = into == jumps})
  end
end

map("abs", -400, 400, function(lo, hi) return 0, math.max(-lo, hi) end)
map("sign", -400, 400, function() return -1, 1 end, jumps)
map("round", -400, 400, function(lo, hi) return lo - 1, hi + 1 end, jumps)
map("floor", -400, 400, function(lo, hi) return lo - 1, hi end, jumps)

--- One of them.
function plain.jump(b)
  jumps[b:one_of {"less", "where", "sign", "round", "floor", "topk_mask"}](b)
end

map("negate", -400, 400, function(lo, hi) return -hi, -lo end)
map("exp", -9, 3, function(lo, hi) return math.exp(lo), math.exp(hi) end)
map("log", 0.25, 400, function(lo, hi) return math.log(lo), math.log(hi) end)
map("sqrt", 0.25, 400, function(lo, hi) return math.sqrt(lo), math.sqrt(hi) end)
map("rsqrt", 0.25, 400, function(lo, hi) return 1 / math.sqrt(hi), 1 / math.sqrt(lo) end)
map("sigmoid", -30, 30, function(lo, hi) return sigmoid(lo), sigmoid(hi) end)
map("silu", -30, 30, function(_, hi) return -0.3, math.max(0, hi) end)

--- A cast between kinds; to i32 the values jump.
function plain.cast(b)
  local x = b:pick(function(one) return one.kind ~= "D" or not b.scope end)
  if not x then return end
  local to = b:one_of(b.halves and {"H", "F", "D", "H"} or {"F", "D"})
  local untracked = not x.tracked
  if untracked and not b.scope and b:chance(8) then to = "I" end
  if x.kind == "I" then to = "F" end
  if b.scope and x.kind == "F" and to == "D" then to = b.halves and "H" or "F" end
  b:apply("cast", {x}, {dtype = {kind = to}}, {{shape = x.shape, kind = to, lo = x.store.lo, hi = x.store.hi}},
    {rough = to == "I"})
end

function plain.copy(b)
  local x = b:pick(function() return true end)
  if x then b:apply("copy", {x}, nil, {{shape = x.shape, kind = x.kind, lo = x.store.lo, hi = x.store.hi}}) end
end

-- Reductions --------------------------------------------------------------------------------------

local function reduced(x, axes, keep)
  local over, shape, count = {}, {}, 1
  for _, axis in ipairs(axes) do over[axis + 1] = true end
  for d, extent in ipairs(x.shape) do
    if #axes == 0 or over[d] then
      count = count * extent
      if keep then shape[#shape + 1] = 1 end
    else
      shape[#shape + 1] = extent
    end
  end
  return shape, count
end

local function reduction(name)
  plain[name] = function(b)
    local x = any_float(b, function(one) return name ~= "max" or not one.tracked end)
    if not x then return end
    local axes, keep = {}, b:chance(2)
    for d = 0, #x.shape - 1 do
      if b:chance(2) then axes[#axes + 1] = d end
    end
    local shape, count = reduced(x, axes, keep)
    if name == "max" and count == 0 or name == "mean" and count == 0 then return end
    local lo, hi = x.store.lo, x.store.hi
    if name == "sum" then lo, hi = math.min(lo * count, 0), math.max(hi * count, 0) end
    if name == "sum" and count > 0 and x.store.lo > 0 then lo = x.store.lo * count end
    b:apply(name, {x}, {axes = axes, keep = keep}, {{shape = shape, kind = "F", lo = lo, hi = hi}})
  end
end

reduction "sum"
reduction "mean"
reduction "max"

function plain.sum_to(b)
  local x = any_float(b)
  if not x then return end
  local to, count = {}, 1
  for d = #x.shape - b:draw(0, #x.shape) + 1, #x.shape do to[#to + 1] = b:chance(2) and 1 or x.shape[d] end
  for d = 1, #x.shape do
    if (to[d - #x.shape + #to] or 1) ~= x.shape[d] then count = count * x.shape[d] end
  end
  b:apply("sum_to", {x}, {shape = to}, {{shape = to, kind = "F", lo = math.min(x.store.lo * count, x.store.lo, 0),
    hi = math.max(x.store.hi * count, x.store.hi, 0)}})
end

-- Moves -------------------------------------------------------------------------------------------

local function moved(b, name, x, attributes, shape, zeros)
  return b:apply(name, {x}, attributes, {{shape = shape, kind = x.kind, lo = zeros and math.min(x.store.lo, 0) or x.store.lo,
    hi = zeros and math.max(x.store.hi, 0) or x.store.hi}})
end

local function any(b, least)
  return b:pick(function(one) return #one.shape >= (least or 0) and one.kind ~= "D" end)
end

local function dense(x)
  return #x.shape == 0 or x.shape[1] <= 1 or x.stride == builder.inner(x.shape) and not x.stride_of
end

--- Adds the variable of a reshape, which shares memory where the strides allow.
function plain.reshaped(b, x, shape)
  local name, keeps = b:name "v", #shape > 0 and #x.shape > 0 and shape[1] == x.shape[1]
  local shares = dense(x) or keeps
  b:line("local %s = ops.reshape(%s, {shape = %s})", name, x.name, builder.text(shape))
  b.statements = b.statements + 1
  local fields = {shape = shape, kind = x.kind, tracked = x.tracked, detached = x.detached,
    store = shares and x.store or builder.store(x.store), argument = shares and x.argument or nil,
    outside = shares and x.outside or nil}
  if keeps and not (dense(x) and x.shape[1] > 1) then fields.stride, fields.stride_of = x.stride, x.stride_of end
  x.fresh = false
  return b:add(name, fields)
end

function plain.reshape(b)
  local x = any(b, 1)
  if not x then return end
  local s = b.sizes
  local shape
  local way = b:draw(1, 4)
  if way == 2 and builder.same_shape(x.shape, {s.N, s.R, s.d}) then
    shape = {s.N, s.B, s.T, s.H, s.K}
  elseif way == 3 and builder.numel(x.shape) == s.N * s.R * s.d then
    shape = {s.N, s.R, s.d}
  elseif way == 4 and #x.shape > 1 then
    shape = {x.shape[1] * x.shape[2], unpack(x.shape, 3)}
  else
    shape = {x.shape[1], builder.inner(x.shape)}
  end
  plain.reshaped(b, x, shape)
end

function plain.transpose(b)
  local x = any(b, 2)
  if not x then return end
  local permutation, shape = {}, {}
  for d = 1, #x.shape do table.insert(permutation, b:draw(1, d), d - 1) end
  for d, source in ipairs(permutation) do shape[d] = x.shape[source + 1] end
  moved(b, "transpose", x, {permutation = permutation}, shape)
end

function plain.slice(b)
  local x = any(b, 1)
  if not x then return end
  local axis, shape = b:draw(1, #x.shape), {unpack(x.shape)}
  local start = b:draw(0, math.max(shape[axis] - 1, 0))
  shape[axis] = b:draw(math.min(1, shape[axis]), shape[axis] - start)
  moved(b, "slice", x, {axis = axis - 1, start = start, count = shape[axis]}, shape)
end

function plain.pad(b)
  local x = any(b, 1)
  if not x then return end
  local axis, before, after = b:draw(1, #x.shape), b:draw(0, 2), b:draw(0, 2)
  local shape = {unpack(x.shape)}
  shape[axis] = shape[axis] + before + after
  moved(b, "pad", x, {axis = axis - 1, before = before, after = after}, shape, true)
end

function plain.concat(b)
  local x = any(b, 1)
  if not x then return end
  local axis, inputs, shape = b:draw(1, #x.shape), {x}, {unpack(x.shape)}
  local lo, hi = x.store.lo, x.store.hi
  for i = 2, b:draw(1, 3) do
    inputs[i] = b:pick(function(one)
      if one.kind ~= x.kind or #one.shape ~= #x.shape then return false end
      for d = 1, #one.shape do
        if d ~= axis and one.shape[d] ~= x.shape[d] then return false end
      end
      return true
    end)
    shape[axis] = shape[axis] + inputs[i].shape[axis]
    lo, hi = math.min(lo, inputs[i].store.lo), math.max(hi, inputs[i].store.hi)
  end
  if builder.numel(shape) > 60000 then return end
  b:apply("concat", inputs, {axis = axis - 1}, {{shape = shape, kind = x.kind, lo = lo, hi = hi}})
end

function plain.expand(b)
  local x = any(b)
  if not x or #x.shape > 4 or builder.numel(x.shape) > 3000 then return end
  local shape = {}
  for d, extent in ipairs(x.shape) do shape[d] = extent == 1 and b:draw(1, 4) or extent end
  if b:chance(2) then table.insert(shape, 1, b:draw(1, 3)) end
  moved(b, "expand", x, {shape = shape}, shape)
end

-- Columns -----------------------------------------------------------------------------------------

local function arena_of(b)
  return any_float(b, function(one) return #one.shape == 2 and builder.numel(one.shape) > 0 end)
end

--- Some columns of a matrix, perhaps several times.
function plain.gather_columns(b)
  local x = arena_of(b)
  if not x then return end
  local count = b:draw(1, 9)
  b:apply("gather_columns", {x, b:indices({count}, x.shape[2])}, nil,
    {{shape = {x.shape[1], count}, kind = "F", lo = x.store.lo, hi = x.store.hi}})
end

--- A column of a matrix is written to.
function plain.scatter_columns(b)
  local x = arena_of(b)
  if not x or b.scope or x.argument then return end
  local values = b:like({b:chance(2) and 1 or x.shape[1], 1}, "F", -1, 1)
  if values.store == x.store then return end
  b:write("scatter_columns", {x, b:indices({1}, x.shape[2]), values}, nil, {1})
end

function plain.sum_squares(b)
  local x = any_float(b, function(one) return #one.shape > 1 end)
  if not x then return end
  local most = builder.inner(x.shape) * math.max(x.store.hi ^ 2, x.store.lo ^ 2)
  b:apply("sum_squares", {x}, nil, {{shape = {x.shape[1]}, kind = "D", lo = 0, hi = most}})
end

function jumps.topk_mask(b)
  local x = arena_of(b)
  if not x then return end
  b:apply("topk_mask", {x}, {count = b:draw(0, x.shape[2])}, {{shape = x.shape, kind = "F", lo = 0, hi = 1}}, {rough = true})
end

-- Made, seen, written and freed -------------------------------------------------------------------

--- A tensor of zeros, which later statements may write to.
function plain.zeros(b)
  local like = any(b)
  if not like then return end
  local name, kind = b:name "z", like.kind
  b:line("local %s = tensor.zeros(%s, %s, {context = t.device})", name, builder.text(like.shape),
    builder.text {kind = kind})
  b:add(name, {shape = like.shape, kind = kind, fresh = b.scope ~= nil, store = builder.store {lo = 0, hi = 0, exact = true}})
end

--- Random numbers, the same in every run.
function plain.random(b)
  local like = any_float(b)
  if not like then return end
  local kind = b.halves and b:chance(4) and "H" or "F"
  if b:chance(2) then
    b:apply("random_normal", {}, {dtype = {kind = kind}, seed = b:draw(0, 99), shape = like.shape, context = {kind = "device"}},
      {{shape = like.shape, kind = kind, lo = -5, hi = 5}})
  else
    b:apply("random_uniform", {}, {dtype = {kind = kind}, seed = b:draw(0, 99), shape = like.shape, context = {kind = "device"}},
      {{shape = like.shape, kind = kind, lo = 0, hi = 1}})
  end
end

--- A view of some rows and columns, which shares memory with what it is of.
function plain.view(b)
  local x = b:pick(function(one) return #one.shape > 0 and not one.tracked and builder.numel(one.shape) > 0 end)
  if not x then return end
  local inner = builder.inner(x.shape)
  local first, from = b:draw(0, x.shape[1] - 1), b:draw(0, inner - 1)
  local rows, columns = b:draw(1, x.shape[1] - first), b:draw(1, inner - from)
  local shape, name = {rows, columns}, b:name "w"
  local stride = x.stride_of and "<" .. x.stride_of.name .. ">" or tostring(x.stride)
  b:line("local %s = %s:view {shape = %s, stride = %s, offset = %d * %s + %d}", name, x.name, builder.text(shape), stride,
    first, stride, from)
  x.fresh = false
  b:add(name, {shape = shape, kind = x.kind, stride = x.stride, stride_of = x.stride_of, store = x.store,
    argument = x.argument, outside = x.outside, detached = x.detached})
end

--- A tensor's memory as a constant to gradients, which differences do not see.
function plain.detach(b)
  local x = b:pick(function(one) return one.kind ~= "I" end)
  if not x then return end
  local name = b:name "v"
  b:line("local %s = %s:detach()", name, x.name)
  if x.tracked then b.smooth = false end
  x.fresh = false
  b:add(name, {shape = x.shape, kind = x.kind, stride = x.stride, stride_of = x.stride_of, store = x.store, detached = b.scope or true,
    argument = x.argument, outside = x.outside})
end

--- Writes to a tensor there is: what the operation gives has its shape.
function plain.overwrite(b)
  if b.scope then return end
  local to = b:pick(function(one) return not one.argument and not (one.kind == "I" and one.outside) and one.kind ~= "D" end)
  if not to then return end
  local x = b:pick(function(one)
    return one.kind == to.kind and one.store ~= to.store and builder.same_shape(one.shape, to.shape)
  end)
  if not x then return end
  local adds = to.kind == "F" and to.store.hi + x.store.hi < 400 and to.store.lo + x.store.lo > -400 and b:chance(2)
  b:line("ops.copy(%s, {out = %s%s})", x.name, to.name, adds and ", accumulate = true" or "")
  b.statements = b.statements + 1
  local lo, hi = x.store.lo, x.store.hi
  if adds then lo, hi = lo + to.store.lo, hi + to.store.hi end
  local store = to.store
  store.lo, store.hi = math.min(store.lo, lo), math.max(store.hi, hi)
  store.exact, store.rough = store.exact and x.store.exact, store.rough or x.store.rough
  store.version = store.version + 1
end

--- Gives a tensor's memory back.
function plain.free(b)
  if b.scope then return end
  local x = b:pick(function(one) return not one.outside end)
  if not x then return end
  x.freed = true
  b:line("%s:free()", x.name)
end

--- Lets a tensor leave the function without being a result.
function plain.escape(b)
  if b.scope then return end
  local x = b:pick(function(one) return not one.outside and one.kind ~= "I" end)
  if x then b:line("t:escape(%s)", x.name) end
end

return plain
