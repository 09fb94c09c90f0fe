--- Makes a failing program small: genes and sizes are left out or lowered as long as it fails in the same way.
local generate = require "spec.random.generate"

local shrink = {}

local function copy_of(genes)
  local copy = {}
  for key, value in pairs(genes) do
    if type(key) == "string" then copy[key] = value end
  end
  copy.sizes, copy.half, copy.last = {}, genes.half:copy(), genes.last:copy()
  for name, size in pairs(genes.sizes) do copy.sizes[name] = size end
  for i, gene in ipairs(genes) do copy[i] = gene:copy() end
  return copy
end

-- Every list of genes in a program: its own, and the children of each.
local function lists_of(genes)
  local lists = {genes}
  for _, gene in ipairs(genes) do
    if #gene.children > 0 then lists[#lists + 1] = gene.children end
  end
  return lists
end

-- Tries changes until none helps any more. change(genes) changes a copy; fails(program) says whether it still fails.
local function try(state, change)
  if state.left <= 0 then return false end
  state.left = state.left - 1
  local candidate = copy_of(state.genes)
  if change(candidate) == false then return false end
  local made, program = pcall(generate.program, candidate)
  if not made or not loadstring(program.text) or not state.fails(program) then return false end
  state.genes, state.program = candidate, program
  return true
end

-- Leaves out runs of genes, long runs first.
local function drop_genes(state)
  local any = false
  for l = #lists_of(state.genes), 1, -1 do
    local size = math.ceil(#lists_of(state.genes)[l] / 2)
    while size >= 1 do
      local at = 1
      while lists_of(state.genes)[l] and at <= #lists_of(state.genes)[l] do
        local dropped = try(state, function(genes)
          local list = lists_of(genes)[l]
          for _ = 1, math.min(size, #list - at + 1) do
            if list == genes and at <= genes.first then genes.first = genes.first - 1 end
            table.remove(list, at)
          end
        end)
        any = any or dropped
        if not dropped then at = at + size end
      end
      size = math.floor(size / 2)
    end
  end
  return any
end

local function lower_sizes(state)
  local any = false
  for _, name in ipairs {"N", "B", "T", "H", "K", "f", "V"} do
    for _, to in ipairs {1, 2, 3} do
      if state.genes.sizes[name] > to and try(state, function(genes) genes.sizes[name] = to end) then
        any = true
        break
      end
    end
  end
  return any
end

-- Every gene of a program.
local function all_genes(genes)
  local all = {genes.half, genes.last}
  for _, list in ipairs(lists_of(genes)) do
    for _, gene in ipairs(list) do all[#all + 1] = gene end
  end
  return all
end

-- Takes each choice that is a number down to its least, and forgets the rest of a gene's choices.
local function lower_choices(state)
  local any = false
  for g = 1, #all_genes(state.genes) do
    local k = 1
    while all_genes(state.genes)[g] and k <= #all_genes(state.genes)[g].tape do
      local choice = all_genes(state.genes)[g].tape[k]
      if type(choice) == "number" and choice > 0 and choice < 10 then
        any = try(state, function(genes) all_genes(genes)[g].tape[k] = 0 end) or any
      end
      k = k + 1
    end
  end
  return any
end

--- A small program that fails as the program of genes does. fails(program) tells; tries bounds how often it is asked (600).
function shrink.shrink(genes, fails, tries)
  for _, gene in ipairs(genes) do gene:freeze() end
  genes.half:freeze()
  genes.last:freeze()
  local state = {genes = genes, program = generate.program(genes), fails = fails, left = tries or 600}
  repeat
    local dropped = drop_genes(state)
    local lowered = lower_sizes(state)
    local simpler = lower_choices(state)
  until not (dropped or lowered or simpler) or state.left <= 0
  return state.program
end

return shrink
