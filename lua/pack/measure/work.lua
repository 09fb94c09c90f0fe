--- The work of operations: floating-point operations and bytes moved, from shapes, dtypes and attributes alone.
--
-- Conventions. A multiplication and an addition are one operation each, and so is a division, a root, an
-- exponential or a logarithm. Where an operation multiplies matrices, its products alone are counted. bytes is
-- what must be read and written once if nothing stays in a cache. model_flops leaves out what is computed
-- again only to save memory (the scores in attention's gradient, the logits in the head's): summed over a step it
-- is work.model_flops of the configuration.
local architectures = require "pack.model.architectures"
local caller = require "pack.core.caller"

caller.register()

local work = {}

local sizes = {f64 = 8, f32 = 4, bf16 = 2, i32 = 4}

local function numel(t)
  local count = 1
  for _, extent in ipairs(t.shape) do count = count * extent end
  return count
end

local function bytes_of(t)
  return t and numel(t) * sizes[t.dtype] or 0
end

-- Whether output o (from 1) is added to.
local function adds(call, o)
  return math.floor((call.accumulate or 0) / 2 ^ (o - 1)) % 2 == 1
end

-- Every input read, every output written, and read before where it is added to.
local function whole(call)
  local bytes = 0
  for i = 1, call.n_inputs do bytes = bytes + bytes_of(call.inputs[i]) end
  for o, output in ipairs(call.outputs) do bytes = bytes + bytes_of(output) * (adds(call, o) and 2 or 1) end
  return bytes
end

-- The same, with the inputs at these places written too.
local function and_writes(...)
  local places = {...}
  return function(call)
    local bytes = whole(call)
    for _, i in ipairs(places) do bytes = bytes + bytes_of(call.inputs[i]) end
    return bytes
  end
end

-- So many operations for each element of the first output, or of input i.
local function each(count, i)
  return {flops = function(call) return count * numel(i and call.inputs[i] or call.outputs[1]) end}
end

local function with_bytes(row, bytes)
  row.bytes = bytes
  return row
end

-- Products of matrices; model is what is left of them without repetitions.
local function products(flops, model)
  return {product = true, flops = flops, model_flops = model or flops}
end

-- count operations of products for each two positions of a sequence that see each other, in each head.
local function seen(count)
  return function(call)
    local n, sequences, positions, heads, width = unpack(call.inputs[1].shape)
    return count * width * n * sequences * heads * positions * (positions + 1) / 2
  end
end

-- count products of hidden states [N, R, d], which are input i, and the head [N, V, d] behind them.
local function head(count, i)
  return function(call)
    local n, rows, width = unpack(call.inputs[i].shape)
    return count * 2 * n * rows * width * call.inputs[i + 1].shape[2]
  end
end

local nothing = each(0)

-- AdamW for each element: 3 for m, 4 for v, and for x a division of each by its correction, root, sum, division,
-- two products and a difference.
local ADAMW = 15

