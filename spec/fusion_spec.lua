-- Operations that do what several do, to the same bits, and the passes that put them into recorded programs.
local context = require "pack.core.context"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local program = require "pack.core.program"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"

local function assert_bits(expected, got, what)
  assert.is_true(numbers.bytes(expected) == numbers.bytes(got), what .. " has other bits")
end

local function made(shape, dtype, seed, low, high)
  local count = 1
  for _, extent in ipairs(shape) do count = count * extent end
  return (numbers.strided(shape, dtype, numbers.list(count, seed, low, high)))
end

local function bf16_of(t)
  return ops.cast(t, {dtype = "bf16"})
end

local function count_of(one, name)
  local _, count = one:describe():gsub("%d+  " .. name .. ":", "")
  return count
end

describe("linear_cross_entropy_step", function()
  support.watch()

  -- {n, rows, vocabulary, d}: within one tile of everything, beyond its borders, several chunks, one of each.
  local sizes = {{1, 1, 1, 1}, {2, 9, 7, 4}, {1, 600, 1100, 3}, {2, 2100, 33, 5}, {1, 300, 40, 1000}}

  local function operands(size, dtype)
    local n, rows, vocabulary, d = unpack(size)
    local x, weight = made({n, rows, d}, dtype, 6, -2, 2), made({n, vocabulary, d}, dtype, 7)
    local list = {}
    for i = 1, n * rows do list[i] = i % 5 == 3 and -100 or i * 7919 % vocabulary end
    local targets = numbers.tensor({n, rows}, "i32", list)
    return x, weight, targets, made({n}, dtype == "f64" and "f64" or "f32", 8, 0.5, 2)
  end

  for _, dtype in ipairs {"f64", "f32", "bf16"} do
    it("gives the bits of the operation and its gradient, " .. dtype, function()
      for _, size in ipairs(sizes) do
        local x, weight, targets, g = operands(size, dtype)
        local loss, count, lse = ops.linear_cross_entropy(x, weight, targets)
        local x_grad, weight_grad = ops.linear_cross_entropy_grad(g, x, weight, targets, lse)
        local got = {ops.linear_cross_entropy_step(g, x, weight, targets)}
        for i, expected in ipairs {loss, count, lse, x_grad, weight_grad} do
          assert_bits(expected, got[i], ("output %d of %s"):format(i, table.concat(size, " ")))
        end
      end
    end)

    it("adds to the gradients that are to be added to, " .. dtype, function()
      local x, weight, targets, g = operands(sizes[3], dtype)
      local _, _, lse = ops.linear_cross_entropy(x, weight, targets)
      local out_dtype = dtype == "f64" and "f64" or "f32"
      local function outputs()
        return made({1, 600, 3}, out_dtype, 11), made({1, 1100, 3}, out_dtype, 12)
      end
      for flags = 0, 3 do
        local first, second = flags % 2 == 1, flags >= 2
        local x_grad, weight_grad = outputs()
        ops.linear_cross_entropy_grad(g, x, weight, targets, lse,
          {out = {x_grad, weight_grad}, accumulate = {first, second}})
        local x_got, weight_got = outputs()
        ops.linear_cross_entropy_step(g, x, weight, targets,
          {out = {false, false, false, x_got, weight_got}, accumulate = {false, false, false, first, second}})
        assert_bits(x_grad, x_got, "x_grad")
        assert_bits(weight_grad, weight_got, "weight_grad")
      end
    end)
  end

  it("gives the same bits at any number of threads #threads", function()
    numbers.assert_same_at_threads(function(options)
      local x = numbers.tensor({2, 520, 5}, "f32", numbers.list(5200, 1), options)
      local weight = numbers.tensor({2, 1100, 5}, "f32", numbers.list(11000, 2), options)
      local targets = tensor.zeros({2, 520}, "i32", options)
      return ops.linear_cross_entropy_step(tensor.ones({2}, "f32", options), x, weight, targets)
    end)
  end)

  it("does not add to the loss, and refuses targets outside the vocabulary", function()
    local x, weight, targets, g = operands(sizes[2], "f32")
    local loss = tensor.zeros({2}, "f32")
    numbers.assert_refused("linear_cross_entropy_step: loss, count and lse cannot be added to",
      ops.linear_cross_entropy_step, g, x, weight, targets, {out = {loss}, accumulate = {true}})
    numbers.put(targets, 7, 3)
    numbers.assert_refused("linear_cross_entropy_step: target 7 of worker 0, row 2",
      ops.linear_cross_entropy_step, g, x, weight, targets)
  end)
end)

