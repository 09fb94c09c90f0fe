-- Continuing a text: greedy, by nucleus sampling, repeatable, until a stop.
local generate = require "pack.model.generate"
local packed_model = require "pack.model.packed"
local support = require "spec.support.helper"
local tensor = require "pack.core.tensor"
local tokenizer = require "pack.data.tokenizer"

local VOCABULARY = 257

-- A small ordinary model with weights large enough that its predictions differ.
local function model(context_length)
  local one = packed_model.create({vocab_size = VOCABULARY, layers = 1, width = 16, heads = 2, ffn_width = 24,
    context_length = context_length or 16, rope_theta = 10000, norm_eps = 1e-5, init_std = 0.3},
    {num_models = 1})
  one:initialize(7)
  return one
end

-- Logits after the last of the ids, from 1, by the model's own whole forward pass.
local function logits_after(one, ids)
  local tokens = tensor.from({{ids}}, "i32")
  local all, count = one:logits(tokens):read_numbers()
  local list = {}
  for id = 1, VOCABULARY do list[id] = all[count - VOCABULARY + id - 1] end
  return list
end

local function likeliest(logits)
  local best = 1
  for id = 2, VOCABULARY do
    if logits[id] > logits[best] then best = id end
  end
  return best - 1
end

-- {id = true} of the fewest likeliest ids that hold top_p together.
local function nucleus(logits, temperature, top_p)
  local order, total = {}, 0
  for id = 1, VOCABULARY do
    order[id] = {id = id - 1, weight = math.exp(logits[id] / temperature)}
    total = total + order[id].weight
  end
  table.sort(order, function(a, b) return a.weight > b.weight end)
  local kept, held = {}, 0
  for _, one in ipairs(order) do
    if held >= top_p then break end
    kept[one.id], held = true, held + one.weight / total
  end
  return kept
end

local function size_of(set)
  local count = 0
  for _ in pairs(set) do count = count + 1 end
  return count
end

describe("Continuing a text", function()
  support.watch()

  it("at temperature 0 takes the likeliest token each time", function()
    local one = model()
    local ids = {10, 20, 30}
    local made = generate.ids(one, ids, {tokens = 6, temperature = 0, seed = 1})
    assert.equal(6, #made)
    for _, id in ipairs(made) do
      assert.equal(likeliest(logits_after(one, ids)), id)
      ids[#ids + 1] = id
    end
  end)

  it("leaves the given ids as they are", function()
    local ids = {1, 2}
    generate.ids(model(), ids, {tokens = 3})
    assert.same({1, 2}, ids)
  end)

  it("repeats with the same seed and differs with another", function()
    local one = model()
    local function made(seed) return generate.ids(one, {5}, {tokens = 20, temperature = 1, seed = seed}) end
    assert.same(made(3), made(3))
    assert.not_same(made(3), made(4))
    assert.same(generate.ids(one, {5}, {tokens = 5}), generate.ids(one, {5}, {tokens = 5, seed = 0}))
  end)

  it("draws only from the fewest tokens that hold top_p", function()
    local one = model()
    local allowed = nucleus(logits_after(one, {42}), 1, 0.2)
    assert.is_true(size_of(allowed) > 1 and size_of(allowed) < 60)
    local seen = {}
    for seed = 1, 80 do
      local id = generate.ids(one, {42}, {tokens = 1, temperature = 1, top_p = 0.2, seed = seed})[1]
      assert.is_true(allowed[id], "token " .. id .. " is outside of the nucleus")
      seen[id] = true
    end
    assert.is_true(size_of(seen) > 1, "sampling always takes the same token")
  end)

  it("draws tokens as often as they are likely", function()
    local one = model()
    local logits = logits_after(one, {42})
    local total, draws, count = 0, 400, 0
    for id = 1, VOCABULARY do total = total + math.exp(logits[id]) end
    local best = likeliest(logits)
    local p = math.exp(logits[best + 1]) / total
    for seed = 1, draws do
      local id = generate.ids(one, {42}, {tokens = 1, temperature = 1, top_p = 1, seed = seed})[1]
      if id == best then count = count + 1 end
    end
    assert.is_true(math.abs(count / draws - p) < 4 * math.sqrt(p * (1 - p) / draws),
      ("%d of %d draws for a probability of %.3f"):format(count, draws, p))
  end)

  it("with a tiny top_p takes the likeliest token at any temperature", function()
    local one = model()
    local greedy = generate.ids(one, {9}, {tokens = 5, temperature = 0})
    assert.same(greedy, generate.ids(one, {9}, {tokens = 5, temperature = 1.5, top_p = 1e-9, seed = 8}))
  end)

  it("ends before the stop token", function()
    local one = model()
    local greedy = generate.ids(one, {9}, {tokens = 8, temperature = 0})
    local stop, first = greedy[3], 3
    for i = 1, 2 do
      if greedy[i] == stop then first = math.min(first, i) end
    end
    local made = generate.ids(one, {9}, {tokens = 8, temperature = 0, stop = stop})
    assert.same({unpack(greedy, 1, first - 1)}, made)
  end)

  it("goes on past the model's context by its last tokens", function()
    local one = model(4)
    local made = generate.ids(one, {1, 2, 3, 4, 5, 6}, {tokens = 3, temperature = 0})
    assert.equal(likeliest(logits_after(one, {3, 4, 5, 6})), made[1])
    assert.equal(likeliest(logits_after(one, {4, 5, 6, made[1]})), made[2])
    assert.equal(3, #made)
  end)

  it("turns text into text, and starts an empty one after the end of a document", function()
    local one, bytes = model(), tokenizer.open "bytes"
    local made = generate.text(one, bytes, "ab", {tokens = 4, temperature = 0})
    assert.equal(bytes:decode(generate.ids(one, {97, 98}, {tokens = 4, temperature = 0, stop = 256})), made)
    assert.equal(bytes:decode(generate.ids(one, {256}, {tokens = 4, temperature = 0, stop = 256})),
      generate.text(one, bytes, "", {tokens = 4, temperature = 0}))
    assert.equal("", generate.text(one, bytes, "ab", {tokens = 0}))
    bytes:close()
  end)

  it("can be shown without its control characters", function()
    assert.equal("a\tb\n?c??d\195\164?", generate.printable("a\tb\n\27c\0\rd\195\164\127"))
    assert.equal("a\239\191\189?\194\160\239\191\189", generate.printable("a\155\194\155\194\160\195")) -- bytes and C1
  end)
end)
