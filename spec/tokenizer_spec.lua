-- Tokenizers: bytes and SentencePiece models, ids and text.
local cache = require "spec.support.cache"
local json = require "pack.io.json"
local support = require "spec.support.helper"
local tokenizers = require "pack.data.tokenizer"

local shared = "../shared/data/"
local llama = shared .. "tokenizer/llama2-32k.model"
local folder

local function model_file(pieces, options)
  local path = folder .. "/small.model"
  support.write(path, cache.model(pieces, options))
  return path
end

local function lines(path)
  local list = {}
  for line in io.lines(path) do list[#list + 1] = line end
  return list
end

-- Random text over words and characters that a cut must not fall between.
local function random_text(seed, words, count)
  local parts = {}
  math.randomseed(seed)
  for i = 1, count do parts[i] = words[math.random(#words)] end
  return table.concat(parts)
end

local function has(program)
  return os.execute("command -v " .. program .. " >/dev/null 2>&1") == 0
end

-- What spm_encode makes of a file, line by line.
local function library_ids(model, path)
  assert.equal(0, (os.execute(("spm_encode --model=%s --output_format=id < %s > %s.ids"):format(model, path, path))))
  return lines(path .. ".ids")
end

describe("The byte tokenizer", function()
  it("has 256 bytes and an end", function()
    local bytes = tokenizers.open("bytes")
    assert.equal(257, bytes.vocab_size)
    assert.equal(256, bytes.eos)
    assert.equal("bytes", bytes.kind)
    assert.is_nil(bytes.unknown)
    assert.same({0, 97, 195, 169, 255}, bytes:encode("\0aé\255"))
    assert.same({}, bytes:encode(""))
    assert.equal("\0aé\255", bytes:decode({0, 97, 195, 256, 169, 255}))
    assert.equal("", bytes:decode {})
    assert.equal("a", bytes:piece(97))
    assert.equal("<0x0A>", bytes:piece(10))
    assert.equal("<eos>", bytes:piece(256))
    assert.is_nil(bytes:piece(257))
    assert.is_nil(bytes:piece(-1))
    cache.refuses("id 257 at place 2 is outside the vocabulary, 0 .. 256", bytes.decode, bytes, {1, 257})
    assert.equal("bytes", tokenizers.open(false).kind)
    assert.equal("bytes", tokenizers.open().name)
  end)
end)

describe("A SentencePiece tokenizer", function()
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  it("merges by the order of its pieces, and puts a space first", function()
    local tokenizer = tokenizers.open(model_file {"ab", "▁a", "▁ab", "abc", "a", "b", "c", "▁"})
    assert.equal("sentencepiece", tokenizer.kind)
    assert.equal(11, tokenizer.vocab_size)
    assert.equal(2, tokenizer.eos)
    assert.equal(0, tokenizer.unknown)
    assert.equal(64, #tokenizer.sha256)
    -- "ab" is better than "▁a"; then "▁ab" is better than "abc".
    assert.same({5, 9}, tokenizer:encode("abc"))
    assert.same({10, 5}, tokenizer:encode(" ab"))
    assert.same({5, 3}, tokenizer:encode("abab"))
    assert.equal("abc", tokenizer:decode {5, 9, 2})
    assert.equal("▁ab", tokenizer:piece(5))
    assert.same({10, 0}, tokenizer:encode("xy"), "unknown characters in a row are one piece")
    cache.refuses("id 11 at place 1 is outside the vocabulary, 0 .. 10", tokenizer.decode, tokenizer, {11})
    tokenizer:close()
    tokenizer:close()
    cache.refuses("closed", tokenizer.encode, tokenizer, "a")
  end)

  it("writes ids into memory of the caller's", function()
    local tokenizer = tokenizers.open(model_file {"a", "▁"})
    local ids = require("ffi").new("uint16_t[8]", 9, 9)
    assert.equal(3, tokenizer:encode_bytes("aab", 2, ids, 1))
    assert.same({9, 4, 3, 3, 0}, {ids[0], ids[1], ids[2], ids[3], ids[4]})
    assert.is_true(tokenizer:bound(2) >= 3)
    local bytes = tokenizers.open("bytes")
    assert.equal(2, bytes:encode_bytes("\255b", 2, ids, 0))
    assert.same({255, 98}, {ids[0], ids[1]})
    assert.equal(2, bytes:bound(2))
  end)

  it("spells unknown characters as bytes where the model has them", function()
    local tokenizer = tokenizers.open(model_file({"a", "▁"}, {byte_fallback = true}))
    assert.same({260, 259, 3 + 0xc3, 3 + 0xa9, 3 + 10, 3}, tokenizer:encode("aé\n\0"))
    assert.equal("aé\n\0", tokenizer:decode(tokenizer:encode("aé\n\0")))
  end)

  -- A charsmap of one rule, A to a, as SentencePiece packs it: 256 units of a double array, and the text.
  local function charsmap(change)
    local units = require("ffi").new("uint32_t[256]")
    for i = 0, 255 do units[i] = 2 ^ 31 + 255 end
    units[0] = 1 * 1024 -- the root: A leads to 1 xor 65
    units[64] = 65 + 256 + 66 * 1024 -- has a key, whose value is at 64 xor 66
    units[2] = 2 ^ 31 -- the text at 0
    local texts = change and change(units) or "a\0"
    return "\0\4\0\0" .. require("ffi").string(units, 1024) .. texts
  end

  it("follows the normalization rules of the model", function()
    local tokenizer = tokenizers.open(model_file({"▁a", "a", "b", "▁"}, {charsmap = charsmap()}))
    assert.same(tokenizer:encode("aba"), tokenizer:encode("AbA"))
  end)

  it("refuses rules that lead the library out of them", function()
    local function refused(problem, bytes)
      cache.refuses("damaged: " .. problem, tokenizers.open, model_file({"a"}, {charsmap = bytes}))
    end
    local function changed(place, unit) return charsmap(function(units) units[place] = unit end) end
    refused("its trie leads out of itself", changed(0, 256 * 1024))
    refused("its trie leads out of itself", changed(64, 65 + 2 ^ 20 * 1024))
    refused("its trie leads out of itself", changed(64, 65 + 512 + 2 * 1024))
    refused("its trie leads out of its texts", changed(2, 2 ^ 31 + 2))
    refused("its trie has a circle", changed(64, 65 + 65 * 1024)) -- A leads to itself, by A
    refused("its last text has no end", charsmap(function() return "a" end))
    refused("it is cut off", charsmap():sub(1, 1028))
    refused("it is cut off", "abc")
    refused("the size of its trie", "\1" .. charsmap():sub(2))
    refused("its trie leads out of itself", "\0\4\0\0" .. ("\255"):rep(1024) .. "abc\0")
    cache.refuses("it is not encoded as one", function()
      support.write(folder .. "/group.model", cache.model {"a"} .. "\x1b\x1c") -- a group, which protobuf would skip
      tokenizers.open(folder .. "/group.model")
    end)
  end)

  it("gives back U+2581, which stands for a space in pieces, where the model has bytes", function()
    for _, kind in ipairs {"bpe", "unigram"} do
      local tokenizer = tokenizers.open(model_file({"a", "▁a", "▁", "▁▁"}, {byte_fallback = true, type = kind}))
      local words = {"▁", "a", " ", "  ", "é", "▂", "▁▁", "\n"}
      for seed = 1, 300 do
        local text = random_text(seed, words, seed % 12)
        local rest = text
        while rest:sub(1, 3) == "▁" do rest = rest:sub(4) end
        local begin = (" "):rep((#text - #rest) / 3) -- there, as SentencePiece has it
        assert.equal(begin .. rest, tokenizer:decode(tokenizer:encode(text)))
      end
      local long = ("a ▁ b"):rep(3000)
      assert.equal(long, tokenizer:decode(tokenizer:encode(long)))
      assert.same(tokenizer:encode(" a"), tokenizer:encode("▁a"))
      assert.same({260, 3 + 0xe2, 3 + 0x96, 3 + 0x81, 259}, tokenizer:encode("a▁a"))
    end
    local without = tokenizers.open(model_file {"a", "▁a", "▁"})
    assert.equal("a a", without:decode(without:encode("a▁a")))
  end)

  it("refuses files that are no models, or have no end of text", function()
    support.write(folder .. "/bad.model", ("not a model"):rep(100))
    cache.refuses("bad.model: not a SentencePiece model", tokenizers.open, folder .. "/bad.model")
    support.write(folder .. "/empty.model", "")
    cache.refuses("empty.model", tokenizers.open, folder .. "/empty.model")
    cache.refuses("none.model", tokenizers.open, folder .. "/none.model")
    local good = cache.model {"a"}
    for _, bytes in ipairs {1, 5, 10, #good - 12, #good - 30} do
      support.write(folder .. "/cut.model", good:sub(1, bytes))
      cache.refuses("cut.model", tokenizers.open, folder .. "/cut.model")
    end
    support.write(folder .. "/end.model", (good:gsub("</s>", "<es>")))
    cache.refuses("no piece for the end of a text", tokenizers.open, folder .. "/end.model")
  end)

  -- Long texts are encoded by parts, which must not show: the library's own program takes them whole.
  it("gives long texts the ids that the library gives them", function()
    if not has("spm_encode") then return pending("spm_encode is not installed") end
    local pieces = {"ab", "▁a", "▁ab", "abc", "▁▁", "日本", "c▁", "a", "b", "c", "▁", "日", "本"}
    local words = {"ab", "abc", " ", "  ", "a", "c ", "x", "yy", "日本", "é", "bc", "本"}
    for _, fallback in ipairs {false, true} do
      local path = model_file(pieces, {byte_fallback = fallback})
      local tokenizer = tokenizers.open(path)
      local texts = {}
      for seed = 1, 30 do texts[seed] = random_text(seed, words, 12000) end
      support.write(folder .. "/text", table.concat(texts, "\n") .. "\n")
      local expected = library_ids(path, folder .. "/text")
      for i, text in ipairs(texts) do
        assert.equal(expected[i], table.concat(tokenizer:encode(text), " "))
      end
    end
  end)

  it("takes a megabyte of one letter or of Chinese without spaces", function()
    local tokenizer = tokenizers.open(model_file {"xx", "xxxx", "x", "▁", "日", "本", "日本"})
    local ids = tokenizer:encode(("x"):rep(2 ^ 20))
    assert.equal(2 ^ 18 + 1, #ids)
    assert.equal(6, ids[1])
    assert.equal(4, ids[2])
    assert.equal(4, ids[#ids])
    ids = tokenizer:encode(("日本日"):rep(120000))
    assert.equal(240001, #ids)
    assert.same({9, 7, 9, 7}, {ids[2], ids[3], ids[#ids - 1], ids[#ids]})
  end)

  it("refuses what cannot be cut and is longer than memory should hold", function()
    local tokenizer = tokenizers.open(model_file {"xx", "x", "▁"})
    cache.refuses("without a place where it may be cut", tokenizer.encode, tokenizer, ("x"):rep(9 * 2 ^ 20))
  end)

  it("reads models that spm_train makes", function()
    if not has("spm_train") then return pending("spm_train is not installed") end
    local text = {}
    for i = 1, 2000 do text[i] = ("the %d quick brown foxes jump over %d lazy dogs"):format(i, i * 7) end
    support.write(folder .. "/text", table.concat(text, "\n"))
    for _, kind in ipairs {"bpe", "unigram"} do
      local command = ("spm_train --input=%s/text --model_prefix=%s/m --vocab_size=300 --model_type=%s "
        .. "--byte_fallback=true --normalization_rule_name=identity --remove_extra_whitespaces=false >%s/log 2>&1")
        :format(folder, folder, kind, folder)
      if os.execute(command) ~= 0 then error(support.read(folder .. "/log")) end
      local tokenizer = tokenizers.open(folder .. "/m.model")
      assert.equal(300, tokenizer.vocab_size)
      assert.equal("  the fox\n日 jumps ", tokenizer:decode(tokenizer:encode("  the fox\n日 jumps ")))
      local long = table.concat(text, "\n")
      local ids = tokenizer:encode(long)
      assert.equal(long, tokenizer:decode(ids))
      for i, line in ipairs(library_ids(folder .. "/m.model", folder .. "/text")) do
        assert.equal(line, table.concat(tokenizer:encode(text[i]), " "))
      end
    end
  end)

  it("gives the reference's ids", function()
    if not support.read(llama) then return pending("no ../shared/data") end
    local tokenizer = tokenizers.open(llama)
    local mistral = tokenizers.open(shared .. "tokenizer/mistral-7b-v0.1.model")
    for _, line in ipairs(lines(shared .. "ref/edge.jsonl")) do
      local case = assert(json.decode(line))
      assert.same(case.llama2, tokenizer:encode(case.text), case.text)
      assert.same(case.mistral, mistral:encode(case.text), case.text)
      assert.equal((case.text:gsub("▁", " ")), tokenizer:decode(case.llama2))
    end
    local ids = lines(shared .. "ref/llama2.c4train50.lines.ids")
    local texts = lines(shared .. "ref/c4train50.lines.txt")
    for i, text in ipairs(texts) do
      assert.equal(ids[i], table.concat(tokenizer:encode(text), " "))
    end
    -- All of it at once, as one document, against the library; a line of its program holds no newline.
    if has("spm_encode") then
      local long = table.concat(texts, " ")
      support.write(folder .. "/long", long .. "\n")
      assert.equal(library_ids(llama, folder .. "/long")[1], table.concat(tokenizer:encode(long), " "))
    end
  end)
end)