describe("add_rmsnorm", function()
  support.watch()

  for _, case in ipairs {{"f64", false}, {"f32", false}, {"f32", true}} do
    local dtype, bf16 = unpack(case)
    it("gives the bits of the addition and the norm, " .. dtype .. (bf16 and ", cast" or ""), function()
      for _, size in ipairs {{1, 1, 1}, {2, 3, 5}, {1, 200, 33}, {2, 130, 320}} do
        local n, rows, width = unpack(size)
        local a, b = made({n, rows, width}, dtype, 1), made({n, rows, width}, dtype, 2, -3, 3)
        local weight = made({n, width}, dtype, 3, 0.5, 2)
        local sum = ops.add(a, b)
        local y, rstd = ops.rmsnorm(sum, weight, {eps = 1e-3})
        local got = {ops.add_rmsnorm(a, b, weight, {eps = 1e-3, bf16 = bf16})}
        assert_bits(sum, got[1], "sum")
        assert_bits(bf16 and bf16_of(y) or y, got[2], "y")
        assert_bits(rstd, got[3], "rstd")
      end
    end)
  end

  it("refuses operands of other shapes and dtypes", function()
    local a, weight = tensor.zeros {2, 3, 4}, tensor.zeros {2, 4}
    numbers.assert_refused("add_rmsnorm: b [2, 3, 5] must be [2, 3, 4]", ops.add_rmsnorm, a, tensor.zeros {2, 3, 5},
      weight, {eps = 0})
    numbers.assert_refused("add_rmsnorm: weight [2, 3] must be [2, 4]", ops.add_rmsnorm, a, a, tensor.zeros {2, 3},
      {eps = 0})
    numbers.assert_refused("add_rmsnorm: bf16 results are of f32, not of f64", ops.add_rmsnorm,
      tensor.zeros({2, 3, 4}, "f64"), tensor.zeros({2, 3, 4}, "f64"), tensor.zeros({2, 4}, "f64"),
      {eps = 0, bf16 = true})
  end)
end)

describe("bf16 results", function()
  support.watch()

  it("gives the bits of the result's cast", function()
    local x, weight = made({2, 130, 33}, "f32", 1, -3, 3), made({2, 33}, "f32", 2)
    local y, rstd = ops.rmsnorm(x, weight, {eps = 1e-3})
    local short, same = ops.rmsnorm(x, weight, {eps = 1e-3, bf16 = true})
    assert_bits(bf16_of(y), short, "rmsnorm")
    assert_bits(rstd, same, "rstd")
    local heads = made({2, 3, 9, 2, 10}, "f32", 3)
    for _, inverse in ipairs {false, true} do
      assert_bits(bf16_of(ops.rope(heads, {theta = 100, inverse = inverse})),
        ops.rope(heads, {theta = 100, inverse = inverse, bf16 = true}), "rope")
    end
    local g, gate, up = made({2, 30, 901}, "f32", 4), made({2, 30, 901}, "f32", 5, -9, 9), made({2, 30, 901}, "f32", 6)
    assert_bits(bf16_of(ops.swiglu(gate, up)), ops.swiglu(gate, up, {bf16 = true}), "swiglu")
    local gate_grad, up_grad = ops.swiglu_grad(g, gate, up)
    local gate_bf16, up_bf16 = ops.swiglu_grad(g, gate, up, {bf16 = true})
    assert_bits(bf16_of(gate_grad), gate_bf16, "gate_grad")
    assert_bits(bf16_of(up_grad), up_bf16, "up_grad")
  end)

  it("gives the bits of the cast of joined results", function()
    local x = made({2, 3, 9, 6, 10}, "f32", 3)
    local parts = {ops.rope_split(x, {theta = 100})}
    for i, part in ipairs {ops.rope_split(x, {theta = 100, bf16 = true})} do assert_bits(bf16_of(parts[i]), part, "part") end
    assert_bits(bf16_of(ops.rope_join(parts[1], parts[2], parts[3], {theta = 100, inverse = true})),
      ops.rope_join(parts[1], parts[2], parts[3], {theta = 100, inverse = true, bf16 = true}), "rope_join")
    local g, both = made({2, 30, 901}, "f32", 4), made({2, 30, 1802}, "f32", 5, -9, 9)
    assert_bits(bf16_of(ops.swiglu_split(both)), ops.swiglu_split(both, {bf16 = true}), "swiglu_split")
    assert_bits(bf16_of(ops.swiglu_split_grad(g, both)), ops.swiglu_split_grad(g, both, {bf16 = true}), "its gradient")
  end)

  it("is refused for f64", function()
    local x = tensor.zeros({2, 3, 4}, "f64")
    numbers.assert_refused("swiglu: bf16 results are of f32, not of f64", ops.swiglu, x, x, {bf16 = true})
  end)
end)

