--- What is in a token cache or a safetensors file: facts, statistics, examples, and what is wrong with it.
local cache = require "pack.data.cache"
local ffi = require "ffi"
local json = require "pack.io.json"
local loader = require "pack.data.loader"
local safetensors = require "pack.io.safetensors"
local utf8 = require "pack.io.utf8"

local inspect = {}

local BLOCK = 65536          -- tokens, or elements of a tensor, looked at together
local EXAMPLE_TOKENS = 4096  -- that are read to find the end of an example

-- --- token caches ---

-- Calls f(ids, count) with the first `limit` ids of a stream in order.
local function each_piece(stream, limit, f)
  if limit < 1 then return end
  if stream.count == 1 then return f(stream:read_array(0, 1), 1) end
  local blocks = loader.validation {tokens = stream, context_length = BLOCK, batch_size = 1}
  local ids, targets = ffi.new("int32_t[?]", BLOCK), ffi.new("int32_t[?]", BLOCK)
  local done = 0
  while done < limit and blocks:next(ids, targets) > 0 do
    if done == 0 then -- all others come as targets
      f(ids, 1)
      done = 1
    end
    local count = math.min(BLOCK, limit - done)
    if count > 0 then f(targets, count) end
    done = done + count
  end
  blocks:close()
end

-- The `most` commonest ids: a list of {id, count}, ties by id.
local function commonest(counts, vocab_size, most)
  local used = {}
  for id = 0, vocab_size - 1 do
    if counts[id] > 0 then used[#used + 1] = {id = id, count = counts[id]} end
  end
  table.sort(used, function(a, b) return a.count > b.count or a.count == b.count and a.id < b.id end)
  local list = {}
  for i = 1, math.min(most, #used) do list[i] = used[i] end
  return list, #used
end

--- Statistics of a token stream. options: limit (only so many first tokens), top (20 commonest ids), eos.
-- Returns {tokens (looked at), distinct (ids that occur), entropy (of unigrams, in nats), top = a list of
-- {id, count}, documents (ends of documents, with eos), ends_with_eos (nil if the end was not looked at)}.
function inspect.tokens(stream, options)
  options = options or {}
  local limit = math.min(options.limit or stream.count, stream.count)
  local counts, last = ffi.new("double[?]", stream.vocab_size), -1
  each_piece(stream, limit, function(ids, count)
    for i = 0, count - 1 do counts[ids[i]] = counts[ids[i]] + 1 end
    last = ids[count - 1]
  end)
  local result = {tokens = limit, entropy = 0}
  for id = 0, stream.vocab_size - 1 do
    local p = counts[id] / math.max(limit, 1)
    if p > 0 then result.entropy = result.entropy - p * math.log(p) end
  end
  result.top, result.distinct = commonest(counts, stream.vocab_size, options.top or 20)
  if options.eos then
    result.documents = counts[options.eos]
    if limit == stream.count and limit > 0 then result.ends_with_eos = last == options.eos end
  end
  return result
end

--- The first documents of a stream as lists of ids, each of at most `most` ids.
function inspect.documents(stream, eos, number, most)
  local list, at = {}, 0
  while #list < number and at < stream.count do
    local count = math.min(stream.count - at, EXAMPLE_TOKENS)
    local ids, document, finish = stream:read_array(at, count), {}, nil
    for i = 0, count - 1 do
      if ids[i] == eos then
        finish = i
        break
      end
      if i < most then document[i + 1] = ids[i] end
    end
    list[#list + 1] = {ids = document, cut = not finish or finish > most}
    if not finish then break end -- a long one, of which the end is not looked for
    at = at + finish + 1
  end
  return list
end

-- Text on one line.
local function printable(text)
  return (utf8.printable(text):gsub("\n", "\\n"):gsub("\t", "?"))
end

local function show_values(write, object)
  local names = {}
  for name in pairs(object) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local x = object[name]
    write("  %-20s %s", name, type(x) == "string" and printable(x) or (json.encode(x)))
  end
end

local function show_examples(write, stream, opened, tokenizer, options)
  if not opened.eos or options.documents == 0 then return end
  for i, document in ipairs(inspect.documents(stream, opened.eos, options.documents, options.example_tokens)) do
    local text = tokenizer and printable(tokenizer:decode(document.ids)) or table.concat(document.ids, " ")
    write("  document %d: %s%s", i, text, document.cut and " ..." or "")
  end
end

local function show_split(write, name, opened, tokenizer, options)
  local stream = opened.splits[name]
  local facts = opened.manifest.splits[name]
  write("\n%s: %.0f tokens in %d shards", name, stream.count, #facts.shards)
  local found = inspect.tokens(stream, {limit = options.limit, top = options.top, eos = opened.eos})
  write("  %d of %d ids occur in the first %.0f tokens; unigram entropy %.4f nats", found.distinct,
    opened.vocab_size, found.tokens, found.entropy)
  if found.documents and found.documents > 0 then
    write("  %.0f documents end there, %.1f tokens each", found.documents, found.tokens / found.documents)
  end
  for _, row in ipairs(found.top) do
    local piece = tokenizer and tokenizer:piece(row.id)
    write("  %8d %12.0f  %6.2f%%  %s", row.id, row.count, 100 * row.count / found.tokens, piece and printable(piece) or "")
  end
  if found.ends_with_eos == false then write("  its last document was cut off") end
  show_examples(write, stream, opened, tokenizer, options)
end

local function sorted_splits(opened)
  local names = {}
  for name in pairs(opened.splits) do names[#names + 1] = name end
  table.sort(names)
  return names
end

--- Writes what is in a cache by write(format, ...). options: tokenizer (a file), documents (examples per split),
-- example_tokens, top (commonest ids), limit (only so many first tokens of a split), verify (checksums too).
-- Returns a list of problems. Raises where the cache cannot be opened or read.
function inspect.cache(folder, options, write)
  local opened, problems = cache.open(folder), {}
  write("%s: a token cache of version 1", folder)
  write("  %-20s %s", "identity", opened.identity)
  write("  %-20s %s, %d pieces, end of document %s", "ids", opened.dtype, opened.vocab_size, tostring(opened.eos))
  write("  %-20s %s", "validation_complete", tostring(opened.validation_complete))
  show_values(write, opened.manifest.preprocessing or {})
  local tokenizer, reason = opened:tokenizer(options.tokenizer)
  if not tokenizer then write("  %s", reason) end
  if not tokenizer and options.tokenizer then problems[1] = reason end
  for _, name in ipairs(sorted_splits(opened)) do
    show_split(write, name, opened, tokenizer, options)
  end
  if options.verify then opened:verify() end
  write("\nchecks: manifest, identity, file sizes%s, every id below %d", options.verify and ", checksums" or "",
    opened.vocab_size)
  opened:close()
  return problems
end

-- --- safetensors ---

--- Statistics of a tensor of an open file: {minimum, maximum, mean, deviation (all of the finite elements, nil
-- without one), nonfinite}.
function inspect.tensor(file, name)
  local entry = file:entry(name)
  local count, nonfinite, sum, squares, minimum, maximum = 0, 0, 0, 0, math.huge, -math.huge
  for first = 0, entry.numel - 1, BLOCK do
    local size = math.min(BLOCK, entry.numel - first)
    local values = file:doubles(entry, first, size)
    for i = 0, size - 1 do
      local x = values[i]
      if x - x == 0 then
        count, sum, squares = count + 1, sum + x, squares + x * x
        minimum, maximum = math.min(minimum, x), math.max(maximum, x)
      else
        nonfinite = nonfinite + 1
      end
    end
  end
  if count == 0 then return {nonfinite = nonfinite} end
  local mean = sum / count
  return {minimum = minimum, maximum = maximum, mean = mean, nonfinite = nonfinite,
    deviation = math.sqrt(math.max(0, squares / count - mean * mean))}
end

--- Writes what is in a safetensors file by write(format, ...). Returns a list of problems.
function inspect.safetensors(path, write)
  local file, problems, elements, bytes = safetensors.open(path), {}, 0, 0
  local names = file:names()
  write("%s: safetensors, %d tensors", path, #names)
  show_values(write, file:metadata())
  write("\n  %-44s %-5s %-18s %11s %11s %11s %11s", "tensor", "type", "shape", "minimum", "maximum", "mean", "deviation")
  for _, name in ipairs(names) do
    local entry, found = file:entry(name), inspect.tensor(file, name)
    elements, bytes = elements + entry.numel, bytes + entry.bytes
    local function number(x) return x and ("%.4g"):format(x) or "-" end
    write("  %-44s %-5s %-18s %11s %11s %11s %11s", name, entry.dtype, "[" .. table.concat(entry.shape, ", ") .. "]",
      number(found.minimum), number(found.maximum), number(found.mean), number(found.deviation))
    if found.nonfinite > 0 then
      problems[#problems + 1] = ("%s has %d elements that are not finite"):format(name, found.nonfinite)
    end
  end
  file:close()
  write("\n%.0f elements, %.0f bytes; checks: header, sizes, every element", elements, bytes)
  return problems
end

return inspect
