-- Safetensors files: what is read, converted and written, and which lies are refused.
local ffi = require "ffi"
local files = require "pack.io.files"
local native = require "pack.native"
local safetensors = require "pack.io.safetensors"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"

local C = native.C

-- The 8 bytes of a little-endian size.
local function size_bytes(size)
  return ffi.string(ffi.new("uint64_t[1]", size), 8)
end

local function contents(header, data, stated)
  return size_bytes(stated or #header) .. header .. (data or "")
end

-- Bytes of a C array made from numbers.
local function bytes_of(ctype, ...)
  local numbers = {...}
  local array = ffi.new(ctype .. "[?]", #numbers, numbers)
  return ffi.string(array, ffi.sizeof(array))
end

local function list_of(values, count)
  local list = {}
  for i = 1, count do list[i] = values[i - 1] end
  return list
end

local folder, path

local function in_folder()
  before_each(function()
    folder = support.temporary()
    path = folder .. "/case.safetensors"
  end)
  after_each(function() support.remove(folder) end)
end

-- Opens a file of these bytes, which must fail with a message that begins with its path and contains text.
local function refused(bytes, text)
  support.write(path, bytes)
  local good, message = pcall(safetensors.open, path)
  assert.is_false(good, "was not refused; expected: " .. text)
  assert.is_truthy(message:find(path, 1, true), message)
  assert.is_truthy(message:find(text, 1, true), ("%q does not contain %q"):format(message, text))
end

-- The same for a header that describes one tensor, with 8 bytes of data.
local function entry_refused(entry, text)
  refused(contents(('{"w":%s}'):format(entry), ("\0"):rep(8)), text)
end

local function f32(shape, first, last)
  return ('{"dtype":"F32","shape":%s,"data_offsets":[%s,%s]}'):format(shape, first, last)
end

describe("A safetensors file", function()
  in_folder()
  support.watch()

  it("is read in any order of its header and any layout of its JSON", function()
    support.write(path, contents([[{ "b" : {"data_offsets": [4, 12], "shape": [2], "dtype": "I32"},
      "__metadata__": {"note": "\u00e9\n", "a": ""},
      "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4], "later": {"x": [1]}}}   ]],
      bytes_of("float", 1.5) .. bytes_of("int32_t", -7, 2147483647)))
    local file = safetensors.open(path)
    assert.same({"a", "b"}, file:names())
    assert.same({name = "b", dtype = "I32", shape = {2}, index = 1, numel = 2, bytes = 8}, file:entry("b"))
    assert.equal("\195\169\n", file:metadata("note"))
    assert.equal("", file:metadata("a"))
    assert.is_nil(file:metadata("b"))
    assert.same({note = "\195\169\n", a = ""}, file:metadata())
    assert.equal(1.5, file:read_tensor("a"):item())
    assert.same({-7, 2147483647}, file:read_tensor("b"):totable())
    assert.is_true(file:has("a"))
    assert.is_false(file:has("c"))
    assert.has_error(function() file:entry("c") end, path .. ": there is no tensor 'c'")
    file:close()
    file:close()
    assert.has_error(function() file:read_doubles("a") end, path .. ": the file is closed")
  end)

  it("may hold nothing, and tensors without elements anywhere", function()
    support.write(path, contents("{}"))
    assert.same({}, safetensors.open(path):names())
    support.write(path, contents(('{"x":%s,"e":%s,"z":%s}'):format(f32("[2]", 0, 8), f32("[0,3]", 8, 8),
      f32("[9007199254740991,0,9007199254740991]", 0, 0)), ("\0"):rep(8)))
    local file = safetensors.open(path)
    assert.same({"z", "x", "e"}, file:names())
    local values, count = file:read_doubles("e")
    assert.equal(0, count)
    assert.is_truthy(values)
    assert.same({0, 3}, file:read_tensor("e"):sizes())
  end)

  it("may be larger than 4 GiB", function()
    local large = 600000000
    local header = ('{"large":{"dtype":"F64","shape":[%d],"data_offsets":[0,%d]},"last":%s}')
      :format(large, large * 8, f32("[1]", large * 8, large * 8 + 4))
    support.write(path, contents(header))
    local file = assert(io.open(path, "r+b"))
    file:seek("set", 8 + #header + large * 8)
    file:write(bytes_of("float", 2.5))
    file:close()
    local opened = safetensors.open(path)
    assert.equal(2.5, opened:read_tensor("last"):item())
    local element = ffi.new("double[1]", 1)
    assert.equal(C.PK_OK, C.pk_safetensors_read_part(opened.handle, 0, (large - 1) * 8, element, 8))
    assert.equal(0, element[0])
    opened:close()
  end)

  it("that became shorter since it was opened is an error, not a crash", function()
    support.write(path, contents(('{"w":%s}'):format(f32("[2]", 0, 8)), ("\0"):rep(8)))
    local file = safetensors.open(path)
    support.write(path, files.read(path):sub(1, -4))
    assert.has_error(function() file:read_doubles("w") end)
    assert.is_truthy(native.message():find("tensor 'w': " .. path .. ": ends at byte", 1, true), native.message())
    file:close()
  end)

  it("is read in parts inside a tensor only", function()
    support.write(path, contents(('{"w":%s}'):format(f32("[2]", 0, 8)), bytes_of("float", 1, 2)))
    local file, value = safetensors.open(path), ffi.new("float[2]")
    assert.equal(C.PK_OK, C.pk_safetensors_read_part(file.handle, 0, 4, value, 4))
    assert.equal(2, value[0])
    assert.equal(C.PK_OK, C.pk_safetensors_read(file.handle, 0, value, 8))
    for _, range in ipairs {{0, 9}, {8, 1}, {-1, 1}, {0, -1}, {9, 0}} do
      assert.equal(C.PK_INVALID, C.pk_safetensors_read_part(file.handle, 0, range[1], value, range[2]))
    end
    assert.equal(C.PK_INVALID, C.pk_safetensors_read(file.handle, 0, value, 4))
    assert.equal(C.PK_INVALID, C.pk_safetensors_read(file.handle, 1, value, 4))
    assert.equal(C.PK_INVALID, C.pk_safetensors_read(file.handle, -1, value, 4))
    file:close()
  end)
end)

describe("A safetensors file is refused", function()
  in_folder()

  it("when it is missing, a directory, a device or a pipe", function()
    assert.is_false((pcall(safetensors.open, folder .. "/none")))
    assert.is_truthy(native.message():find("cannot be opened: No such file or directory", 1, true))
    assert.is_false((pcall(safetensors.open, folder)))
    assert.is_truthy(native.message():find("is not a regular file", 1, true))
    assert.is_false((pcall(safetensors.open, "/dev/zero")))
    os.execute("mkfifo " .. support.quote(folder .. "/pipe"))
    assert.is_false((pcall(safetensors.open, folder .. "/pipe")))
    assert.is_truthy(native.message():find("is not a regular file", 1, true))
    assert.has_error(function() safetensors.open(nil) end, "a path is a string, not a nil")
  end)

  it("when it is cut short anywhere", function()
    local whole = contents(('{"w":%s}'):format(f32("[2]", 0, 8)), ("\0"):rep(8))
    refused("", "0 bytes are too few")
    refused(whole:sub(1, 7), "7 bytes are too few")
    refused(whole:sub(1, 8), "a header of 54 bytes in a file of 8: cut short, or not a safetensors file")
    for length = 9, #whole - 1 do
      support.write(path, whole:sub(1, length))
      assert.is_false((pcall(safetensors.open, path)), length)
    end
    refused(whole:sub(1, -2), "tensor 'w': ends at byte 8 of the data, of which there are 7")
  end)

  it("when its header's size is beyond the file or the limit", function()
    refused(contents("{}", "", 3), "a header of 3 bytes in a file of 10")
    refused(contents("{}", "", 2 ^ 62), "a header of 4611686018427387904 bytes; the largest allowed has 100000000")
    refused(("\255"):rep(8) .. "{}", "a header of 18446744073709551615 bytes")
    support.write(path, contents("{}", "", 100000001))
    os.execute("truncate -s 200M " .. support.quote(path))
    assert.is_false((pcall(safetensors.open, path)))
    assert.is_truthy(native.message():find("a header of 100000001 bytes; the largest", 1, true))
  end)

  it("when its header is not a JSON object", function()
    refused(contents(""), "the header does not begin with {")
    refused(contents("[]"), "the header does not begin with {")
    refused(contents(" {}"), "the header does not begin with {")
    refused(contents("{"), path .. " (header):1:2: the text ends inside")
    refused(contents("{} x"), "x is not JSON")
    refused(contents('{"\255":1}'), "not UTF-8")
    refused(contents('{"a\\u0000":1}'), "NUL")
    refused(contents("{" .. ("\0"):rep(8)), "NUL")
    refused(contents(("{\"a\":"):rep(100000)), "nested deeper than 64 levels")
  end)

  it("when its header would fill the memory", function()
    refused(contents('{"w":[' .. ("0,"):rep(2 ^ 23 + 1) .. "0]}"),
      "the header lists 8388609 values; the most allowed are 8388608")
    support.write(path, contents('{"__metadata__":{"text":"' .. (","):rep(2 ^ 23 + 1) .. '"}}'))
    assert.equal(2 ^ 23 + 1, #safetensors.open(path):metadata("text"))
  end)

  it("when two tensors, metadata or members have one name", function()
    refused(contents(('{"w":%s,"v":%s,"w":%s}'):format(f32("[1]", 0, 4), f32("[0]", 4, 4), f32("[1]", 4, 8)),
      ("\0"):rep(8)), 'the key "w" is there twice')
    refused(contents('{"__metadata__":{"a":"1","a":"2"}}'), 'the key "a" is there twice in __metadata__')
    refused(contents('{"__metadata__":{},"__metadata__":{}}'), 'the key "__metadata__" is there twice')
    entry_refused('{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}',
      'the key "dtype" is there twice in w')
  end)

  it("when its metadata is not strings", function()
    refused(contents('{"__metadata__":[]}'), "__metadata__ is not an object")
    refused(contents('{"__metadata__":{"a":1}}'), "the metadata 'a' is not a string")
    refused(contents('{"__metadata__":{"a":null}}'), "the metadata 'a' is not a string")
  end)

  it("when a description is incomplete or of the wrong kind", function()
    entry_refused("7", "tensor 'w': is not described by an object")
    entry_refused("{}", "tensor 'w': has no 'dtype'")
    entry_refused('{"dtype":3}', "tensor 'w': has no 'dtype'")
    entry_refused('{"dtype":"F32"}', "tensor 'w': has no list 'shape'")
    entry_refused('{"dtype":"F32","shape":2}', "tensor 'w': has no list 'shape'")
    entry_refused('{"dtype":"F32","shape":[2]}', "tensor 'w': its 'data_offsets' are not two sizes")
    for _, offsets in ipairs {"[0]", "[0,8,8]", "[]", "8", '["0","8"]', "[0,8.5]", "[-1,7]", "[0,1e300]"} do
      entry_refused(('{"dtype":"F32","shape":[2],"data_offsets":%s}'):format(offsets),
        "tensor 'w': its 'data_offsets' are not two sizes")
    end
    entry_refused('{"dtype":"F99","shape":[2],"data_offsets":[0,8]}', "tensor 'w': dtype 'F99' is not known")
    entry_refused('{"dtype":"f32","shape":[2],"data_offsets":[0,8]}', "tensor 'w': dtype 'f32' is not known")
  end)

  it("when a shape is negative, fractional, too long or too large", function()
    entry_refused(f32("[-2]", 0, 8), "tensor 'w': extent 0 of its shape, -2, is not a size")
    entry_refused(f32("[1,2.5]", 0, 8), "tensor 'w': extent 1 of its shape, 2.5, is not a size")
    entry_refused(f32("[1e16]", 0, 8), "extent 0 of its shape, 10000000000000000, is not a size")
    entry_refused(f32("[9007199254740992]", 0, 8), "not below 2^53")
    entry_refused(f32('["2"]', 0, 8), "is not a size")
    entry_refused(f32("[1,1,1,1,1,1,1,1,2]", 0, 8), "has more than 8 dimensions")
    entry_refused(f32("[4294967296,4294967296]", 0, 8), "shape [4294967296, 4294967296] has too many elements")
    entry_refused(f32("[4294967296,1073741824]", 0, 8), "has too many elements") -- 2^64 bytes
  end)

  it("when a shape does not fit its offsets", function()
    entry_refused(f32("[3]", 0, 8), "F32 of shape [3] takes 12 bytes, its data_offsets [0, 8] hold 8")
    entry_refused(f32("[]", 0, 8), "F32 of shape [] takes 4 bytes")
    entry_refused(f32("[0]", 0, 8), "F32 of shape [0] takes 0 bytes")
  end)

  it("when offsets are inverted, outside, overlapping or leave something out", function()
    entry_refused(f32("[2]", 8, 0), "tensor 'w': ends at byte 0, before its begin at 8")
    entry_refused(f32("[3]", 0, 12), "tensor 'w': ends at byte 12 of the data, of which there are 8")
    entry_refused(f32("[1]", 0, 4), "4 bytes after the last tensor belong to none")
    entry_refused(f32("[1]", 4, 8), "tensor 'w' begins at byte 4 of the data, after a hole that begins at 0")
    local zeros = ("\0"):rep(12)
    local function two(a, b) return contents(('{"a":%s,"b":%s}'):format(a, b), zeros) end
    refused(two(f32("[2]", 0, 8), f32("[2]", 4, 12)),
      "tensor 'b' begins at byte 4 of the data, inside the one that ends at 8")
    refused(two(f32("[3]", 0, 12), f32("[3]", 0, 12)), "begins at byte 0 of the data, inside the one that ends at 12")
    refused(two(f32("[3]", 0, 12), f32("[0]", 4, 4)), "tensor 'b' begins at byte 4 of the data, inside")
    refused(two(f32("[1]", 0, 4), f32("[1]", 8, 12)), "after a hole that begins at 4")
    refused(contents("{}", "x"), "1 bytes after the last tensor belong to none")
  end)
end)

describe("Numbers of a file", function()
  in_folder()
  support.watch()

  -- A file with one tensor of a dtype, from the bytes of its elements.
  local function open_one(dtype, count, bytes)
    support.write(path, contents(('{"w":{"dtype":"%s","shape":[%d],"data_offsets":[0,%d]}}')
      :format(dtype, count, #bytes), bytes))
    return safetensors.open(path)
  end

  local function doubles(dtype, count, bytes)
    local file = open_one(dtype, count, bytes)
    local values, got = file:read_doubles("w")
    file:close()
    assert.equal(count, got)
    return list_of(values, count)
  end

  it("of every dtype become doubles", function()
    assert.same({0.1, -1e300}, doubles("F64", 2, bytes_of("double", 0.1, -1e300)))
    assert.same({0.5, -2 ^ 127}, doubles("F32", 2, bytes_of("float", 0.5, -2 ^ 127)))
    assert.same({1, -2, 65504, 2 ^ -24, 2 ^ -14, -1 / 0},
      doubles("F16", 6, bytes_of("uint16_t", 0x3c00, 0xc000, 0x7bff, 1, 0x0400, 0xfc00)))
    assert.same({1, -3.140625, 1 / 0}, doubles("BF16", 3, bytes_of("uint16_t", 0x3f80, 0xc049, 0x7f80)))
    assert.same({-2 ^ 53 + 1, 5}, doubles("I64", 2, bytes_of("int64_t", -2 ^ 53 + 1, 5)))
    assert.same({2 ^ 53 - 1, 0}, doubles("U64", 2, bytes_of("uint64_t", 2 ^ 53 - 1, 0)))
    assert.same({-2 ^ 31, 2 ^ 31 - 1}, doubles("I32", 2, bytes_of("int32_t", -2 ^ 31, 2 ^ 31 - 1)))
    assert.same({2 ^ 32 - 1}, doubles("U32", 1, bytes_of("uint32_t", 2 ^ 32 - 1)))
    assert.same({-32768, 7}, doubles("I16", 2, bytes_of("int16_t", -32768, 7)))
    assert.same({65535}, doubles("U16", 1, bytes_of("uint16_t", 65535)))
    assert.same({-128, 127, 255}, {doubles("I8", 2, "\128\127")[1], doubles("I8", 1, "\127")[1],
      doubles("U8", 1, "\255")[1]})
    assert.same({0, 1, 1}, doubles("BOOL", 3, "\0\1\2"))
    local nan = doubles("F16", 1, bytes_of("uint16_t", 0x7e00))[1]
    assert.is_true(nan ~= nan)
  end)

  it("that are NaNs become numbers, whatever their bits say", function()
    -- These bits are Lua's own nil, boolean, string and table.
    local file = open_one("F64", 4, bytes_of("uint64_t", 0xffffffffffffffffULL, 0xfffeffffffffffffULL,
      0xfffd800000001230ULL, 0xfffa000000001230ULL))
    for _, values in ipairs {(file:read_doubles("w")), file:doubles(file:entry("w"), 0, 4)} do
      for i = 0, 3 do assert.equal("number", type(values[i])) end
    end
    assert.equal(4, require("pack.data.inspect").tensor(file, "w").nonfinite)
    file:close()
    assert.equal("number", type(doubles("F32", 1, bytes_of("uint32_t", 0xffffffff))[1]))
  end)

  it("of thousands of elements become doubles in order", function()
    local numbers = {}
    for i = 1, 5000 do numbers[i] = i - 2500 end
    assert.same(numbers, doubles("I16", 5000, bytes_of("int16_t", unpack(numbers))))
  end)

  it("are rounded once, to nearest even", function()
    local file = open_one("F64", 7, bytes_of("double", 1 + 2 ^ -8, 1 + 3 * 2 ^ -8, 1 + 2 ^ -8 + 2 ^ -40,
      -(1 + 2 ^ -8 + 2 ^ -40), 1 + 2 ^ -8 - 2 ^ -40, 1e300, 1 / 0))
    local rounded = file:read_tensor("w", {dtype = "bf16"}):totable()
    assert.same({1, 1 + 2 ^ -6, 1 + 2 ^ -7, -1 - 2 ^ -7, 1, 1 / 0, 1 / 0}, rounded)
    file:close()
    file = open_one("F64", 2, bytes_of("double", 1 + 2 ^ -24, 1 + 3 * 2 ^ -24))
    assert.same({1, 1 + 2 ^ -22}, file:read_tensor("w", {dtype = "f32"}):totable())
    file:close()
  end)

  it("keep their bits where the dtype stays", function()
    local words = {0x7fc1, 0xff81, 0x0001, 0x8000}
    local file = open_one("BF16", 4, bytes_of("uint16_t", unpack(words)))
    assert.same(words, list_of(file:read_tensor("w"):read(), 4))
    file:close()
  end)

  it("become i32 only if they are", function()
    local file = open_one("F32", 3, bytes_of("float", 3, -4, 0))
    assert.same({3, -4, 0}, file:read_tensor("w", {dtype = "i32"}):totable())
    file:close()
    for _, bad in ipairs {1.5, 2 ^ 31, -2 ^ 32, 0 / 0, 1 / 0} do
      file = open_one("F64", 2, bytes_of("double", 1, bad))
      assert.has_error(function() file:read_tensor("w", {dtype = "i32"}) end)
      assert.is_truthy(native.message():find("is not a number that i32 can hold", 1, true))
      file:close()
    end
  end)

  it("of magnitude 2^53 and above are refused where they are integers", function()
    local file = open_one("I64", 2, bytes_of("int64_t", 1, 2 ^ 53))
    assert.has_error(function() file:read_doubles("w") end,
      path .. ": tensor 'w' I64: 9007199254740992 is not a number that f64 can hold")
    file:close()
  end)

  it("of a dtype without conversion are refused by name", function()
    local file = open_one("F8_E4M3", 4, "abcd")
    assert.has_error(function() file:read_doubles("w") end,
      path .. ": tensor 'w' F8_E4M3: elements of dtype F8_E4M3 cannot be converted")
    file:close()
  end)
end)

describe("A tensor's place", function()
  in_folder()
  support.watch()

  local function open_matrix()
    support.write(path, contents(('{"w":%s}'):format(f32("[2,3]", 0, 24)), bytes_of("float", 1, 2, 3, 4, 5, 6)))
    return safetensors.open(path)
  end

  it("is filled from a tensor of its shape, in its dtype, also with a worker stride", function()
    local file, arena = open_matrix(), tensor.full({2, 8}, 9, "f64")
    file:read_into("w", arena:view {shape = {2, 3}, stride = 8, offset = 4})
    assert.same({{9, 9, 9, 9, 1, 2, 3, 9}, {9, 9, 9, 9, 4, 5, 6, 9}}, arena:totable())
    file:close()
  end)

  it("is filled for every worker from the tensor of one", function()
    local file, arena = open_matrix(), tensor.full({3, 10}, 9, "f32")
    file:read_into("w", arena:view {shape = {3, 2, 3}, stride = 10, offset = 2})
    for worker = 1, 3 do assert.same({9, 9, 1, 2, 3, 4, 5, 6, 9, 9}, arena:totable()[worker]) end
    file:close()
  end)

  it("of another shape is refused with both", function()
    local file = open_matrix()
    local place = tensor.zeros({3, 2})
    assert.has_error(function() file:read_into("w", place) end, path ..
      ": tensor 'w' has shape [2, 3], which is neither that of its place, [3, 2], nor that of one worker")
    local scalar = tensor.zeros({})
    assert.has_error(function() file:read_into("w", scalar) end)
    file:close()
  end)
end)

describe("A written safetensors file", function()
  in_folder()
  support.watch()

  it("gives back tensors of every dtype, dense, strided, scalar and empty", function()
    local numbers = {{1.5, -2, 3}, {4, 5, -6.25}}
    local list, expected = {metadata = {kind = "case"}}, {}
    local function add(name, t, values)
      list[#list + 1] = {name = name, tensor = t}
      expected[name] = {values, t.dtype}
    end
    for _, dtype in ipairs {"f64", "f32", "bf16"} do
      add("dense/" .. dtype, tensor.from(numbers, dtype), numbers)
      local arena = tensor.full({2, 7}, 9, dtype)
      local view = arena:view {shape = {2, 3}, stride = 7, offset = 2}
      view:write(tensor.from(numbers, dtype):read())
      add("view/" .. dtype, view, numbers)
      add("scalar/" .. dtype, tensor.from(0.5, dtype), 0.5)
      add("empty/" .. dtype, tensor.zeros({0, 3}, dtype), {})
    end
    add("i32", tensor.from({-2147483648, 2147483647, 0}, "i32"), {-2147483648, 2147483647, 0})
    safetensors.write(path, list)
    local file = safetensors.open(path)
    assert.equal(#list, #file:names())
    assert.equal("case", file:metadata("kind"))
    for name, pair in pairs(expected) do
      local t = file:read_tensor(name)
      assert.equal(pair[2], t.dtype)
      assert.same(pair[1], t:totable(), name)
    end
    file:close()
    assert.same({"case.safetensors"}, files.list(folder))
  end)

  -- The SHA-256 of a text by another program.
  local function sha256(text)
    support.write(folder .. "/hashed", text)
    local _, out = support.run("sha256sum " .. folder .. "/hashed")
    os.remove(folder .. "/hashed")
    return out:match("^%x+")
  end

  it("has the bytes that the format states", function()
    safetensors.write(path, {
      metadata = {b = "2", a = 'q"\\\n\1'},
      {name = "x\195\169", tensor = tensor.from({7}, "i32")},
      {name = "y", tensor = tensor.from({{1, 2}}, "f32"), shape = {2}},
    })
    -- The checksum of the header is over its names, values, dtypes and shapes, sorted, each with a zero.
    local data = {bytes_of("int32_t", 7), bytes_of("float", 1, 2)}
    local digits = sha256(data[1]) .. " " .. sha256(data[2])
    local said = {"a", 'q"\\\n\1', "b", "2", "x\195\169", "I32", "[1]", "y", "F32", "[2]", digits}
    local header = '{"__metadata__":{"a":"q\\"\\\\\\u000a\\u0001","b":"2",' ..
      ('"packlua_sha256":"%s","packlua_tensors_sha256":"%s"},'):format(sha256(table.concat(said, "\0") .. "\0"), digits) ..
      '"x\195\169":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},' ..
      '"y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}'
    header = header .. (" "):rep(-#header % 8)
    assert.equal(contents(header, data[1] .. data[2]), files.read(path))
    assert.equal(12 + 8 + #header, files.size(path))
  end)

  it("of nothing but metadata, or of nothing, is complete", function()
    safetensors.write(path, {metadata = {a = "1"}})
    assert.equal("1", safetensors.open(path):metadata("a"))
    safetensors.write(path, {})
    assert.same({}, safetensors.open(path):names())
    assert.same({}, safetensors.open(path):metadata())
  end)

  describe("that is damaged", function()
    local whole
    before_each(function()
      safetensors.write(path, {metadata = {step = "12", content = "average"},
        {name = "first", tensor = tensor.from({{1, 2, 3}, {4, 5, 6}}, "f32")},
        {name = "second", tensor = tensor.from({7, 8}, "f32")}})
      whole = files.read(path)
    end)

    -- Reads everything that the file says: nil, or the message of why not.
    local function problem()
      local good, message = pcall(function()
        local file = safetensors.open(path)
        for _, name in ipairs(file:names()) do file:read_doubles(name) end
        file:close()
      end)
      return not good and tostring(message) or nil
    end

    it("is refused whichever byte has changed, or says the same", function()
      local function content()
        local file, list = safetensors.open(path), {}
        for _, name in ipairs(file:names()) do
          local values, count = file:read_doubles(name)
          list[#list + 1] = {name, file:entry(name).shape, ffi.string(values, 8 * count)}
        end
        list.metadata = file:metadata()
        file:close()
        return list
      end
      local before, harmless = content(), 0
      for i = 1, #whole do
        for _, bit_ in ipairs {1, 32, 128} do
          support.write(path, whole:sub(1, i - 1) .. string.char(bit.bxor(whole:byte(i), bit_)) .. whole:sub(i + 1))
          if not problem() then
            harmless = harmless + 1
            assert.same(before, content())
          end
        end
      end
      assert.is_true(harmless < 10, harmless .. " changes were not noticed") -- of the spaces after the header
    end)

    it("names the tensor, also when a part of it is read", function()
      support.write(path, whole:sub(1, -2) .. "\1")
      assert.is_truthy(problem():find(path .. ": tensor 'second' is damaged: the SHA-256 of its data is", 1, true))
      local file = safetensors.open(path)
      file:read_doubles("first")
      assert.has_error(function() file:doubles(file:entry("second"), 0, 1) end)
      assert.is_truthy(native.message():find("tensor 'second' is damaged", 1, true))
      file:close()
    end)

    it("in its header says so", function()
      support.write(path, (whole:gsub('"12"', '"13"')))
      assert.is_truthy(problem():find(path .. ": damaged: its header has changed since it was written", 1, true))
      support.write(path, (whole:gsub("packlua_sha256", "packlua_sha257")))
      assert.is_truthy(problem():find(path .. ": damaged: its checksums are not those of 2 tensors", 1, true))
    end)

    it("is read by its content where another program wrote the header anew", function()
      -- The tensors in the other order, the metadata at the end and reversed, and spaces between.
      local header = whole:sub(9, -33)
      local metadata = header:match('"__metadata__":{(.-)}')
      local pairs_, reversed = {}, {}
      for pair in metadata:gmatch('"[^"]*":"[^"]*"') do table.insert(pairs_, 1, pair) end
      reversed[1] = '"second":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
      reversed[2] = '"first":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]}'
      reversed[3] = '"__metadata__": { ' .. table.concat(pairs_, " , ") .. " }"
      assert.equal(4, #pairs_)
      support.write(path, contents("{ " .. table.concat(reversed, ", ") .. " }", whole:sub(-8) .. whole:sub(-32, -9)))
      assert.is_nil(problem())
    end)
  end)

  it("keeps its checksums to itself, and no metadata can have their names", function()
    safetensors.write(path, {metadata = {a = "1"}})
    assert.same({a = "1"}, safetensors.open(path):metadata())
    local good, message = pcall(safetensors.write, path, {metadata = {packlua_sha256 = "x"}})
    assert.is_false(good)
    assert.is_truthy(message:find("the metadata 'packlua_sha256' is the writer's own", 1, true), message)
  end)

  it("has larger dtypes first, so that data is aligned, and else the order given", function()
    local one = tensor.from({1, 2, 3}, "bf16")
    safetensors.write(path, {{name = "c", tensor = one}, {name = "b", tensor = one},
      {name = "d", tensor = one, dtype = "f64"}, {name = "a", tensor = one, dtype = "f32"}})
    local file = safetensors.open(path)
    assert.same({"d", "a", "c", "b"}, file:names())
    assert.same({1, 2, 3}, file:read_tensor("d"):totable())
    file:close()
  end)

  it("is not begun for what cannot be written", function()
    local t = tensor.from({1.5})
    local function fails(message, list)
      local good, got = pcall(safetensors.write, path, list)
      assert.is_false(good)
      assert.is_truthy(got:find(message, 1, true), ("%q does not contain %q"):format(got, message))
      assert.same({}, files.list(folder))
    end
    fails("entry 1 is not {name = string, tensor = tensor}", {{name = "a"}})
    fails("entry 1 is not", {{tensor = t}})
    fails("the name 'a' is declared twice", {{name = "a", tensor = t}, {name = "a", tensor = t}})
    fails("tensor '__metadata__': is not a name for a tensor", {{name = "__metadata__", tensor = t}})
    fails("'a\255' has a byte that is not UTF-8 at byte 1", {{name = "a\255", tensor = t}})
    fails("tensor 'a': dtype 'f16' is not one of", {{name = "a", tensor = t, dtype = "f16"}})
    fails("shape [1] cannot be written as [2]", {{name = "a", tensor = t, shape = {2}}})
    fails("the metadata 'a' is a number, not a string", {metadata = {a = 1}})
    fails("1.5 is not a number that i32 can hold", {{name = "a", tensor = t, dtype = "i32"}})
  end)

  it("replaces an old one only when it is complete", function()
    safetensors.write(path, {metadata = {a = "old"}})
    assert.is_false((pcall(safetensors.write, path, {{name = "a", tensor = tensor.from({1.5}), dtype = "i32"}})))
    assert.equal("old", safetensors.open(path):metadata("a"))
    assert.is_false((pcall(safetensors.write, folder, {})))
    assert.is_false((pcall(safetensors.write, folder .. "/none/x", {})))
    assert.is_false((pcall(safetensors.write, "/dev/null", {})))
  end)
end)

-- Writes 400 KB of zeros to the path in the process's only argument.
local write_large = [[
local safetensors, tensor = require "pack.io.safetensors", require "pack.core.tensor"
safetensors.write(%q, {{name = "w", tensor = tensor.zeros({100000})}})
]]

describe("A disk that is full", function()
  in_folder()

  it("fails the write with its reason and leaves no temporary, here by a limit on file sizes", function()
    support.write(path, "old")
    local code, _, err = support.run(("trap '' XFSZ; ulimit -f 8; packlua -e %s")
      :format(support.quote(write_large:format(path))))
    assert.equal(1, code)
    assert.is_truthy(err:find(path .. ": cannot be written: File too large", 1, true), err)
    assert.equal("old", files.read(path))
    assert.same({"case.safetensors"}, files.list(folder))
  end)

  it("fails the write with its reason and leaves no temporary, here on a file system of 64 KiB", function()
    local code, out, err = support.run(([[
      unshare -rm true 2> /dev/null || exit 77
      unshare -rm sh -c 'mount -t tmpfs -o size=64k none %s || exit 77
        "$0" -e "$1"; code=$?; ls -A %s; exit $code' %s %s]])
      :format(folder, folder, support.quote(support.program), support.quote(write_large:format(path))))
    if code == 77 then return pending("no user namespaces or tmpfs here") end
    assert.equal(1, code)
    assert.is_truthy(err:find(path .. ": cannot be written: No space left on device", 1, true), err)
    assert.equal("", out)
  end)
end)

describe("The writer in C", function()
  in_folder()

  local function create()
    local made = ffi.new("pk_safetensors_writer *[1]")
    assert.equal(C.PK_OK, C.pk_safetensors_writer_create(path, made))
    return made[0]
  end

  local function fails(status, message)
    assert.equal(C.PK_INVALID, status)
    assert.is_truthy(native.message():find(message, 1, true), native.message())
  end

  local shape = ffi.new("int64_t[9]", {2, 2, 2, 2, 2, 2, 2, 2, 2})
  local data = ffi.new("float[8]")

  it("takes a tensor in pieces, and skips those without elements", function()
    local writer = create()
    local none = ffi.new("int64_t[1]", 0)
    assert.equal(C.PK_OK, C.pk_safetensors_writer_declare(writer, "none", "F32", 1, none))
    assert.equal(C.PK_OK, C.pk_safetensors_writer_declare(writer, "w", "F32", 2, shape))
    assert.equal(C.PK_OK, C.pk_safetensors_writer_declare(writer, "end", "F32", 1, none))
    assert.equal(C.PK_OK, C.pk_safetensors_writer_data(writer, data, 12))
    fails(C.pk_safetensors_writer_finish(writer), "tensor 'w' has 12 of its 16 bytes")
    fails(C.pk_safetensors_writer_data(writer, data, 8), "8 bytes for tensor 'w', which lacks 4")
    fails(C.pk_safetensors_writer_data(writer, data, -1), "-1 bytes for tensor 'w'")
    assert.equal(C.PK_OK, C.pk_safetensors_writer_data(writer, data, 4))
    fails(C.pk_safetensors_writer_data(writer, data, 4), "4 bytes of data after the last tensor")
    assert.equal(C.PK_OK, C.pk_safetensors_writer_finish(writer))
    fails(C.pk_safetensors_writer_finish(writer), "after its end")
    C.pk_safetensors_writer_free(writer)
    assert.same({"case.safetensors"}, files.list(folder))
    assert.equal(3, #safetensors.open(path):names())
  end)

  it("keeps its order: metadata, declarations, data", function()
    local writer = create()
    assert.equal(C.PK_OK, C.pk_safetensors_writer_declare(writer, "w", "F32", 1, shape))
    fails(C.pk_safetensors_writer_metadata(writer, "a", "b"), "the metadata 'a' comes after a tensor")
    assert.equal(C.PK_OK, C.pk_safetensors_writer_data(writer, data, 8))
    fails(C.pk_safetensors_writer_declare(writer, "v", "F32", 1, shape), "tensor 'v': is declared after data")
    C.pk_safetensors_writer_free(writer)
    assert.same({}, files.list(folder))
  end)

  it("refuses impossible shapes and unknown dtypes", function()
    local writer = create()
    fails(C.pk_safetensors_writer_declare(writer, "w", "F32", 9, shape), "9 dimensions; the most are 8")
    fails(C.pk_safetensors_writer_declare(writer, "w", "F33", 1, shape), "dtype 'F33' is not known")
    local bad = ffi.new("int64_t[2]", -1, 1)
    fails(C.pk_safetensors_writer_declare(writer, "w", "F32", 2, bad), "shape [-1, 1] is not possible")
    bad[0], bad[1] = 2 ^ 50, 2 ^ 50
    fails(C.pk_safetensors_writer_declare(writer, "w", "F32", 2, bad), "has too many elements")
    C.pk_safetensors_writer_free(writer)
    C.pk_safetensors_writer_free(nil)
    assert.same({}, files.list(folder))
  end)
end)

describe("The golden cases", function()
  it("are complete safetensors files of f64, with i32 tokens", function()
    for _, name in ipairs(files.list("spec/fixtures/golden")) do
      local file = safetensors.open("spec/fixtures/golden/" .. name)
      for _, one in ipairs(file:names()) do
        local integers = one == "tokens" or one == "targets"
        assert.equal(integers and "I32" or "F64", file:entry(one).dtype)
      end
      assert.is_truthy(file:metadata("case"):find('"num_models"', 1, true))
      file:close()
    end
  end)
end)
