--- Statements that take gradients: of a function of their own, whose statements are the gene's children.
local builder = require "spec.random.builder"
local model = require "spec.random.model"

local gradients = {}

-- Up to count variables, no two of one memory.
local function choose_leaves(b, count)
  local leaves, taken = {}, {}
  for _ = 1, count do
    local leaf = b:pick(function(one)
      return (one.kind == "F" or one.kind == "H") and not taken[one.store] and not one.detached
    end)
    if not leaf then break end
    leaves[#leaves + 1], taken[leaf.store] = leaf, true
  end
  if #leaves == 0 then leaves[1] = b:leaf({b.sizes.N, b.sizes.R, b.sizes.d}, "F") end
  return leaves
end

-- Runs the children in a scope in which the leaves are tracked; finish(b) gives the variables that the function returns.
-- more: tensors that are made in it may become leaves too.
-- Returns the function's lines, what it returns, and whether anything in it may jump.
local function inside(b, leaves, children, finish, more)
  local scope = {leaves = {}, rough = false, adopted = more and leaves or nil}
  local lines, indent, count, gene = b.lines, b.indent, #b.vars, b.gene
  for _, leaf in ipairs(leaves) do scope.leaves[leaf.store], leaf.tracked = true, true end
  b.scope, b.lines, b.indent = scope, {}, indent .. "  "
  for _, child in ipairs(children) do b:statement(child) end
  b.gene = gene
  local returned = finish(b)
  local body = b.lines
  b.scope, b.lines, b.indent = nil, lines, indent
  for i = #b.vars, count + 1, -1 do b.vars[i] = nil end
  for _, leaf in ipairs(leaves) do leaf.tracked = nil end
  return body, returned, scope.rough
end

local function names_of(list)
  local names = {}
  for i, one in ipairs(list) do names[i] = one.name end
  return table.concat(names, ", ")
end

-- The call, over several lines; returned gets names of its own.
local function write_call(b, names, call, body, returned, rest)
  b:line("local %s = %s(function()", table.concat(names, ", "), call)
  for _, line in ipairs(body) do b.lines[#b.lines + 1] = line end
  b:line("  return %s", names_of(returned))
  b:line("end, %s)", rest)
  b.statements = b.statements + 1
end

-- What a function in a gradient returns: something that depends on a leaf, mostly with weights, without which errors that
-- cancel in its sum were not seen; and perhaps something else.
local function returns(b)
  local first = b:pick(function(one) return one.tracked and not one.missing and not b.scope.leaves[one.store] end)
    or b:pick(function(one) return one.tracked and not one.missing end)
  if first.kind == "F" and b:draw(0, 3) > 0 then
    local size = math.max(-first.store.lo, first.store.hi)
    first = b:apply("multiply", {first, b:leaf(first.shape, "F")}, nil,
      {{shape = first.shape, kind = "F", lo = -size, hi = size}}, {fixed = true}) or first
  end
  local list = {first}
  if b:chance(3) then list[2] = b:pick(function(one) return one ~= first end) end
  return list
end

local function add_gradient(b, name, leaf, rough)
  return b:add(name, {shape = leaf.shape, kind = "F", store = builder.store {lo = -20, hi = 20, rough = rough}})
end

local function hessian_product(b, children)
  local leaves, directions = choose_leaves(b, b:draw(1, 2)), {}
  local body, returned, rough = inside(b, leaves, children, function() return {returns(b)[1]} end, true)
  for i, leaf in ipairs(leaves) do directions[i] = b:leaf(leaf.shape, "F") end
  local list = b:name "h"
  write_call(b, {list}, "t:hvp", body, returned, ("{%s}, {%s}"):format(names_of(leaves), names_of(directions)))
  for _, direction in ipairs(directions) do rough = rough or direction.store.rough end
  for i, leaf in ipairs(leaves) do
    local name = b:name "g"
    b:line("local %s = %s[%d]", name, list, i)
    add_gradient(b, name, leaf, rough)
  end
end

--- pack.grad of some statements, or a Hessian-vector product.
function gradients.grad(b, gene)
  if b.scope then return end
  if b:chance(6) then return hessian_product(b, gene.children) end
  local leaves = choose_leaves(b, b:draw(1, 3))
  local into, adds, release = b:chance(3), b:chance(2), b:chance(3)
  local body, returned, rough = inside(b, leaves, gene.children, returns, true)
  local options, destinations = {}, {}
  if into then
    -- One of its own: what a gradient reads again must not be in an arena that it writes to.
    local arena = {name = b:name "q", size = 0, kind = "F", seed = b:draw(1, 9999), columns = {}}
    for i, leaf in ipairs(leaves) do
      if #leaf.shape > 0 and leaf.shape[1] == b.sizes.N and b.sizes.N > 0 then
        destinations[i] = b:column(arena, leaf.shape)
        b.arenas[arena.name] = arena
      else
        destinations[i] = b:leaf(leaf.shape, "F", -1, 1, true)
      end
    end
    options[1] = "into = {" .. names_of(destinations) .. "}"
    if adds then options[2] = "accumulate = true" end
  end
  if release then options[#options + 1] = "release = true" end
  local names, list = {}, b:name "g"
  for i in ipairs(returned) do names[i] = b:name "r" end
  names[#names + 1] = list
  write_call(b, names, "t:differentiate", body, returned, ("{%s}, {%s}"):format(names_of(leaves), table.concat(options, ", ")))
  for i, one in ipairs(returned) do
    b:add(names[i], {shape = one.shape, kind = one.kind, stride = one.stride, stride_of = one.stride_of, store = one.store,
      argument = one.argument, outside = one.outside or b:is_there(one)})
  end
  for i, leaf in ipairs(leaves) do
    if destinations[i] then
      local store = destinations[i].store
      store.lo, store.hi, store.exact, store.rough, store.version = -21, 21, false, store.rough or rough, store.version + 1
    else
      local name = b:name "g"
      b:line("local %s = %s[%d]", name, list, i)
      add_gradient(b, name, leaf, rough)
    end
  end
end

-- Training ----------------------------------------------------------------------------------------

-- An arena of a training step: all have the same columns.
local function arena(b, key, kind, lo, hi)
  local made = {name = b:name "p", size = 0, kind = kind, seed = b:draw(1, 9999), columns = {}, lo = lo, hi = hi}
  b.arenas[key] = made
  return made
end

local function columns_of(b, arenas, shapes)
  for _, shape in ipairs(shapes) do
    for _, one in ipairs(arenas) do
      local column = b:column(one, {unpack(shape)})
      column.store.lo, column.store.hi = one.lo or -1, one.hi or 1
    end
  end
end

local function whole(one)
  return {name = one.name, parts = one.columns, store = builder.store {exact = false}}
end

local function given(b, name, format, ...)
  b:once("local %s = " .. format, name, ...)
  return {name = name, store = builder.store {exact = true}}
end

local function mixing_matrix(b)
  local n, list, complete = b.sizes.N, {}, b:chance(2)
  for i = 1, n do
    for j = 1, n do
      list[#list + 1] = complete and 1 / n or (i == j and 0.5 or 0) + (j == (i + n - 2) % n + 1 and 0.5 or 0)
    end
  end
  return given(b, b:name "mixing", "t:given(%s, 'f64', {%d, %d})", builder.text(list), n, n)
end

local function loss_of(b)
  local loss, count = model[b:one_of {"linear_cross_entropy", "cross_entropy"}](b)
  if loss and loss.tracked then return {loss, count} end
  local leaf = b:pick(function(one)
    return one.tracked and one.kind == "F" and #one.shape == 3 and one.shape[1] == b.sizes.N and one.shape[3] == b.sizes.d
  end)
  local x = b:apply("affine", {leaf}, {scale = 0.5}, {{shape = leaf.shape, kind = "F", lo = -1, hi = 1}}, {fixed = true})
  local targets = b:indices({x.shape[1], x.shape[2]}, x.shape[3], true)
  return {b:apply("cross_entropy", {x, targets}, nil, {{shape = {b.sizes.N}, kind = "F", lo = 0, hi = 99},
    {shape = {b.sizes.N}, kind = "D", lo = 0, hi = 99, constant = true},
    {shape = {x.shape[1], x.shape[2]}, kind = "F", lo = 0, hi = 9}}, {fixed = true})}
end

-- Forward and backward of each micro-step, the sums of losses and counts.
local function micro_steps(b, gene, parameters, slopes)
  local total, targets
  for m = 1, b:draw(1, 3) do
    local children = {}
    for i, child in ipairs(gene.children) do
      if i % 3 == m - 1 then children[#children + 1] = child end
    end
    local body, returned = inside(b, parameters.columns, children, loss_of)
    local names = {b:name "r", b:name "r", b:name "g"}
    local options = ("into = {%s}%s%s"):format(names_of(slopes.columns), m > 1 and ", accumulate = true" or "",
      b:chance(2) and ", release = true" or "")
    write_call(b, names, "t:differentiate", body, returned, ("{%s}, {%s}"):format(names_of(parameters.columns), options))
    local loss = {name = names[1], shape = {b.sizes.N}, kind = "F", store = builder.store {lo = 0, hi = 99}}
    local count = {name = names[2], shape = {b.sizes.N}, kind = "D", store = builder.store {lo = 0, hi = 99, exact = true}}
    if m == 1 then
      total, targets = loss, count
    else
      local shape = {b.sizes.N}
      total = b:apply("add", {total, loss}, nil, {{shape = shape, kind = "F", lo = 0, hi = 99}}, {fixed = true})
      targets = b:apply("add", {targets, count}, nil, {{shape = shape, kind = "D", lo = 0, hi = 99}}, {fixed = true})
    end
  end
  return total, targets
end

local function update(b, parameters, slopes, scale, norm, scalars, guard)
  local x, g = whole(parameters), whole(slopes)
  local m, v = whole(arena(b, "m", "F", -0.1, 0.1)), whole(arena(b, "v", "F", 0, 0.1))
  b.arenas.m.like, b.arenas.v.like = parameters, parameters
  local mixing, blocks = mixing_matrix(b), given(b, b:name "blocks", "t:blocks(<%s>, %d)", parameters.name, b:draw(1, 99))
  if b:chance(2) then
    local inputs, written = {x, g, m, v, scale, norm, mixing, blocks, scalars, guard}, {1, 3, 4}
    if b.halves and b.arenas.half then local half = whole(b.arenas.half)
      half.name = "half and " .. half.name .. " or nil"
      inputs[11], written[4] = half, 11
      b.rough = true -- the twin has no copy
      for _, column in ipairs(half.parts) do column.store.rough = true end
    end
    b:write("update", inputs, {combine_last = b:chance(2)}, written)
    return
  end
  local first = b:chance(2)
  if first then b:write("mix", {x, mixing, scalars, guard}, nil, {1}) end
  b:write("clip", {g, scale, norm, scalars, guard}, nil, {1})
  b:write("adamw", {x, g, m, v, blocks, scalars, guard}, nil, {1, 3, 4})
  if not first then b:write("mix", {x, mixing, scalars, guard}, nil, {1}) end
end

--- A training step: micro-steps whose gradients add up in an arena, then norm, guard, clip, mix and AdamW.
function gradients.training(b, gene)
  local s = b.sizes
  if b.scope or b.arenas.x or s.N * s.R * s.d == 0 then return end
  local parameters, slopes = arena(b, "x", "F", -1, 1), arena(b, "g", "F", -1, 1)
  local arenas = {parameters, slopes}
  if b.halves then arenas[3] = arena(b, "half", "H", -1, 1) end
  columns_of(b, arenas, {{s.N, s.V, s.d}, {s.N, s.d}, {s.N, s.d, s.f}, {s.N, s.R, s.d}})
  for _, column in ipairs(slopes.columns) do column.freed = true end -- until they hold gradients
  local t = b:draw(1, 9)
  local scalars = given(b, b:name "scalars", "t:given({0.02, 0.9, 0.95, 0.01, 0.1, %.17g, %.17g, %.17g, %d, %d, 0, 0}, 'f64')",
    1 - 0.9 ^ t, 1 - 0.95 ^ t, b:draw(0, 2) * 0.7, t - 1, b:draw(0, 1))
  local guard = given(b, b:name "guard", "t:given({%d, 0, 0, 0, 0, 0, 0, 0}, 'i32')", b:chance(8) and 1 or 0)
  local loss, count = micro_steps(b, gene, parameters, slopes)
  local shape = {s.N}
  local scale = b:apply("inverse_count", {count}, nil, {{shape = shape, kind = "D", lo = 0, hi = 1}}, {fixed = true})
  local norm = b:apply("gradient_norm", {whole(slopes), scale}, nil, {{shape = shape, kind = "D", lo = 0, hi = 99}}, {fixed = true})
  b:write("check_finite", {loss, norm, scalars, guard}, nil, {})
  update(b, parameters, slopes, scale, norm, scalars, guard)
  for _, column in ipairs(slopes.columns) do
    column.freed, column.store.lo, column.store.hi, column.store.exact = false, -50, 50, false
  end
  if b:chance(2) then
    b:apply("consensus_distance", {whole(parameters)}, nil, {{shape = {1}, kind = "D", lo = 0, hi = 99}}, {fixed = true})
  end
end

--- The mean over workers, or how far they are apart.
function gradients.workers(b)
  if b.scope then return end
  local x = b:pick(function(one) return one.kind == "F" and #one.shape >= 2 and one.shape[1] > 0 end)
  if not x then return end
  if b:chance(2) then
    b:apply("consensus_distance", {x}, nil, {{shape = {1}, kind = "D", lo = 0, hi = 400}})
  else
    b:apply("average", {x}, nil, {{shape = {1, unpack(x.shape, 2)}, kind = "F", lo = x.store.lo, hi = x.store.hi}})
  end
end

return gradients
