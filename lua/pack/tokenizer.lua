--- Tokenizers: text to ids and back, by bytes or by a SentencePiece model.
local caller = require "pack.caller"
local ffi = require "ffi"
local native = require "pack.native"

caller.register()

local C = native.C
local tokenizer = {}

--- What open returns. Fields: spec, kind ("bytes" or "sentencepiece"), vocab_size, eos (the id that ends a
-- document), unknown (the id of text without a piece, or nil), sha256 (of the model file, or nil).
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
    spec = spec,
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

--- The ids of UTF-8 text, a list, without begin or end.
function Tokenizer:encode(text)
  local ids, count = ffi.new("int32_t *[1]"), ffi.new("int64_t[1]")
  check(C.pk_tokenizer_encode(opened(self), text, #text, ids, count))
  local list = {}
  for i = 1, tonumber(count[0]) do list[i] = ids[0][i - 1] end
  C.pk_ids_free(ids[0])
  return list
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
