-- recipes/inspect.lua and the statistics behind it: what is in caches and safetensors files.
local cache = require "pack.data.cache"
local ffi = require "ffi"
local inspect = require "pack.data.inspect"
local prepare = require "pack.data.prepare"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"

local fixture = "spec/fixtures/cache"

local function contains(text, part)
  assert.is_truthy(text:find(part, 1, true), ("%q is not in:\n%s"):format(part, text))
end

describe("Statistics of tokens", function()
  it("count every token once, over the borders of pieces", function()
    local count = 200001
    local ids = ffi.new("uint16_t[?]", count)
    for i = 0, count - 1 do ids[i] = i % 4 end -- 0 occurs once more than the others
    local found = inspect.tokens({tokens = ids, count = count, vocab_size = 10}, {top = 2, eos = 3,
      limit = 1e9})
    assert.same({{id = 0, count = 50001}, {id = 1, count = 50000}}, found.top)
    assert.same({count, 4, 50000, false}, {found.tokens, found.distinct, found.documents, found.ends_with_eos})
    assert.is_true(math.abs(found.entropy - math.log(4)) < 1e-8)
  end)

  it("may stop early", function()
    local found = inspect.tokens(cache.open(fixture).splits.train, {limit = 2, top = 5, eos = 256})
    assert.same({{id = 10, count = 1}, {id = 299, count = 1}}, found.top)
    assert.is_nil(found.ends_with_eos)
    found = inspect.tokens(cache.open(fixture).splits.train, {eos = 256})
    assert.is_true(found.ends_with_eos)
  end)
end)

describe("recipes/inspect.lua", function()
  local folder
  setup(function()
    folder = support.temporary()
    local lines = {}
    for i = 1, 5 do lines[i] = ('{"text": "document number %d\\n"}'):format(i) end
    support.write(folder .. "/a.jsonl", table.concat(lines, "\n"))
    prepare.run {tokenizer = "bytes", train = {folder .. "/a.jsonl"}, output = folder .. "/cache", shuffle_buffer = 1}
    require("pack.io.safetensors").write(folder .. "/good.safetensors",
      {metadata = {note = "two\nlines"}, {name = "w", tensor = tensor.from {{1, 2}, {3, -6}}}})
    require("pack.io.safetensors").write(folder .. "/bad.safetensors", {{name = "w", tensor = tensor.from {1, 0 / 0, 3}}})
  end)
  teardown(function() support.remove(folder) end)

  local function run(arguments)
    return support.run("packlua recipes/inspect.lua " .. arguments)
  end

  it("shows a cache's facts, decoded documents and commonest tokens", function()
    local code, out, err = run("--documents 2 --top 2 --verify " .. folder .. "/cache")
    assert.equal("", err)
    assert.equal(0, code)
    contains(out, "identity             " .. cache.open(folder .. "/cache").identity)
    contains(out, "<u2, 257 pieces, end of document 256")
    contains(out, "train: 95 tokens in 1 shards")
    contains(out, "5 documents end there, 19.0 tokens each")
    contains(out, "document 1: document number 1\\n\n")
    contains(out, "document 2: document number 2\\n\n")
    assert.is_falsy(out:find("document 3", 1, true))
    contains(out, "       101           10   10.53%  e\n")
    contains(out, "checks: manifest, identity, file sizes, checksums, every id below 257")
  end)

  it("shows the ids of a cache whose tokenizer is not at hand", function()
    local code, out = run("--documents 1 --example-tokens 3 " .. fixture)
    assert.equal(0, code)
    contains(out, "document 1: 299 10 34 ...")
    contains(out, "count                9007199254740991")
  end)

  it("shows the tensors of a safetensors file", function()
    local code, out = run(folder .. "/good.safetensors")
    assert.equal(0, code)
    contains(out, "note                 two\\nlines")
    assert.is_truthy(out:find("\n  w +F32 +%[2, 2%] +%-6 +3 +0 +3%.536\n"), out)
    contains(out, "4 elements, 16 bytes")
  end)

  it("ends with 1 where something is wrong: elements that are not finite, a damaged cache", function()
    local code, _, err = run(folder .. "/bad.safetensors")
    assert.equal(1, code)
    assert.equal("w has 1 elements that are not finite\n", err)
    os.execute(("cp -r %s/cache %s/damaged && chmod -R u+w %s/damaged"):format(folder, folder, folder))
    local shard = folder .. "/damaged/train-00000.bin"
    local bytes = support.read(shard)
    support.write(shard, "\0\1" .. bytes:sub(3))
    code, _, err = run(folder .. "/damaged")
    assert.equal(1, code)
    contains(err, "train-00000.bin: damaged: bytes 0 .. ")
    code, _, err = run("--verify " .. folder .. "/damaged")
    assert.equal(1, code)
    contains(err, "train-00000.bin: damaged: bytes 0 .. ")
    assert.is_falsy(err:find("traceback", 1, true))
  end)

  it("refuses a path where nothing is", function()
    local code, _, err = run(folder .. "/none")
    assert.equal(2, code)
    contains(err, "none: there is nothing")
  end)
end)
