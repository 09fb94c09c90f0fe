-- Text files as tokens: what is trained on, what is held out, what is refused.
local ffi = require "ffi"
local numbers = require "spec.support.numbers"
local support = require "spec.support.helper"
local text = require "pack.data.text"
local tokenizer = require "pack.data.tokenizer"

local refused = numbers.assert_refused

-- The tokens of a stream as text, EOS as "|".
local function spell(stream)
  local characters = {}
  for i = 0, stream.count - 1 do
    characters[i + 1] = stream.tokens[i] == 256 and "|" or string.char(stream.tokens[i])
  end
  return table.concat(characters)
end

local function cut(data)
  return text.cut(ffi.cast("const uint8_t *", data), #data)
end

describe("the held-out part", function()
  it("is what begins with the line around the last 5%", function()
    local lines = ("123456789\n"):rep(100) -- 95% is at byte 950, where a line begins
    assert.equal(950, cut(lines))
    assert.equal(950, cut(lines .. "12345")) -- 95% of 1005 is in the line from 950 on
  end)

  it("begins at the 95% character where lines are long", function()
    assert.equal(950, cut(("x"):rep(1000)))
    assert.equal(950, cut(("x"):rep(500) .. "\n" .. ("x"):rep(499)))
    local two = "\195\164"
    assert.equal(94, cut(two:rep(50))) -- byte 95 is the second of its character
    assert.equal(95, cut("x" .. two:rep(49) .. "x"))
  end)

  it("is never empty and leaves something of all but the smallest files", function()
    assert.equal(0, cut("x"))
    for n = 2, 200 do
      local at = cut(("ab\n"):rep(n):sub(1, n))
      assert(at >= 1 and at < n and n - at <= n * 0.1 + 2, n)
    end
    assert.is_true(cut(("\128"):rep(100)) >= 90) -- no character begins anywhere
  end)
end)

describe("text.load", function()
  local folder, bytes
  setup(function()
    folder, bytes = support.temporary(), tokenizer.open("bytes")
  end)
  teardown(function() support.remove(folder) end)

  local function file(name, content)
    support.write(folder .. "/" .. name, content)
    return folder .. "/" .. name
  end

  local function load(...)
    return text.load {files = {...}, tokenizer = bytes}
  end

  it("follows an order of the seed's, with the same tokens", function()
    local own = support.temporary()
    local paths = {}
    for i = 1, 8 do
      paths[i] = ("%s/%d.txt"):format(own, i)
      support.write(paths[i], ("%d line of text\n"):format(i):rep(40))
    end
    local function first_bytes(seed)
      local loaded = text.load {files = paths, tokenizer = bytes, seed = seed}
      local list = {}
      for at = 0, loaded.train.count - 1 do
        local begins = at == 0 or loaded.train.tokens[at - 1] == 256
        if begins then list[#list + 1] = string.char(loaded.train.tokens[at]) end
      end
      return table.concat(list)
    end
    assert.equal("12345678", first_bytes(nil))
    local shuffled = first_bytes(3)
    assert.not_equal("12345678", shuffled)
    assert.equal(shuffled, first_bytes(3))
    local sorted = {shuffled:byte(1, -1)}
    table.sort(sorted)
    assert.equal("12345678", string.char(unpack(sorted)))
    support.remove(own)
  end)

  it("puts EOS after each document's parts and holds out the end of each", function()
    local a = file("a.txt", ("abcd\n"):rep(20)) -- 100 bytes: 95 and 5
    local b = file("b.txt", ("12345678\n"):rep(10)) -- 90 bytes: 81 and 9
    local loaded = load(a, b)
    assert.equal(("abcd\n"):rep(19) .. "|" .. ("12345678\n"):rep(9) .. "|", spell(loaded.train))
    assert.equal("abcd\n|12345678\n|", spell(loaded.validation))
    assert.equal(2, loaded.files)
    assert.equal(190, loaded.bytes)
    assert.same({a, b}, loaded.paths)
  end)

  it("keeps every byte once, whatever the file", function()
    for n = 1, 60 do
      local content = ("one line\nand \195\164nother\n"):rep(4):sub(1, n)
      local loaded = load(file("n.txt", content))
      local train, validation = spell(loaded.train), spell(loaded.validation)
      assert.equal(content, (train:gsub("|", "")) .. (validation:gsub("|", "")))
      assert.equal("|", validation:sub(-1))
    end
  end)

  it("keeps the trained and the held-out bytes of equal files apart", function()
    local content = {}
    for i = 1, 200 do content[i] = "line " .. i .. "\n" end
    local loaded = load(file("c.txt", table.concat(content)), file("d.txt", table.concat(content)))
    local train = spell(loaded.train)
    for line in spell(loaded.validation):gmatch("[^\n|]+") do
      assert.is_nil(train:find(line .. "\n", 1, true))
    end
  end)

  it("reads the documents of JSON and compressed files as preparing does, and holds out the last ones", function()
    local lines, expected = {}, {}
    for i = 1, 40 do
      expected[i] = ("doc %02d"):format(i)
      lines[i] = ('{"id":%d,"text":"doc \\u003%d%d","x":NaN}'):format(i, math.floor(i / 10), i % 10)
    end
    local content = table.concat(lines, "\n")
    local data = require "spec.support.cache"
    local plain = file("plain.txt", "plain text\n")
    for name, packed in pairs {["a.jsonl"] = content, ["a.json"] = "[" .. table.concat(lines, ",") .. "]",
                               ["a.jsonl.gz"] = data.gzip(content), ["a.ndjson.zst"] = data.zstd(content)} do
      local loaded = load(file(name, packed), plain)
      assert.equal(table.concat(expected, "|", 1, 38) .. "|plain text|", spell(loaded.train))
      assert.equal("doc 39|doc 40|\n|", spell(loaded.validation))
      assert.same({2, 41}, {loaded.files, loaded.documents})
    end
    assert.equal("plain text|", spell(load(file("b.txt.gz", data.gzip("plain text\n"))).train))
    assert.equal("one |", spell(load(file("one.jsonl", '{"text":"one \\u0031"}')).train))
    assert.same({"a|", "b|"}, {spell(load(file("two.jsonl", '{"text":"a"}\n{"text":"b"}')).train),
      spell(load(folder .. "/two.jsonl").validation)})
    refused('bad.jsonl:2: the object has no field "text" (data.text reads such files as recipes/prepare.lua does', load,
      file("bad.jsonl", '{"text":"a"}\n{"body":"b"}'))
    refused("none.jsonl: holds no documents", load, file("none.jsonl", ""))
    local order = text.load {files = {folder .. "/a.jsonl"}, tokenizer = bytes, seed = 3}
    assert.is_nil(spell(order.train):find("^doc 01"))
    assert.equal(38 * 7, order.train.count)
  end)

  it("gives the unigram entropy in nats", function()
    -- 40 bytes of two kinds, 20 each, and two EOS: 20/42, 20/42 and 2/42.
    local loaded = load(file("e.txt", ("ab"):rep(20)))
    local expected = -(2 * 20 / 42 * math.log(20 / 42) + 2 / 42 * math.log(2 / 42))
    assert.is_true(math.abs(loaded.unigram_entropy - expected) < 1e-14)
  end)

  it("refuses files that are not there, are folders, empty or not text, naming them", function()
    local good = file("good.txt", "text\n")
    refused(folder .. "/none.txt: there is no such file", load, good, folder .. "/none.txt")
    refused(folder .. ": a directory", load, folder)
    refused("empty.txt: the file is empty", load, good, file("empty.txt", ""))
    refused("nul.bin: not a text file: byte 3 is NUL", load, file("nul.bin", "abc\0def"))
    refused("controls.bin: not a text file: 20 of its 100 bytes are control characters", load,
      file("controls.bin", ("abcd\1"):rep(20)))
    assert.equal(1, load(file("escapes.txt", ("abcdefghijkl\1\27[0m\r\n\t\f"):rep(9))).files)
  end)

  it("ends the program with exit code 2 and the file's name", function()
    local code, _, err = support.run("packlua recipes/train.lua --set data.text=" .. folder .. "/none.txt")
    assert.equal(2, code)
    assert.truthy(err:find("none.txt: there is no such file", 1, true))
  end)

  it("takes packlua's own text and sources by default, always in the same order", function()
    local loaded = text.load {tokenizer = bytes}
    local paths = table.concat(loaded.paths, "\n") .. "\n"
    for _, name in ipairs({"/CHANGES.md\n", "/docs/architecture.md\n", "/host/core/random.c\n",
      "/host/pack.h\n", "/lua/pack/data/text.lua\n", "/recipes/train.lua\n", "/configs/tiny.lua\n"}) do
      assert(paths:find(name, 1, true), name)
    end
    assert.is_nil(paths:find("fixtures", 1, true))
    assert.same(loaded.paths, text.own_files())
    assert.is_true(loaded.train.count > 15 * loaded.validation.count)
    assert.is_true(loaded.train.count < 25 * loaded.validation.count)
    assert.is_true(loaded.unigram_entropy > 2.5 and loaded.unigram_entropy < 4.5)
  end)

  it("takes what is installed where there are no sources", function()
    local home = folder .. "/share/packlua"
    os.execute(("mkdir -p %s/lua/pack %s/recipes %s/share/doc/packlua"):format(home, home, folder))
    support.write(home .. "/lua/pack/init.lua", "x")
    support.write(home .. "/recipes/train.lua", "x")
    support.write(folder .. "/share/doc/packlua/data.md", "x")
    support.write(folder .. "/share/doc/packlua/data.md.gz", "x")
    local native = require "pack.native"
    local find = native.home
    native.home = function() return home end
    local good, paths = pcall(text.own_files)
    native.home = find
    assert(good, paths)
    assert.same({home .. "/lua/pack/init.lua", home .. "/recipes/train.lua",
      home .. "/../doc/packlua/data.md"}, paths)
  end)
end)
