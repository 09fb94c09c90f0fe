--- Random programs: genes from a seed, and a program's text from genes.
local builder = require "spec.random.builder"
local genome = require "spec.random.genome"
local gradients = require "spec.random.gradients"
local model = require "spec.random.model"
local plain = require "spec.random.plain"

local generate = {}

-- How often each statement comes.
local weights = {
  add = 3, subtract = 1, multiply = 2, divide = 1, affine = 3, negate = 1, exp = 1, log = 1, sqrt = 1, rsqrt = 1, sigmoid = 1,
  silu = 1, cast = 3, copy = 2, sum = 2, mean = 1, max = 1, sum_to = 1, reshape = 3, transpose = 2, slice = 2, pad = 1,
  minimum = 1, maximum = 1, abs = 1, jump = 1, gather_columns = 1, scatter_columns = 1, sum_squares = 1,
  concat = 2, expand = 1, zeros = 2, random = 1, view = 2, detach = 1, overwrite = 4, free = 1, escape = 1,
  matmul = 5, scores = 1, embedding = 1, embedding_grad = 1, pick = 1, unpick = 1, rmsnorm = 3, residual = 3, add_rmsnorm = 1,
  rope = 1, rope_split = 1, rope_join = 1, swiglu = 3, swiglu_split = 2, attention = 2, cross_entropy = 1,
  linear_cross_entropy = 2, linear_cross_entropy_step = 1, gradient = 4, workers = 1, grad = 6, training = 1,
}

-- Statements that have nothing to do in a function that a gradient is taken of.
local outer = {}
for name in ([[max minimum maximum abs jump scatter_columns sum_squares overwrite free escape view random add_rmsnorm
    linear_cross_entropy_step gradient workers grad training]]):gmatch "%S+" do
  outer[name] = true
end

local statements, kinds, inner_kinds = {}, {}, {}
for _, rooms in ipairs {plain, model, gradients} do
  for name, statement in pairs(rooms) do statements[name] = statement end
