--- What the specs about data share: small SentencePiece models, compressed files, what a cache holds.
local assert = require "luassert"
local ffi = require "ffi"
local json = require "pack.io.json"
local prepare = require "pack.data.prepare"
local support = require "spec.support.helper"

ffi.cdef [[
  size_t ZSTD_compressBound(size_t size);
  size_t ZSTD_compress(void *into, size_t capacity, const void *from, size_t size, int level);
]]

local cache = {}

--- One zstd frame.
function cache.zstd(text)
  local capacity = tonumber(ffi.C.ZSTD_compressBound(#text))
  local into = ffi.new("char[?]", capacity)
  return ffi.string(into, ffi.C.ZSTD_compress(into, capacity, text, #text, 3))
end

--- One gzip member.
function cache.gzip(text)
  local folder = support.temporary()
  support.write(folder .. "/text", text)
  assert.equal(0, (os.execute(("gzip -nc %s/text > %s/text.gz"):format(folder, folder))))
  local packed = support.read(folder .. "/text.gz")
  support.remove(folder)
  return packed
end

-- Protobuf: a number, a field with a number, a field with bytes.
local function varint(x)
  local bytes = {}
  repeat
    local low = x % 128
    x = (x - low) / 128
    bytes[#bytes + 1] = string.char(x > 0 and low + 128 or low)
  until x == 0
  return table.concat(bytes)
end

local function field(number, x)
  if type(x) == "number" then return varint(number * 8) .. varint(x) end
  return varint(number * 8 + 2) .. varint(#x) .. x
end

local function float(x)
  return ffi.string(ffi.new("float[1]", x), 4)
end

local kinds = {normal = 1, unknown = 2, control = 3, byte = 6}

--- The text of a SentencePiece model file: pieces <unk>, <s>, </s>, then the given ones, better ones
-- first; options: type ("bpe" or "unigram"), byte_fallback, rules = true (removes doubled spaces), charsmap (bytes),
-- dummy_prefix = false, bos (a piece instead of <s>, or false for none).
function cache.model(pieces, options)
  options = options or {}
  local parts = {}
  local function add(piece, score, kind)
    parts[#parts + 1] = field(1, field(1, piece) .. varint(2 * 8 + 5) .. float(score) .. field(3, kinds[kind]))
  end
  add("<unk>", 0, "unknown")
  if options.bos ~= false then add(options.bos or "<s>", 0, "control") end
  add("</s>", 0, "control")
  if options.byte_fallback then
    for byte = 0, 255 do add(("<0x%02X>"):format(byte), 0, "byte") end
  end
  for i, piece in ipairs(pieces) do add(piece, -i, "normal") end
  local trainer = field(3, options.type == "unigram" and 1 or 2)
  if options.byte_fallback then trainer = trainer .. field(35, 1) end
  if options.bos then trainer = trainer .. field(46, options.bos) end
  parts[#parts + 1] = field(2, trainer)
  parts[#parts + 1] = field(3, field(1, "identity") .. field(2, options.charsmap or "")
    .. field(3, options.dummy_prefix == false and 0 or 1) .. field(4, options.rules and 1 or 0) .. field(5, 1))
  return table.concat(parts)
end

--- The tokens of a split, a list.
function cache.tokens(folder, split)
  local manifest = cache.manifest(folder)
  local list = {}
  for _, shard in ipairs(manifest.splits[split or "train"].shards) do
    local text = support.read(folder .. "/" .. shard.file)
    local width = manifest.dtype == "<u2" and 2 or 4
    local tokens = ffi.cast(width == 2 and "const uint16_t *" or "const uint32_t *", text)
    assert.equal(shard.tokens * width, #text)
    for i = 0, shard.tokens - 1 do list[#list + 1] = tonumber(tokens[i]) end
  end
  return list
end

--- The documents of a byte-level cache, a list of texts.
function cache.texts(folder, split)
  local list, bytes = {}, {}
  for _, token in ipairs(cache.tokens(folder, split)) do
    if token == 256 then
      list[#list + 1] = table.concat(bytes)
      bytes = {}
    else
      bytes[#bytes + 1] = string.char(token)
    end
  end
  assert.equal(0, #bytes)
  return list
end

function cache.manifest(folder)
  return assert(json.decode(support.read(folder .. "/manifest.json")))
end

--- Writes content into a file of this name, prepares it alone by bytes in its own order, and returns the
-- documents and the row of the training split. options as of prepare.run.
function cache.read(folder, name, content, options)
  support.write(folder .. "/" .. name, content)
  os.execute("rm -rf " .. support.quote(folder .. "/cache"))
  local job = {train = {folder .. "/" .. name}, output = folder .. "/cache", shuffle_buffer = 1, workers = 1}
  for key, x in pairs(options or {}) do job[key] = x end
  local row = prepare.run(job)
  return cache.texts(job.output), row.train
end

--- Asserts that a call fails with a message that contains the text.
function cache.refuses(message, call, ...)
  local good, problem = pcall(call, ...)
  assert.is_false(good, "it did not fail with: " .. message)
  problem = tostring(problem)
  assert.is_truthy(problem:find(message, 1, true), ("%q does not contain %q"):format(problem, message))
end

return cache
