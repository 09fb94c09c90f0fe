--- Text files as training and held-out tokens.
--
-- A file of text is one document; one of JSON, or a compressed one, holds those that recipes/prepare.lua would read
-- from it. Of several documents of a file, the last ones with about a twentieth of its bytes are held out. Of a file
-- that is one, its last part is, about a twentieth: everything from the start of
-- the line in which its last 5% of bytes begin. Where that line began before the last 10% (long
-- lines, or none), the cut is at the character at 95% instead. Both parts end with EOS, and no byte is in
-- both, so that even files with the same content do not leak. The bytes are taken as they are.
local failure = require "pack.core.failure"
local ffi = require "ffi"
local native = require "pack.native"
local numbers = require "pack.core.numbers"

local C = native.C
local text = {}

--- The part of every file that is held out.
text.held_out = 0.05

local most_bytes = 2 ^ 28 -- of all files together, as everything is in memory
local most_controls = 0.1 -- of a text's bytes

local function is_continuation(byte)
  return byte >= 0x80 and byte < 0xC0
end

-- Whether a byte is one of the control characters that text does not have.
local function is_control(byte)
  return byte == 127 or byte < 32 and not (byte >= 8 and byte <= 13) and byte ~= 27
end

-- Refuses bytes that are no text.
local function check_text(path, data, bytes)
  local controls = 0
  for i = 0, bytes - 1 do
    local byte = data[i]
    if byte == 0 then failure.usage("%s: not a text file: byte %d is NUL", path, i) end
    if is_control(byte) then controls = controls + 1 end
  end
  if controls > most_controls * bytes then
    failure.usage("%s: not a text file: %d of its %d bytes are control characters", path, controls, bytes)
  end
end

--- The byte at which the held-out part of a document begins; data[0 .. bytes - 1] are its bytes.
function text.cut(data, bytes)
  local target = math.floor(bytes * (1 - text.held_out))
  local earliest = math.floor(bytes * (1 - 2 * text.held_out))
  for at = target, math.max(earliest, 1), -1 do
    if data[at - 1] == 10 then return at end
  end
  local cut = target
  while cut > 0 and cut > target - 3 and is_continuation(data[cut]) do cut = cut - 1 end
  return cut
end

-- The bytes of a text file and how many, freed when collected.
local function read(path, limit)
  local kind = C.pk_path_kind(path)
  if kind == 0 then failure.usage("%s: there is no such file", path) end
  if kind == ("d"):byte() then failure.usage("%s: a directory, not a text file", path) end
  if kind ~= ("f"):byte() then failure.usage("%s: not a regular file (a pipe or a device)", path) end
  local size = tonumber(C.pk_file_size(path))
  if size > limit then
    failure.usage("%s: %d bytes are too many: text in memory is limited to %d bytes in all", path, size,
      most_bytes)
  end
  local data, bytes = ffi.new("char *[1]"), ffi.new("int64_t[1]")
  if C.pk_file_read(path, data, bytes, limit) ~= C.PK_OK then failure.usage("%s", native.message()) end
  local owned = ffi.gc(data[0], C.pk_bytes_free)
  return ffi.cast("const uint8_t *", owned), tonumber(bytes[0]), owned
end

-- A text file as one document. skip_empty: an empty one is left out, not refused.
local function read_text(path, limit, skip_empty)
  local data, bytes, owner = read(path, limit)
  if bytes == 0 and not skip_empty then failure.usage("%s: the file is empty", path) end
  if bytes > 0 then check_text(path, data, bytes) end
  return {path = path, data = data, bytes = bytes, owner = owner, count = bytes > 0 and 1 or 0}
end

-- A file of documents, by the readers of prepare.
local function read_documents(path, limit)
  local documents = ffi.gc(ffi.new("pk_documents"), C.pk_documents_free)
  local status = C.pk_documents_read(path, limit, documents)
  if status == C.PK_INTERRUPTED then failure.interrupted() end
  if status ~= C.PK_OK then
    failure.usage("%s (data.text reads such files as recipes/prepare.lua does, which has options for others)", native.message())
  end
  if documents.count == 0 then failure.usage("%s: holds no documents", path) end
  return {path = path, data = ffi.cast("const uint8_t *", documents.text), bytes = tonumber(documents.bytes),
    ends = documents.ends, owner = documents, count = tonumber(documents.count)}
end

