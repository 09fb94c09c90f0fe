--- Times the heavy operations at one preset's shapes: packlua scripts/bench_ops.lua [N [PATTERN]]
--
-- One line per operation: shape, milliseconds (the best of several runs), and GFLOP/s with the share of the
-- best large square f32 product of this session, or GB/s of what the operation must read and write.
-- N workers (default 4) share 32,768 targets of the 20m preset; PATTERN selects operations by name.
io.stdout:setvbuf "line"

local ceiling = require "pack.measure.ceiling"
local failure = require "pack.core.failure"
local ops = require "pack.core.ops"
local options = require "pack.run.options"
local tensor = require "pack.core.tensor"

local given = options.parse {
  recipe = "bench_ops", summary = "Times the heavy operations at the 20m preset's shapes.", arg = arg, config = false,
  positional = {name = "N PATTERN", min = 0, max = 2,
    help = "workers (default 4), and a pattern of Lua that names of operations match (default: all)"},
}
local n, pattern = tonumber(given.positional[1] or 4), given.positional[2] or ""
if not n or n < 1 or 32 % n ~= 0 then
  failure.usage("%s workers cannot share 32 sequences; 1, 2, 4, 8, 16 and 32 can", given.positional[1])
end
local d, ffn, heads, vocabulary, positions = 320, 896, 5, 32000, 1024
local rows = 32768 / n
local sequences, width = rows / positions, d / heads

local device = require("pack.core.context").default()

local made_so_far = 0

local function random(shape, dtype)
  made_so_far = made_so_far + 1 -- a seed of its own for each: equal rows would make a softmax that nothing trains to
  local made = ops.random_normal {shape = shape, dtype = "f32", seed = made_so_far, deviation = 0.5}
  return dtype == "bf16" and ops.cast(made, {dtype = dtype}) or made
end

local top = ceiling.product(device, "f32")
print(("%s, N = %d\nlarge square product: %.1f GFLOP/s"):format(device:describe(), n, top / 1e9))

local function line(name, shape, seconds, flops, bytes)
  local rate = flops and ("%7.1f GFLOP/s %4.0f %%"):format(flops / seconds / 1e9, 100 * flops / seconds / top)
    or ("%7.1f GB/s"):format(bytes / seconds / 1e9)
  print(("%-32s %-28s %9.2f ms %s"):format(name, shape, seconds * 1e3, rate))
  collectgarbage()
end

-- Times f, if it is selected. work: flops or bytes.
local function time(name, shape, work, f)
  if name:find(pattern) then line(name, shape, ceiling.best_of(device, f), work.flops, work.bytes) end
end

local function products(dtype)
  for _, case in ipairs {{3 * d, d}, {d, d}, {2 * ffn, d}, {d, ffn}} do -- q, k and v; out; gate and up; down
    local out, inner = unpack(case)
    local x, weight = random({n, rows, inner}, dtype), random({n, out, inner}, dtype)
    local g, y = random({n, rows, out}, dtype), tensor.zeros {n, rows, out}
    local x_grad, weight_grad = tensor.zeros {n, rows, inner}, tensor.zeros {n, out, inner}
    local work, shape = {flops = 2 * n * rows * out * inner}, ("%d x [%d, %d] -> %d"):format(n, rows, inner, out)
    time("matmul forward " .. dtype, shape, work, function() ops.matmul(x, weight, {transpose_b = true, out = y}) end)
    time("matmul x gradient " .. dtype, shape, work, function() ops.matmul(g, weight, {out = x_grad}) end)
    time("matmul weight gradient " .. dtype, shape, work, function()
      ops.matmul(g, x, {transpose_a = true, out = weight_grad, accumulate = true})
    end)
    for _, t in ipairs {x, weight, g, y, x_grad, weight_grad} do t:free() end
  end
end

