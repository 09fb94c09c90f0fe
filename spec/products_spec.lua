-- Products by primitives of oneDNN, as processors with bf16 use them, and the threads of libraries.
local ffi = require "ffi"
local native = require "pack.native"
local support = require "spec.support.helper"

ffi.cdef [[
  typedef struct pk_product {
    int64_t m, p, k, lda, ldb, ldc;
    int dtype;
    bool transpose_a, transpose_b, adds;
  } pk_product;
  bool pk_cpu_primitive_gemm(const pk_product *product, const void *a, const void *b, float *c);
]]

local C = native.C

-- Small whole numbers, which f32 and bf16 hold and whose sums f32 holds.
local function value(i)
  return i * 7 % 13 - 6
end

-- An operand of rows x columns with a gap after each row, f32 or bf16; its elements and what reads element (i, j).
local function operand(rows, columns, dtype)
  local ld = columns + 3
  local data = ffi.new(dtype == C.PK_BF16 and "uint16_t[?]" or "float[?]", rows * ld)
  local bits = ffi.new("union { float number; uint32_t word; }")
  for i = 0, rows * ld - 1 do
    bits.number = value(i)
    data[i] = dtype == C.PK_BF16 and bits.word / 65536 or bits.number
  end
  return data, ld, function(i, j) return value(i * ld + j) end
end

-- Runs a product of these sizes into a C that holds 5 everywhere. Returns whether it was done, the largest
-- difference from the sums, and C's first element.
local function difference(m, p, k, options)
  local dtype = options.dtype or C.PK_F32
  local rows, columns = m, k
  if options.transpose_a then rows, columns = k, m end
  local a, lda, a_at = operand(rows, columns, dtype)
  rows, columns = k, p
  if options.transpose_b then rows, columns = p, k end
  local b, ldb, b_at = operand(rows, columns, dtype)
  local ldc = p + 2
  local c = ffi.new("float[?]", m * ldc)
  for i = 0, m * ldc - 1 do c[i] = 5 end
  local done = C.pk_cpu_primitive_gemm(ffi.new("pk_product", {m = m, p = p, k = k, lda = lda, ldb = ldb, ldc = ldc,
    dtype = dtype, transpose_a = options.transpose_a, transpose_b = options.transpose_b, adds = options.adds}), a, b, c)
  local worst = 0
  for i = 0, m - 1 do
    for j = 0, ldc - 1 do
      local expected = (j >= p or options.adds) and 5 or 0
      for l = 0, j < p and k - 1 or -1 do
        local left = options.transpose_a and a_at(l, i) or a_at(i, l)
        expected = expected + left * (options.transpose_b and b_at(j, l) or b_at(l, j))
      end
      worst = math.max(worst, math.abs(c[i * ldc + j] - expected))
    end
  end
  return done, worst, c[0]
end

local variants = {}
for bits = 0, 7 do
  variants[#variants + 1] = {transpose_a = bits % 2 == 1, transpose_b = math.floor(bits / 2) % 2 == 1, adds = bits > 3}
end

describe("a product by a primitive", function()
  local has_library = difference(2, 2, 2, {})

  it("is the sums, for operands either way round, added or written, with gaps between rows", function()
    if not has_library then return pending("this build is without oneDNN") end
    for _, options in ipairs(variants) do
      local done, worst = difference(37, 21, 50, options)
      assert.is_true(done)
      assert.equal(0, worst)
    end
  end)

  it("stays so when a thread has seen more sizes than it keeps", function()
    if not has_library then return pending("this build is without oneDNN") end
    for round = 1, 2 do
      for size = 1, 140 do
        local done, worst = difference(size, 3, 2, {adds = round == 2})
        assert.is_true(done)
        assert.equal(0, worst)
      end
    end
  end)

  it("of bf16 is the sums too, or leaves C as it is where the library has none", function()
    for _, options in ipairs(variants) do
      options.dtype = C.PK_BF16
      local done, worst, first = difference(37, 21, 50, options)
      assert.equal(done and 0 or 5, done and worst or first)
    end
  end)

  it("is never asked for on account of bf16 where an older processor is to be imitated", function()
    local code, output = support.run [[
      for set in PACKLUA_ISA=v2 PACKLUA_ISA=neon ONEDNN_MAX_CPU_ISA=AVX2; do (
        export "${set?}" # a set of another processor is refused
        packlua -e 'local good, made = pcall(require "pack".context.create); print(good and made:has_bf16())'
      ) done]]
    assert.equal(0, code)
    assert.equal("false\nfalse\nfalse\n", output)
  end)
end)

describe("PACKLUA_PRODUCTS", function()
  it("is refused where it asks for what there is not", function()
    local code, out, problem = support.run "PACKLUA_PRODUCTS=fast packlua -e 'print(require(\"pack\").tensor.ones {1})'"
    assert.equal(1, code)
    assert.equal("", out)
    assert.is_truthy(problem:find("PACKLUA_PRODUCTS=fast: 'primitives' is all that it can ask for", 1, true))
  end)
end)

describe("the libraries' products", function()
  it("start no threads beside the pool's", function()
    local code, output, problem = support.run [[packlua -e '
      local function threads()
        for line in io.lines("/proc/self/status") do
          local count = line:match("^Threads:%s+(%d+)")
          if count then return tonumber(count) end
        end
      end
      local before = threads()
      local pack = require "pack"
      local made = pack.context.set_default(pack.context.create {threads = 3})
      for _, dtype in ipairs {"f32", "bf16", "f64"} do
        local x = pack.tensor.ones({2, 700, 300}, dtype == "bf16" and "f32" or dtype)
        if dtype == "bf16" then x = pack.ops.cast(x, {dtype = dtype}) end
        pack.ops.matmul(x, x, {transpose_b = true})
      end
      print(before, threads() - before)']]
    assert.equal("", problem)
    assert.equal(0, code)
    assert.equal("2", output:match("^%d+%s+(%d+)\n$"))
  end)
end)
