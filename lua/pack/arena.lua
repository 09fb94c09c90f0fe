--- Arenas: one [N, D] block for the parameters (or gradients, or a moment) of N workers, and the layout
-- that names its columns.
local caller = require "pack.caller"
local tensor = require "pack.tensor"

caller.register()

local arena = {}

local ALIGNMENT = 64 -- elements between the starts of columns; host/core/core.h has the same

local Layout = {}
Layout.__index = Layout

local function numel_of(shape)
  local numel = 1
  for _, extent in ipairs(shape) do numel = numel * extent end
  return numel
end

--- A layout from a list of {name, shape}, shapes without the worker dimension.
-- The layout is a list of {name, shape, start, numel, padded_numel}; layout.size is D and
-- layout.parameters the number of elements without padding.
function arena.layout(entries)
  local layout = setmetatable({places = {}, size = 0, parameters = 0}, Layout)
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
  return layout
end

--- The entry of a name.
function Layout:entry(name)
  local place = self.places[name]
  if not place then caller.raise("the layout has no '%s'", tostring(name)) end
  return self[place]
end

--- i32 [D / 64]: 1 where weight decay applies, which is in tensors of two or more local dimensions.
function Layout:blocks(context)
  local flags = {}
  for _, entry in ipairs(self) do
    for _ = 1, entry.padded_numel / ALIGNMENT do flags[#flags + 1] = #entry.shape >= 2 and 1 or 0 end
  end
  return tensor.from(flags, "i32", {category = "workspace", context = context})
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
  local entry = self.layout:entry(name)
  view = self.tensor:view {shape = {self.num_workers, unpack(entry.shape)},
    stride = self.layout.size, offset = entry.start}
  self.views[name] = view
  return view
end

--- All views, in layout order.
function Arena:list()
  local list = {}
  for i, entry in ipairs(self.layout) do list[i] = self:view(entry.name) end
  return list
end

--- Gives the memory back; twice is harmless.
function Arena:free()
  for _, view in pairs(self.views) do view:free() end
  self.tensor:free()
end

return arena