--- The work of each operation by name: {flops = function(call), bytes = function(call) (default: every input
-- and output once), product (it multiplies matrices), model_flops = function(call) (of products)}.
work.rows = {
  add = each(1), subtract = each(1), multiply = each(1), divide = each(1), minimum = each(1), maximum = each(1), less = each(1),
  where = nothing,
  affine = each(2), negate = each(1), abs = each(1), sign = each(1), round = each(1), floor = each(1),
  exp = each(1), log = each(1), sqrt = each(1), rsqrt = each(2),
  sigmoid = each(4), silu = each(5), cast = nothing,
  copy = {flops = function(call) return adds(call, 1) and numel(call.outputs[1]) or 0 end},

  sum = each(1, 1), max = each(1, 1), sum_to = each(1, 1),
  mean = {flops = function(call) return numel(call.inputs[1]) + numel(call.outputs[1]) end},

  reshape = nothing, transpose = nothing, pad = nothing, concat = nothing, expand = nothing, causal_mask = nothing,
  slice = {flops = nothing.flops, bytes = function(call) return 2 * bytes_of(call.outputs[1]) end},

  -- Box-Muller: logarithm, root, sine or cosine, three products; then deviation and mean.
  fill = nothing, random_normal = each(8), random_uniform = each(1),

  matmul = products(function(call)
    local a = call.inputs[1].shape
    return 2 * numel(call.outputs[1]) * (call.attributes.transpose_a == 1 and a[#a - 1] or a[#a])
  end),

  -- Of the table, the rows that are looked up.
  embedding = {flops = nothing.flops, bytes = function(call)
    return bytes_of(call.inputs[2]) + 2 * bytes_of(call.outputs[1])
  end},
  -- Each row of g is added to a row of the table, which is zeroed before unless it is added to.
  embedding_grad = {flops = each(1, 1).flops, bytes = function(call)
    local zeroed = adds(call, 1) and 0 or bytes_of(call.outputs[1])
    return 3 * bytes_of(call.inputs[1]) + bytes_of(call.inputs[2]) + zeroed
  end},
  pick = {flops = nothing.flops, bytes = function(call)
    return 2 * bytes_of(call.outputs[1]) + bytes_of(call.inputs[2])
  end},
  unpick = nothing,

  -- Squares and their sum, then two products. The gradient: g w; the sum of g w x; two products and a difference;
  -- two products and a sum for the weight.
  rmsnorm = each(4), add_rmsnorm = each(5), rmsnorm_grad = each(9, 1),
  rope = each(3), -- of two elements: four products, a sum and a difference
  rope_split = each(2, 1), rope_join = each(2), -- two of three elements are turned
  swiglu = each(6), swiglu_grad = each(12, 1), swiglu_split = each(6), swiglu_split_grad = each(12, 1),
  attention = products(seen(4)), -- q k and p v
  attention_grad = products(seen(10), seen(8)), -- the scores again, then g v, p g, ds k and ds q

  cross_entropy = each(4, 1), cross_entropy_grad = each(3, 2),
  linear_cross_entropy = products(head(1, 1)),
  linear_cross_entropy_grad = products(head(3, 2), head(2, 2)), -- the logits again
  linear_cross_entropy_step = products(head(3, 2)),

  inverse_count = each(1), gradient_norm = each(2, 1), sum_squares = each(2, 1),
  check_arena = each(1, 1),
  check_finite = {flops = function() return 0 end},
  clip = with_bytes(each(2, 1), and_writes(1)),
  mix = with_bytes({flops = function(call)
    return 2 * call.inputs[1].shape[1] * numel(call.inputs[1])
  end}, and_writes(1)),
  adamw = with_bytes(each(ADAMW, 1), and_writes(1, 3, 4)),
  sgd = with_bytes(each(6, 1), function(call)
    return whole(call) + bytes_of(call.inputs[1]) + bytes_of(call.inputs[3])
  end),
  blend = {flops = each(3, 1).flops, bytes = function(call)
    local reads = call.attributes.own ~= 0 or call.attributes.lerp ~= 0
    return whole(call) + (reads and bytes_of(call.inputs[1]) or 0)
  end},
  update = {
    flops = function(call) return (2 + 2 * call.inputs[1].shape[1] + ADAMW) * numel(call.inputs[1]) end,
    -- The last input, the copy in bf16, is written alone.
    bytes = and_writes(1, 3, 4),
  },

  topk_mask = {flops = nothing.flops, bytes = function(call)
    return 5 * bytes_of(call.inputs[1]) + bytes_of(call.outputs[1]) -- a pass for each digit of the keys, two to write
  end},
  random_columns = each(1),
  -- Of x, the columns that are looked up or written.
  gather_columns = {flops = nothing.flops, bytes = function(call)
    return bytes_of(call.inputs[2]) + 2 * bytes_of(call.outputs[1])
  end},
  scatter_columns = {flops = nothing.flops, bytes = function(call)
    local columns = call.inputs[1].shape[1] / call.inputs[3].shape[1]
    return bytes_of(call.inputs[2]) + (1 + columns) * bytes_of(call.inputs[3])
  end},
  average = each(1, 1), consensus_distance = each(4, 1),
}

local rows = work.rows
--- The work of one call: flops, bytes, model_flops. call: name, inputs and outputs (lists of {dtype, shape};
-- inputs has n_inputs places, of which some may be empty), attributes (by name), accumulate (bits of outputs
-- that are added to), again (a recorded program computed it before: no work of the model). Operations without a
-- row are an error.
function work.of(call)
  local row = rows[call.name]
  if not row then caller.raise("work.of: there is no operation '%s'", tostring(call.name)) end
  local model = row.model_flops
  return row.flops(call), (row.bytes or whole)(call), model and not call.again and model(call) or 0
end

--- Whether an operation multiplies matrices, so that its ceiling is that of products.
function work.is_product(name)
  return rows[name] ~= nil and rows[name].product == true
end

--- Floating-point operations of a training step's products, of all workers: for each target, 6 for each weight of a
-- matrix (2 forward, 4 backward), the head included and the look-up of embeddings not, and
-- 6 (T + 1) d for attention of width d in each layer: 2 d forward and 4 d backward for scores, as
-- much for values, over the (T + 1) / 2 positions that one position sees on average. What is computed again to save memory is not counted.
function work.model_flops(config)
  local model = config.model
  local attention = architectures.of(model).attention_width(model)
  local per_target = 6 * (architectures.multiplied(model) + (model.context_length + 1) * attention)
  return config.training.batch_tokens * per_target
end

return work
