--- Tokenizers: text to ids and back, by bytes or by a SentencePiece model.
--
-- A tokenizer has name (what it was opened by), kind ("bytes" or "sentencepiece"), vocab_size, eos (the id
-- that ends a document), unknown (the id of text without a piece, or nil) and sha256 (of the model file, or
-- nil).
local caller = require "pack.core.caller"
local ffi = require "ffi"
local native = require "pack.native"

caller.register()

local C = native.C
local tokenizer = {}

local Tokenizer = {}
Tokenizer.__index = Tokenizer

local function check(status)
  if status ~= 0 then caller.raise("%s", native.message()) end
end

--- Opens "bytes" (also for nil and false): ids 0 .. 255 are bytes, 256 ends a document; or a SentencePiece
-- model file. Errors: no such file, not a model, a model without a piece for the end of a text.
function tokenizer.open(spec)
  spec = spec or "bytes"
  if type(spec) ~= "string" then caller.raise("a tokenizer is \"bytes\" or a path, not a %s", type(spec)) end
  local handle = ffi.new("pk_tokenizer *[1]")
  check(C.pk_tokenizer_open(spec, handle))
  local unknown = tonumber(C.pk_tokenizer_unknown(handle[0]))
  local digits = ffi.string(C.pk_tokenizer_sha256(handle[0]))
  return setmetatable({
    name = spec,
    kind = ffi.string(C.pk_tokenizer_kind(handle[0])),
    vocab_size = tonumber(C.pk_tokenizer_vocab_size(handle[0])),
    eos = tonumber(C.pk_tokenizer_eos(handle[0])),
    unknown = unknown >= 0 and unknown or nil,
    sha256 = digits ~= "" and digits or nil,
    handle = ffi.gc(handle[0], C.pk_tokenizer_free),
  }, Tokenizer)
end

local function opened(self)
  if not self.handle then caller.raise("the tokenizer is closed") end
  return self.handle
end

-- Ids in C's memory, which the caller frees, and their number.
local function encode(self, data, bytes)
  local ids, count = ffi.new("int32_t *[1]"), ffi.new("int64_t[1]")
  check(C.pk_tokenizer_encode(opened(self), data, bytes, ids, count))
  return ids[0], tonumber(count[0])
end

--- The ids of UTF-8 text, a list, without begin or end.
function Tokenizer:encode(text)
  local ids, count = encode(self, text, #text)
  local list = {}
  for i = 1, count do list[i] = ids[i - 1] end
  C.pk_ids_free(ids)
  return list
end

--- The same from memory: writes the ids to into[at], into[at + 1], ... and returns their number, which is
-- at most bound(bytes).
function Tokenizer:encode_bytes(data, bytes, into, at)
  local ids, count = encode(self, data, bytes)
  local fits = count <= self:bound(bytes)
  for i = 0, fits and count - 1 or -1 do into[at + i] = ids[i] end
  C.pk_ids_free(ids)
  if not fits then caller.raise("%s makes %d ids of %d bytes; recipes/prepare.lua can take such text", self.name, count, bytes) end
  return count
end

--- The most ids that encode_bytes writes for so many bytes.
function Tokenizer:bound(bytes)
  -- Byte for byte at the most, and the space that a model puts first; a space itself may need three.
  return self.kind == "bytes" and bytes or 3 * bytes
end

--- The text of a list of ids; eos and other control pieces give nothing. Errors: an id out of range.
function Tokenizer:decode(ids)
  local text, bytes = ffi.new("char *[1]"), ffi.new("int64_t[1]")
  check(C.pk_tokenizer_decode(opened(self), ffi.new("int32_t[?]", #ids + 1, ids), #ids, text, bytes))
  local result = ffi.string(text[0], bytes[0])
  C.pk_bytes_free(text[0])
  return result
end

--- How the piece of an id is written, or nil if there is no such id.
function Tokenizer:piece(id)
  local piece = C.pk_tokenizer_piece(opened(self), id)
  if piece == nil then return nil end
  local text = ffi.string(piece)
  C.pk_bytes_free(piece)
  return text
end

--- Frees the model; twice is harmless.
function Tokenizer:close()
  if not self.handle then return end
  C.pk_tokenizer_free(ffi.gc(self.handle, nil))
  self.handle = nil
end

return tokenizer
