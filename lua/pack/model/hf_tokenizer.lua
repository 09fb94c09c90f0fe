--- SentencePiece models as the tokenizer.json of Hugging Face's `tokenizers`.
--
-- Programs that read tokenizer.model by themselves guess what is not in it, such as a token at the beginning of a text. A
-- tokenizer.json says it all: the pieces with their ids, how they are put together, and what happens to spaces.
local ffi = require "ffi"
local json = require "pack.io.json"

local hf_tokenizer = {}

local kinds = {normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6}
local models = {"unigram", "bpe", "word", "char"}
local SPACE = "\226\150\129" -- U+2581, which stands for a space in pieces

-- Reading protobuf: the fields of a message as {number, value or bytes}, in order. The model was opened before, so
-- that it is known to be whole.
local function varint(text, at)
  local value, scale = 0, 1
  while true do
    local byte = text:byte(at)
    value, scale, at = value + byte % 128 * scale, scale * 128, at + 1
    if byte < 128 then return value, at end
  end
end

local function fields(text)
  local at = 1
  return function()
    if at > #text then return nil end
    local tag, value, bytes
    tag, at = varint(text, at)
    local wire = tag % 8
    if wire == 0 then
      value, at = varint(text, at)
      return math.floor(tag / 8), value
    end
    bytes = wire == 1 and 8 or 4
    if wire == 2 then bytes, at = varint(text, at) end
    at = at + bytes
    return math.floor(tag / 8), text:sub(at - bytes, at - 1)
  end
end

local function read_piece(text)
  local piece = {text = "", score = 0, kind = kinds.normal}
  for number, value in fields(text) do
    if number == 1 then piece.text = value end
    if number == 2 then piece.score = tonumber(ffi.cast("const float *", ffi.cast("const char *", value))[0]) end
    if number == 3 then piece.kind = value end
  end
  return piece
end