-- The sources of all paths: {path, data, bytes, count, ends (where its documents end; nil: it is one), owner}.
local function read_all(paths, skip_empty)
  local sources, bytes, count = {}, 0, 0
  for _, path in ipairs(paths) do
    local left = most_bytes - bytes
    local source = C.pk_names_documents(path) ~= 0 and read_documents(path, left) or read_text(path, left, skip_empty)
    if source.count > 0 then sources[#sources + 1] = source end
    bytes, count = bytes + source.bytes, count + source.count
  end
  if count == 0 then failure.usage("there is no text: %d files, all empty", #paths) end
  return sources, bytes, count
end

-- Of a file of several documents, the last ones that have about a twentieth of its bytes are held out, at least one.
local function first_held_out(source)
  local earliest, first = source.bytes * (1 - text.held_out), source.count - 1
  while first > 1 and tonumber(source.ends[first - 2]) >= earliest do first = first - 1 end
  return first
end

local document_array = ffi.typeof("struct { const uint8_t *data; double bytes, cut; }[?]")

-- All documents, with the byte from which each is held out, and the bytes that are not.
local function split(sources, count)
  local documents, at, train_bytes = document_array(count), 0, 0
  for _, source in ipairs(sources) do
    local held_out, begin = source.count > 1 and first_held_out(source), 0
    for i = 0, source.count - 1 do
      local finish = source.ends and tonumber(source.ends[i]) or source.bytes
      local document = documents[at]
      document.data, document.bytes = source.data + begin, finish - begin
      if held_out then
        document.cut = i < held_out and document.bytes or 0
      else
        document.cut = text.cut(document.data, document.bytes)
      end
      train_bytes = train_bytes + document.cut
      at, begin = at + 1, finish
    end
  end
  return documents, train_bytes
end

-- A growing sequence of tokens with room for so many documents of so many bytes together.
local function stream(tokenizer, documents, bytes)
  local element = tokenizer.vocab_size <= 65536 and "uint16_t[?]" or "uint32_t[?]"
  return {tokens = ffi.new(element, tokenizer:bound(bytes) + documents), count = 0}
end

local function append(into, tokenizer, data, bytes)
  if bytes == 0 then return end
  into.count = into.count + tokenizer:encode_bytes(data, bytes, into.tokens, into.count)
  into.tokens[into.count] = tokenizer.eos
  into.count = into.count + 1
end

--- The entropy in nats of the frequencies of ids in token streams: what a model that knows nothing but
-- these frequencies reaches.
function text.unigram_entropy(streams, vocab_size)
  local counts, total = ffi.new("double[?]", vocab_size), 0
  for _, one in ipairs(streams) do
    for i = 0, one.count - 1 do counts[one.tokens[i]] = counts[one.tokens[i]] + 1 end
    total = total + one.count
  end
  local entropy = 0
  for id = 0, vocab_size - 1 do
    local p = counts[id] / total
    if p > 0 then entropy = entropy - p * math.log(p) end
  end
  return entropy
end

-- What belongs to packlua's own text: folders with the endings of files in them, and single files.
local own_folders = {
  {"configs", ".lua"}, {"docs", ".md"}, {"host", ".c", ".cc", ".h", ".def"}, {"kernels", ".cu", ".h"},
  {"lua", ".lua"}, {"recipes", ".lua"}, {"scripts", ".sh", ".cmake"}, {"spec", ".lua", ".c"},
}
local own_files = {"CHANGES.md", "CONTRIBUTING.md", "README.md"}
local deepest = 8

local function has_ending(name, endings)
  for i = 2, #endings do
    if name:sub(-#endings[i]) == endings[i] then return true end
  end
  return false
end

local function list(path)
  local names = ffi.new("char *[1]")
  native.check(C.pk_directory_list(path, names), 1)
  local owned = ffi.gc(names[0], C.pk_bytes_free)
  return ffi.string(owned)
end

-- Adds the files of a folder and those below it, in the order of their names.
local function gather(folder, endings, paths, depth)
  if C.pk_path_kind(folder) ~= ("d"):byte() or depth > deepest then return end
  for name in list(folder):gmatch("[^\n]+") do
    local path = folder .. "/" .. name
    local kind = C.pk_path_kind(path)
    if kind == ("d"):byte() then
      if name ~= "fixtures" and name:sub(1, 1) ~= "." then gather(path, endings, paths, depth + 1) end
    elseif kind == ("f"):byte() and has_ending(name, endings) then
      paths[#paths + 1] = path
    end
  end
end

--- The paths of packlua's own text and sources below its home, in a fixed order: what there is to train on
-- when nothing else is given.
function text.own_files()
  local home, paths = native.home(), {}
  if home == "" then
    failure.usage("data.text is not given, and where packlua's own files are is not known (PACKLUA_HOME)")
  end
  for _, name in ipairs(own_files) do
    if C.pk_path_kind(home .. "/" .. name) == ("f"):byte() then paths[#paths + 1] = home .. "/" .. name end
  end
  for _, folder in ipairs(own_folders) do gather(home .. "/" .. folder[1], folder, paths, 1) end
  -- Installed, the documents are beside share/packlua, in share/doc/packlua.
  if home:match("/share/packlua$") then gather(home .. "/../doc/packlua", {"", ".md"}, paths, 1) end
  return paths
end

-- The places of so many documents in an order of the seed's, so that the first part of a stream, which is all that a
-- short run sees, is of every kind; without a seed, as they are.
local function order_of(count, seed)
  local order = ffi.new("int64_t[?]", count)
  if seed then
    C.pk_random_permutation(seed, "text", count, order)
  else
    for i = 0, count - 1 do order[i] = i end
  end
  return order
end

--- Reads text files as tokens.
-- options: tokenizer; files, a list of paths, by default packlua's own text and sources; seed of an order in which
-- the files follow each other (without one, the given order).
-- Returns {train, validation, files = their number, documents, paths, bytes, unigram_entropy (of all tokens, in nats)};
-- train and validation are token streams {tokens = uint16_t or uint32_t array, count}.
-- Raises usage errors that name the file: missing, a directory, empty, not text, too large.
function text.load(options)
  local tokenizer = options.tokenizer
  local own = not options.files
  local paths = own and text.own_files() or options.files
  local sources, total, count = read_all(paths, own)
  local documents, train_bytes = split(sources, count)
  local order = order_of(count, options.seed and numbers.whole("seed", options.seed, 0))
  local train = stream(tokenizer, count, train_bytes)
  local validation = stream(tokenizer, count, total - train_bytes)
  for i = 0, count - 1 do
    local document = documents[order[i]]
    append(train, tokenizer, document.data, document.cut)
    append(validation, tokenizer, document.data + document.cut, document.bytes - document.cut)
  end
  local kept = {}
  for i = 1, #sources do
    local place = count == #sources and tonumber(order[i - 1]) + 1 or i
    kept[i] = sources[place].path
  end
  return {
    train = train, validation = validation, files = #sources, documents = count, paths = kept, bytes = total,
    unigram_entropy = text.unigram_entropy({train, validation}, tokenizer.vocab_size),
  }
end

return text
