-- What plain Lua can do wrong with tensors, contexts and programs: each is an error, and all goes on afterwards.
local arena = require "pack.model.arena"
local compile = require("pack.core.program").compile
local context = require "pack.core.context"
local ffi = require "ffi"
local grad = require "pack.grad"
local packed_model = require "pack.model.packed"
local ops = require "pack.core.ops"
local program = require "pack.core.program"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"

local function refused(pattern, f, ...)
  local good, message = pcall(f, ...)
  assert.is_false(good)
  assert.is_truthy(tostring(message):find(pattern, 1, true), tostring(message))
end

describe("a tensor that escaped a compiled function", function()
  support.watch()

  local function with_escaped(check)
    local a, escaped = tensor.from {1, 2, 3}, nil
    local f = compile(function(x)
      escaped = ops.exp(x)
      return ops.add(ops.negate(escaped), x)
    end)
    f(a)
    check(a, escaped)
    f:free()
  end

  local trouble = "was made while a program was recorded and is none of its results"

  it("is refused as input and output of operations, and when it is read or written", function()
    with_escaped(function(a, escaped)
      refused("negate: input 1 (x) " .. trouble, ops.negate, escaped)
      refused("copy: output y " .. trouble, ops.copy, a, {out = escaped})
      refused(trouble, escaped.totable, escaped)
      refused(trouble, escaped.write, escaped, ffi.new("float[3]"))
      assert.is_truthy(tostring(escaped):find("f32 {3} on cpu\n(the tensor f32 [3] " .. trouble, 1, true))
      refused(trouble, escaped.statistics, escaped)
      refused(trouble, tensor.read_all, {a, escaped})
      refused(trouble, function() return escaped:view {shape = {1}}:item() end)
    end)
  end)

  it("is refused in another recording, as a result too", function()
    with_escaped(function(a, escaped)
      refused("add: input 2 (b) " .. trouble, compile(function(x) return ops.add(x, escaped) end), a)
      refused("result 1 " .. trouble, compile(function() return escaped end), a)
      assert.same({-1, -2, -3}, ops.negate(a):totable())
    end)
  end)

  it("is refused when the recording came to nothing", function()
    local a, lost = tensor.from {1, 2, 3}, nil
    pcall(compile(function(x)
      lost = ops.negate(x)
      error "stop"
    end), a)
    refused(trouble, ops.copy, a, {out = lost})
    refused(trouble, lost.totable, lost)
  end)
end)

describe("a result of a program", function()
  support.watch()

  it("is refused before the program has run", function()
    local a = tensor.from {1, 2}
    local one = program.record(function() return ops.negate(a) end, {})
    local y = one.results[1]
    refused("copy: output y is a result of a program that has not run", ops.copy, a, {out = y})
    refused("negate: input 1 (x) is a result of a program that has not run", ops.negate, y)
    refused("is a result of a program that has not run", y.totable, y)
    one:run()
    ops.copy(a, {out = y})
    assert.same({1, 2}, y:totable())
    one:free()
  end)

  it("is read by another program at the place where it is", function()
    local a = tensor.from {1, 2, 3}
    local first = compile(function(x) return ops.exp(ops.negate(x)), ops.negate(x) end)
    local _, y = first(a)
    for _, level in ipairs {"none", "products"} do
      local second = compile(function(x) return ops.multiply(ops.add(x, y), ops.exp(ops.affine(x, {scale = 0}))) end,
        {recompute = level})
      assert.same({0, 0, 0}, second(a):totable())
      assert.same({4, 3, 2}, second(tensor.from {5, 5, 5}):totable())
      second:free()
    end
    assert.same({-1, -2, -3}, y:totable())
    first:free()
  end)
end)

describe("a function that yields", function()
  support.watch()

  local function yields(x)
    coroutine.yield(x)
    return x
  end

  it("is refused by compile, and nothing is being recorded afterwards", function()
    local a = tensor.from {1, 2}
    refused("the function yielded", compile(yields), a)
    local resumed = coroutine.create(function() return pcall(compile(yields), a) end)
    local alive, good, message = coroutine.resume(resumed)
    assert.same({true, false, "dead"}, {alive, good, coroutine.status(resumed)})
    assert.is_truthy(message:find("the function yielded", 1, true))
    assert.same({-1, -2}, ops.negate(a):totable())
  end)

  it("is refused by grad, and no gradient is being taken afterwards", function()
    local a = tensor.from {1, 2}
    refused("the function yielded", grad.grad, yields, {a})
    a:view {shape = {1}}
    ops.copy(tensor.from {3, 4}, {out = a})
    assert.same({3, 4}, a:totable())
  end)
end)

