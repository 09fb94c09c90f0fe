-- Values from outside: what JSON, YAML and Lua tables mean, and what is refused with which message.
local json = require "pack.io.json"
local value = require "pack.io.value"

local function refused(language, text, message)
  local result, got = value.parse(language, text, "case")
  assert.is_nil(result)
  assert.is_truthy(got:find(message, 1, true), ("%q does not contain %q"):format(got, message))
end

describe("JSON from outside", function()
  it("becomes tables, with null as a value of its own", function()
    local got = json.decode('{"a": [1, 2.5, -3e2, true, null, "x\\u00e9"], "b": {}, "c": []}')
    assert.same({1, 2.5, -300, true, value.null, "x\195\169"}, got.a)
    assert.is_false(value.is_array(got.b))
    assert.is_true(value.is_array(got.c))
  end)

  it("reads the integers below 2^53 exactly and refuses the others", function()
    assert.equal(9007199254740991, json.decode("9007199254740991"))
    assert.equal(-9007199254740991, json.decode("-9007199254740991"))
    refused("json", "[9007199254740992]", "case:1:2: 9007199254740992 is not below 2^53")
    refused("json", "-9007199254740992", "not below 2^53")
    assert.equal(1e300, json.decode("1e300"))
  end)

  it("reads over a byte order mark in all three languages", function()
    local mark = "\239\187\191"
    for language, text in pairs {json = '{"a": 1}', yaml = "a: 1\n", lua = "return {a = 1}"} do
      assert.same({a = 1}, value.parse(language, mark .. text, "case"))
    end
    refused("yaml", mark .. "a: 1\na: 2", "twice")
    refused("lua", mark .. "return {a = b}", "case:1: there is no variable 'b'")
  end)

  it("refuses fractions of large numbers that would become another whole number, in YAML too", function()
    for _, language in ipairs {"json", "yaml"} do
      for _, text in ipairs {"9007199254740991.4", "4503599627370497.5", "45035996273704975e-1", "-4503599627370497.5"} do
        refused(language, "[" .. text .. "]", text .. " has a fraction that a number of this size cannot hold")
      end
      for text, number in pairs {["4503599627370497.0"] = 4503599627370497, ["45035996273704970e-1"] = 4503599627370497,
        ["1.5e10"] = 15e9, ["4503599627370.5"] = 4503599627370.5, ["0.1e1"] = 1, ["0e-5"] = 0, ["1e300"] = 1e300} do
        assert.equal(number, value.parse(language, "[" .. text .. "]", "case")[1])
      end
    end
  end)

  it("refuses what is not JSON, with line and column", function()
    refused("json", "", "case: empty")
    refused("json", "[\n\n  1,]", "case:3:5: not valid JSON")
    refused("json", "[1] x", "case:1:5: x is not JSON")
    refused("json", "[1] [2]", "case:1:5: more text after the end")
    refused("json", '{"a": NaN}', "case:1:7: NaN is not JSON")
    refused("json", "[-Infinity]", "-Infinity is not JSON")
    refused("json", "1e999", "too large")
    for _, number in ipairs {"01", "1.", ".5", "+1", "1e", "0x10", "--1"} do
      refused("json", number, number .. " is not JSON")
    end
    refused("json", '{"1":1,', "the text ends inside")
    refused("json", "]", "without its opening")
    refused("json", '"ab', "does not end")
    refused("json", '"a\nb"', "a control character (byte 10)")
  end)

  it("refuses duplicate keys, NUL characters and bytes that are not UTF-8", function()
    refused("json", '{"m": {"a": 1, "b": 2, "a": 3}}', 'the key "a" is there twice in m')
    refused("json", '"a\\u0000b"', "NUL")
    refused("json", "[1\0]", "case:1:3: a NUL character")
    refused("json", '"\255"', "not UTF-8")
    refused("json", '"\237\160\128"', "not UTF-8") -- a surrogate
    refused("json", '"\192\128"', "not UTF-8")     -- an overlong NUL
  end)

  it("goes 64 levels deep and no further", function()
    assert.is_table(json.decode(("["):rep(64) .. ("]"):rep(64)))
    refused("json", ("["):rep(65) .. ("]"):rep(65), "case:1:65: nested deeper than 64 levels")
    refused("json", ("["):rep(1000000), "nested deeper than 64 levels")
  end)
end)

