--- Safetensors files: named tensors with metadata, read into tensors and written from them.
local caller = require "pack.core.caller"
local ffi = require "ffi"
local native = require "pack.native"
local tensor = require "pack.core.tensor"

caller.register()

local C = native.C
local safetensors = {}

local PIECE_ELEMENTS = 2 ^ 23 -- of a tensor that are in host memory at once, if its entries allow

-- The names of the tensors' dtypes in files, and the dtype that others are read as by default.
local file_dtypes = {f64 = "F64", f32 = "F32", bf16 = "BF16", i32 = "I32"}
local default_dtypes = {F64 = "f64", F32 = "f32", BF16 = "bf16", F16 = "f32"}

local function check(status, place)
  if status == 0 then return end
  caller.raise("%s%s", place and place .. ": " or "", native.message())
end

local function check_path(path)
  if type(path) ~= "string" then caller.raise("a path is a string, not a %s", type(path)) end
end

local function shape_text(shape)
  return "[" .. table.concat(shape, ", ") .. "]"
end

local function numel_of(shape)
  local numel = 1
  for _, extent in ipairs(shape) do numel = numel * extent end
  return numel
end

local function same_shape(a, b)
  if #a ~= #b then return false end
  for i, extent in ipairs(a) do
    if extent ~= b[i] then return false end
  end
  return true
end

local function dtype_size(dtype)
  return tonumber(C.pk_dtype_size(tensor.dtypes[dtype]))
end

-- Entries first .. first+count-1 along dimension 0, as a view.
local function slab(t, first, count)
  local shape = t:sizes()
  shape[1] = count
  return t:view {shape = shape, stride = t.stride, offset = first * t.stride}
end

-- Calls visit(part, first, count, a, b, c) for the parts of a tensor that together are the whole: views of
-- some entries each, starting at element `first`. a, b and c are the caller's, instead of a closure, as compiled
-- code holds on to closures and to the tensors that they know.
local function each_part(t, visit, a, b, c)
  local numel = t.numel
  if numel == 0 then return end
  if t.rank == 0 then return visit(t, 0, 1, a, b, c) end
  local entries = t:size(0)
  local inner = numel / entries
  local step = math.max(1, math.floor(PIECE_ELEMENTS / inner))
  for first = 0, entries - 1, step do
    local count = math.min(step, entries - first)
    local part = slab(t, first, count)
    visit(part, first * inner, count * inner, a, b, c)
    part:free()
  end
end

-- Reading ----------------------------------------------------------------------------------------

local File = {}
File.__index = File

local function read_entries(handle)
  local entries, names = {}, {}
  local raw = ffi.new("pk_safetensors_entry")
  for index = 0, tonumber(C.pk_safetensors_count(handle)) - 1 do
    check(C.pk_safetensors_describe(handle, index, raw))
    local shape = {}
    for d = 0, raw.rank - 1 do shape[d + 1] = tonumber(raw.shape[d]) end
    local name = ffi.string(raw.name)
    names[index + 1] = name
    entries[name] = {name = name, dtype = ffi.string(raw.dtype), shape = shape, index = index,
      numel = numel_of(shape), bytes = tonumber(raw.bytes)}
  end
  return entries, names
end

local function read_metadata(handle)
  local metadata, index = {}, 0
  local key = C.pk_safetensors_metadata_key(handle, 0)
  while key ~= nil do
    metadata[ffi.string(key)] = ffi.string(C.pk_safetensors_metadata(handle, key))
    index = index + 1
    key = C.pk_safetensors_metadata_key(handle, index)
  end
  return metadata
end

--- Opens a file and checks its header against its size. Close it with file:close().
function safetensors.open(path)
  check_path(path)
  local made = ffi.new("pk_safetensors *[1]")
  check(C.pk_safetensors_open(path, made))
  local self = setmetatable({path = path, handle = ffi.gc(made[0], C.pk_safetensors_close)}, File)
  self.entries, self.order = read_entries(self.handle)
  self.all_metadata = read_metadata(self.handle)
  return self
end

--- The names of the tensors, in the order of their data.
function File:names()
  local names = {}
  for i, name in ipairs(self.order) do names[i] = name end
  return names
end

--- Whether there is a tensor of that name.
function File:has(name)
  return self.entries[name] ~= nil
end

--- {name, dtype, shape, index, numel, bytes} of a tensor; dtype as in the file, such as "F32".
function File:entry(name)
  local entry = self.entries[name]
  if not entry then caller.raise("%s: there is no tensor '%s'", self.path, tostring(name)) end
  return entry
end

--- The metadata of a key, or nil; without a key all of them, a table of strings.
function File:metadata(key)
  if key ~= nil then return self.all_metadata[key] end
  local all = {}
  for name, text in pairs(self.all_metadata) do all[name] = text end
  return all
end

-- count elements of an entry from element `first` on, as a C array of dtype (a name).
function File:elements(entry, dtype, first, count)
  if not self.handle then caller.raise("%s: the file is closed", self.path) end
  local size = entry.numel > 0 and entry.bytes / entry.numel or 0
  local raw = native.array("uint8_t[?]", math.max(1, count * size))
  check(C.pk_safetensors_read_part(self.handle, entry.index, first * size, raw, count * size))
  if entry.dtype == file_dtypes[dtype] then return raw end
  local converted = native.array("uint8_t[?]", math.max(1, count * dtype_size(dtype)))
  check(C.pk_convert(tensor.dtypes[dtype], converted, entry.dtype, raw, count),
    ("%s: tensor '%s' %s"):format(self.path, entry.name, entry.dtype))
  return converted
end