local function attention(dtype)
  local size = {n, sequences, positions, heads, width}
  local q, k, v = random(size, dtype), random(size, dtype), random(size, dtype)
  local g, o, lse = random(size), tensor.zeros(size), tensor.zeros {n, sequences, heads, positions}
  local grads = {tensor.zeros(size), tensor.zeros(size), tensor.zeros(size)}
  -- Pairs of positions that see each other, counted once.
  local pairs_seen = n * sequences * heads * positions * (positions + 1) / 2
  local shape, options = ("%d x %d x %d x %d x %d"):format(unpack(size)), {scale = width ^ -0.5}
  time("attention " .. dtype, shape, {flops = 4 * width * pairs_seen}, function()
    ops.attention(q, k, v, {scale = options.scale, out = {o, lse}})
  end)
  time("attention_grad " .. dtype, shape, {flops = 10 * width * pairs_seen}, function()
    ops.attention_grad(g, q, k, v, o, lse, {scale = options.scale, out = grads})
  end)
end

local function losses(dtype)
  local x, weight = random({n, rows, d}, dtype), random({n, vocabulary, d}, dtype)
  local list = {}
  for worker = 1, n do
    list[worker] = {}
    for row = 1, rows do list[worker][row] = row * 7919 % vocabulary end
  end
  local targets, g = tensor.from(list, "i32"), tensor.ones {n}
  local out = {tensor.zeros {n}, tensor.zeros({n}, "f64"), tensor.zeros {n, rows}}
  local grads = {tensor.zeros {n, rows, d}, tensor.zeros {n, vocabulary, d}}
  local product, shape = 2 * n * rows * d * vocabulary, ("%d x [%d, %d] -> %d"):format(n, rows, d, vocabulary)
  time("linear_cross_entropy " .. dtype, shape, {flops = product}, function()
    ops.linear_cross_entropy(x, weight, targets, {out = out})
  end)
  time("linear_cross_entropy_grad " .. dtype, shape, {flops = 3 * product}, function()
    ops.linear_cross_entropy_grad(g, x, weight, targets, out[3], {out = grads})
  end)
  time("linear_cross_entropy_step " .. dtype, shape, {flops = 3 * product}, function()
    ops.linear_cross_entropy_step(g, x, weight, targets, {out = {out[1], out[2], out[3], grads[1], grads[2]}})
  end)
end

local function rowwise()
  local x, weight, g = random {n, rows, d}, random {n, d}, random {n, rows, d}
  local y, rstd = tensor.zeros {n, rows, d}, tensor.zeros {n, rows}
  local x_grad, weight_grad = tensor.zeros {n, rows, d}, tensor.zeros {n, d}
  local bytes, shape = 4 * n * rows * d, ("%d x [%d, %d]"):format(n, rows, d)
  time("rmsnorm", shape, {bytes = 2 * bytes}, function() ops.rmsnorm(x, weight, {eps = 1e-5, out = {y, rstd}}) end)
  time("rmsnorm_grad", shape, {bytes = 3 * bytes}, function()
    ops.rmsnorm_grad(g, x, weight, rstd, {out = {x_grad, weight_grad}})
  end)
  local size = {n, sequences, positions, heads, width}
  local whole = random {n, sequences, positions, 3 * heads, width}
  local parts = {}
  for i = 1, 3 do parts[i] = tensor.zeros(size) end
  time("rope_split", shape, {bytes = 6 * bytes}, function() ops.rope_split(whole, {theta = 10000, out = parts}) end)
  time("rope_join", shape, {bytes = 6 * bytes}, function()
    ops.rope_join(parts[1], parts[2], parts[3], {theta = 10000, inverse = true, out = whole})
  end)
  local both, slope = random {n, rows, 2 * ffn}, random {n, rows, ffn}
  local out, both_grad = tensor.zeros {n, rows, ffn}, tensor.zeros {n, rows, 2 * ffn}
  bytes, shape = 4 * n * rows * ffn, ("%d x [%d, %d]"):format(n, rows, ffn)
  time("swiglu_split", shape, {bytes = 3 * bytes}, function() ops.swiglu_split(both, {out = out}) end)
  time("swiglu_split_grad", shape, {bytes = 5 * bytes}, function()
    ops.swiglu_split_grad(slope, both, {out = both_grad})
  end)
end

for _, dtype in ipairs {"f32", "bf16"} do
  products(dtype)
  attention(dtype)
  losses(dtype)
end
rowwise()
