-- Tensors as numbers on the host.
local ffi = require "ffi"
local native = require "pack.native"
local tensor = require "pack.core.tensor"

describe("reading and writing numbers", function()
  it("rounds once to nearest even in each dtype", function()
    local values = ffi.new("double[4]", 1 + 2 ^ -8, 1 + 3 * 2 ^ -8, 1 + 2 ^ -8 + 2 ^ -40, -1 / 3)
    local function written(dtype)
      return tensor.zeros({4}, dtype):write_numbers(values):totable()
    end
    assert.same({1, 1 + 2 ^ -6, 1 + 2 ^ -7, -0.333984375}, written("bf16"))
    assert.equals(1 + 2 ^ -8, written("f32")[3])
    assert.equals(values[2], written("f64")[3])
  end)

  it("reads every NaN as the plain one, which the interpreter can hold", function()
    local words = ffi.new("uint32_t[3]", 0xffffffff, 0x7f800001, 0xfffa5555)
    local t = tensor.zeros({3}, "f32"):write(ffi.cast("float *", words))
    for _ = 1, 200 do
      local values = t:read_numbers()
      for i = 0, 2 do assert.is_true(values[i] ~= values[i]) end
      assert.equals("number", type(t:totable()[3]))
    end
    local wide = ffi.new("uint64_t[2]", 0xfff8123456789abcULL, 0xffffffffffffffffULL)
    local plain = tensor.zeros({2}, "f64"):write(ffi.cast("double *", wide)):read_numbers()
    local bits = ffi.cast("uint64_t *", plain)
    assert.equals(bits[0], bits[1])
    assert.is_true(bits[0] == 0x7ff8000000000000ULL)
  end)

  it("refuses what is no i32, naming the element", function()
    local values = ffi.new("double[2]", 3, 2.5)
    assert.has_error(function() tensor.zeros({2}, "i32"):write_numbers(values) end,
      "element 2, 2.5, is not an i32")
  end)

  it("seeds every entry with the stream of the name, the same for one thread and two #threads", function()
    local context = require "pack.core.context"
    local expected = ffi.new("double[70000]")
    native.C.pk_random_normal(5, "a name", 0, 70000, 0.5, 2, expected)
    for _, threads in ipairs {1, 2} do
      local own = context.create {threads = threads}
      local t = tensor.zeros({2, 70000}, "f64", {context = own}):seed_normal(5, "a name", 0.5, 2)
      local values = t:read_numbers()
      for i = 0, 69999, 7 do
        assert.equals(expected[i], values[i])
        assert.equals(expected[i], values[70000 + i])
      end
      t:free()
      own:close()
    end
  end)
end)