describe("JSON written here", function()
  it("has sorted keys, integers without a point and explicit empty arrays", function()
    assert.equal('{"a":[1,2],"b":{},"c":[],"d":null}',
      (json.encode {d = json.null, b = {}, a = {1, 2}, c = json.array {}}))
  end)

  it("holds numbers that read back to the same bits", function()
    for _, x in ipairs {0.1, 1 / 3, 1e-300, 5e-324, 1.7976931348623157e308, 2 ^ 53, 2 ^ 60, -0.5, 1e20, 123456789} do
      assert.equal(x, json.decode((json.encode(x))))
    end
    assert.equal("0.1", (json.encode(0.1)))
    assert.equal("9007199254740991", (json.encode(2 ^ 53 - 1)))
  end)

  it("turns NaN and infinities into null and says where they were", function()
    local text, where = json.encode {loss = 0 / 0, norms = {1, 1 / 0}, step = 3}
    assert.equal('{"loss":null,"nonfinite":{"loss":"nan","norms[2]":"inf"},"norms":[1,null],"step":3}', text)
    assert.same({loss = "nan", ["norms[2]"] = "inf"}, where)
  end)

  it("escapes control characters and replaces bytes that are not UTF-8", function()
    assert.equal('"a\\n\\"\\\\\\u0001\195\169\239\191\189"', (json.encode('a\n"\\\1\195\169\255')))
  end)

  it("refuses functions, mixed keys and tables that contain themselves", function()
    local function fails(x, message)
      local good, got = pcall(json.encode, x)
      assert.is_false(good)
      assert.is_truthy(got:find("value_spec.lua:%d+: json.encode: " .. message), got)
    end
    fails({f = print}, "f is a function")
    fails({1, 2, x = 3}, "the value is neither an array without holes nor a table of names")
    fails({a = {x = 1, [3] = 2}}, "a has a key that is a number among its names")
    local loop = {}
    loop.loop = loop
    fails(loop, "loop.loop.*is nested deeper than 64 levels")
  end)

  it("is the same of rows of numbers, whatever the numbers are", function()
    local rows = json.rows()
    local function check(row) assert.equal((json.encode(row)), rows:encode(row)) end
    local bits = require("ffi").new("union {double number; uint64_t bits; uint32_t words[2];}")
    local function check_around(x)
      bits.number = x
      bits.bits = bits.bits - 1
      check {x = x, y = {-x, bits.number}}
      bits.bits = bits.bits + 2
      check {x = bits.number, y = {0, x}}
    end
    assert.equal('{"x":0.1,"y":[-0,2.5e-07]}', rows:encode {x = 0.1, y = {-0.0, 2.5e-7}})
    assert.equal('{"x":0.30000000000000004,"y":[9007199254740991,1e-05]}',
      rows:encode {x = 0.1 + 0.2, y = {2 ^ 53 - 1, 1e-5}})
    for e = -1074, 1023 do check_around(2 ^ e) end
    for e = -40, 40 do check_around(tonumber("1e" .. e)) end
    math.randomseed(1)
    for _ = 1, 400 do
      bits.words[0], bits.words[1] = math.random(0, 2 ^ 32 - 1), math.random(0, 0x7fefffff) -- no NaN
      local x = math.random() * 10 ^ math.random(-16, 17)
      check {x = bits.number, y = {0, 0}}
      check {x = x, y = {tonumber(("%.7g"):format(x)), tonumber(("%.15g"):format(x))}}
      check {x = math.random(0, 2 ^ 31) * 2 ^ math.random(-60, 20), y = {math.floor(x), -x}} -- halves of a digit
    end
  end)

  it("is the same of rows that differ from those before", function()
    local rows = json.rows()
    local function check(encoder, row) assert.equal((json.encode(row)), encoder:encode(row)) end
    for _, row in ipairs {{loss = 1.5, list = {1, 2}}, {loss = 2.5, list = {3, 4}}, {loss = 2.5, list = {3}},
      {loss = "x", list = {3, 4}}, {loss = {1}, list = {3, 4}}, {loss = 1, list = 2}, {loss = 0 / 0, list = {1 / 0, 2}},
      {loss = 1, list = {1, "x"}}, {loss = 3, lost = {1, 2}}, {loss = 4.5, list = {5, 6}, more = 1}, {split = "x"},
      {split = "y"}, {split = 1}, {}, {}, {list = {}}, {list = {}}, {list = json.array {}}, {[1] = 5}, {[1] = 6},
      {['"\1'] = 1, b = 2, c = 3, d = {4}}, {['"\1'] = 5, b = 2, c = 3, d = {4}}, {loss = 1, list = {3, 4}}} do
      check(rows, row)
      local own = json.rows()
      for _ = 1, 2 do check(own, row) end
    end
  end)

  it("is indented when asked", function()
    assert.equal('{\n  "a": {\n    "b": [1, 2]\n  }\n}', (json.encode({a = {b = {1, 2}}}, {pretty = true})))
  end)
end)