describe("a compiled function", function()
  support.watch()

  it("refuses to be called with or to read a tensor that a gradient is being taken of", function()
    local a, w = tensor.from {1, 2}, tensor.from {3, 4}
    local f = compile(function(x) return ops.multiply(x, w) end)
    local message = "a gradient is being taken of a tensor that a recorded program uses"
    refused(message, grad.grad, function(x) return f(x) end, {a})
    for _ = 1, 2 do -- recorded and replayed
      refused(message, grad.grad, function() return f(a) end, {w})
      f(a)
    end
    f:free()
  end)

  it("is a constant to a gradient that is taken of something else", function()
    local a, w, b = tensor.from {1, 2}, tensor.from {3, 4}, tensor.from {5, 6}
    local f = compile(function(x) return ops.multiply(x, w) end)
    for _ = 1, 2 do
      local _, gradients = grad.grad(function(x) return ops.multiply(x, f(b)) end, {a})
      assert.same({15, 24}, gradients[1]:totable())
    end
    f:free()
  end)

  it("that records another one on a second device still records afterwards", function()
    local other = context.create {}
    local a, b = tensor.from {1, 2}, tensor.from({1, 2}, "f32", {context = other})
    local inner = compile(function(x) return ops.negate(x) end)
    local f = compile(function(x)
      pcall(inner, b)
      assert.is_truthy(require("pack.core.dispatch").recording)
      return ops.negate(x)
    end)
    assert.same({-1, -2}, f(a):totable())
    f:free()
    inner:free()
    b:free()
    other:close()
  end)
end)

describe("a tensor that a gradient reads again", function()
  support.watch()

  local message = "grad: %s of %s, which its gradient reads again, was %s since"

  local function refuses(what, operation, deed, fn)
    refused(message:format(what, operation, deed), grad.grad, fn, {tensor.from {1, 2}})
    refused(message:format(what, operation, deed), compile(function(x)
      return (grad.grad(fn, {x}))
    end), tensor.from {1, 2})
  end

  it("may not be written to by an operation in between", function()
    local w = tensor.from {3, 4}
    refuses("input b", "multiply", "written to", function(x)
      local y = ops.multiply(x, w)
      ops.fill {shape = {2}, value = 9, out = w}
      return y
    end)
    refuses("output y", "exp", "written to", function(x)
      local y = ops.exp(x)
      ops.copy(w, {out = y:detach(), accumulate = true})
      return y
    end)
  end)

  it("may not be written to through a view, from the host or by a program", function()
    local w = tensor.from {3, 4}
    local write = compile(function(x) return ops.copy(x, {out = w}) end)
    for _, deed in ipairs {
      function() ops.fill {shape = {1}, value = 9, out = w:view {shape = {1}}} end,
      function() w:write_numbers(ffi.new("double[2]")) end,
      function() write(tensor.from {5, 6}) end,
    } do
      refused(message:format("input b", "multiply", "written to"), grad.grad, function(x)
        local y = ops.multiply(x, w)
        deed()
        return y
      end, {tensor.from {1, 2}})
    end
    write:free()
  end)

  it("may not be a program's result that another run overwrites", function()
    local f = compile(function(x) return ops.exp(x) end)
    local a = tensor.from {0, 0}
    refused(message:format("input b", "multiply", "written to"), grad.grad, function(x)
      local y = ops.multiply(x, f(a))
      f(a)
      return y
    end, {tensor.from {1, 2}})
    f:free()
  end)

  it("may not be freed", function()
    refuses("output y", "exp", "freed", function(x)
      local y = ops.exp(x)
      local z = ops.negate(y)
      y:free()
      return z
    end)
  end)

  it("may be written to before it is read, and afterwards", function()
    local w = tensor.from {3, 4}
    local _, gradients = grad.grad(function(x)
      ops.fill {shape = {2}, value = 9, out = w}
      return ops.multiply(x, w)
    end, {tensor.from {1, 2}})
    ops.fill {shape = {2}, value = 1, out = w}
    assert.same({9, 9}, gradients[1]:totable())
  end)
end)

describe("a freed tensor", function()
  it("is refused also when its device is gone", function()
    local own = context.create {}
    local gone = tensor.zeros({2}, "f32", {context = own})
    gone:free()
    own:close()
    collectgarbage()
    refused("negate: input 1 (x) was freed", ops.negate, gone)
    refused("was freed", ops.fill, {shape = {2}, value = 1, out = gone})
    refused("closed", tensor.zeros, {2}, "f32", {context = {handle = gone.context}})
    refused("closed", tensor.zeros, {2}, "f32", {context = own})
    assert.equal("f32 {2} (freed)", tostring(gone))
  end)
end)

