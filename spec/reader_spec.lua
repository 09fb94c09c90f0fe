-- Reading documents: what the kinds of files give, and what each defect says.
local cache = require "spec.support.cache"
local json = require "pack.io.json"
local support = require "spec.support.helper"

local folder

local function read(name, content, options)
  return cache.read(folder, name, content, options)
end

local function refuses(message, name, content, options)
  cache.refuses(message, read, name, content, options)
  assert.is_nil(support.read(folder .. "/cache/manifest.json"))
end

describe("Documents", function()
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  it("are the objects of JSON lines, by a field", function()
    assert.same({"one", "two"}, (read("a.jsonl", '{"text":"one"}\n{"id":1, "text" : "two"}\n')))
    assert.same({"x"}, (read("a.json", '{"text":"one","body":"x"}', {field = "body"})))
    assert.same({"last"}, (read("a.json", '{"text":"first","text":"last"}')), "as in Python")
    assert.same({"b"}, (read("a.json", '{"t\\u0065xt":"b"}')))
    assert.same({"deep"}, (read("a.json", '{"a":{"text":"x","b":[{"text":1.5e3}]},"text":"deep","n":[true,null,-0.5]}')))
  end)

  it("decode escapes, join surrogate pairs, and replace and count surrogates alone", function()
    local texts, row = read("a.jsonl", '{"text":"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude42"}\n')
    assert.same({'"\\/\b\f\n\r\té🙂'}, texts)
    assert.equal(0, row.replaced)
    texts, row = read("a.jsonl", '{"text":"a\\ud83dz"}\n{"text":"\\ude42"}\n{"text":"\\ud83d\\ud83d\\ude42"}\n')
    assert.same({"a\239\191\189z", "\239\191\189", "\239\191\189🙂"}, texts)
    assert.equal(3, row.replaced)
    assert.same({"a\0b"}, (read("a.jsonl", '{"text":"a\\u0000b"}')))
  end)

  it("do not see a byte order mark, CRLF line ends or blank lines", function()
    local texts, row = read("a.jsonl", '\239\187\191{"text":"one\\r\\n"}\r\n\r\n  \n{"text":"two"}\r\n')
    assert.same({"one\r\n", "two"}, texts)
    assert.equal(0, row.empty + row.skipped)
    assert.same({"a\nb\rc\n"}, (read("a.txt", "\239\187\191a\r\nb\rc\r\n")))
  end)

  it("without text are skipped and counted", function()
    local texts, row = read("a.jsonl", '{"text":""}\n{"text":"x"}\n{"text":""}\n')
    assert.same({"x"}, texts)
    assert.equal(2, row.empty)
    refuses("hold no documents", "a.jsonl", '{"text":""}\n')
    refuses("hold no documents", "a.txt", "")
  end)

  it("are a .txt file, its lines, or its paragraphs", function()
    local text = "a b\nc\n\n \nd\r\ne\n\n\n"
    assert.same({"a b\nc\n\n \nd\ne\n\n\n"}, (read("a.txt", text)))
    local texts, row = read("a.txt", text, {txt_documents = "line"})
    assert.same({"a b", "c", " ", "d", "e"}, texts)
    assert.equal(3, row.empty)
    assert.same({"a b\nc", "d\ne"}, (read("a.txt", text, {txt_documents = "paragraph"})))
    cache.refuses("txt_documents is word", read, "a.txt", text, {txt_documents = "word"})
  end)

  it("are the elements of a JSON array in a .json file", function()
    local text = ' [\n{"text":"a]},[{"},\n {"text":"b", "x":[1,{"y":"]\\""}]}\n]\n'
    assert.same({"a]},[{", "b"}, (read("a.json", text)))
    refuses("a.json:3: the array does not end", "a.json", '[\n{"text":"a"}\n')
    refuses("more text after the end of the array", "a.json", '[{"text":"a"}] x')
    refuses("a.json:2: not a JSON object", "a.json", '[{"text":"a"},\n3]')
    refuses("hold no documents", "a.json", "[]")
    local texts, row = read("a.json", '[{"text":"a"},{"x":1},{"text":"b"}]', {on_error = "skip"})
    assert.same({"a", "b"}, texts)
    assert.equal(1, row.skipped)
  end)

  it("come out of gzip members and zstd frames, whatever the file is called", function()
    local one, two = '{"text":"one"}\n{"te', 'xt":"two"}\n'
    assert.same({"one", "two"}, (read("a.jsonl.gz", cache.gzip(one) .. cache.gzip(two))))
    assert.same({"one", "two"}, (read("a.jsonl.zst", cache.zstd(one) .. cache.zstd(two))))
    assert.same({"one", "two"}, (read("a.jsonl", cache.gzip(one .. two))))
    assert.same({"one", "two"}, (read("a.jsonl.gz", cache.zstd(one .. two))))
    assert.same({"one", "two"}, (read("a.jsonl.gz", one .. two)))
    assert.same({"one", "two"}, (read("a.jsonl.gz", cache.gzip(one .. two) .. ("\0"):rep(300))), "padding")
    local long = {}
    for i = 1, 20000 do long[i] = json.encode {text = ("document %d "):format(i):rep(i % 7 + 1)} end
    long = table.concat(long, "\n")
    local plain = read("a.jsonl", long)
    assert.equal(20000, #plain)
    assert.same(plain, (read("a.jsonl.gz", cache.gzip(long))))
    assert.same(plain, (read("a.jsonl.zst", cache.zstd(long))))
  end)

  it("are refused from compressed files that are cut off, damaged or followed by something else", function()
    local text = {}
    for i = 1, 5000 do text[i] = json.encode {text = tostring(i * 7919 % 10007)} end
    text = table.concat(text, "\n") .. "\n"
    for name, pack in pairs {gz = cache.gzip, zst = cache.zstd} do
      local packed, path = pack(text), "a.jsonl." .. name
      for _, bytes in ipairs {1, 3, 9, 20, math.floor(#packed / 2), #packed - 5, #packed - 1} do
        refuses(path .. ": ", path, packed:sub(1, bytes))
      end
      refuses("cut off", path, packed:sub(1, #packed - 1))
      refuses("cut off", path, packed .. packed:sub(1, 100))
      refuses(path .. ": ", path, packed .. "something else")
      refuses(name == "gz" and "damaged gzip" or path, path, packed:sub(1, 2000) .. ("\255"):rep(200) .. packed:sub(2201))
    end
  end)

  local defects = {
    {'{"text":"a"}\n{"text":"b"\n', ":2: not a JSON object: a comma or } is expected here"},
    {'{"text":"a"}\n\n{"text":"b}\n', ":3: not a JSON object: a string that does not end"},
    {'{"text":"a"} x\n', ":1: not a JSON object: more text after the end"},
    {'{"text":"a"}{"text":"b"}\n', ":1: not a JSON object: more text after the end"},
    {'{"text":"a",}\n', ":1: not a JSON object: a string is expected here"},
    {'{"text":"\\x"}\n', ":1: not a JSON object: not an escape that JSON has"},
    {'{"text":"\\u12g4"}\n', ":1: not a JSON object: not an escape that JSON has"},
    {'{"text":"a\tb"}\n', ":1: not a JSON object: a control character"},
    {'{"text":"a","n":01}\n', ":1: not a JSON object: a number with a leading zero"},
    {'{"text":"a","n":nul}\n', ":1: not a JSON object: a value is expected here"},
    {'{"text":"a","n":' .. ("["):rep(100) .. ("]"):rep(100) .. "}", ":1: not a JSON object: nested deeper than 64"},
    {'{"title":"a"}\n', ':1: the object has no field "text"'},
    {'{"text":7}\n', ':1: the field "text" is not a string'},
    {'{"text":null}\n', ':1: the field "text" is not a string'},
    {'{"text":"a"}\n"text"\n', ":2: not a JSON object: an object { } is expected here"},
    {'{"text":"a"}\n{"text":"caf\233"}\n', ":2: invalid UTF-8 (byte 0xe9 at column 13)"},
    {'{"text":"\237\160\128"}\n', ":1: invalid UTF-8"},
    {'{"text":"\192\175"}\n', ":1: invalid UTF-8"},
  }

  it("with a defect stop the reading, with file and line", function()
    for _, defect in ipairs(defects) do refuses("a.jsonl" .. defect[2], "a.jsonl", defect[1]) end
    refuses("a.txt:2: invalid UTF-8 (byte 0xff)", "a.txt", "fine\nnot \255 fine\n")
    refuses("a.txt:2: a NUL byte", "a.txt", "fine\na\0b")
    refuses("a.txt:3: invalid UTF-8", "a.txt", "fine\nfine\n\128\n", {txt_documents = "line"})
    refuses("a.txt:5: invalid UTF-8", "a.txt", "fine\n\n\nfine\n\128\n", {txt_documents = "paragraph"})
  end)

  it("with a defect are skipped, counted and named when asked to", function()
    for _, defect in ipairs(defects) do
      local notes = {}
      local texts, row = read("a.jsonl", '{"text":"before"}\n' .. defect[1] .. '\n{"text":"after"}\n',
        {on_error = "skip", note = function(message) notes[#notes + 1] = message end})
      assert.equal(1, row.skipped)
      assert.equal("before", texts[1])
      assert.equal("after", texts[#texts])
      local line = tonumber(defect[2]:match("^:(%d+)")) + 1
      assert.is_truthy(notes[1]:find(("a.jsonl:%d: "):format(line), 1, true), notes[1])
    end
    local texts, row = read("a.txt", "good\n\255\nfine\n", {on_error = "skip", txt_documents = "line"})
    assert.same({"good", "fine"}, texts)
    assert.equal(1, row.skipped)
  end)

  it("that are skipped are all named in the cache, in the order of the files", function()
    local lines, notes = {}, {}
    for i = 1, 30 do lines[i] = i == 15 and '{"text":"good"}' or '{"x":1}' end
    read("a.jsonl", table.concat(lines, "\n"), {on_error = "skip", note = function(note) notes[#notes + 1] = note end})
    assert.equal(20, #notes)
    local named = {}
    for line in io.lines(folder .. "/cache/skipped.txt") do named[#named + 1] = tonumber(line:match("a.jsonl:(%d+): ")) end
    assert.equal(29, #named)
    for i, line in ipairs(named) do assert.equal(i < 15 and i or i + 1, line) end
    read("a.jsonl", '{"text":"good"}')
    assert.is_nil(support.read(folder .. "/cache/skipped.txt"))
  end)

  it("have numbers that are none, as Python writes them, in other fields alone", function()
    assert.same({"a", "b"}, (read("a.jsonl", '{"text":"a","x":NaN}\n{"y":{"z":[Infinity,-Infinity, NaN]},"text":"b"}\n')))
    refuses('the field "text" is not a string', "a.jsonl", '{"text":NaN}')
    refuses("not a JSON object", "a.jsonl", '{"text":"a","x":nan}')
    refuses("not a JSON object", "a.jsonl", '{"text":"a","x":-NaN}')
  end)

  it("come out of zstd frames with the longest window", function()
    -- A frame that states a window of 2^31 bytes, with one block as it is.
    local text = '{"text":"far"}\n'
    local frame = "\x28\xb5\x2f\xfd\0\xa8" .. string.char(1 + 8 * #text, 0, 0) .. text
    assert.same({"far"}, (read("a.jsonl.zst", frame)))
  end)

  it("come from files of any name where the format is given", function()
    assert.same({"a b\n"}, (read("enwik8", "a b\n", {format = "text"})))
    assert.same({"a"}, (read("dump", '{"text":"a"}\n', {format = "json"})))
    assert.equal("json", cache.manifest(folder .. "/cache").preprocessing.format)
    assert.same({"a"}, (read("dump.txt", '[{"text":"a"}]', {format = "json"})))
    cache.refuses("format is csv", read, "dump", "x", {format = "csv"})
  end)

  it("are refused from files that are not there, are folders, or have no known name", function()
    local function prepare(path)
      return require("pack.data.prepare").run {train = {path}, output = folder .. "/cache"}
    end
    cache.refuses("/none.txt: there is no such file", prepare, folder .. "/none.txt")
    os.execute("mkdir " .. folder .. "/d.txt")
    cache.refuses("is not a regular file", prepare, folder .. "/d.txt")
    support.write(folder .. "/a.csv", "x")
    cache.refuses("a.csv: its name does not say what it holds", prepare, folder .. "/a.csv")
    cache.refuses("--format text or --format json says it", prepare, folder .. "/a.csv")
    os.execute("mkfifo " .. folder .. "/pipe.txt")
    cache.refuses("pipe.txt: is not a regular file: write what a pipe or device gives to a file first",
      prepare, folder .. "/pipe.txt")
  end)

  -- Prepares one file in a process of its own; returns what it prints: the row, or the message, and the
  -- most memory it had, in MB.
  local function prepare_apart(name)
    local script = ([[
      local prepare = require "pack.data.prepare"
      local good, result = pcall(prepare.run, {train = {%q}, output = %q, workers = 1})
      print(good and ("%%d documents, %%d tokens"):format(result.train.documents, result.train.tokens) or tostring(result))
      for line in io.lines("/proc/self/status") do
        if line:find("^VmHWM") then print(line:match("%%d+") / 1000) end
      end]]):format(folder .. "/" .. name, folder .. "/cache")
    support.write(folder .. "/script.lua", script)
    local status, out, err = support.run("packlua " .. folder .. "/script.lua")
    assert.equal(0, status, err)
    local said, megabytes = out:match("^(.*)\n([%d.]+)\n$")
    return said, tonumber(megabytes)
  end

  it("may have 100 MB, in bounded memory", function()
    local file = assert(io.open(folder .. "/big.jsonl", "wb"))
    local line = ("The quick brown fox. "):rep(50000) -- 1.05 MB
    file:write('{"text":"')
    for _ = 1, 96 do file:write(line) end
    file:write('"}\n{"text":"small"}\n')
    file:close()
    local said, megabytes = prepare_apart "big.jsonl"
    assert.equal("2 documents, 100800007 tokens", said)
    assert.is_true(megabytes < 1500, megabytes)
  end)

  it("longer than 256 MiB are refused without reading all of them into memory", function()
    os.execute("yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | tr -d '\\n' | "
      .. "head -c 800000000 | gzip -1 > " .. folder .. "/bomb.jsonl.gz")
    local said, megabytes = prepare_apart "bomb.jsonl.gz"
    assert.is_truthy(said:find("bomb.jsonl.gz:1: a document of more than 268435456 bytes in one line", 1, true), said)
    assert.is_true(megabytes < 1500, megabytes)
  end)
end)
