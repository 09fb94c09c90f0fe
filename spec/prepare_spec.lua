-- Preparing a cache: what is written, that it depends on nothing but the input, and that it is all or
-- nothing.
local cache = require "spec.support.cache"
local ffi = require "ffi"
local json = require "pack.io.json"
local native = require "pack.native"
local prepare = require "pack.data.prepare"
local support = require "spec.support.helper"

local shared = "../shared/data/"
local llama = shared .. "tokenizer/llama2-32k.model"
local folder

local function path(name)
  return folder .. "/" .. name
end

-- A file of numbered documents of various length.
local function documents(name, count)
  local list, texts = {}, {}
  for i = 1, count do
    texts[i] = ("document %d: "):format(i) .. ("la "):rep(i * i % 50)
    list[i] = json.encode {text = texts[i]}
  end
  support.write(path(name), table.concat(list, "\n") .. "\n")
  return texts
end

local function run(output, changes)
  local job = {tokenizer = "bytes", train = {path "a.jsonl"}, validation = {path "b.jsonl"}, output = path(output)}
  for key, x in pairs(changes or {}) do job[key] = x end
  return prepare.run(job)
end

-- A command that prepares the cache c by bytes from a file, with further options.
local function command(file, more)
  return ("%s recipes/prepare.lua --tokenizer bytes --train %s --output %s %s")
    :format(support.quote(support.program), support.quote(path(file)), path "c", more or "")
end

local function names()
  local _, out = support.run("ls " .. folder)
  return out
end

local function sha256_of(text)
  support.write(path "hashed", text)
  local digits, bytes = ffi.new("char[65]"), ffi.new("int64_t[1]")
  native.check(native.C.pk_files_sha256(ffi.new("const char *[1]", {path "hashed"}), 1, 0, digits, bytes))
  return ffi.string(digits)
end