describe("a recorded program", function()
  support.watch()

  -- Records fn of tensors from outside, checks its results against those of the operations one by one.
  local function recorded(fn)
    local expected = {fn()}
    local one = program.record(fn, {})
    for _ = 1, 2 do one:run() end
    for i, result in ipairs(expected) do assert_bits(result, one.results[i], "result " .. i) end
    return one
  end

  it("has producers write bf16 where their result is only cast", function()
    local x, weight = made({2, 40, 8}, "f32", 1), made({2, 8}, "f32", 2)
    local one = recorded(function()
      local y = ops.rmsnorm(x, weight, {eps = 1e-3})
      return bf16_of(ops.reshape(y, {shape = {2, 320}})), bf16_of(ops.swiglu(x, x))
    end)
    assert.equal(2, one:memory().fused)
    assert.equal(0, count_of(one, "cast"))
    one:free()
  end)

  it("keeps an f32 result that something else reads, or that is a result of the program", function()
    local x, weight = made({2, 40, 8}, "f32", 1), made({2, 8}, "f32", 2)
    local one = recorded(function()
      local y = ops.rmsnorm(x, weight, {eps = 1e-3})
      local z = ops.swiglu(x, x)
      return bf16_of(y), ops.negate(y), z, bf16_of(z)
    end)
    assert.equal(0, one:memory().fused)
    assert.equal(2, count_of(one, "cast"))
    one:free()
  end)

  it("halves both gradients of swiglu or none", function()
    local g, x = made({2, 40, 8}, "f32", 1), made({2, 40, 8}, "f32", 2)
    local both = recorded(function()
      local gate, up = ops.swiglu_grad(g, x, x)
      return bf16_of(gate), bf16_of(up)
    end)
    local one = recorded(function()
      local gate, up = ops.swiglu_grad(g, x, x)
      return bf16_of(gate), ops.negate(up)
    end)
    assert.equal(2, both:memory().fused)
    assert.equal(0, one:memory().fused)
    both:free()
    one:free()
  end)

  it("halves all of q, k and v or none", function()
    local x = made({2, 2, 8, 6, 4}, "f32", 1)
    local all = recorded(function()
      local q, k, v = ops.rope_split(x, {theta = 100})
      return bf16_of(q), bf16_of(k), bf16_of(v)
    end)
    local two = recorded(function()
      local q, k, v = ops.rope_split(x, {theta = 100})
      return bf16_of(q), bf16_of(k), ops.negate(v)
    end)
    assert.equal(3, all:memory().fused)
    assert.equal(0, two:memory().fused)
    all:free()
    two:free()
  end)

  it("makes one operation of an addition and the norm of its sum", function()
    local a, b, weight = made({2, 40, 8}, "f32", 1), made({2, 40, 8}, "f32", 2), made({2, 8}, "f32", 3)
    local one = recorded(function()
      local sum = ops.add(a, b)
      local y = ops.rmsnorm(sum, weight, {eps = 1e-3})
      return ops.add(sum, y)
    end)
    assert.equal(1, count_of(one, "add_rmsnorm"))
    assert.equal(1, count_of(one, "add"))
    one:free()
  end)

  it("leaves an addition alone whose sum is needed before the norm, or that broadcasts", function()
    local a, b, weight = made({2, 40, 8}, "f32", 1), made({2, 40, 8}, "f32", 2), made({2, 8}, "f32", 3)
    local row = made({2, 1, 8}, "f32", 4)
    local one = recorded(function()
      local sum = ops.add(a, b)
      local other = ops.negate(sum)
      local y = ops.rmsnorm(sum, weight, {eps = 1e-3})
      local z = ops.rmsnorm(ops.add(a, row), weight, {eps = 1e-3})
      return ops.add(other, y), z
    end)
    assert.equal(0, count_of(one, "add_rmsnorm"))
    one:free()
  end)

  it("leaves an addition alone whose sum is another part of the norm's memory, or is cut into other workers", function()
    local a, b, weight = made({2, 40, 8}, "f32", 1), made({2, 40, 8}, "f32", 2), made({2, 8}, "f32", 3)
    local arena, many = made({2, 1000}, "f32", 4), made({80, 8}, "f32", 5)
    local function part(offset)
      return arena:view {shape = {2, 40, 8}, stride = 1000, offset = offset}
    end
    local one = recorded(function()
      ops.add(a, b, {out = part(0)})
      return ops.rmsnorm(part(320), weight, {eps = 1e-3}), ops.copy(arena)
    end)
    local other = recorded(function()
      local sum = ops.reshape(ops.add(a, part(640)), {shape = {80, 1, 8}})
      return ops.rmsnorm(sum, many, {eps = 1e-3}), sum
    end)
    assert.equal(0, count_of(one, "add_rmsnorm"))
    assert.equal(0, count_of(other, "add_rmsnorm"))
    one:free()
    other:free()
  end)

  local function head(use)
    local x, weight = made({2, 40, 8}, "f32", 1), made({2, 50, 8}, "f32", 2)
    local targets = tensor.zeros({2, 40}, "i32")
    return function()
      local loss, count, lse = ops.linear_cross_entropy(x, weight, targets)
      local g = use(loss, count)
      local x_grad, weight_grad = ops.linear_cross_entropy_grad(g, x, weight, targets, lse)
      return loss, ops.negate(x_grad), weight_grad
    end
  end

  it("computes loss and gradients in one pass where the gradient does not wait for the loss", function()
    local one = recorded(head(function(loss)
      ops.copy(ops.negate(loss), {out = tensor.zeros({2}, "f32")})
      return ops.affine(tensor.ones({2}, "f32"), {scale = 3})
    end))
    assert.equal(1, one:memory().merged)
    assert.equal(1, count_of(one, "linear_cross_entropy_step"))
    assert.equal(0, count_of(one, "linear_cross_entropy_grad"))
    one:free()
  end)

  it("and one after the other where it does", function()
    local one = recorded(head(function(loss) return ops.affine(loss, {scale = 0.5}) end))
    assert.equal(0, one:memory().merged)
    assert.equal(0, count_of(one, "linear_cross_entropy_step"))
    one:free()
  end)

  it("or where the weight changes in between", function()
    local x, start = made({1, 40, 8}, "f32", 1), made({1, 50, 8}, "f32", 2)
    local targets = tensor.zeros({1, 40}, "i32")
    local one = recorded(function()
      local weight = ops.copy(start)
      local loss, _, lse = ops.linear_cross_entropy(x, weight, targets)
      ops.copy(start, {out = weight, accumulate = true})
      return loss, (ops.linear_cross_entropy_grad(tensor.ones({1}, "f32"), x, weight, targets, lse))
    end)
    assert.equal(0, one:memory().merged)
    one:free()
  end)

  it("has the operations one by one where the device has no kernel for the fused ones", function()
    local default = context.default()
    local lacking = context {without = {"add_rmsnorm", "linear_cross_entropy_step"}}
    for _, own in ipairs {default, lacking} do
      context.set_default(own)
      local a, b, weight = made({2, 40, 8}, "f32", 1), made({2, 40, 8}, "f32", 2), made({2, 8}, "f32", 3)
      local loss = head(function() return tensor.ones({2}, "f32") end)
      local one = recorded(function()
        return (ops.rmsnorm(ops.add(a, b), weight, {eps = 1e-3})), loss()
      end)
      local fused = own == lacking and 0 or 1
      assert.same({fused, fused, fused},
        {count_of(one, "add_rmsnorm"), count_of(one, "linear_cross_entropy_step"), one:memory().merged})
      one:free()
    end
    context.set_default(default)
    local x = tensor.ones({1, 1, 4}, "f32", {context = lacking})
    numbers.assert_refused("add_rmsnorm is not available on device cpu", ops.add_rmsnorm, x, x,
      tensor.ones({1, 4}, "f32", {context = lacking}), {eps = 0})
    assert.same({4}, numbers.flat(ops.sum(x)))
    collectgarbage()
    lacking:close()
  end)

  it("puts results in the place of inputs that are used up, and only these", function()
    local size = 4096
    local x = made({1, size}, "f64", 1)
    local used = recorded(function()
      local y = ops.exp(x)
      for _ = 1, 3 do y = ops.affine(y, {scale = 2}) end
      return ops.add(y, y)
    end)
    assert.equal(8 * size, used:memory().slab)
    local kept = recorded(function()
      local y = ops.exp(x)
      local z = ops.affine(y, {scale = 2})
      return ops.add(y, z)
    end)
    assert.equal(2 * 8 * size, kept:memory().slab)
    -- A broadcast row is read again and again; a part of what is overwritten would be lost.
    local square = made({64, 64}, "f64", 2)
    local spread = recorded(function()
      local y = ops.exp(square)
      return ops.multiply(y, y:view {shape = {1, 64}, offset = 64})
    end)
    assert.equal(2 * 8 * 64 * 64, spread:memory().slab)
    for _, one in ipairs {used, kept, spread} do one:free() end
  end)

  it("works on gradients of swiglu and rotations in place", function()
    local g, gate, up = made({1, 4096}, "f32", 1), made({1, 4096}, "f32", 2), made({1, 4096}, "f32", 3)
    local one = recorded(function()
      local a, b, c = ops.negate(g), ops.negate(gate), ops.negate(up)
      return ops.swiglu_grad(a, b, c)
    end)
    assert.equal(3 * 4 * 4096, one:memory().slab)
    local both = made({1, 8, 1024}, "f32", 5)
    local joined = recorded(function()
      return ops.swiglu_split_grad(ops.negate(ops.reshape(g, {shape = {1, 8, 512}})), ops.negate(both))
    end)
    assert.equal(3 * 4 * 4096, joined:memory().slab)
    joined:free()
    local heads = made({2, 2, 8, 2, 64}, "f32", 4)
    local turned = recorded(function() return ops.rope(ops.negate(heads), {theta = 100}) end)
    assert.equal(8 * 8 * 64, turned:memory().workspace)
    assert.equal(4 * 4096 + 8 * 8 * 64, turned:memory().slab)
    one:free()
    turned:free()
  end)
end)

