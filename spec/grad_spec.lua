-- The tape: gradients against derivatives written by hand, where they are written to, and nesting.
local dispatch = require "pack.core.dispatch"
local ffi = require "ffi"
local grad = require "pack.grad"
local helper = require "spec.support.helper"
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local rules = require "pack.grad.rules"
local tensor = require "pack.core.tensor"

local refused = numbers.assert_refused

local function f64(values)
  return tensor.from(values, "f64")
end

local function live()
  return require("pack.core.context").default():memory().live
end

describe("the rules", function()
  it("are there for every differentiable operation, and for no other", function()
    for _, operation in ipairs(dispatch.list) do
      assert.equal(operation.differentiable, rules[operation.name] ~= nil, operation.name)
    end
    for name in pairs(rules) do assert.is_not_nil(dispatch.operations[name], name) end
  end)

  it("name a reference form for every fused operation whose gradient has no rule", function()
    local reference = require "pack.grad.reference"
    for name, rule in pairs(rules) do
      if dispatch.operations[name .. "_grad"] and name ~= "embedding" then
        assert.is_function(reference[rule.second], name)
      end
    end
  end)
end)

describe("a gradient", function()
  helper.watch()

  it("is that of the sum of the function's first result", function()
    local x = f64 {1, 2, 3}
    local y, extra, gradients = grad(function(a) return a * a, "extra" end, {x})
    assert.same({1, 4, 9}, y:totable())
    assert.equal("extra", extra)
    assert.same({2, 4, 6}, gradients[1]:totable())
  end)

  it("follows products, quotients and differences", function()
    local x, y = f64 {1, 2}, f64 {4, 5}
    local _, g = grad(function(a, b) return a * b - a / b end, {x, y})
    numbers.assert_close({4 - 1 / 4, 5 - 1 / 5}, g[1], 1e-15)
    numbers.assert_close({1 + 1 / 16, 2 + 2 / 25}, g[2], 1e-15)
  end)

  it("adds up over what broadcasting repeats", function()
    local x, row, one = f64 {{1, 2, 3}, {4, 5, 6}}, f64 {10, 20, 30}, f64 {{2}}
    local _, g = grad(function(a, b, c) return (a + b) * c end, {x, row, one})
    assert.same({{2, 2, 2}, {2, 2, 2}}, g[1]:totable())
    assert.same({4, 4, 4}, g[2]:totable())
    assert.same({{21 + 120}}, g[3]:totable())
  end)

  it("adds up over several uses of one tensor", function()
    local x = f64 {2, 3}
    local _, g = grad(function(a)
      local b = a * a
      return b * a + b + a
    end, {x})
    assert.same({3 * 4 + 2 * 2 + 1, 3 * 9 + 2 * 3 + 1}, g[1]:totable())
  end)

  it("of matrix products is right for every transposition", function()
    -- y = A B, summed with weights C: gA = C B', gB = A' C.
    local A, B, C = {{1, 2, 3}, {4, 5, 6}}, {{1, -1}, {2, 0.5}, {-3, 2}}, {{1, 2}, {3, -1}}
    local gA = {{-1, 3, 1}, {4, 5.5, -11}}
    local gB = {{13, -2}, {17, -1}, {21, 0}}
    local function turned(m)
      return f64(m):transpose({1, 0})
    end
    for _, ta in ipairs {false, true} do
      for _, tb in ipairs {false, true} do
        local a, b = ta and turned(A) or f64(A), tb and turned(B) or f64(B)
        local _, g = grad(function(x, y)
          return x:matmul(y, {transpose_a = ta, transpose_b = tb}) * f64(C)
        end, {a, b})
        assert.same(gA, (ta and g[1]:transpose({1, 0}) or g[1]):totable())
        assert.same(gB, (tb and g[2]:transpose({1, 0}) or g[2]):totable())
      end
    end
  end)

  it("is zeros for a leaf that does not matter, and for a result that depends on none", function()
    local x, y = f64 {1, 2}, f64 {3}
    local _, g = grad(function(a) return a + 1 end, {x, y})
    assert.same({1, 1}, g[1]:totable())
    assert.same({0}, g[2]:totable())
    _, g = grad(function() return f64 {7} end, {x})
    assert.same({0, 0}, g[1]:totable())
  end)

  it("flows through every result of an operation with several, zeros through those that do not matter", function()
    -- With one position, nothing is turned: x is q, k and v behind each other.
    local x, turn = f64 {{{{{1, 2}, {3, 4}, {5, 6}}}}}, {theta = 100}
    local function gradient(fn)
      local _, g = grad(function(a) return fn(ops.rope_split(a, turn)) end, {x})
      return g[1]:totable()[1][1][1]
    end
    assert.same({{5, 6}, {0, 0}, {1, 2}}, gradient(function(q, _, v) return q * v end))
    assert.same({{0, 0}, {2, 2}, {0, 0}}, gradient(function(_, k) return k * 2 end))
    assert.same({{1, 1}, {2, 2}, {3, 3}}, gradient(function(q, k, v) return q + k * 2 + v + v + v end))
  end)

  it("stops at a detached tensor and at integers", function()
    local x = f64 {2.5, 3}
    local _, g = grad(function(a) return a * a:detach() end, {x})
    assert.same({2.5, 3}, g[1]:totable())
    _, g = grad(function(a) return a * a:cast({dtype = "i32"}):cast({dtype = "f64"}) end, {x})
    assert.same({2, 3}, g[1]:totable())
  end)

  it("passes through entries of a tracked tensor", function()
    local x = f64 {{1, 2}, {3, 4}}
    local _, g = grad(function(a) return a[0] * a[1] end, {x})
    assert.same({{3, 4}, {1, 2}}, g[1]:totable())
  end)

  it("of the leaf itself is ones, in memory of its own", function()
    local x = f64 {1, 2}
    local y, g = grad(function(a) return a end, {x})
    assert.is_true(y == x)
    assert.same({1, 1}, g[1]:totable())
    local _, two = grad(function(a, b) return a + b end, {x, f64 {5, 6}})
    two[1]:write(ffi.new("double[2]", 9, 9))
    assert.same({1, 1}, two[2]:totable())
  end)

  it("is f32 for bf16 tensors, and f64 again before an f64 one", function()
    local x = tensor.from({{1, 2}, {3, 4}}, "bf16")
    local w = tensor.from({{1, 0.5}, {2, 3}}, "bf16")
    local _, g = grad(function(a, b) return a:matmul(b) end, {x, w})
    assert.equal("f32", g[1].dtype)
    assert.same({{1.5, 5}, {1.5, 5}}, g[1]:totable())
    assert.same({{4, 4}, {6, 6}}, g[2]:totable())
    local _, wide = grad(function(a) return a:to("bf16"):to("f32") * 3 end, {f64 {1, 2}})
    assert.equal("f64", wide[1].dtype)
    assert.same({3, 3}, wide[1]:totable())
  end)

  it("leaves no tensors behind but itself", function()
    local x = f64 {1, 2}
    collectgarbage()
    local before = live()
    collectgarbage "stop"
    local y, g = grad(function(a) return (a:exp() * a):sum({keep = true}) end, {x}, {release = true})
    assert.equal(before + 2, live())
    collectgarbage "restart"
    y:free()
    g[1]:free()
  end)

  it("frees its own temporaries without the collector", function()
    local x = f64 {{1, 2}, {3, 4}}
    local forward
    collectgarbage()
    collectgarbage "stop"
    local before = live()
    local _, g = grad(function(a)
      local y = a
      for _ = 1, 10 do y = (y * a):silu() end
      forward = live()
      return y
    end, {x})
    assert.is_true(live() <= forward + #g)
    assert.is_true(forward > before)
    collectgarbage "restart"
  end)
end)

describe("gradients into given tensors", function()
  helper.watch()

  local function arena_like()
    local block = tensor.full({2, 10}, 100, "f64")
    return block, block:view {shape = {2, 3}, stride = 10, offset = 4}
  end

  it("overwrite what is there with the first contribution and add the later ones", function()
    local x = f64 {{1, 2, 3}, {4, 5, 6}}
    local block, into = arena_like()
    local _, g = grad(function(a) return a * a + a end, {x}, {into = {into}})
    assert.is_true(g[1] == into)
    assert.same({{3, 5, 7}, {9, 11, 13}}, into:totable())
    assert.same({100, 100, 100, 100, 3, 5, 7, 100, 100, 100}, block[0]:totable())
  end)

  it("add to what is there with accumulate", function()
    local x = f64 {{1, 2, 3}, {4, 5, 6}}
    local _, into = arena_like()
    grad(function(a) return a * a + a end, {x}, {into = {into}, accumulate = true})
    assert.same({{103, 105, 107}, {109, 111, 113}}, into:totable())
  end)

  it("are zeros for a leaf that does not matter, or left alone with accumulate", function()
    local x, other = f64 {{1, 2, 3}, {4, 5, 6}}, f64 {1}
    local _, into = arena_like()
    local scratch = f64 {0}
    grad(function(_, b) return b end, {x, other}, {into = {into, scratch}, accumulate = true})
    assert.same({{100, 100, 100}, {100, 100, 100}}, into:totable())
    grad(function(_, b) return b end, {x, other}, {into = {into, scratch}})
    assert.same({{0, 0, 0}, {0, 0, 0}}, into:totable())
  end)

  it("are written by the products themselves, straight into an f32 arena for bf16 weights", function()
    local seen = {}
    local w = tensor.from({{{1, 2}, {3, 4}}}, "f32")
    local x = tensor.from({{{1, 0}, {0, 1}}}, "bf16")
    local into = tensor.zeros({1, 2, 2})
    local original = ops.matmul
    ops.matmul = function(a, b, given)
      given = given or {}
      seen[#seen + 1] = given.out and rawequal(given.out[1], into) and tostring(given.accumulate[1])
        or "new"
      return original(a, b, given)
    end
    local good, message = pcall(grad.grad, function(weight)
      local half = weight:cast({dtype = "bf16"})
      return ops.matmul(x, half, {transpose_b = true}) + ops.matmul(x, half)
    end, {w}, {into = {into}})
    ops.matmul = original
    assert.is_true(good, message)
    assert.same({"new", "new", "false", "true"}, seen)
    -- Both products with x = I: each contributes ones.
    assert.same({{{2, 2}, {2, 2}}}, into:totable())
  end)

  it("of a tied embedding take the head's contribution first, then the looked-up rows", function()
    local weight = f64 {{{1, 0}, {0, 1}, {2, 2}}}
    local ids = tensor.from({{0, 2, 2}}, "i32")
    local into = tensor.full({1, 3, 2}, 50, "f64")
    local order = {}
    local matmul, scatter = ops.matmul, ops.embedding_grad
    ops.matmul = function(a, b, given)
      if given.out and given.out[1] then order[#order + 1] = "head" .. tostring(given.accumulate[1]) end
      return matmul(a, b, given)
    end
    ops.embedding_grad = function(g, i, given)
      order[#order + 1] = "rows" .. tostring(given.accumulate[1])
      return scatter(g, i, given)
    end
    local good, message = pcall(grad.grad, function(w)
      return ops.matmul(ops.embedding(w, ids), w, {transpose_b = true})
    end, {weight}, {into = {into}})
    ops.matmul, ops.embedding_grad = matmul, scatter
    assert.is_true(good, message)
    assert.same({"headfalse", "rowstrue"}, order)
    -- Head: the sum of looked-up rows, (5, 4), for every vocabulary row. Rows: the sum of all weight
    -- rows, (3, 3), once for id 0 and twice for id 2.
    assert.same({{{8, 7}, {5, 4}, {11, 10}}}, into:totable())
  end)

  it("are refused where they do not fit", function()
    local x = f64 {1, 2}
    local identity = function(a) return a end
    refused("into has 1 tensors for 2 leaves", grad, identity, {x, f64(1)}, {into = {x}})
    refused("does not have the shape and gradient dtype of leaf 1, [2]", grad, identity, {x},
      {into = {tensor.zeros({2})}})
    refused("leaf 2 is there twice", grad, identity, {x, x},
      {into = {f64 {0, 0}, f64 {0, 0}}})
    refused("accumulate needs into", grad, identity, {x}, {accumulate = true})
    refused("unknown option 'inot'", grad, identity, {x}, {inot = {}})
    refused("inside another gradient", grad, function(a)
      return (grad(identity, {a}, {into = {f64 {0, 0}}}))
    end, {x})
  end)
end)

describe("nested gradients", function()
  helper.watch()

  it("give second and third derivatives", function()
    local x = f64 {1, 2, -3}
    local function cube(a)
      return a * a * a
    end
    local function derivative(fn)
      return function(a)
        local _, g = grad(fn, {a})
        return g[1]
      end
    end
    local second = derivative(derivative(cube))
    assert.same({6, 12, -18}, second(x):totable())
    assert.same({6, 6, 6}, derivative(second)(x):totable())
  end)

  it("treat the outer gradient's leaves as constants where they are not their own", function()
    local x, y = f64 {2}, f64 {5}
    local _, g = grad(function(a, b)
      local _, inner = grad(function(c) return c * c * b end, {a})
      return inner[1]
    end, {x, y})
    assert.same({10}, g[1]:totable())
    assert.same({4}, g[2]:totable())
  end)

  it("give Hessian-vector products, with directions as constants", function()
    local x, y = f64 {1, 2}, f64 {3}
    local function fn(a, b)
      return a * a * a * b
    end
    local products = grad.hvp(fn, {x, y}, {x, f64 {1}})
    -- d2 = [6 a b, 3 a^2; 3 a^2, 0]
    assert.same({6 * 3 * 1 + 3, 6 * 2 * 3 * 2 + 12}, products[1]:totable())
    assert.same({3 * 1 + 12 * 2}, products[2]:totable())
    refused("1 directions for 2 leaves", grad.hvp, fn, {x, y}, {x})
  end)

  it("give vector-Jacobian products for a cotangent, which they leave alone", function()
    local x, g = f64 {1, 2}, f64 {10, 100}
    local gradients, value = grad.vjp(function(a) return a:reshape({2, 1}) end, {x},
      g:reshape({2, 1}))
    assert.same({10, 100}, gradients[1]:totable())
    assert.same({{1}, {2}}, value:totable())
    gradients[1]:write(ffi.new("double[2]"))
    assert.same({10, 100}, g:totable())
  end)
end)

describe("a gradient is refused", function()
  helper.watch()

  it("for leaves and results that are not float tensors", function()
    local x = f64 {1}
    refused("leaf 2 is a number, not a tensor", grad, function(a) return a end, {x, 3})
    refused("leaves are a list of tensors, not a nil", grad, function(a) return a end)
    refused("leaf 1 is i32", grad, function(a) return a end, {tensor.from({1}, "i32")})
    refused("returned a nil, not a tensor", grad, function() end, {x})
    refused("result is i32", grad, function(a) return a:cast({dtype = "i32"}) end, {x})
  end)

  it("through operations without a rule, and outputs that are by-products", function()
    local x = f64 {{1, 2}}
    refused("max has no gradient; detach", grad, function(a) return a:max() end, {x})
    refused("no gradient flows through rstd of rmsnorm; detach it", grad, function(a)
      local _, rstd = a:reshape({1, 1, 2}):rmsnorm(a, {eps = 1e-5})
      return rstd * 2
    end, {x})
  end)

  it("where a tracked tensor would be overwritten or seen through a view", function()
    local x, y = f64 {1, 2}, f64 {0, 0}
    refused("out is a tensor that a gradient is taken of", grad,
      function(a) return ops.negate(y, {out = a}) end, {x})
    refused("accumulate loses the gradient", grad,
      function(a) return ops.copy(a, {out = y, accumulate = true}) end, {x})
    refused("a view of a tensor that a gradient is taken of", grad,
      function(a) return a:view({shape = {1}}) end, {x})
  end)

  it("and leaves no tape behind when the function raises", function()
    local x = f64 {1}
    refused("broken", grad, function(a)
      grad(function() error("broken") end, {a})
    end, {x})
    assert.is_nil(dispatch.record)
    assert.is_nil(dispatch.is_tracked)
    local _, g = grad(function(a) return a * 2 end, {x})
    assert.same({2}, g[1]:totable())
  end)

  it("at the line that is at fault", function()
    local x = f64 {1, 2}
    local line = debug.getinfo(1, "l").currentline + 1
    local _, message = pcall(grad, function(a) return a + f64 {1, 2, 3} end, {x})
    assert.is_truthy(message:find("grad_spec.lua:" .. line .. ": add:", 1, true), message)
  end)
end)