describe("YAML from outside", function()
  it("reads plain scalars as PyYAML's users mean them, and quoted ones as strings", function()
    local got = value.parse("yaml", table.concat({
      "ints: [1, -2, +3, 65_536, 0x1f, 0o17]",
      "floats: [1e-3, .5, 1.5e+3, -2.0]",
      "switches: [true, False, on, off, yes, No]",
      "nulls: [~, null, ]",
      "strings: ['1', \"true\", hello world, 1-2, 12:30, e5, 0x]",
    }, "\n"), "case")
    assert.same({1, -2, 3, 65536, 31, 15}, got.ints)
    assert.same({0.001, 0.5, 1500, -2}, got.floats)
    assert.same({true, false, true, false, true, false}, got.switches)
    assert.same({value.null, value.null}, got.nulls)
    assert.same({"1", "true", "hello world", "1-2", "12:30", "e5", "0x"}, got.strings)
  end)

  it("reads an empty text as null", function()
    assert.equal(value.null, value.parse("yaml", "# nothing\n", "case"))
  end)

  it("refuses anchors, aliases and tags, so that a small text stays small", function()
    refused("yaml", "a: &x [1]\nb: [*x, *x]", "case:1:4: anchors (&x) are not supported")
    refused("yaml", "b: *x", "case:1:4: aliases (*x) are not supported")
    refused("yaml", "a: !!python/object:os.system x", "case:1:4: tags")
  end)

  it("refuses what is ambiguous, not finite or too large", function()
    refused("yaml", "a: 010", "without the leading zero")
    refused("yaml", "a: .inf", "not a finite number")
    refused("yaml", "a: .NaN", "not a finite number")
  end)

  it("refuses broken text, other documents, duplicate and compound keys", function()
    refused("yaml", "a: [1", "not valid YAML")
    refused("yaml", "\ta: 1", "case:1:1: not valid YAML")
    refused("yaml", "--- 1\n--- 2", "case:2:1: more than one document")
    refused("yaml", "a: 1\na: 2", 'the key "a" is there twice')
    refused("yaml", "? [a]\n: 1", "a key that is not a string")
    refused("yaml", ("["):rep(65) .. ("]"):rep(65), "nested deeper than 64 levels")
    refused("yaml", "a: 9007199254740992", "not below 2^53")
    refused("yaml", 'a: "\\0"', "NUL")
  end)
end)

describe("Lua tables from outside", function()
  it("may compute, and come back as plain tables", function()
    local got = value.parse("lua", "local w = 64 * 5 return {model = {width = w}, list = {1, {c = 'x'}}, off = false}")
    assert.same({model = {width = 320}, list = {1, {c = "x"}}, off = false}, got)
  end)

  it("say file and line of a syntax error and of a failure", function()
    refused("lua", "return {\n  a = = 1\n}", "case:2: unexpected symbol")
    refused("lua", "local t\n\nreturn t.x", "case:3: attempt to index")
    refused("lua", "return 1", "case: returns a number, not a table")
  end)

  it("have no libraries, no string methods and no FFI", function()
    refused("lua", "os.execute('true')", "case:1: there is no variable 'os'")
    refused("lua", "local ffi = require('ffi')", "case:1: there is no variable 'require'")
    refused("lua", "return {x = ('x'):rep(1e9)}", "case:1: attempt to index a string value")
    refused("lua", "return {x = ('a'):find(('a?'):rep(30))}", "case:1: attempt to index a string value")
    refused("lua", "return {x = string.rep('x', 1e9)}", "case:1: there is no variable 'string'")
    refused("lua", "return setmetatable({}, {})", "case:1: there is no variable 'setmetatable'")
    refused("lua", "return {x = 1LL}", "case: x is a cdata")
  end)

  it("know no variable that they have not set, so that a misspelt one is not taken for nil", function()
    refused("lua", "local rate = 1\n\nreturn {lr = rte}", "case:3: there is no variable 'rte'")
    refused("lua", "if not given then return {} end", "case:1: there is no variable 'given'")
    assert.equal(3, value.parse("lua", "width = 3 return {width = width}", "case").width)
  end)

  it("are text, not bytecode", function()
    refused("lua", string.dump(function() return {} end), "case: is bytecode")
  end)

  it("stop after their share of instructions", function()
    refused("lua", "\nwhile true do end", "case:2: runs for more than 10000000 instructions")
    refused("lua", "for i = 1, 1e12 do end return {}", "runs for more than")
    refused("lua", "local function f() return f() end\nreturn f()", "runs for more than")
  end)

  it("stop at their share of memory", function()
    refused("lua", "local s = 'x'\nwhile true do s = s .. s end", "case:2: builds more than 64 MiB")
    refused("lua", "local t = {} for i = 1, 1e9 do t[i] = i end", "case:1: builds more than 64 MiB")
    refused("lua", "local s = 'x' for i = 1, 20 do s = s .. s end local t = {} for i = 1, 999 do t[i] = s end return t",
      "larger than 64 MiB")
    refused("lua", "local a = {} for i = 1, 60 do a = {a, a} end return a", "larger than 64 MiB")
    refused("lua", "local function f() return 1 + f() end return f()", "stack overflow")
  end)

  it("hold strings, finite numbers, booleans and tables of one kind of key, or are refused by path", function()
    refused("lua", "return {a = {b = {1, function() end}}}", "case: a.b[2] is a function")
    refused("lua", "return {a = {1, 2, x = 3}}", "case: a mixes keys")
    refused("lua", "return {a = {1, nil, 3}}", "case: a mixes keys")
    refused("lua", "return {[true] = 1}", "case: the table mixes keys")
    refused("lua", "return {a = {0 / 0}}", "case: a[1] is not a finite number")
    refused("lua", "return {a = 1 / 0}", "case: a is not a finite number")
    refused("lua", "return {a = 2^53}", "case: a is not below 2^53")
    refused("lua", "return {a = '\\0'}", "case: a is a string that is not UTF-8 text")
    refused("lua", "local t = {} t.t = t return t", "nested deeper than 64 levels")
  end)
end)