describe("what is no tensor, array, context or shape", function()
  support.watch()

  it("is refused by methods", function()
    local a = tensor.from {1, 2, 3}
    refused("methods are called with a colon", a.free)
    refused("methods are called with a colon", a.statistics)
    refused("methods are called with a colon", a.seed_normal, nil, 1, "x")
    refused("the stream's name is a nil", a.seed_normal, a, 1)
    refused("the values are a nil", a.write, a)
    refused("the array has 2 bytes, not 12", a.write, a, "ab")
    refused("the array has 8 bytes, not 12", a.write, a, ffi.new("float[2]"))
    refused("the array has 8 bytes, not 12", a.read, a, ffi.new("float[?]", 2))
    refused("the array has 0 bytes", a.write, a, ffi.new("float *"))
    refused("the array has 16 bytes, not 24", a.write_numbers, a, ffi.new("double[2]"))
    refused("the values are a table", a.write_numbers, a, {1, 2, 3})
    refused("the array has 8 bytes, not 24", tensor.read_all, {a}, {ffi.new("double[1]")})
    refused("entry 1 is a number", tensor.read_all, {5})
    refused("stride is nan", a.view, a, {stride = 0 / 0})
    refused("a number, not a table", a.view, a, 5)
    refused("dimension 0.5", a.size, a, 0.5)
  end)

  it("is refused as a device context", function()
    refused("context is a string", tensor.zeros, {2}, "f32", {context = "cpu"})
    refused("not what pack.context returned", tensor.zeros, {2}, "f32", {context = {handle = 5}})
  end)

  it("is refused where it hides an overflow", function()
    refused("too many elements", tensor.zeros, {0, 2 ^ 40, 2 ^ 40})
    refused("too large", ops.fill, {shape = {0, 2 ^ 40, 2 ^ 40}, value = 0})
    refused("too large", ops.fill, {shape = {2 ^ 30, 2 ^ 30}, value = 0})
  end)

  it("cannot be put into a tensor's fields", function()
    local a = tensor.from {1, 2}
    for _, name in ipairs {"numel", "rank", "dtype", "offset", "stride", "shape", "storage", "context", "raw_numel"} do
      assert.is_false(pcall(function() a[name] = 1000 end), name)
    end
    a.shape[0] = 1000
    assert.same({1, 2}, a:totable())
  end)
end)

describe("an array of the FFI", function()
  support.watch()

  it("is refused where it is larger than the FFI makes them, also by compiled code", function()
    local own = context.create {forecast = true}
    local large = tensor.zeros({2 ^ 16, 2 ^ 14}, "f32", {context = own})
    for _ = 1, 100 do -- until the calls are compiled
      tensor.arange(3)
      tensor.zeros({3}):read_numbers()
      tensor.zeros({3}):read()
    end
    refused("an array of 1073741824 elements of 8 bytes: 2 GiB is the most", large.read_numbers, large)
    refused("an array of 1073741824 elements of 4 bytes: 2 GiB is the most", large.read, large)
    refused("2 GiB is the most", tensor.arange, 2 ^ 53)
    refused("2 GiB is the most", tensor.read_all, {large})
    refused("a count of 0.5", tensor.arange, 0.5)
    refused("the count is missing", tensor.arange)
    refused("totable: [1099511627776, 0] is too large for tables", large.totable,
      tensor.zeros {2 ^ 40, 0})
    refused("entry 1 is a nil", tensor.read_all, {nil, tensor.zeros {1}})
    large:free()
    own:close()
  end)
end)

