--- Arenas: one [N, D] block for the parameters (or gradients, or a moment) of N workers, and the layout
-- that names its columns.
local caller = require "pack.core.caller"
local tensor = require "pack.core.tensor"

caller.register()

local arena = {}

local ALIGNMENT = require("pack.native").C.PK_ARENA_ALIGNMENT

local Layout = {}
Layout.__index = Layout

local function numel_of(shape)
  local numel = 1
  for _, extent in ipairs(shape) do numel = numel * extent end
  return numel
end

-- Entries of the layout, one after the other in memory, as one entry whose first extent is the sum of theirs;
-- nil if there is something between them.
local function join(layout, name, parts)
  local first = layout:entry(parts[1])
  local joined = {name = name, parts = parts, shape = {0, unpack(first.shape, 2)}, start = first.start, numel = 0}
  for _, part in ipairs(parts) do
    local entry = layout:entry(part)
    if entry.start ~= joined.start + joined.numel then return nil end
    joined.shape[1], joined.numel = joined.shape[1] + entry.shape[1], joined.numel + entry.numel
  end
  return joined
end

--- A layout from a list of {name, shape}, shapes without the worker dimension.
-- The layout is a list of {name, shape, start, numel, padded_numel}; layout.size is D and
-- layout.parameters the number of elements without padding. joins: a list of {name, parts}, names for parts that
-- follow each other and differ in their first extent at most, as one [sum of these, ...]. layout.joined has the
-- entry of each by its name, with its parts, but not where padding lies between them.
function arena.layout(entries, joins)
  local layout = setmetatable({places = {}, joined = {}, size = 0, parameters = 0}, Layout)
  for i, entry in ipairs(entries) do
    local name, shape = entry[1] or entry.name, entry[2] or entry.shape
    if type(name) ~= "string" or type(shape) ~= "table" then
      caller.raise("layout: entry %d is not {name, shape}", i)
    end
    if layout.places[name] then caller.raise("layout: '%s' is there twice", name) end
    local numel = numel_of(shape)
    local padded = math.ceil(numel / ALIGNMENT) * ALIGNMENT
    layout[i] = {name = name, shape = shape, start = layout.size, numel = numel,
      padded_numel = padded}
    layout.places[name] = i
    layout.size = layout.size + padded
    layout.parameters = layout.parameters + numel
  end
  for _, one in ipairs(joins or {}) do layout.joined[one[1]] = join(layout, one[1], one[2]) end
  return layout
end

--- The entry of a name, also of a joined one.
function Layout:entry(name)
  local entry = self[self.places[name]] or self.joined[name]
  if not entry then caller.raise("the layout has no '%s'", tostring(name)) end
  return entry
end

--- The names of all columns, those of parts replaced by the joined one.
function Layout:joined_names()
  local whole, names, seen = {}, {}, {}
  for name, entry in pairs(self.joined) do
    for _, part in ipairs(entry.parts) do whole[part] = name end
  end
  for _, entry in ipairs(self) do
    local name = whole[entry.name] or entry.name
    if not seen[name] then names[#names + 1], seen[name] = name, true end
  end
  return names
end

--- i32 [D / 64]: 1 where weight decay applies, which is in tensors of two or more local dimensions.
function Layout:blocks(context)
  local flags = {}
  for _, entry in ipairs(self) do
    for _ = 1, entry.padded_numel / ALIGNMENT do flags[#flags + 1] = #entry.shape >= 2 and 1 or 0 end
  end
  return tensor.from(flags, "i32", {category = "workspace", context = context})
end

--- The columns of a layout's entry of a tensor [N, D] as a tensor [N, shape...], a view.
function arena.columns(whole, entry)
  local shape = whole:sizes()
  return whole:view {shape = {shape[1], unpack(entry.shape)}, stride = whole.stride, offset = entry.start}
end

local Arena = {}
Arena.__index = Arena

--- An arena of zeros for N workers: arena.tensor is [N, D]. options: dtype ("f32"), category
-- ("parameters"), context.
function arena.create(layout, num_workers, options)
  options = options or {}
  local block = tensor.zeros({num_workers, layout.size}, options.dtype,
    {category = options.category or "parameters", context = options.context})
  return setmetatable({layout = layout, num_workers = num_workers, tensor = block, views = {}}, Arena)
end

--- The named tensor [N, shape...], a view of the arena: the same object each time.
function Arena:view(name)
  local view = self.views[name]
  if view then return view end
  view = arena.columns(self.tensor, self.layout:entry(name))
  self.views[name] = view
  return view
end

--- All views, in layout order.
function Arena:list()
  local list = {}
  for i, entry in ipairs(self.layout) do list[i] = self:view(entry.name) end
  return list
end

--- Row index (from 0) as an arena of one worker that shares the memory; freeing it gives back its views alone.
function Arena:row(index)
  local size = self.layout.size
  local row = self.tensor:view {shape = {1, size}, stride = size, offset = index * size}
  return setmetatable({layout = self.layout, num_workers = 1, tensor = row, views = {}}, Arena)
end

--- Gives the memory back; twice is harmless.
function Arena:free()
  for _, view in pairs(self.views) do view:free() end
  self.tensor:free()
end

return arena