-- What of a model counts for encoding: pieces (a list, of id + 1), model, byte_fallback, suffix, charsmap, dummy_prefix,
-- removes_spaces, and the id of its piece for the beginning of a text, or nil.
local function read_model(text)
  local model = {pieces = {}, model = "unigram", dummy_prefix = true, removes_spaces = true, charsmap = "", escapes = true}
  local begin = "<s>"
  local function trainer(number, value)
    if number == 3 then model.model = models[value] end
    if number == 24 then model.suffix = value ~= 0 end
    if number == 35 then model.byte_fallback = value ~= 0 end
    if number == 46 then begin = value end
  end
  local function normalizer(number, value)
    if number == 2 then model.charsmap = value end
    if number == 3 then model.dummy_prefix = value ~= 0 end
    if number == 4 then model.removes_spaces = value ~= 0 end
    if number == 5 then model.escapes = value ~= 0 end
  end
  for number, value in fields(text) do
    if number == 1 then model.pieces[#model.pieces + 1] = read_piece(value) end
    local take = number == 2 and trainer or number == 3 and normalizer
    if take then
      for inner, content in fields(value) do take(inner, content) end
    end
  end
  for i, piece in ipairs(model.pieces) do
    if piece.kind == kinds.control and piece.text == begin then model.bos = i - 1 end
    if piece.kind == kinds.unknown then model.unknown = i - 1 end
  end
  return model
end

--- The facts of a SentencePiece model's file: bos (the id of its piece for the beginning of a text, or nil), dummy_prefix
-- (whether a space is put first), and others that hf_tokenizer.encode uses.
function hf_tokenizer.read(text)
  return read_model(text)
end

local function base64(text)
  local digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
  local parts = {}
  for at = 1, #text, 3 do
    local a, b, c = text:byte(at, at + 2)
    local bits = a * 65536 + (b or 0) * 256 + (c or 0)
    for place = 0, 3 do
      local digit = math.floor(bits / 64 ^ (3 - place)) % 64 + 1
      parts[#parts + 1] = (place == 2 and not b or place == 3 and not c) and "=" or digits:sub(digit, digit)
    end
  end
  return table.concat(parts)
end

-- What happens to a text before it is cut: the model's own rules, its spaces.
local function normalizer(model)
  local list = {}
  local function add(row) list[#list + 1] = row end
  if model.charsmap ~= "" then add {type = "Precompiled", precompiled_charsmap = base64(model.charsmap)} end
  if model.removes_spaces then
    add {type = "Replace", pattern = {Regex = "\\A +| +\\z"}, content = ""}
    add {type = "Replace", pattern = {Regex = " {2,}"}, content = " "}
  end
  if model.dummy_prefix then add {type = "Prepend", prepend = SPACE} end
  add {type = "Replace", pattern = {String = " "}, content = SPACE}
  return {type = "Sequence", normalizers = json.array(list)}
end

local function decoder(model)
  local list = {{type = "Replace", pattern = {String = SPACE}, content = " "}, {type = "ByteFallback"}, {type = "Fuse"}}
  if model.dummy_prefix then list[#list + 1] = {type = "Strip", content = " ", start = 1, stop = 0} end
  return {type = "Sequence", decoders = json.array(list)}
end

-- How a piece is called: one that the library never uses must not be found in a text.
local function name_of(piece, id)
  return piece.kind == kinds.unused and ("<unused %d>"):format(id) or piece.text
end

-- The merges of a BPE model: every way to put a piece together from two, the best piece first.
local function merges(model)
  local ids, rows = {}, {}
  for i, piece in ipairs(model.pieces) do
    if piece.kind == kinds.normal or piece.kind == kinds.user_defined then ids[piece.text] = i end
  end
  for i, piece in ipairs(model.pieces) do
    local text = piece.text
    for at = 1, piece.kind == kinds.normal and #text - 1 or 0 do
      local left, right = ids[text:sub(1, at)], ids[text:sub(at + 1)]
      if left and right then rows[#rows + 1] = {piece.score, i, left, right} end
    end
  end
  table.sort(rows, function(a, b)
    if a[1] ~= b[1] then return a[1] > b[1] end
    for place = 2, 4 do
      if a[place] ~= b[place] then return a[place] < b[place] end
    end
    return false
  end)
  local list = {}
  for i, row in ipairs(rows) do list[i] = json.array {model.pieces[row[3]].text, model.pieces[row[4]].text} end
  return json.array(list)
end

local function model_section(model)
  if model.model == "unigram" then
    local vocabulary = {}
    for i, piece in ipairs(model.pieces) do vocabulary[i] = json.array {name_of(piece, i - 1), piece.score} end
    return {type = "Unigram", unk_id = model.unknown or json.null, vocab = json.array(vocabulary),
      byte_fallback = model.byte_fallback or false}
  end
  local vocabulary = {}
  for i, piece in ipairs(model.pieces) do vocabulary[name_of(piece, i - 1)] = i - 1 end
  return {type = "BPE", dropout = json.null, unk_token = model.unknown and model.pieces[model.unknown + 1].text or json.null,
    continuing_subword_prefix = json.null, end_of_word_suffix = json.null, fuse_unk = true,
    byte_fallback = model.byte_fallback or false, ignore_merges = false, vocab = vocabulary,
    merges = model.model == "bpe" and merges(model) or json.array {}}
end

local function added(model)
  local list = {}
  for i, piece in ipairs(model.pieces) do
    local special = piece.kind == kinds.control or piece.kind == kinds.unknown
    if special or piece.kind == kinds.user_defined then
      list[#list + 1] = {id = i - 1, content = piece.text, single_word = false, lstrip = false, rstrip = false,
        normalized = not special, special = special}
    end
  end
  return json.array(list)
end

--- The content of tokenizer.json for what hf_tokenizer.read gave; nil and the reason where there is no such form.
function hf_tokenizer.encode(model)
  if not model.model or model.model == "word" then return nil, "models of whole words have no such form" end
  if model.suffix then return nil, "models with spaces at the ends of pieces have no such form" end
  if not model.escapes then return nil, "models that keep spaces as they are have no such form" end
  return {
    version = "1.0", truncation = json.null, padding = json.null, added_tokens = added(model),
    normalizer = normalizer(model), pre_tokenizer = json.null, post_processor = json.null, decoder = decoder(model),
    model = model_section(model),
  }
end

return hf_tokenizer
