-- Shape rules: what operations refuse, and that the message has the operation, the names and the values.
local numbers = require "spec.support.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"

local refused = numbers.assert_refused

local function zeros(shape, dtype)
  return tensor.zeros(shape, dtype or "f32")
end

describe("dtypes", function()
  it("are never promoted", function()
    refused("add: a is f32, but b is f64: cast one of them", ops.add, zeros {2}, zeros({2}, "f64"))
    refused("concat: input 0 is f32, but input 1 is bf16", ops.concat, zeros {2}, zeros({2}, "bf16"),
      {axis = 0})
    refused("matmul: a is bf16, but b is f32", ops.matmul, zeros({2, 2}, "bf16"), zeros {2, 2})
    refused("rmsnorm: x is f32, but weight is f64", ops.rmsnorm, zeros {1, 2, 3}, zeros({1, 3}, "f64"),
      {eps = 1e-5})
  end)

  it("bf16 is cast before arithmetic, and whole numbers too", function()
    refused("exp: x is bf16: arithmetic is done in f32 and f64, cast it first", ops.exp,
      zeros({2}, "bf16"))
    refused("sum: x is i32: arithmetic", ops.sum, zeros({2}, "i32"))
    refused("matmul: a is i32: f64, f32 or bf16 is wanted", ops.matmul, zeros({2, 2}, "i32"),
      zeros({2, 2}, "i32"))
    refused("swiglu: gate is bf16", ops.swiglu, zeros({2}, "bf16"), zeros({2}, "bf16"))
  end)

  it("indices are i32", function()
    refused("embedding: ids is f32, but i32 is wanted", ops.embedding, zeros {1, 4, 2}, zeros {1, 3})
    refused("pick: index is f64, but i32 is wanted", ops.pick, zeros {1, 2, 3}, zeros({1, 2}, "f64"))
    refused("cross_entropy: targets is f32, but i32 is wanted", ops.cross_entropy, zeros {1, 2, 3},
      zeros {1, 2})
  end)
end)