end
for name, weight in pairs(weights) do
  for _ = 1, weight do kinds[#kinds + 1] = name end
end
table.sort(kinds)
for _, name in ipairs(kinds) do
  if not outer[name] then inner_kinds[#inner_kinds + 1] = name end
end

-- Writes the statement of a gene.
local function write(b, gene)
  b.gene, b.statement_vars = gene, 0
  gene:rewind()
  statements[gene.kind](b, gene)
end

-- Sizes by name, small first; large ones now and then.
local function draw_sizes(random)
  local large = random(1, 14) == 14
  local sizes = {N = random(1, 5), B = random(1, 3), T = random(1, large and 40 or 5), H = random(1, 3),
    K = random(1, large and 16 or 6), f = random(1, large and 33 or 6), V = random(2, large and 70 or 9)}
  if random(1, 30) == 30 then sizes[({"N", "B", "T"})[random(1, 3)]] = 0 end
  return sizes
end

local function new_gene(id, kind, random)
  local gene = genome.gene(id, kind, random)
  local children = kind == "grad" and random(1, 9) or kind == "training" and random(3, 12) or 0
  for i = 1, children do gene.children[i] = new_gene(id .. "/" .. i, inner_kinds[random(1, #inner_kinds)], random) end
  return gene
end

--- The genes of a seed's program.
function generate.genes(seed)
  local random = genome.random(seed)
  local genes = {seed = seed, sizes = draw_sizes(random), flavour = ({"f64", "f32", "f32", "amp"})[random(1, 4)],
    odd = random(1, 15) == 15}
  for i = 1, random(3, 24) do genes[i] = new_gene("s" .. i, kinds[random(1, #kinds)], random) end
  genes.first = random(1, 5) == 5 and math.floor(#genes / 2) or #genes -- statements of the first function
  genes.half, genes.last = genome.gene("half", "return", random), genome.gene("last", "return", random)
  return genes
end

-- Ends a function: what it returns.
local function write_returns(b, gene)
  b.gene, b.statement_vars = gene, 0
  gene:rewind()
  local results, names = {}, {}
  for i = 1, gene:draw(1, 4) do
    results[i] = b:pick(function(one) return not one.outside end) or b:pick(function() return true end)
      or b:leaf({b.sizes.N, 2}, "F")
    names[i] = results[i].name
  end
  b:line("return %s", table.concat(names, ", "))
  return results
end

-- Starts the second function: it has the first one's results, by other names, and what is outside of both.
local function start_second(b, results)
  local vars = b.vars
  b.first, b.lines, b.pending, b.vars, b.parameters = b.lines, {}, {}, {}, {}
  for _, one in ipairs(vars) do
    if one.global then b.vars[#b.vars + 1] = one end
  end
  for i, one in ipairs(results) do
    b.parameters[i] = b:name "y"
    b:add(b.parameters[i], {shape = one.shape, kind = one.kind, stride = one.stride, stride_of = one.stride_of, store = one.store,
      argument = one.argument, outside = true})
  end
end

-- The whole text: arenas first, whose sizes are known by now.
local function assemble(b)
  local arenas, parts = {}, {}
  for _, arena in pairs(b.arenas) do arenas[#arenas + 1] = arena end
  table.sort(arenas, function(x, y) return x.name < y.name end)
  local names = {}
  for i, one in ipairs(b.arguments) do names[i] = one.name end
  parts[1] = "return function(t)\n  local ops, tensor, F, H, half = t.ops, t.tensor, t.F, t.H, t.half"
  for _, arena in ipairs(arenas) do
    parts[#parts + 1] = ("  local %s = t:floats({%d, <%s>}, %q, %d, %s, %s)"):format(arena.name, b.sizes.N,
      (arena.like or arena).name, arena.kind, arena.seed, builder.text(arena.lo or -1), builder.text(arena.hi or 1))
  end
  parts[#parts + 1] = table.concat(b.setup, "\n")
  parts[#parts + 1] = "  local function body(" .. table.concat(names, ", ") .. ")"
  parts[#parts + 1] = table.concat(b.first or b.lines, "\n")
  if b.first then
    parts[#parts + 1] = "  end\n  local function second(" .. table.concat(b.parameters, ", ") .. ")"
    parts[#parts + 1] = table.concat(b.lines, "\n")
  end
  parts[#parts + 1] = "  end\n  local function arguments(SEED) -- luacheck: ignore\n    return {"
  for _, one in ipairs(b.arguments) do parts[#parts + 1] = "      " .. one.made .. "," end
  parts[#parts + 1] = "    }\n  end\n  return body, arguments" .. (b.first and ", second" or "") .. "\nend\n"
  local sizes = {}
  for _, arena in ipairs(arenas) do sizes[arena.name] = (arena.like or arena).size end
  return (table.concat(parts, "\n"):gsub("<(%w+)>", sizes):gsub("\n\n+", "\n"))
end

--- The program of genes: text; flavour (f64, f32, amp); what is known of results: a list of {kind, exact, rough}; rough,
-- whether anything in it may jump; smooth, whether differences show its gradients; arguments, statements: their numbers.
function generate.program(genes)
  local s = {}
  for name, size in pairs(genes.sizes) do s[name] = size end
  s.R, s.d = s.B * s.T, s.H * s.K
  local b = builder.create(s, {halves = genes.flavour == "amp", odd = genes.odd})
  b.statement = write
  local results, known = {}, {}
  for i, gene in ipairs(genes) do
    write(b, gene)
    if i == genes.first and i < #genes then
      results = write_returns(b, genes.half)
      start_second(b, results)
    end
  end
  for _, one in ipairs(write_returns(b, genes.last)) do results[#results + 1] = one end
  for i, one in ipairs(results) do known[i] = {kind = one.kind, exact = one.store.exact, rough = one.store.rough} end
  return {seed = genes.seed, text = assemble(b), flavour = genes.flavour, odd = genes.odd, results = known,
    rough = b.rough or genes.odd, smooth = b.smooth and not genes.odd, arguments = #b.arguments, statements = b.statements}
end

return generate
