-- Continuing a text with a model.
local ffi = require "ffi"
local native = require "pack.native"
local numbers = require "pack.core.numbers"
local ops = require "pack.core.ops"
local tensor = require "pack.core.tensor"
local utf8 = require "pack.io.utf8"

local generate = {}

-- Logits of the token after `ids`, as a double array from 0.
local function next_logits(model, ids)
  local length = math.min(#ids, model.config.context_length)
  local window = ffi.new("int32_t[?]", length)
  for i = 0, length - 1 do window[i] = ids[#ids - length + 1 + i] end
  local tokens = tensor.zeros({1, 1, length}, "i32", {context = model.context})
  tokens:write(window)
  local hidden = model:hidden(tokens)
  local last = ops.slice(hidden, {axis = 1, start = length - 1, count = 1})
  return (model:logits_of(last):read_numbers())
end

-- Candidates {id, weight}, likeliest first: softmax of logits / temperature.
local function candidates(logits, vocabulary, temperature)
  local largest = -math.huge
  for id = 0, vocabulary - 1 do largest = math.max(largest, logits[id]) end
  local list, total = {}, 0
  for id = 0, vocabulary - 1 do
    local weight = math.exp((logits[id] - largest) / temperature)
    list[id + 1] = {id = id, weight = weight}
    total = total + weight
  end
  for _, one in ipairs(list) do one.weight = one.weight / total end
  table.sort(list, function(a, b)
    if a.weight ~= b.weight then return a.weight > b.weight end
    return a.id < b.id
  end)
  return list
end

-- The id at position u in [0, 1) of the likeliest candidates that together hold top_p.
local function choose(list, top_p, u)
  local kept, held = 0, 0
  repeat
    kept = kept + 1
    held = held + list[kept].weight
  until held >= top_p or kept == #list
  local at = u * held
  for i = 1, kept do
    at = at - list[i].weight
    if at < 0 then return list[i].id end
  end
  return list[kept].id
end

--- Ids that continue `ids` (a list), at most `options.tokens` of them, ending before options.stop.
-- model is an ordinary model (N = 1). options: tokens, temperature (default 0.8; 0 takes the likeliest),
-- top_p (default 0.95; nucleus sampling, Holtzman et al. 2020), seed, stop (an id), vocabulary (only ids below
-- it; default all that the model knows).
function generate.ids(model, ids, options)
  local temperature, top_p = options.temperature or 0.8, options.top_p or 0.95
  local vocabulary = options.vocabulary or model.config.vocab_size
  numbers.whole("seed", options.seed or 0, 0)
  local sequence, made, u = {}, {}, ffi.new("double[1]")
  for i, id in ipairs(ids) do sequence[i] = id end
  for i = 0, options.tokens - 1 do
    local logits = next_logits(model, sequence)
    local list = candidates(logits, vocabulary, math.max(temperature, 1e-6))
    native.C.pk_random_uniform(options.seed or 0, "generate", i, 1, u)
    local id = temperature == 0 and list[1].id or choose(list, top_p, u[0])
    if id == options.stop then break end
    made[#made + 1], sequence[#sequence + 1] = id, id
  end
  return made
end

--- Text that continues `prompt`; options as in generate.ids. An empty prompt starts after an EOS.
function generate.text(model, tokenizer, prompt, options)
  local ids = tokenizer:encode(prompt)
  if #ids == 0 then ids = {tokenizer.eos} end
  local all = {stop = tokenizer.eos, vocabulary = math.min(model.config.vocab_size, tokenizer.vocab_size)}
  for key, value in pairs(options) do all[key] = value end
  local made = generate.ids(model, ids, all)
  -- Decoded alone, the continuation would lose a space at its beginning: pieces drop that of a text.
  local before = tokenizer:decode(ids)
  for _, id in ipairs(made) do ids[#ids + 1] = id end
  return tokenizer:decode(ids):sub(#before + 1)
end

--- The text as it may be shown on a terminal; see pack.utf8.
generate.printable = utf8.printable

return generate
