-- Opening and reading token caches: what Python wrote, every kind of damage, and tokens across shards.
local cache = require "pack.data.cache"
local ffi = require "ffi"
local json = require "pack.io.json"
local native = require "pack.native"
local prepare = require "pack.data.prepare"
local support = require "spec.support.helper"
local zstd = require("spec.support.cache").zstd
local refuses = require("spec.support.cache").refuses

local fixture = "spec/fixtures/cache"
local folder

local function sha256(text)
  local path, digits, bytes = folder .. "/hashed", ffi.new("char[65]"), ffi.new("int64_t[1]")
  support.write(path, text)
  native.check(native.C.pk_files_sha256(ffi.new("const char *[1]", {path}), 1, 0, digits, bytes))
  return ffi.string(digits)
end

local function identity(text)
  local digits = ffi.new("char[65]")
  native.check(native.C.pk_json_identity(text, #text, "manifest.json", digits))
  return ffi.string(digits)
end

-- Writes a manifest with its identity, unless it has one.
local function write_manifest(path, manifest)
  manifest.identity = manifest.identity or identity((json.encode(manifest)))
  support.write(path .. "/manifest.json", (json.encode(manifest)))
end

local function bytes_of(ids, width)
  return ffi.string(ffi.new(width == 2 and "uint16_t[?]" or "uint32_t[?]", #ids, ids), #ids * width)
end

-- Writes a cache of one split whose shards hold lists of ids. options: vocab_size, width, compress.
local function write_cache(parts, options)
  options = options or {}
  local path, width = folder .. "/written", options.width or 2
  os.execute("mkdir -p " .. path)
  local split = {tokens = 0, shards = json.array {}}
  for i, ids in ipairs(parts) do
    local stored = bytes_of(ids, width)
    if options.compress then stored = options.compress(stored, i) end
    local name = ("train-%05d.bin%s"):format(i - 1, options.compress and ".zst" or "")
    support.write(path .. "/" .. name, stored)
    split.shards[i] = {file = name, tokens = #ids, sha256 = sha256(stored)}
    split.tokens = split.tokens + #ids
  end
  write_manifest(path, {version = 1, dtype = width == 2 and "<u2" or "<u4", vocab_size = options.vocab_size or 65536,
    eos_token_id = 0, splits = {train = split}, preprocessing = {}})
  return path
end

-- A copy of the fixture with a changed manifest.
local function changed(change)
  local path = folder .. "/changed"
  os.execute(("rm -rf %s && cp -r %s %s"):format(path, fixture, path))
  local manifest = json.decode(support.read(path .. "/manifest.json"))
  manifest.identity = nil
  change(manifest)
  write_manifest(path, manifest)
  return path
end

describe("A cache", function()
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  it("that Python wrote opens, with 1.0, 9007199254740991, -0.0 and text of all planes in its manifest", function()
    local opened = cache.open(fixture)
    assert.equal("e7c5b2c030c2df7bd02dc01ddf93fcc4c685e9e223aaccfdb1c2f4cba4db10f3", opened.identity)
    assert.same({300, 256, "<u2", false}, {opened.vocab_size, opened.eos, opened.dtype, opened.validation_complete})
    assert.equal(230, opened.splits.train.count)
    assert.equal(37, opened.splits.validation.count)
    assert.equal(9007199254740991, opened.manifest.preprocessing.count)
    opened:verify()
    opened:close()
  end)

  it("gives its tokens across the borders of shards, empty ones included", function()
    local opened, expected = cache.open(fixture), {}
    for i = 0, 229 do expected[i + 1] = (7 * i * i + 3 * i) % 300 end
    expected[1], expected[101], expected[230] = 299, 0, 256
    assert.same(expected, opened:read("train", 0, 230))
    for _, range in ipairs {{0, 1}, {98, 5}, {99, 2}, {100, 1}, {101, 1}, {229, 1}, {230, 0}, {50, 100}} do
      local part = {}
      for i = 1, range[2] do part[i] = expected[range[1] + i] end
      assert.same(part, opened:read("train", range[1], range[2]))
    end
    assert.same({1, 6, 11}, opened:read("validation", 0, 3))
  end)

  it("refuses tokens outside a split, an unknown split, and use after closing", function()
    local opened = cache.open(fixture)
    refuses("tokens 229 .. 230 of a split of 230", opened.read, opened, "train", 229, 2)
    refuses("tokens -1 .. 0 of a split", opened.read, opened, "train", -1, 2)
    refuses("has no split 'test'", opened.read, opened, "test", 0, 1)
    opened:close()
    opened:close()
    refuses("is closed", opened.read, opened, "train", 0, 1)
  end)

  it("holds ids up to 65535 in 16 bits and larger ones in 32", function()
    assert.same({65535, 0, 1}, cache.open(write_cache({{65535, 0}, {1}})):read("train", 0, 3))
    local wide = cache.open(write_cache({{65535, 65536}, {70000}}, {width = 4, vocab_size = 70001}))
    assert.equal("<u4", wide.dtype)
    assert.same({65535, 65536, 70000}, wide:read("train", 0, 3))
    assert.same({65536, 70000}, wide:read("train", 1, 2))
  end)

  it("refuses an id outside the vocabulary where it is read, with its place", function()
    local opened = cache.open(write_cache({{5, 6}, {7, 300, 8}}, {vocab_size = 300}))
    assert.same({5, 6, 7}, opened:read("train", 0, 3))
    refuses("train-00001.bin: token 1 is 300, not below the vocabulary of 300", opened.read, opened, "train", 0, 5)
    opened = cache.open(write_cache({{4294967295}}, {width = 4, vocab_size = 70000}))
    refuses("token 0 is 4294967295, not below", opened.read, opened, "train", 0, 1)
  end)

  it("reads compressed shards of one or several frames like plain ones", function()
    local ids = {}
    for i = 1, 300000 do ids[i] = i * i % 65521 end
    local function frames(bytes)
      local half = math.floor(#bytes / 3)
      return zstd(bytes:sub(1, half)) .. zstd(bytes:sub(half + 1))
    end
    local plain = cache.open(write_cache({ids, {1, 2, 3}}))
    local expected = {plain:read("train", 0, 300003), plain:read("train", 250000, 50002)}
    for _, compress in ipairs {zstd, frames} do
      local packed = cache.open(write_cache({ids, {1, 2, 3}}, {compress = compress}))
      assert.same(expected[1], packed:read("train", 0, 300003))
      assert.same(expected[2], packed:read("train", 250000, 50002))
      packed:verify()
    end
  end)

  it("refuses compressed shards that are damaged, cut off, or of another length", function()
    local ids = {}
    for i = 1, 5000 do ids[i] = i * i * i % 65521 end
    local function refused(message, compress, promised)
      local path = write_cache({ids}, {compress = compress})
      local manifest = json.decode(support.read(path .. "/manifest.json"))
      if promised then
        manifest.identity = nil
        manifest.splits.train.tokens, manifest.splits.train.shards[1].tokens = promised, promised
        write_manifest(path, manifest)
      end
      local opened = cache.open(path)
      refuses(message, opened.read, opened, "train", 0, promised or 5000)
    end
    refused("train-00000.bin.zst: ends within a zstd frame", function(b) return zstd(b):sub(1, -9) end)
    refused("train-00000.bin.zst: damaged: ", function(b) return "x" .. zstd(b) end)
    refused("ends after 0 bytes of ids, but the manifest says 5000 tokens", function() return "" end)
    refused("ends after 10000 bytes of ids, but the manifest says 5001 tokens", zstd, 5001)
    refused("holds more than the 4999 tokens of the manifest", zstd, 4999)
  end)

  it("refuses an altered manifest with both identities", function()
    local path = folder .. "/altered"
    os.execute(("cp -r %s %s"):format(fixture, path))
    local text = support.read(path .. "/manifest.json")
    support.write(path .. "/manifest.json", (text:gsub('"eos_token_id": 256', '"eos_token_id": 255')))
    refuses("altered: it says that its identity is e7c5b2c030c2df7bd02dc01ddf93fcc4c685e9e223aaccfdb1c2f4cba4db10f3, "
      .. "but its content has ", cache.open, path)
    support.write(path .. "/manifest.json", (text:gsub("\n *", "\n\t"))) -- white space is not content
    cache.open(path)
  end)

  it("refuses a folder without a manifest, or with one that is not JSON or cut off", function()
    refuses(folder .. ": not a token cache: there is no manifest.json", cache.open, folder)
    refuses("/none: not a token cache", cache.open, folder .. "/none")
    for text, message in pairs {["[]"] = "is an array, not an object", ["{"] = "manifest.json:1:2: the text ends inside",
      [""] = "manifest.json: empty", ["{}"] = "manifest.json: identity is missing"} do
      support.write(folder .. "/manifest.json", text)
      refuses(message, cache.open, folder)
    end
  end)

  it("refuses keys that are missing, of another type or out of range, by name", function()
    local function refused(message, change) refuses(message, cache.open, changed(change)) end
    refused("version 2 of the layout; this program reads 1", function(m) m.version = 2 end)
    refused("version is a string, not a number", function(m) m.version = "1" end)
    refused("identity is a number, not a string", function(m) m.identity = 1 end)
    refused('identity is "abc", not the 64 digits', function(m) m.identity = "abc" end)
    refused("dtype is missing", function(m) m.dtype = nil end)
    refused('dtype is ">u2", not "<u2" or "<u4"', function(m) m.dtype = ">u2" end)
    refused("vocab_size is missing", function(m) m.vocab_size = nil end)
    refused("vocab_size is 0, not a whole number of 1 .. ", function(m) m.vocab_size = 0 end)
    refused("vocab_size is 1.5, not a whole number", function(m) m.vocab_size = 1.5 end)
    refused("eos_token_id is 300, not a whole number of 0 .. 299", function(m) m.eos_token_id = 300 end)
    refused("validation_complete is a string", function(m) m.validation_complete = "no" end)
    refused("splits is an array, not an object", function(m) m.splits = json.array {} end)
    refused("splits.train is a number, not an object", function(m) m.splits.train = 3 end)
    refused("splits.train.tokens is missing", function(m) m.splits.train.tokens = nil end)
    refused("splits.train.tokens is 231, but its shards have 230", function(m) m.splits.train.tokens = 231 end)
    refused("splits.train.shards is an object, not an array", function(m) m.splits.train.shards = {} end)
    refused("splits.train.shards[1] is null, not an object", function(m) m.splits.train.shards[2] = json.null end)
    refused("splits.train.shards[1].tokens is -1, not", function(m) m.splits.train.shards[2].tokens = -1 end)
    refused("shards[1].tokens is 9007199254740991, not", function(m) m.splits.train.shards[2].tokens = 2 ^ 53 - 1 end)
    refused("the shards of splits.train have more than 1125899906842624 tokens", function(m)
      for i = 1, 2 do m.splits.train.shards[i].tokens = 2 ^ 50 end
    end)
    refused("shards[0].sha256 is missing", function(m) m.splits.train.shards[1].sha256 = nil end)
    refused("shards[0].sha256 is \"XYZ\"", function(m) m.splits.train.shards[1].sha256 = "XYZ" end)
  end)

  it("refuses file names that leave the folder", function()
    for _, name in ipairs {"/etc/passwd", "../x.bin", "a/../../x", "", ".", "..", "a//b", "a/", "./a"} do
      refuses(('splits.train.shards[0].file is "%s", not a name inside'):format(name), cache.open,
        changed(function(m) m.splits.train.shards[1].file = name end))
    end
  end)

  it("reads shards in folders of its own", function()
    local path = changed(function(m) m.splits.train.shards[1].file = "a/..b.bin" end)
    os.execute(("mkdir %s/a && mv %s/train-00000.bin %s/a/..b.bin"):format(path, path, path))
    assert.same({299, 10, 34}, cache.open(path):read("train", 0, 3))
  end)

  it("refuses shards that are missing, short, long or no file, with both sizes", function()
    local path = changed(function() end)
    support.write(path .. "/train-00003.bin", ("x"):rep(256))
    refuses("train-00003.bin: 256 bytes, the manifest says 258 (129 tokens of 2 bytes)", cache.open, path)
    support.write(path .. "/train-00003.bin", ("x"):rep(260))
    refuses("train-00003.bin: 260 bytes, the", cache.open, path)
    os.remove(path .. "/train-00003.bin")
    refuses("train-00003.bin", cache.open, path)
    os.execute(("mkdir %s/train-00003.bin"):format(path))
    refuses("train-00003.bin: is not a regular file", cache.open, path)
  end)

  it("notices a shard that changes after opening, or that was altered, before any of it is used", function()
    local path = changed(function() end)
    local opened, shard = cache.open(path), path .. "/train-00003.bin"
    local bytes = support.read(shard)
    support.write(shard, bytes:sub(1, -3))
    refuses("train-00003.bin: 256 bytes, the", opened.read, opened, "train", 200, 20)
    support.write(shard, bytes:sub(1, -3) .. "\0\0")
    for _, first in ipairs {101, 229} do
      refuses("train-00003.bin: damaged: its SHA-256 is", opened.read, opened, "train", first, 1)
    end
    refuses("train-00003.bin: damaged: its SHA-256 is", opened.verify, opened)
    support.write(shard, bytes)
    assert.same({256}, opened:read("train", 229, 1))
    support.write(shard, bytes:sub(1, -3) .. "\0\0") -- what was whole once is looked at again
    refuses("train-00003.bin: damaged: bytes 0 .. 257 are not those of the manifest's checksum", opened.read, opened,
      "train", 101, 1)
  end)

  it("finds every flipped bit in the block that is read, plain or compressed, by the sums that preparing left", function()
    local lines = {}
    math.randomseed(3)
    for i = 1, 9000 do lines[i] = ("%d %d"):format(math.random(1e9), math.random(1e9)) end
    support.write(folder .. "/a.txt", table.concat(lines, "\n"))
    for level = 0, 1 do
      local path = ("%s/prepared%d"):format(folder, level)
      prepare.run {tokenizer = "bytes", train = {folder .. "/a.txt"}, output = path, zstd = level}
      os.execute("chmod -R u+w " .. path)
      local file = path .. (level == 0 and "/train-00000.bin" or "/train-00000.bin.zst")
      local whole = support.read(file)
      for _, at in ipairs {0, 1, 100, #whole - 1} do
        local flipped = string.char((whole:byte(at + 1) + 1) % 256)
        support.write(file, whole:sub(1, at) .. flipped .. whole:sub(at + 2))
        local opened = cache.open(path)
        local first = at < #whole / 2 and 0 or opened.splits.train.count - 1
        refuses("damaged: bytes ", opened.read, opened, "train", first, 1)
        refuses("prepare the cache anew", opened.read, opened, "train", first, 1)
        opened:close()
      end
      support.write(file, whole:sub(1, -2))
      refuses(("%d bytes, the manifest says %d"):format(#whole - 1, #whole), cache.open, path)
    end
  end)

  it("knows the tokenizer that it was made with", function()
    local source = folder .. "/a.txt"
    support.write(source, "text")
    prepare.run {tokenizer = "bytes", train = {source}, output = folder .. "/bytes"}
    local opened = cache.open(folder .. "/bytes")
    assert.equal("bytes", opened:tokenizer().kind)
    assert.equal("text", opened:tokenizer():decode(opened:read("train", 0, 5)))
    support.write(folder .. "/other.model", require("spec.support.cache").model({"t", "e", "x"}))
    local tokenizer, problem = opened:tokenizer(folder .. "/other.model")
    assert.is_nil(tokenizer)
    assert.is_truthy(problem:find("was made with bytes", 1, true), problem)
    tokenizer, problem = cache.open(fixture):tokenizer()
    assert.is_nil(tokenizer)
    assert.equal("the cache does not say what its tokenizer was; name its file as data.tokenizer", problem)
  end)
end)
