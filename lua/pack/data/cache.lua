--- Token caches: folders of shards with a manifest, which docs/data.md describes.
--
-- A cache has folder, identity, vocab_size, eos (nil if not stated), dtype, validation_complete, manifest
-- (a table) and splits, a token stream for each: {count, vocab_size, handle}, for pack.loader.
local caller = require "pack.core.caller"
local ffi = require "ffi"
local json = require "pack.io.json"
local native = require "pack.native"

caller.register()

local C = native.C
local cache = {}

local Cache, Stream = {}, {}
Cache.__index, Stream.__index = Cache, Stream

local function check(status)
  if status ~= 0 then caller.raise("%s", native.message()) end
end

--- Opens the cache in a folder: checks the manifest, its identity, and that the shards are there. Errors name
-- the file or the key, and the values.
function cache.open(folder)
  if type(folder) ~= "string" then caller.raise("a cache is a folder's path, not a %s", type(folder)) end
  local made, bytes = ffi.new("pk_cache *[1]"), ffi.new("int64_t[1]")
  check(C.pk_cache_open(folder, made))
  local handle = ffi.gc(made[0], C.pk_cache_free)
  local text = C.pk_cache_manifest(handle, bytes)
  local manifest = json.decode(ffi.string(text, bytes[0]), folder .. "/manifest.json")
  local self = setmetatable({
    folder = folder, manifest = manifest, handle = handle, identity = manifest.identity,
    vocab_size = manifest.vocab_size, eos = manifest.eos_token_id, dtype = manifest.dtype,
    validation_complete = manifest.validation_complete ~= false, splits = {},
  }, Cache)
  for name in pairs(manifest.splits) do
    local tokens = C.pk_cache_split(handle, name)
    self.splits[name] = setmetatable({handle = tokens, cache = self, vocab_size = self.vocab_size,
      count = tonumber(C.pk_tokens_count(tokens))}, Stream)
  end
  return self
end

-- The pk_tokens of a stream whose cache is open.
local function opened(self)
  if not self.cache.handle then caller.raise("the cache %s is closed", self.cache.folder) end
  return self.handle
end

--- Ids first .. first + count - 1 (from 0) as an int32_t array.
function Stream:read_array(first, count)
  if first < 0 or count < 0 or first + count > self.count then
    caller.raise("tokens %d .. %d of a split of %d", first, first + count - 1, self.count)
  end
  local ids = native.array("int32_t[?]", math.max(count, 1))
  check(C.pk_tokens_read(opened(self), first, count, ids))
  return ids
end

--- The same as a list.
function Stream:read(first, count)
  local ids, list = self:read_array(first, count), {}
  for i = 1, count do list[i] = ids[i - 1] end
  return list
end

--- Reads tokens of a split, as split:read.
function Cache:read(split, first, count)
  local stream = self.splits[split]
  if not stream then caller.raise("%s has no split '%s'", self.folder, tostring(split)) end
  return stream:read(first, count)
end

--- The tokenizer of the cache: the file `spec`, which must be the recorded one where one is recorded, or,
-- without spec, "bytes" if that is what was recorded. Returns nil and the reason if there is none.
function Cache:tokenizer(spec)
  local recorded = self.manifest.tokenizer
  if type(recorded) ~= "table" then recorded = {} end
  if not spec and recorded.kind ~= "bytes" then
    return nil, recorded.name and ("the cache was made with %s; name its file as data.tokenizer"):format(recorded.name)
      or "the cache does not say what its tokenizer was; name its file as data.tokenizer"
  end
  local tokenizer = require("pack.data.tokenizer").open(spec)
  if recorded.kind and (recorded.sha256 or recorded.kind) ~= (tokenizer.sha256 or tokenizer.kind) then
    return nil, ("data.tokenizer %s is %s, but the cache %s was made with %s %s"):format(tokenizer.name,
      tokenizer.sha256 or tokenizer.kind, self.folder, recorded.kind, recorded.sha256 or "")
  end
  return tokenizer
end

--- Reads every byte again and compares sizes and checksums with the manifest. Errors: see prepare.verify.
function Cache:verify()
  require("pack.data.prepare").verify(self.folder)
end

--- Closes the cache; twice is harmless. Loaders that read it are not disturbed.
function Cache:close()
  if not self.handle then return end
  C.pk_cache_free(ffi.gc(self.handle, nil))
  self.handle = nil
end

--- A token stream of a pk_tokens; kept is what that needs to be there.
function cache.stream(tokens, count, kept)
  return {joined = tokens, count = count, kept = kept}
end

--- The pk_tokens of a token stream: of a cache's split, or of {tokens = uint16_t or uint32_t array, count,
-- vocab_size (optional)}, and what it needs to be kept for as long as it is used.
function cache.tokens_of(stream)
  if stream.cache then return opened(stream), stream end
  if stream.joined then return stream.joined, stream end
  local width = tonumber(ffi.cast("char *", stream.tokens + 1) - ffi.cast("char *", stream.tokens))
  local made = ffi.new("const pk_tokens *[1]")
  check(C.pk_tokens_from_memory(stream.tokens, stream.count, width,
    stream.vocab_size or (width == 2 and 2 ^ 16 or 2 ^ 31 - 1), ffi.cast("pk_tokens **", made)))
  return ffi.gc(made[0], C.pk_tokens_free), stream
end

return cache