local function identity(text)
  local digits = ffi.new("char[65]")
  if native.C.pk_json_identity(text, #text, "manifest.json", digits) ~= 0 then error(native.message(), 0) end
  return ffi.string(digits)
end

describe("A prepared cache", function()
  before_each(function()
    folder = support.temporary()
    documents("a.jsonl", 300)
    documents("b.jsonl", 40)
  end)
  after_each(function()
    os.execute("chmod -R u+w " .. folder)
    support.remove(folder)
  end)

  it("holds every document once, each with its end, in an order that the seed gives", function()
    local texts = documents("a.jsonl", 300)
    local row = run("c", {shuffle_buffer = 50})
    local found = cache.texts(path "c")
    assert.equal(300, row.train.documents)
    assert.equal(40, row.validation.documents)
    assert.equal(row.train.tokens, #cache.tokens(path "c"))
    assert.are_not.same(texts, found)
    run("d", {shuffle_buffer = 50})
    assert.same(found, cache.texts(path "d"))
    run("e", {shuffle_buffer = 50, shuffle_seed = 43})
    assert.are_not.same(found, cache.texts(path "e"))
    -- A document can leave early by less than the buffer, but late by any number.
    for i, text in ipairs(found) do assert.is_true(tonumber(text:match("%d+")) < i + 50) end
    run("f", {shuffle_buffer = 1})
    assert.same(texts, cache.texts(path "f"))
    local sorted = {}
    for i, text in ipairs(found) do sorted[i] = text end
    table.sort(sorted)
    table.sort(texts)
    assert.same(texts, sorted)
  end)

  it("has the same tokens for any number of threads, and however it is stored #threads", function()
    documents("a.jsonl", 5000)
    local expected
    for _, workers in ipairs {1, 2, 3, 7} do
      local name = "w" .. workers
      run(name, {workers = workers, shuffle_buffer = 700, shard_tokens = 50000, zstd = workers == 7 and 3 or nil})
      local manifest = cache.manifest(path(name))
      expected = expected or manifest
      assert.equal(expected.splits.train.tokens_sha256, manifest.splits.train.tokens_sha256)
      assert.equal(expected.splits.validation.tokens_sha256, manifest.splits.validation.tokens_sha256)
      if workers < 7 then assert.equal(expected.identity, manifest.identity) end
      prepare.verify(path(name))
    end
  end)

  it("bounds its shuffle in bytes too", function()
    run("c", {shuffle_buffer = 1000, shuffle_bytes = 300})
    for i, text in ipairs(cache.texts(path "c")) do assert.is_true(tonumber(text:match("%d+")) < i + 30) end
  end)

  it("consists of shards of a given number of tokens, with their checksums", function()
    local row = run("c", {shard_tokens = 1000})
    local split = cache.manifest(path "c").splits.train
    assert.equal(row.train.tokens, split.tokens)
    assert.equal(math.ceil(split.tokens / 1000), #split.shards)
    local all = {}
    for i, shard in ipairs(split.shards) do
      assert.equal(("train-%05d.bin"):format(i - 1), shard.file)
      assert.equal(i < #split.shards and 1000 or (split.tokens - 1) % 1000 + 1, shard.tokens)
      all[i] = support.read(path "c/" .. shard.file)
      assert.equal(sha256_of(all[i]), shard.sha256)
    end
    assert.equal(sha256_of(table.concat(all)), split.tokens_sha256)
    assert.equal("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", sha256_of("abc"))
  end)

  it("says in its manifest what it is", function()
    run("c")
    local manifest = cache.manifest(path "c")
    assert.equal(1, manifest.version)
    assert.equal("<u2", manifest.dtype)
    assert.equal(257, manifest.vocab_size)
    assert.equal(256, manifest.eos_token_id)
    assert.is_true(manifest.validation_complete)
    assert.same({kind = "bytes", name = "bytes"}, manifest.tokenizer)
    assert.equal(42, manifest.preprocessing.shuffle_seed)
    assert.equal("a.jsonl", manifest.preprocessing.train_files[1].file)
    assert.equal(identity(support.read(path "c/manifest.json")), manifest.identity)
    local _, modes = support.run("stat -c %a " .. path "c" .. "/*")
    assert.equal("444\n444\n444\n", modes)
  end)

  it("is read and written by the Python of docs/data.md", function()
    if os.execute("command -v python3 >/dev/null 2>&1") ~= 0 then return pending("python3 is not installed") end
    local code = {}
    for block in support.read("docs/data.md"):gmatch("```python\n(.-)```") do code[#code + 1] = block end
    assert.equal(2, #code)
    os.execute(("mv %s %s"):format(path "a.jsonl", path "'日本 \"é.jsonl'"))
    run("c", {train = {path '日本 "é.jsonl'}, shard_tokens = 1000})
    support.write(path "code.py", table.concat(code, "\n") .. ([[
import sys
folder = sys.argv[1]
train, validation = read(folder + "/c"), read(folder + "/c", "validation")
print(len(train), sum(train) %% 1000003, len(validation))
write(folder + "/d", {"train": train, "validation": validation}, 257, 256)
write(folder + "/e", {"train": [65535, 65536, 70000, 9]}, 70001, 9)
]]):gsub("%%%%", "%%"))
    local status, out, err = support.run(("python3 %s %s"):format(path "code.py", folder))
    assert.equal(0, status, err)
    local tokens, sum = cache.tokens(path "c"), 0
    for _, token in ipairs(tokens) do sum = sum + token end
    assert.equal(("%d %d %d\n"):format(#tokens, sum % 1000003, #cache.tokens(path "c", "validation")), out)
    assert.equal('日本 "é.jsonl', cache.manifest(path "c").preprocessing.train_files[1].file)
    prepare.verify(path "d")
    assert.equal(cache.manifest(path "c").splits.train.tokens_sha256, cache.manifest(path "d").splits.train.tokens_sha256)
    assert.same(tokens, cache.tokens(path "d"))
    prepare.verify(path "e")
    assert.same({65535, 65536, 70000, 9}, cache.tokens(path "e"))
  end)

  it("is cut off at a limit of tokens, and says so #threads", function()
    for _, workers in ipairs {1, 3} do
      local name = "c" .. workers
      local row = run(name, {max_train_tokens = 5000, max_validation_tokens = 77, workers = workers, shuffle_buffer = 20})
      assert.equal(5000, row.train.tokens)
      assert.equal(77, row.validation.tokens)
      assert.is_false(row.train.complete)
      local manifest = cache.manifest(path(name))
      assert.equal(5000, manifest.splits.train.tokens)
      assert.is_false(manifest.splits.train.complete)
      assert.is_false(manifest.splits.validation.complete)
      assert.is_false(manifest.validation_complete)
    end
    assert.equal(cache.manifest(path "c1").identity, cache.manifest(path "c3").identity)
    local whole = run("d")
    local row = run("e", {max_train_tokens = whole.train.tokens, max_validation_tokens = whole.validation.tokens})
    assert.is_true(row.train.complete, "a limit that cuts nothing off")
    assert.is_true(cache.manifest(path "e").validation_complete)
  end)

  it("uses 32 bits above 65,536 pieces", function()
    local pieces = {}
    local function character(i) -- from U+20000 on
      local point = 0x20000 + i
      return string.char(0xf0, 0x80 + math.floor(point / 4096) % 64, 0x80 + math.floor(point / 64) % 64, 0x80 + point % 64)
    end
    for i = 4, 70001 do pieces[i - 3] = character(i) end
    pieces[#pieces + 1] = "▁"
    support.write(path "big.model", cache.model(pieces, {type = "unigram"}))
    support.write(path "ids.jsonl", json.encode {text = character(65536) .. character(65537) .. character(70001) .. character(4)})
    run("c", {tokenizer = path "big.model", train = {path "ids.jsonl"}, validation = {}})
    local manifest = cache.manifest(path "c")
    assert.equal("<u4", manifest.dtype)
    assert.equal(70002, manifest.vocab_size)
    assert.same({70001, 65535, 65536, 70000, 3, 2}, cache.tokens(path "c"))
    prepare.verify(path "c")
    table.remove(pieces)
    for i = #pieces, 65536 - 3, -1 do pieces[i] = nil end
    pieces[#pieces + 1] = "▁"
    assert.equal(65536, #pieces + 3)
    support.write(path "fits.model", cache.model(pieces, {type = "unigram"}))
    support.write(path "ids.jsonl", json.encode {text = character(65535)})
    run("d", {tokenizer = path "fits.model", train = {path "ids.jsonl"}, validation = {}})
    assert.equal("<u2", cache.manifest(path "d").dtype)
    assert.same({65535, 65534, 2}, cache.tokens(path "d"))
  end)

  it("counts unknown pieces, and a note says when there are many", function()
    support.write(path "m.model", cache.model {"l", "a", "▁", "la"})
    local row = run("c", {tokenizer = path "m.model"})
    local unknown = 0
    for _, token in ipairs(cache.tokens(path "c")) do unknown = unknown + (token == 0 and 1 or 0) end
    assert.equal(unknown, row.train.unknown)
    assert.is_truthy(prepare.unknown_note("train", row.train):find("are the unknown piece", 1, true))
    assert.is_nil(prepare.unknown_note("train", {tokens = 100000, unknown = 99}))
    row = run("d", {tokenizer = path "m.model", max_train_tokens = 500})
    unknown = 0
    for _, token in ipairs(cache.tokens(path "d")) do unknown = unknown + (token == 0 and 1 or 0) end
    assert.equal(unknown, row.train.unknown)
  end)

  it("is refused where something is, and leaves it alone", function()
    run("c")
    cache.refuses("c: the folder is there and not empty", run, "c")
    cache.refuses("a.jsonl: is there and is not a folder", run, "a.jsonl")
    os.execute("mkdir " .. path "empty")
    assert.equal(300, run("empty").train.documents)
    assert.equal(300, run("deep/er/c").train.documents)
    cache.refuses("zstd level is 99", run, "d", {zstd = 99})
    cache.refuses("no training files", run, "d", {train = {}})
    cache.refuses("the validation files hold no documents", run, "d", {validation = {path "c/../none.txt"}},
      support.write(path "none.txt", ""))
    cache.refuses("none.model", run, "d", {tokenizer = path "none.model"})
  end)

  it("is published whole or not at all #threads", function()
    support.write(path "bad.jsonl", support.read(path "a.jsonl") .. '{"text":"' .. "\n")
    for _, split in ipairs {"train", "validation"} do
      cache.refuses("bad.jsonl:301: not a JSON object", run, "c", {[split] = {path "bad.jsonl"}, shuffle_buffer = 1})
      assert.is_nil(names():find("%f[%w]c%f[%s]"))
      assert.is_nil(names():find("partial", 1, true))
    end
    assert.equal(300, run("c").train.documents)
  end)

  it("is not published when the disk is full", function()
    local status, _, err = support.run("trap '' XFSZ; ulimit -f 8; " .. command "a.jsonl")
    assert.equal(1, status)
    assert.is_truthy(err:find("train-00000.bin: cannot be written: File too large", 1, true), err)
    assert.is_nil(names():find("partial", 1, true))
    assert.equal(300, run("c").train.documents)
  end)

  -- Text that keeps a preparation running for a while.
  local function long_text()
    os.execute("head -c 15000000 /dev/urandom | base64 > " .. path "long.txt")
  end

  -- Runs a shell command while another process, $job, prepares the cache c.
  local function running(then_command)
    long_text()
    return support.run(command("long.txt", "--workers 1 --zstd 19 --txt-documents line & job=$!\n")
      .. ("while ! [ -e %s.partial ]; do sleep 0.05; done\n"):format(path "c") .. then_command)
  end

  it("has one writer at a time", function()
    local status, _, err = running(command("a.jsonl", "; code=$?; kill -9 $job; exit $code"))
    assert.equal(1, status)
    assert.is_truthy(err:find("/c: another preparation is writing it", 1, true), err)
  end)

  it("that was interrupted leaves nothing published, and the next one starts afresh", function()
    local status = running("sleep 0.2; kill -9 $job; wait $job; exit 0")
    assert.equal(0, status)
    assert.is_truthy(names():find("c.partial", 1, true))
    assert.is_false(prepare.is_cache(path "c"))
    assert.equal(300, run("c").train.documents)
    assert.is_nil(names():find("c.partial", 1, true))
  end)

  it("deletes nothing that no preparation made", function()
    local function refused(message)
      cache.refuses(message, run, "c")
      assert.is_false(prepare.is_cache(path "c"))
    end
    os.execute(("cd %s && mkdir c.partial home && echo mine > c.partial/thesis.txt && echo mine > home/train-1"):format(folder))
    refused("c.partial: is there, and no preparation of this program left it: move it away")
    support.write(path "c.partial/.packlua-preparing", "")
    refused("c.partial/thesis.txt: no preparation made this: move it away, with its folder")
    assert.equal("mine\n", support.read(path "c.partial/thesis.txt"))
    os.execute(("cd %s && rm c.partial/thesis.txt && ln -s ../home/train-1 c.partial/train-1"):format(folder))
    refused("c.partial/train-1: no preparation made this")
    os.execute(("cd %s && rm -r c.partial && ln -s home c.partial"):format(folder))
    refused("c.partial: is there and is no folder of a preparation")
    assert.equal("mine\n", support.read(path "home/train-1"))
    os.execute(("cd %s && rm c.partial && ln -s home/new c"):format(folder))
    refused("c: is there and is not a folder but a link")
    os.execute(("cd %s && rm c && rm c.lock && ln -s home/train-1 c.lock"):format(folder))
    refused("c: a cache cannot be made here: " .. path "c.lock: is not a regular file: it is a link")
    assert.equal("mine\n", support.read(path "home/train-1"))
    os.execute(("cd %s && rm c.lock && mkdir c c.partial"):format(folder))
    assert.equal(300, run("c").train.documents)
    assert.is_nil(support.read(path "c/.packlua-preparing"))
  end)

  it("names what keeps it from being made", function()
    support.write(path "file", "")
    cache.refuses("/file", run, "file/c")
    if os.execute("test $(id -u) = 0") == 0 then return pending("root may write everywhere") end
    os.execute(("mkdir %s && chmod a-w %s"):format(path "ro", path "ro"))
    cache.refuses("ro/c: a cache cannot be made here: " .. path "ro/c.lock: cannot be opened: Permission denied", run, "ro/c")
  end)

  it("stops at ^C and removes what it wrote", function()
    long_text()
    -- A shell starts its background jobs with SIGINT ignored, so another program sends it.
    local status = support.run("timeout --foreground -s INT 1 "
      .. command("long.txt", "--workers 1 --zstd 19 --txt-documents line"))
    assert.equal(124, status) -- what timeout says
    assert.is_nil(names():find("partial", 1, true))
    assert.is_false(prepare.is_cache(path "c"))
  end)
end)

describe("Verifying a cache", function()
  before_each(function()
    folder = support.temporary()
    documents("a.jsonl", 100)
    documents("b.jsonl", 10)
    run("c", {shard_tokens = 1500, zstd = 3})
    run("d", {shard_tokens = 1500})
    os.execute("chmod -R u+w " .. folder)
  end)
  after_each(function() support.remove(folder) end)

  it("agrees with what was written", function()
    assert.equal(100, prepare.verify(path "c").splits.train.documents)
    assert.equal(100, prepare.verify(path "d").splits.train.documents)
  end)

  it("finds shards that are missing, short, long or altered", function()
    for _, case in ipairs {{"c", "train-00001.bin.zst"}, {"d", "train-00001.bin"}, {"d", "validation-00000.bin"}} do
      local file = path(case[1]) .. "/" .. case[2]
      local content = support.read(file)
      local function check(message, changed)
        support.write(file, changed)
        cache.refuses(case[2] .. ": " .. message, prepare.verify, path(case[1]))
      end
      check(("%d bytes, the manifest says %d"):format(#content - 1, #content), content:sub(1, -2))
      check(("%d bytes"):format(#content + 1), content .. "\0")
      local middle = math.floor(#content / 2)
      check("damaged: its SHA-256 is",
        content:sub(1, middle) .. string.char((content:byte(middle + 1) + 1) % 256) .. content:sub(middle + 2))
      os.remove(file)
      cache.refuses(case[2] .. ": cannot be opened", prepare.verify, path(case[1]))
      support.write(file, content)
      prepare.verify(path(case[1]))
    end
  end)

  it("finds a manifest that is altered", function()
    local file = path "d/manifest.json"
    local text = support.read(file)
    support.write(file, (text:gsub('"eos_token_id": 256', '"eos_token_id": 255')))
    cache.refuses("manifest.json: altered", prepare.verify, path "d")
    support.write(file, text:sub(1, -4))
    cache.refuses("manifest.json", prepare.verify, path "d")
    support.write(file, (text:gsub('"identity"', '"identify"')))
    cache.refuses("manifest.json: identity is missing", prepare.verify, path "d")
    support.write(file, (text:gsub("\n *", " "))) -- other white space says the same
    prepare.verify(path "d")
  end)

  it("refuses what training refuses, and reads nothing outside the cache", function()
    local original = support.read(path "d/manifest.json")
    support.write(path "outside.bin", support.read(path "d/train-00000.bin"))
    local function refused(message, change)
      local manifest = json.decode(original)
      change(manifest, manifest.splits.train.shards[1])
      manifest.identity = nil
      manifest.identity = identity((json.encode(manifest)))
      support.write(path "d/manifest.json", (json.encode(manifest)))
      cache.refuses(message, prepare.verify, path "d")
    end
    refused('file is "../outside.bin", not a name inside', function(_, shard) shard.file = "../outside.bin" end)
    refused("vocab_size is 0", function(m) m.vocab_size = 0 end)
    refused('dtype is "<i2"', function(m) m.dtype = "<i2" end)
    refused("version 2 of the layout", function(m) m.version = 2 end)
    refused("splits is an array, not an object", function(m) m.splits = json.array {} end)
    refused("is 256, not below the vocabulary of 256", function(m) m.vocab_size, m.eos_token_id = 256, 255 end)
    refused("the SHA-256 of the tokens of train is", function(m) m.splits.train.tokens_sha256 = ("0"):rep(64) end)
    refused("train-00000.bin: damaged: bytes 0 .. 2999 are not", function(_, shard) shard.blocks_sha256 = ("0"):rep(16) end)
    refused("blocks_sha256 is not 16 digits for each 262144", function(_, shard) shard.blocks_sha256 = "0" end)
    refused("bytes is 3001, but 1500 tokens have 3000", function(_, shard) shard.bytes = 3001 end)
    support.write(path "d/manifest.json", original)
    os.remove(path "d/train-00000.bin")
    os.execute(("ln -s ../outside.bin %s"):format(path "d/train-00000.bin"))
    cache.refuses("train-00000.bin: is not a regular file: it is a link", prepare.verify, path "d")
    refused("is a link, and leads out of the cache", function(_, shard)
      os.execute(("cd %s && mkdir away && mv outside.bin away && ln -s ../away d/sub"):format(folder))
      shard.file = "sub/outside.bin"
    end)
  end)

  it("takes the place of preparing, unless other things are asked for", function()
    local again = ("packlua recipes/prepare.lua --tokenizer bytes --train %s --validation %s --output %s "
      .. "--set data.shard_tokens=1500"):format(path "a.jsonl", path "b.jsonl", path "d")
    local status, out, err, _ = support.run(again)
    assert.equal(0, status, err)
    assert.is_truthy(out:find("every checksum agrees", 1, true))
    status, out = support.run("packlua recipes/prepare.lua --verify --output " .. path "d")
    assert.equal(0, status)
    assert.is_truthy(out:find("every checksum agrees", 1, true))
    status, _, err = support.run(again .. " --set data.shuffle_seed=7")
    assert.equal(1, status)
    assert.is_truthy(err:find("is a finished cache made with shuffle_seed 42; asked for is 7", 1, true), err)
    status, _, err = support.run((again:gsub("a%.jsonl", "b.jsonl")))
    assert.equal(1, status)
    assert.is_truthy(err:find("train files a.jsonl; asked for is b.jsonl", 1, true), err)
    os.remove(path "d/train-00000.bin")
    status, _, err = support.run("packlua recipes/prepare.lua --verify --output " .. path "d")
    assert.equal(1, status)
    assert.is_truthy(err:find("train-00000.bin", 1, true), err)
    status = support.run("packlua recipes/prepare.lua --verify --output " .. path "none")
    assert.equal(1, status)
  end)
end)

describe("recipes/prepare.lua", function()
  before_each(function()
    folder = support.temporary()
    documents("a.jsonl", 30)
    documents("b.jsonl", 5)
  end)
  after_each(function() support.remove(folder) end)

  it("takes patterns and several files, and reports counts", function()
    support.write(path "a.jsonl", support.read(path "a.jsonl") .. '{"text":""}\n{"x":1}\n{"text":"\\ud800"}\n')
    local more = ("--train %s --validation %s --on-error skip"):format(path "b.jsonl", path "b.jsonl")
    local status, out, err = support.run(command("[a]*.jsonl", more))
    assert.equal(0, status, err)
    assert.is_truthy(out:find("train: 36 documents", 1, true), out)
    assert.is_truthy(out:find("skipped 1 bad and 1 empty documents; 1 lone surrogates replaced", 1, true), out)
    assert.is_truthy(out:find('a.jsonl:32: the object has no field "text"', 1, true), out)
    assert.is_truthy(out:find("validation: 5 documents", 1, true), out)
  end)

  it("takes a name with brackets for a file before it is a pattern", function()
    os.execute(("cd %s && mkdir '[raw]' && cp a.jsonl '[raw]/x[1].jsonl' && cp a.jsonl 'c [v2].jsonl' && cp b.jsonl 'c v.jsonl'")
      :format(folder))
    local function expand(pattern)
      local found = prepare.expand {path(pattern)}
      for i, name in ipairs(found) do found[i] = name:sub(#folder + 2) end
      return found
    end
    assert.same({"c [v2].jsonl"}, expand "c [v2].jsonl")
    assert.same({"[raw]/x[1].jsonl"}, expand "[raw]/x[1].jsonl")
    assert.same({"[raw]/x[1].jsonl"}, expand "[raw]/*.jsonl")
    assert.same({"c v.jsonl"}, expand "c [v].jsonl")
    assert.same({"[raw]/x[1].jsonl"}, expand "[[]raw]/x*.jsonl")
    cache.refuses("there are no such files", prepare.expand, {path "[raw]/*.txt"})
  end)

  it("takes its job from a configuration's data section", function()
    support.write(path "config.lua", ([[return {data = {text = {%q}, tokenizer = "bytes", cache_dir = %q,
      shuffle_seed = 5, shuffle_buffer = 10, shard_tokens = 500, prepare_train_tokens = 700, prepare_workers = 1}}]])
      :format(path "a.jsonl", path "c"))
    local status, _, err = support.run("packlua recipes/prepare.lua --config " .. path "config.lua")
    assert.equal(0, status, err)
    local manifest = cache.manifest(path "c")
    assert.equal(5, manifest.preprocessing.shuffle_seed)
    assert.equal(2, #manifest.splits.train.shards)
    assert.equal(700, manifest.splits.train.tokens)
    assert.is_nil(manifest.splits.validation)
  end)

  it("names what is missing", function()
    local cases = {
      {"--tokenizer bytes --train x.txt", 2, "no folder for the cache"},
      {"--output c --train x.txt", 2, "no tokenizer"},
      {"--tokenizer bytes --output c", 2, "no training files"},
      {"--tokenizer bytes --output c --train '/none/*.txt'", 1, "/none/*.txt: there are no such files"},
      {"--tokenizer bytes --output c --train a.txt --on-error ignore", 2, "expected one of stop, skip"},
    }
    for _, case in ipairs(cases) do
      local status, _, err = support.run("packlua recipes/prepare.lua " .. case[1])
      assert.equal(case[2], status, err)
      assert.is_truthy(err:find(case[3], 1, true), err)
    end
  end)
end)

describe("The identity of a manifest", function()
  it("is that of Python's canonical JSON", function()
    -- hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    local values = {
      ['{"b":1.0,"a":9007199254740991,"identity":"x"}'] = '{"a": 9007199254740991, "b": 1.0}',
      ['{"a":[1E5,1e16,1e-5,0.0001,-0,-0.0,1.50,123456789012345678901234567890]}'] =
        '{"a": [100000.0, 1e+16, 1e-05, 0.0001, 0, -0.0, 1.5, 123456789012345678901234567890]}',
      ['{"é":"日本","🙂":"\\u00e9\\/\\t\127","e":{"identity":[]}}'] =
        '{"e": {"identity": []}, "\\u00e9": "\\u65e5\\u672c", "\\ud83d\\ude42": "\\u00e9/\\t\\u007f"}',
      ['{"\\uffff":1,"\\ud83d\\ude42":2,"\\ud800":3}'] = '{"\\ud800": 3, "\\uffff": 1, "\\ud83d\\ude42": 2}',
      [" {} "] = "{}",
      ["[true,null,false]"] = "[true, null, false]",
    }
    folder = support.temporary()
    for text, canonical in pairs(values) do
      assert.equal(sha256_of(canonical), identity(text), text)
    end
    support.remove(folder)
  end)

  it("refuses what is not JSON, with the line", function()
    cache.refuses('manifest.json:2: the object that ends here has a key twice', identity, '{"a":1,\n"a":2}')
    cache.refuses("manifest.json:1: ", identity, "")
    cache.refuses("manifest.json:1: a comma or } is expected here", identity, '{"a":1')
    cache.refuses("more text after the end", identity, "{}x")
    cache.refuses("nested deeper than 64", identity, ("["):rep(1000))
    cache.refuses("not UTF-8", identity, '{"a":"\255"}')
    cache.refuses("a value is expected", identity, '{"a":NaN}')
  end)
end)

describe("The shared C4 sample", function()
  it("gives the reference's ids, and the same tokens from its two spellings", function()
    if not support.read(llama) then return pending("no ../shared/data") end
    folder = support.temporary()
    local plain, escaped = shared .. "c4/c4-train.first1000.json.gz", shared .. "c4/c4_en_first1000.asis.jsonl.gz"
    run("c", {tokenizer = llama, train = {plain}, validation = {}, shuffle_buffer = 1})
    run("d", {tokenizer = llama, train = {escaped}, validation = {}, shuffle_buffer = 1, workers = 3, zstd = 1})
    assert.equal(cache.manifest(path "c").splits.train.tokens_sha256, cache.manifest(path "d").splits.train.tokens_sha256)
    local tokens, at = cache.tokens(path "c"), 0
    assert.equal(546361 + 1000, #tokens)
    for line in io.lines(shared .. "ref/llama2.c4train50.wholedoc.ids") do
      for id in line:gmatch("%d+") do
        at = at + 1
        if tokens[at] ~= tonumber(id) then assert.equal(tonumber(id), tokens[at], "token " .. at) end
      end
      at = at + 1
      assert.equal(2, tokens[at])
    end
    os.execute("chmod -R u+w " .. folder)
    support.remove(folder)
  end)
end)