describe("extents", function()
  it("of two inputs must broadcast", function()
    refused("add: a [2, 3] and b [2, 4] do not broadcast: 3 is not 4", ops.add, zeros {2, 3}, zeros {2, 4})
    refused("multiply: a [3] and b [2, 2]", ops.multiply, zeros {3}, zeros {2, 2})
  end)

  it("of products must agree", function()
    refused("matmul: a [4, 8, 3] and b [4, 5, 7] do not agree: 3 is not 5", ops.matmul, zeros {4, 8, 3},
      zeros {4, 5, 7})
    refused("matmul: a [4, 8, 3] and b [4, 5, 7] do not agree: 8 is not 5", ops.matmul, zeros {4, 8, 3},
      zeros {4, 5, 7}, {transpose_a = true})
    refused("3 is not 7", ops.matmul, zeros {4, 8, 3}, zeros {4, 5, 7}, {transpose_b = true})
    refused("4 workers are not 2", ops.matmul, zeros {4, 8, 3}, zeros {2, 3, 7})
    refused("must both be [N, rows, columns] or [rows, columns]", ops.matmul, zeros {4, 8, 3}, zeros {3, 7})
    refused("must both be", ops.matmul, zeros {3}, zeros {3})
  end)

  it("of reductions are known axes, each once", function()
    refused("sum: axis 2 is not one of the 2 of x [3, 4]", ops.sum, zeros {3, 4}, {axes = {2}})
    refused("mean: axis -3 is not one", ops.mean, zeros {3, 4}, {axes = {-3}})
    refused("max: axis 1 is given twice", ops.max, zeros {3, 4}, {axes = {1, 1}})
    refused("sum_to: shape [2] does not broadcast to x [3, 4]", ops.sum_to, zeros {3, 4}, {shape = {2}})
    refused("sum_to: shape [1, 3, 4]", ops.sum_to, zeros {3, 4}, {shape = {1, 3, 4}})
  end)

  it("of moves must fit", function()
    refused("reshape: x [3, 4] has 12 elements, which do not fill shape [5, 2]", ops.reshape, zeros {3, 4},
      {5, 2})
    refused("which do not fill shape [5, -1]", ops.reshape, zeros {3, 4}, {5, -1})
    refused("more than one -1 in shape [-1, -1]", ops.reshape, zeros {3, 4}, {-1, -1})
    refused("negative extent in shape [-2, -6]", ops.reshape, zeros {3, 4}, {-2, -6})
    refused("do not fill shape [0, -1]", ops.reshape, zeros {3, 0}, {0, -1})
    refused("transpose: [0, 0] is not a permutation of the 2 dimensions of x [3, 4]", ops.transpose,
      zeros {3, 4}, {0, 0})
    refused("[0] is not a permutation", ops.transpose, zeros {3, 4}, {0})
    refused("slice: 3 entries from 2 are not within axis 1 of x [3, 4]", ops.slice, zeros {3, 4},
      {axis = 1, start = 2, count = 3})
    refused("slice: -1 entries", ops.slice, zeros {3, 4}, {axis = 1, start = 2, count = -1})
    refused("slice: axis 2 is not", ops.slice, zeros {3, 4}, {axis = 2, start = 0, count = 0})
    refused("pad: cannot pad by -1 before and 0 after", ops.pad, zeros {3}, {axis = 0, before = -1, after = 0})
    refused("concat: input 1 [3, 5] does not continue input 0 [3, 4] along axis 0", ops.concat, zeros {3, 4},
      zeros {3, 5}, {axis = 0})
    refused("expand: x [3] does not broadcast to shape [2, 4]", ops.expand, zeros {3}, {2, 4})
    refused("causal_mask: x [2, 3] must be [..., T, T]", ops.causal_mask, zeros {2, 3}, {fill = 0})
  end)

  it("of the model's pieces follow from x", function()
    refused("rmsnorm: x [2, 3] must be [N, R, d]", ops.rmsnorm, zeros {2, 3}, zeros {3}, {eps = 1e-5})
    refused("rmsnorm: weight [1, 4] must be [1, 3], as x [N, R, d] says", ops.rmsnorm, zeros {1, 2, 3},
      zeros {1, 4}, {eps = 1e-5})
    refused("rmsnorm: eps -1 is not a number >= 0", ops.rmsnorm, zeros {1, 2, 3}, zeros {1, 3}, {eps = -1})
    refused("rope: the head dimension 3 is odd", ops.rope, zeros {1, 1, 2, 1, 3}, {theta = 10000})
    refused("rope: theta 0", ops.rope, zeros {1, 1, 2, 1, 4}, {theta = 0})
    refused("rope_split: 4 heads are not those of q, k and v", ops.rope_split, zeros {1, 1, 2, 4, 4}, {theta = 1})
    refused("rope_split: the head dimension 3 is odd", ops.rope_split, zeros {1, 1, 2, 3, 3}, {theta = 1})
    refused("rope_join: v [1, 1, 2, 2, 4] must be [1, 1, 2, 1, 4], as q says", ops.rope_join, zeros {1, 1, 2, 1, 4},
      zeros {1, 1, 2, 1, 4}, zeros {1, 1, 2, 2, 4}, {theta = 1})
    refused("swiglu_split: x is not [N, ..., 2f]", ops.swiglu_split, zeros {2, 3})
    refused("swiglu_split: x is not [N, ..., 2f]", ops.swiglu_split, zeros {2})
    refused("swiglu_split_grad: g [2, 4] must be [2, 3]", ops.swiglu_split_grad, zeros {2, 4}, zeros {2, 6})
    refused("attention: v [1, 1, 2, 1, 6] must be [1, 1, 2, 1, 4], as q says", ops.attention,
      zeros {1, 1, 2, 1, 4}, zeros {1, 1, 2, 1, 4}, zeros {1, 1, 2, 1, 6}, {scale = 1})
    refused("cross_entropy: targets [1, 3] must be [1, 2], as logits says", ops.cross_entropy,
      zeros {1, 2, 5}, zeros({1, 3}, "i32"))
    refused("linear_cross_entropy: weight [1, 5, 4] must be [1, 5, 3]", ops.linear_cross_entropy,
      zeros {1, 2, 3}, zeros {1, 5, 4}, zeros({1, 2}, "i32"))
    refused("embedding: ids [2, 3] must have the 1 workers of weight [1, 4, 2] first", ops.embedding,
      zeros {1, 4, 2}, zeros({2, 3}, "i32"))
    refused("embedding_grad: vocabulary 0 is not in 1", ops.embedding_grad, zeros {1, 3, 2},
      zeros({1, 3}, "i32"), {vocabulary = 0})
  end)

  it("of the training step are fixed", function()
    local x, n = zeros {2, 64}, zeros({2}, "f64")
    local scalars, guard = zeros({12}, "f64"), zeros({8}, "i32")
    refused("gradient_norm: scale [3] must be [2], as g says", ops.gradient_norm, x, zeros({3}, "f64"))
    refused("gradient_norm: scale is f32, but f64 is wanted", ops.gradient_norm, x, zeros {2})
    refused("check_finite: guard [7] must be [8]", ops.check_finite, zeros {2}, n, scalars,
      zeros({7}, "i32"))
    refused("check_finite: guard is f32, but i32 is wanted", ops.check_finite, zeros {2}, n, scalars, zeros {8})
    refused("clip: the 8 scalars are less than 12", ops.clip, x, n, n, zeros({8}, "f64"), guard)
    refused("mix: mixing [3, 3] must be [2, 2], as x says", ops.mix, x, zeros({3, 3}, "f64"), scalars, guard)
    refused("adamw: blocks [2] must be [1]", ops.adamw, x, x, x, x, zeros({2}, "i32"), scalars, guard)
    local odd = zeros {2, 65}
    refused("adamw: the 65 columns of x are not a multiple of 64", ops.adamw, odd, odd, odd, odd,
      zeros({1}, "i32"), scalars, guard)
    refused("update: bf16 is f32, but bf16 is wanted", ops.update, x, x, x, x, n, n, zeros({2, 2}, "f64"),
      zeros({1}, "i32"), scalars, guard, x)
  end)

  it("are refused when sizes would overflow", function()
    local huge = 2 ^ 40
    refused("expand: shape [1099511627776, 1099511627776] is too large", ops.expand, zeros {1, 1},
      {huge, huge})
    refused("is too large", ops.expand, zeros {1, 1, 1}, {0, huge, huge})
    refused("reshape: shape [1099511627776, 1099511627776] is too large", ops.reshape, zeros {4}, {huge, huge})
    refused("fill: a negative extent in shape [-1]", ops.fill, {shape = {-1}, value = 0})
    refused("fill: 0.5 is not an i32", ops.fill, {shape = {1}, value = 0.5, dtype = "i32"})
    refused("random_normal: i32 cannot be made", ops.random_normal, {shape = {1}, dtype = "i32"})
  end)
end)

describe("results", function()
  it("have the shape and dtype that the operation says", function()
    local half = zeros({2, 3, 4}, "bf16")
    assert.equal("f32", ops.matmul(half, zeros({2, 4, 5}, "bf16")).dtype)
    assert.same({2, 3, 5}, ops.matmul(half, zeros({2, 4, 5}, "bf16")):sizes())
    local loss, count, lse = ops.cross_entropy(zeros {2, 3, 4}, zeros({2, 3}, "i32"))
    assert.same({"f32", "f64", "f32"}, {loss.dtype, count.dtype, lse.dtype})
    assert.same({{2}, {2}, {2, 3}}, {loss:sizes(), count:sizes(), lse:sizes()})
    local heads = zeros({2, 1, 3, 2, 4}, "bf16")
    local o, lse_of_heads = ops.attention(heads, heads, heads, {scale = 1})
    assert.same({"f32", "f32"}, {o.dtype, lse_of_heads.dtype})
    assert.same({2, 1, 2, 3}, lse_of_heads:sizes())
  end)
end)