describe("a worker's view of a packed model", function()
  support.watch()

  it("gives back its views alone when it is freed, and is one worker in all it does", function()
    local config = {vocab_size = 16, layers = 1, width = 8, heads = 2, ffn_width = 16, context_length = 4, rope_theta = 10000,
      norm_eps = 1e-5, init_std = 0.02}
    local model = packed_model.create(config, {num_models = 3})
    model:initialize(1)
    local weight = model.weight["norm.weight"]
    weight:write_numbers(ffi.new("double[24]", 5))
    local one = model:worker(1)
    assert.same({1, one.layout.size}, one.arena.tensor:sizes())
    ops.fill {shape = {1, 8}, value = 7, out = one.weight["norm.weight"]}
    local mean = one:average()
    assert.equal(7, mean.weight["norm.weight"]:totable()[1][8])
    mean:free()
    one:free()
    assert.same({5, 7, 5}, {weight:totable()[1][1], weight:totable()[2][1], weight:totable()[3][1]})
    refused("worker 3 of a model of 3", model.worker, model, 3)
    model:free()
  end)

  it("has an arena [1, D] whose views are its weights, and of a weight put in another's place that one's row", function()
    local config = {vocab_size = 16, layers = 1, width = 8, heads = 2, ffn_width = 16, context_length = 4, rope_theta = 10000,
      norm_eps = 1e-5, init_std = 0.02}
    local model = packed_model.create(config, {num_models = 2})
    local own = tensor.from({{1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2, 2, 2}}, "f32")
    model.weight["blocks.0.ffn_norm.weight"] = own
    local one = model:worker(1)
    for i, name in ipairs(one.names) do
      if name ~= "blocks.0.ffn_norm.weight" then assert.is_true(rawequal(one.weight[name], one.arena:view(name)), name) end
      assert.is_true(rawequal(one.weights[i], one.weight[name]), name)
    end
    assert.same({{2, 2, 2, 2, 2, 2, 2, 2}}, one.weight["blocks.0.ffn_norm.weight"]:totable())
    one:free()
    assert.equal(1, own:totable()[1][1])
    model:free()
  end)

  it("is a row of an arena", function()
    local whole = arena.create(arena.layout {{"a", {2}}, {"b", {3}}}, 2)
    local row = whole:row(1)
    ops.fill {shape = {1, 3}, value = 4, out = row:view "b"}
    row:free()
    assert.same({{0, 0, 0}, {4, 4, 4}}, whole:view("b"):totable())
    whole:free()
  end)
end)

-- Calls visit(path, value) for what is reachable in tables.
local function walk(path, value, visit, seen)
  visit(path, value)
  if type(value) ~= "table" or seen[value] then return end
  seen[value] = true
  for key, inner in pairs(value) do
    visit(path .. "'s key", key)
    walk(path .. "." .. (type(key) == "cdata" and "tensor" or tostring(key)), inner, visit, seen)
  end
end

describe("sizes, counts and offsets", function()
  support.watch()

  -- 64-bit integers of the FFI divide as integers and print as 2LL.
  local function assert_no_integers(path, value)
    walk(path, value, function(at, one)
      local is_wide = type(one) == "cdata" and (ffi.istype("int64_t", one) or ffi.istype("uint64_t", one))
      assert.is_false(is_wide, at .. " is a 64-bit integer of the FFI")
    end, {})
  end

  it("of tensors are Lua numbers", function()
    local t = tensor.zeros {4, 6}
    local v = t:view {shape = {2, 3}, stride = 6, offset = 7}
    assert.same({24, 6, 0, 2}, {t.numel, t.stride, t.offset, t.rank})
    assert.same({6, 6, 7, 2}, {v.numel, v.stride, v.offset, v.rank})
    assert.same({[0] = 2, 3}, v.shape)
    assert.equal(0.25, ops.sum(tensor.ones {4}):item() / 16)
    assert.equal(2.5, tensor.full({4}, 2.5):sum():item() / tensor.zeros({4}).numel)
    local count = 0
    for _ = 1, t.shape[0] do count = count + 1 end
    assert.equal(4, count)
    local _, numel = t:read_numbers()
    assert_no_integers("tensor", {t.numel, t.stride, t.offset, t.rank, t.dtype, t.shape, t:sizes(), t:size(0), #t, numel,
      t:statistics()})
  end)

  it("of contexts and programs are Lua numbers", function()
    local own = context.create {}
    local f = compile(function(x) return ops.negate(x) end)
    local a = tensor.from {1, 2}
    f(a)
    assert_no_integers("context", {own:memory(), own:threads(), own:peak()})
    assert_no_integers("program", f:program(a):memory())
    f:free()
    own:close()
  end)

  it("of trainers are Lua numbers", function()
    local trainer = require "pack.train.trainer"
    local one = trainer.open("configs/smoke.lua")
    local record = one:step()
    assert_no_integers("record", {record, one:evaluate {blocks = 1}, one.updater:status(), one:cursor(),
      one.consensus_distance(one)})
    local skip = {host_tokens = true, host_targets = true}
    for name, value in pairs(one) do
      if not skip[name] then assert_no_integers("trainer." .. name, value) end
    end
    one:free()
    one.context:close()
  end)
end)