--- count elements of an entry from element `first` on, as a C array of doubles. Every NaN is the plain one:
-- as a Lua number, one with bits of the file's choosing would be an object of any type at any address.
function File:doubles(entry, first, count)
  local values = native.array("double[?]", math.max(1, count))
  ffi.copy(values, self:elements(entry, "f64", first, count), count * 8)
  C.pk_numbers_plain(values, count)
  return values
end

local function fill_part(part, first, count, file, entry)
  part:write(file:elements(entry, part.dtype, first, count))
end

-- Fills a tensor with an entry of the header, part by part.
function File:fill(t, entry)
  each_part(t, fill_part, self, entry)
end

--- Writes a tensor of the file into t, converted to t's dtype. The file's shape is t's, or t's without
-- the first dimension: then every worker gets the same values. Returns t.
function File:read_into(name, t)
  local entry, shape = self:entry(name), t:sizes()
  if same_shape(entry.shape, shape) then
    self:fill(t, entry)
    return t
  end
  local workers = table.remove(shape, 1)
  if not workers or not same_shape(entry.shape, shape) then
    caller.raise("%s: tensor '%s' has shape %s, which is neither that of its place, %s, nor that of one worker",
      self.path, name, shape_text(entry.shape), shape_text(t:sizes()))
  end
  local values = self:elements(entry, t.dtype, 0, entry.numel)
  for worker = 0, workers - 1 do
    local part = slab(t, worker, 1)
    part:write(values)
    part:free()
  end
  return t
end

--- A tensor of the file as a new tensor. options: dtype (default the file's, f32 for F16 and i32 for
-- integers), category, context as in tensor.zeros.
function File:read_tensor(name, options)
  local entry = self:entry(name)
  local dtype = options and options.dtype or default_dtypes[entry.dtype] or "i32"
  local made = tensor.zeros(entry.shape, dtype, options)
  self:fill(made, entry)
  return made
end

--- The values of a tensor as a C array of doubles, and their number.
function File:read_doubles(name)
  local entry = self:entry(name)
  return self:doubles(entry, 0, entry.numel), entry.numel
end

--- Closes the file; twice is harmless.
function File:close()
  if not self.handle then return end
  C.pk_safetensors_close(ffi.gc(self.handle, nil))
  self.handle = nil
end

-- Writing ----------------------------------------------------------------------------------------

local shape_buffer = ffi.new("int64_t[8]")

-- One checked description {name, tensor, dtype, shape, place} of what is to be written.
local function describe(path, item, place)
  local name, t = item.name, item.tensor
  if type(name) ~= "string" or not tensor.is(t) then
    caller.raise("%s: entry %d is not {name = string, tensor = tensor}", path, place)
  end
  local dtype = item.dtype or t.dtype
  if not file_dtypes[dtype] then
    caller.raise("%s: tensor '%s': dtype '%s' is not one of f64, f32, bf16, i32", path, name, tostring(dtype))
  end
  local shape = item.shape or t:sizes()
  if #shape > 8 or numel_of(shape) ~= t.numel then
    caller.raise("%s: tensor '%s' of shape %s cannot be written as %s", path, name,
      shape_text(t:sizes()), shape_text(shape))
  end
  return {name = name, tensor = t, dtype = dtype, shape = shape, place = place}
end

local function describe_all(path, contents)
  local list = {}
  for i, item in ipairs(contents) do list[i] = describe(path, item, i) end
  table.sort(list, function(a, b)
    local size_a, size_b = dtype_size(a.dtype), dtype_size(b.dtype)
    if size_a ~= size_b then return size_a > size_b end
    return a.place < b.place
  end)
  return list
end

local function write_metadata(writer, path, metadata)
  local keys = {}
  for key, text in pairs(metadata) do
    if type(key) ~= "string" or type(text) ~= "string" then
      caller.raise("%s: the metadata '%s' is a %s, not a string", path, tostring(key), type(text))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys)
  for _, key in ipairs(keys) do check(C.pk_safetensors_writer_metadata(writer, key, metadata[key])) end
end

local function declare(writer, item)
  for d, extent in ipairs(item.shape) do shape_buffer[d - 1] = extent end
  check(C.pk_safetensors_writer_declare(writer, item.name, file_dtypes[item.dtype], #item.shape, shape_buffer))
end

local function write_part(part, _, count, writer, path, item)
  local own, values = part.dtype, part:read()
  if own ~= item.dtype then
    local converted = native.array("uint8_t[?]", count * dtype_size(item.dtype))
    check(C.pk_convert(tensor.dtypes[item.dtype], converted, file_dtypes[own], values, count),
      ("%s: tensor '%s'"):format(path, item.name))
    values = converted
  end
  check(C.pk_safetensors_writer_data(writer, values, count * dtype_size(item.dtype)))
end

local function write_all(writer, path, metadata, list)
  write_metadata(writer, path, metadata)
  for _, item in ipairs(list) do declare(writer, item) end
  for _, item in ipairs(list) do each_part(item.tensor, write_part, writer, path, item) end
  check(C.pk_safetensors_writer_finish(writer))
end

--- Writes a file atomically. contents: a list of {name, tensor, dtype, shape} and metadata, a table of
-- strings. dtype converts; shape is another one of the same number of elements, such as that without
-- the worker. Larger dtypes come first, so that every tensor is aligned in the file; else in the order given.
function safetensors.write(path, contents)
  check_path(path)
  local list = describe_all(path, contents)
  local made = ffi.new("pk_safetensors_writer *[1]")
  check(C.pk_safetensors_writer_create(path, made))
  local writer = ffi.gc(made[0], C.pk_safetensors_writer_free)
  local good, message = pcall(write_all, writer, path, contents.metadata or {}, list)
  C.pk_safetensors_writer_free(ffi.gc(writer, nil))
  if not good then error(message, 0) end
end

return safetensors
