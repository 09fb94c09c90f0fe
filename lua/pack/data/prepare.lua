--- Text files to a token cache, and checking a finished one. docs/data.md describes the files.
local caches = require "pack.data.cache"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local files = require "pack.io.files"
local native = require "pack.native"
local numbers = require "pack.core.numbers"
local tokenizers = require "pack.data.tokenizer"

local C = native.C
local prepare = {}

local POLL_SECONDS = 0.2
local formats = {text = 1, json = 2}
local text_units = {file = 0, line = 1, paragraph = 2}
local splits = {"train", "validation"}

--- The share of unknown pieces from which a note says that the tokenizer may not fit the text.
prepare.suspicious_unknown_rate = 0.001

-- What goes wrong here is the matter of files, whose name and line the message has: no traceback.
local function refuse(format, ...)
  failure.raise(1, select("#", ...) > 0 and format:format(...) or format)
end

local function check(status)
  if status ~= 0 then refuse(native.message()) end
end

--- The files of a list of paths and shell patterns, in the order of the list, those of a pattern sorted.
-- Errors: a pattern that nothing matches.
function prepare.expand(patterns)
  local list = {}
  for _, pattern in ipairs(patterns or {}) do
    local paths = ffi.new("char *[1]")
    check(C.pk_glob(pattern, paths))
    for path in ffi.string(paths[0]):gmatch("[^\n]+") do list[#list + 1] = path end
    C.pk_bytes_free(paths[0])
  end
  return list
end

-- The FFI's options, and what they point to, which must live as long as they are used.
local function native_options(options)
  local native_form, keep = C.pk_prepare_defaults(), {}
  native_form.tokenizer = options.tokenizer or "bytes"
  native_form.output = options.output
  native_form.field = options.field or "text"
  for _, split in ipairs(splits) do
    local paths = options[split] or {}
    keep[split] = ffi.new("const char *[?]", #paths + 1, paths)
    native_form[split] = keep[split]
    native_form[split .. "_count"] = #paths
  end
  for _, key in ipairs {"workers", "shuffle_seed", "shuffle_buffer", "shuffle_bytes", "shard_tokens",
                        "max_train_tokens", "max_validation_tokens"} do
    if options[key] then native_form[key] = numbers.whole(key, options[key], 0) end
  end
  native_form.zstd_level = options.zstd or 0
  native_form.text_unit = text_units[options.txt_documents or "file"]
    or refuse("txt_documents is %s: it must be file, line or paragraph", options.txt_documents)
  if options.format then
    native_form.format = formats[options.format] or refuse("format is %s: it must be text or json", options.format)
  end
  native_form.skip_bad = options.on_error == "skip" and 1 or 0
  return native_form, keep
end

local function split_row(progress, index)
  return {
    documents = tonumber(progress.documents[index]),
    tokens = tonumber(progress.tokens[index]),
    unknown = tonumber(progress.unknown[index]),
    skipped = tonumber(progress.skipped[index]),
    empty = tonumber(progress.empty[index]),
    replaced = tonumber(progress.replaced[index]),
    text_bytes = tonumber(progress.text_bytes[index]),
    complete = progress.complete[index] ~= 0,
  }
end

local function row_of(progress, seconds)
  local row = {
    train = split_row(progress, 0),
    validation = split_row(progress, 1),
    split = progress.validation ~= 0 and "validation" or "train",
    done_bytes = tonumber(progress.done_bytes),
    total_bytes = tonumber(progress.total_bytes),
    finished = progress.finished ~= 0,
    seconds = seconds,
  }
  row.tokens = row.train.tokens + row.validation.tokens
  row.tokens_per_second = row.tokens / math.max(seconds, 1e-9)
  return row
end

-- Reports until the threads are done. Compiled code would not notice a ^C, so this stays interpreted.
local function watch(handle, options)
  local progress, begin = ffi.new("pk_prepare_progress"), C.pk_clock()
  repeat
    C.pk_prepare_poll(handle, POLL_SECONDS, progress)
    if C.pk_interrupt_check() ~= 0 then failure.interrupted() end
    local note = C.pk_prepare_note(handle)
    while note ~= nil do
      if options.note then options.note(ffi.string(note)) end
      C.pk_bytes_free(note)
      note = C.pk_prepare_note(handle)
    end
    if options.progress then options.progress(row_of(progress, C.pk_clock() - begin)) end
  until progress.finished ~= 0
  check(C.pk_prepare_finish(handle))
  return row_of(progress, C.pk_clock() - begin)
end
jit.off(watch, true)

--- Prepares a cache. options: tokenizer ("bytes" or a model file), train and validation (lists of files),
-- output (the folder, which must not exist), field ("text"), workers, shuffle_seed, shuffle_buffer,
-- shuffle_bytes, shard_tokens, max_train_tokens, max_validation_tokens, zstd (a level), format ("text" or "json",
-- of files whose names do not say it), txt_documents ("file", "line", "paragraph"), on_error ("stop", "skip"),
-- progress (a function that gets a row now and then), note (a function that gets the messages of the first twenty
-- skipped documents; the file skipped.txt of the cache names all).
-- Returns the last row: train and validation with documents, tokens, unknown, skipped, empty, replaced,
-- text_bytes and complete; seconds, tokens, tokens_per_second. On failure, or ^C, nothing is published.
function prepare.run(options)
  local form, keep = native_options(options)
  local handle = ffi.new("pk_prepare *[1]")
  check(C.pk_prepare_start(form, handle))
  local prepared = ffi.gc(handle[0], C.pk_prepare_free)
  local good, result = pcall(watch, prepared, options)
  C.pk_prepare_free(ffi.gc(prepared, nil))
  keep.train = nil
  if not good then error(result, 0) end
  return result
end

--- Whether a folder holds a finished cache.
function prepare.is_cache(folder)
  return files.kind(folder .. "/manifest.json") == "file"
end

--- Opens a cache as training does, then reads every byte of it again and compares checksums with its manifest.
-- Returns the manifest. Errors: whatever does not agree, with the file's name.
function prepare.verify(folder)
  local good, opened = failure.pcall(caches.open, folder)
  if not good then refuse("%s", (tostring(opened):gsub("^[^ ]*%.lua:%d+: ", ""))) end
  local status = C.pk_cache_verify(opened.handle)
  local problem = status ~= C.PK_OK and native.message()
  opened:close()
  if status == C.PK_INTERRUPTED then failure.interrupted() end
  if problem then refuse("%s", problem) end
  return opened.manifest
end

-- What a cache should say for the options, as far as they are given: {name, there, asked} rows.
local function comparisons(manifest, options)
  local there, list = manifest.preprocessing or {}, {}
  local function add(name, found, asked)
    if asked ~= nil and found ~= nil then list[#list + 1] = {name, found, asked} end
  end
  for _, key in ipairs {"field", "shuffle_seed", "shuffle_buffer", "shard_tokens", "format", "txt_documents"} do
    add(key, there[key], options[key])
  end
  if options.tokenizer then
    local tokenizer = tokenizers.open(options.tokenizer)
    add("tokenizer", (manifest.tokenizer or {}).sha256 or "bytes", tokenizer.sha256 or "bytes")
    tokenizer:close()
  end
  for _, split in ipairs(splits) do
    local found, asked = {}, {}
    for i, source in ipairs(there[split .. "_files"] or {}) do found[i] = source.file end
    for i, path in ipairs(options[split] or {}) do asked[i] = files.basename(path) end
    if #asked > 0 then add(split .. " files", table.concat(found, " "), table.concat(asked, " ")) end
  end
  return list
end

--- Refuses a finished cache that was made with other options than these (as those of prepare.run).
function prepare.compare(folder, manifest, options)
  for _, row in ipairs(comparisons(manifest, options)) do
    if row[2] ~= row[3] then
      refuse("%s: is a finished cache made with %s %s; asked for is %s", folder, row[1], row[2], row[3])
    end
  end
end

--- A note about a split whose text the tokenizer often has no piece for, or nil.
function prepare.unknown_note(name, row)
  local rate = row.tokens > 0 and row.unknown / row.tokens or 0
  if rate < prepare.suspicious_unknown_rate then return nil end
  return ("%s: %d of %d tokens (%.2f%%) are the unknown piece: does this tokenizer fit this text?")
    :format(name, row.unknown, row.tokens, 100 * rate)
end

return prepare