describe("a recorded addition and its norm", function()
  support.watch()

  -- Eager and recorded results of fn have the same bits.
  local function assert_recorded(fn)
    local expected = {fn()}
    local one = program.record(fn, {}, nil, {recompute = "none"})
    one:run()
    for i, result in ipairs(expected) do assert_bits(result, one.results[i], "result " .. i) end
    one:free()
  end

  it("keep results apart that would both fit in the place of one operand", function()
    local x = made({2, 3, 1}, "f32", 1)
    local weight = made({2, 1}, "f32", 2)
    for wanted = 1, 3 do
      assert_recorded(function()
        local a = ops.negate(x)
        local sum = ops.add(a, a)
        return (select(wanted, sum, ops.rmsnorm(sum, weight, {eps = 0.1})))
      end)
    end
  end)

  it("leave a weight alone that is as large as the norms", function()
    local x = made({1, 2, 2}, "f32", 1)
    assert_recorded(function()
      local a, weight = ops.negate(x), ops.fill {shape = {1, 2}, value = 0.5}
      return ops.rmsnorm(ops.add(a, x), weight, {eps = 0.1})
    end)
  end)

  it("stay two operations where the norm writes to what the addition reads", function()
    local x = made({2, 3, 4}, "f32", 1)
    local weight = made({2, 4}, "f32", 2)
    assert_recorded(function()
      local a = ops.negate(x)
      local sum = ops.add(a, x)
      local y, rstd = ops.rmsnorm(sum, weight, {eps = 0.1, out = {a, false}})
      return y, rstd, sum
    end)
  end)
end)
