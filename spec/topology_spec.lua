-- Topologies: their matrices against ones written by hand, their gaps against closed forms, refusals.
local numbers = require "spec.support.numbers"
local spectrum = require "pack.mixing.spectrum"
local topology = require "pack.mixing.topology"

local refused = numbers.assert_refused

-- Options with which a topology is valid for n.
local function options_for(n)
  local group = 1
  for d = 1, math.floor(math.sqrt(n)) do
    if n % d == 0 then group = d end
  end
  return {group = group, period = 3, seed = 5}
end

-- The matrix of rows given as counts, each over divisor.
local function over(divisor, rows)
  local w = {}
  for i, row in ipairs(rows) do
    w[i] = {}
    for j, count in ipairs(row) do w[i][j] = count / divisor end
  end
  return w
end

local function assert_matrix(expected, name, n, s, options)
  local w = topology.create(name, n, options):matrix(s or 0)
  assert.equal(#expected, #w)
  for i = 1, #expected do
    for j = 1, #expected do
      assert(math.abs(expected[i][j] - w[i][j]) < 1e-15,
        ("%s N=%d W[%d][%d] is %.17g, not %.17g"):format(name, n, i, j, w[i][j], expected[i][j]))
    end
  end
end

local function assert_gap(expected, name, n, options)
  local gap = topology.create(name, n, options):spectral_gap()
  assert(math.abs(gap - expected) < 1e-13, ("%s N=%d: gap %.17g, not %.17g"):format(name, n, gap, expected))
end

local function assert_doubly_stochastic(w, n, name)
  for i = 1, n do
    local row, column, least = 0, 0, 0
    for j = 1, n do
      least = math.min(least, w[i][j])
      row, column = row + w[i][j], column + w[j][i]
    end
    if not (least == 0 and math.abs(row - 1) < 1e-12 and math.abs(column - 1) < 1e-12) then
      error(("%s, N = %d, worker %d: row %.17g, column %.17g, least %g"):format(name, n, i - 1, row,
        column, least))
    end
  end
end

describe("every topology", function()
  it("is doubly stochastic for N = 1 .. 64, at every mixing of two periods", function()
    for _, name in ipairs(topology.names()) do
      for n = 1, 64 do
        if name ~= "hypercube" or topology.validate(name, n) then
          local t = topology.create(name, n, options_for(n))
          for s = 0, 2 * (t.period or 4) - 1 do
            assert_doubly_stochastic(t:matrix(s), n, name)
          end
        end
      end
    end
  end)

  it("is the identity for one worker", function()
    for _, name in ipairs(topology.names()) do
      local t = topology.create(name, 1, {group = 1})
      for s = 0, 3 do assert.same({{1}}, t:matrix(s)) end
      if t.period then assert.equal(1, t:spectral_gap()) end
    end
  end)

  it("has the period of the table and gives the same matrix again after it", function()
    local periods = {complete = 1, one_peer_ring = 2, one_peer_exponential = 3, ring = 1, exponential = 1,
      torus = 1, hypercube = 3, star = 1, hierarchical = 5, disconnected = 1}
    for _, name in ipairs(topology.names()) do
      local t = topology.create(name, 8, {group = 2, period = 5})
      assert.equal(periods[name], t.period)
      for s = 0, (t.period or 0) - 1 do assert.equal(t:matrix(s), t:matrix(s + t.period)) end
    end
  end)
end)

describe("the matrix of", function()
  it("complete is 1/N everywhere", function()
    assert_matrix(over(2, {{1, 1}, {1, 1}}), "complete", 2)
    assert_matrix(over(3, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}), "complete", 3)
  end)

  it("one_peer_ring takes from the left at even mixings, from the right at odd ones", function()
    assert_matrix(over(2, {{1, 1}, {1, 1}}), "one_peer_ring", 2, 0)
    assert_matrix(over(2, {{1, 1}, {1, 1}}), "one_peer_ring", 2, 1)
    assert_matrix(over(2, {{1, 0, 1}, {1, 1, 0}, {0, 1, 1}}), "one_peer_ring", 3, 0)
    assert_matrix(over(2, {{1, 1, 0}, {0, 1, 1}, {1, 0, 1}}), "one_peer_ring", 3, 1)
    assert_matrix(over(2, {{1, 0, 0, 1}, {1, 1, 0, 0}, {0, 1, 1, 0}, {0, 0, 1, 1}}), "one_peer_ring", 4, 6)
    assert_matrix(over(2, {{1, 1, 0, 0, 0}, {0, 1, 1, 0, 0}, {0, 0, 1, 1, 0}, {0, 0, 0, 1, 1},
      {1, 0, 0, 0, 1}}), "one_peer_ring", 5, 3)
  end)

  it("one_peer_exponential takes from offsets 1, 2, 4, ... in turn", function()
    assert_matrix(over(2, {{1, 1}, {1, 1}}), "one_peer_exponential", 2, 5)
    assert_matrix(over(2, {{1, 0, 1}, {1, 1, 0}, {0, 1, 1}}), "one_peer_exponential", 3, 0)
    assert_matrix(over(2, {{1, 1, 0}, {0, 1, 1}, {1, 0, 1}}), "one_peer_exponential", 3, 1)
    assert_matrix(over(2, {{1, 0, 0, 1}, {1, 1, 0, 0}, {0, 1, 1, 0}, {0, 0, 1, 1}}),
      "one_peer_exponential", 4, 2)
    assert_matrix(over(2, {{1, 0, 1, 0}, {0, 1, 0, 1}, {1, 0, 1, 0}, {0, 1, 0, 1}}),
      "one_peer_exponential", 4, 1)
    -- Five workers: offset 4 is the right neighbour.
    assert_matrix(over(2, {{1, 1, 0, 0, 0}, {0, 1, 1, 0, 0}, {0, 0, 1, 1, 0}, {0, 0, 0, 1, 1},
      {1, 0, 0, 0, 1}}), "one_peer_exponential", 5, 2)
    assert_matrix(over(2, {{1, 0, 0, 0, 1, 0, 0, 0}, {0, 1, 0, 0, 0, 1, 0, 0}, {0, 0, 1, 0, 0, 0, 1, 0},
      {0, 0, 0, 1, 0, 0, 0, 1}, {1, 0, 0, 0, 1, 0, 0, 0}, {0, 1, 0, 0, 0, 1, 0, 0},
      {0, 0, 1, 0, 0, 0, 1, 0}, {0, 0, 0, 1, 0, 0, 0, 1}}), "one_peer_exponential", 8, 2)
  end)

  it("ring adds up coinciding neighbours", function()
    assert_matrix(over(3, {{1, 2}, {2, 1}}), "ring", 2)
    assert_matrix(over(3, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}), "ring", 3)
    assert_matrix(over(3, {{1, 1, 0, 1}, {1, 1, 1, 0}, {0, 1, 1, 1}, {1, 0, 1, 1}}), "ring", 4)
    assert_matrix(over(3, {{1, 1, 0, 0, 0, 1}, {1, 1, 1, 0, 0, 0}, {0, 1, 1, 1, 0, 0},
      {0, 0, 1, 1, 1, 0}, {0, 0, 0, 1, 1, 1}, {1, 0, 0, 0, 1, 1}}), "ring", 6)
  end)

  it("exponential takes from all powers of two below N at once", function()
    assert_matrix(over(2, {{1, 1}, {1, 1}}), "exponential", 2)
    assert_matrix(over(3, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}), "exponential", 3)
    assert_matrix(over(3, {{1, 0, 1, 1}, {1, 1, 0, 1}, {1, 1, 1, 0}, {0, 1, 1, 1}}), "exponential", 4)
    assert_matrix(over(4, {{1, 1, 0, 1, 1}, {1, 1, 1, 0, 1}, {1, 1, 1, 1, 0}, {0, 1, 1, 1, 1},
      {1, 0, 1, 1, 1}}), "exponential", 5)
    assert_matrix(over(4, {{1, 0, 1, 0, 1, 1}, {1, 1, 0, 1, 0, 1}, {1, 1, 1, 0, 1, 0},
      {0, 1, 1, 1, 0, 1}, {1, 0, 1, 1, 1, 0}, {0, 1, 0, 1, 1, 1}}), "exponential", 6)
  end)

  it("torus wraps around r x c, r the largest divisor up to sqrt N", function()
    assert_matrix(over(5, {{3, 2}, {2, 3}}), "torus", 2) -- 1 x 2
    assert_matrix(over(5, {{3, 1, 1}, {1, 3, 1}, {1, 1, 3}}), "torus", 3) -- 1 x 3
    assert_matrix(over(5, {{1, 2, 2, 0}, {2, 1, 0, 2}, {2, 0, 1, 2}, {0, 2, 2, 1}}), "torus", 4) -- 2 x 2
    assert_matrix(over(5, {{3, 1, 0, 0, 1}, {1, 3, 1, 0, 0}, {0, 1, 3, 1, 0}, {0, 0, 1, 3, 1},
      {1, 0, 0, 1, 3}}), "torus", 5)
    assert_matrix(over(5, {{1, 1, 1, 2, 0, 0}, {1, 1, 1, 0, 2, 0}, {1, 1, 1, 0, 0, 2},
      {2, 0, 0, 1, 1, 1}, {0, 2, 0, 1, 1, 1}, {0, 0, 2, 1, 1, 1}}), "torus", 6) -- 2 x 3
    assert_matrix(over(5, {{1, 1, 0, 1, 2, 0, 0, 0}, {1, 1, 1, 0, 0, 2, 0, 0}, {0, 1, 1, 1, 0, 0, 2, 0},
      {1, 0, 1, 1, 0, 0, 0, 2}, {2, 0, 0, 0, 1, 1, 0, 1}, {0, 2, 0, 0, 1, 1, 1, 0},
      {0, 0, 2, 0, 0, 1, 1, 1}, {0, 0, 0, 2, 1, 0, 1, 1}}), "torus", 8) -- 2 x 4
  end)

  it("hypercube exchanges along one dimension after the other", function()
    assert_matrix(over(2, {{1, 1}, {1, 1}}), "hypercube", 2, 3)
    assert_matrix(over(2, {{1, 1, 0, 0}, {1, 1, 0, 0}, {0, 0, 1, 1}, {0, 0, 1, 1}}), "hypercube", 4, 0)
    assert_matrix(over(2, {{1, 0, 1, 0}, {0, 1, 0, 1}, {1, 0, 1, 0}, {0, 1, 0, 1}}), "hypercube", 4, 1)
    assert_matrix(over(2, {{1, 0, 1, 0, 0, 0, 0, 0}, {0, 1, 0, 1, 0, 0, 0, 0}, {1, 0, 1, 0, 0, 0, 0, 0},
      {0, 1, 0, 1, 0, 0, 0, 0}, {0, 0, 0, 0, 1, 0, 1, 0}, {0, 0, 0, 0, 0, 1, 0, 1},
      {0, 0, 0, 0, 1, 0, 1, 0}, {0, 0, 0, 0, 0, 1, 0, 1}}), "hypercube", 8, 4)
  end)

  it("star has Metropolis weights", function()
    assert_matrix(over(2, {{1, 1}, {1, 1}}), "star", 2)
    assert_matrix(over(3, {{1, 1, 1}, {1, 2, 0}, {1, 0, 2}}), "star", 3)
    assert_matrix(over(4, {{1, 1, 1, 1}, {1, 3, 0, 0}, {1, 0, 3, 0}, {1, 0, 0, 3}}), "star", 4)
    assert_matrix(over(5, {{1, 1, 1, 1, 1}, {1, 4, 0, 0, 0}, {1, 0, 4, 0, 0}, {1, 0, 0, 4, 0},
      {1, 0, 0, 0, 4}}), "star", 5)
  end)

  it("random_matching pairs the workers of the stream's permutation", function()
    -- Permutations 0 2 4 3 5 1, 2 3 4 5 0 1 and 0 2 4 3 1 of an independent program.
    assert_matrix(over(2, {{1, 0, 1, 0, 0, 0}, {0, 1, 0, 0, 0, 1}, {1, 0, 1, 0, 0, 0}, {0, 0, 0, 1, 1, 0},
      {0, 0, 0, 1, 1, 0}, {0, 1, 0, 0, 0, 1}}), "random_matching", 6, 0, {seed = 5})
    assert_matrix(over(2, {{1, 1, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0}, {0, 0, 1, 1, 0, 0}, {0, 0, 1, 1, 0, 0},
      {0, 0, 0, 0, 1, 1}, {0, 0, 0, 0, 1, 1}}), "random_matching", 6, 1, {seed = 5})
    assert_matrix(over(2, {{1, 0, 1, 0, 0}, {0, 2, 0, 0, 0}, {1, 0, 1, 0, 0}, {0, 0, 0, 1, 1},
      {0, 0, 0, 1, 1}}), "random_matching", 5, 0, {seed = 5})
  end)

  it("hierarchical is complete in groups and, every period-th mixing, across all", function()
    local within = over(2, {{1, 1, 0, 0}, {1, 1, 0, 0}, {0, 0, 1, 1}, {0, 0, 1, 1}})
    local across = over(4, {{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}})
    local options = {group = 2, period = 3}
    for s = 0, 6 do
      assert_matrix((s == 2 or s == 5) and across or within, "hierarchical", 4, s, options)
    end
    assert_matrix(over(3, {{1, 1, 1, 0, 0, 0}, {1, 1, 1, 0, 0, 0}, {1, 1, 1, 0, 0, 0}, {0, 0, 0, 1, 1, 1},
      {0, 0, 0, 1, 1, 1}, {0, 0, 0, 1, 1, 1}}), "hierarchical", 6, 0, {group = 3})
  end)

  it("disconnected is the identity", function()
    assert_matrix({{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}, "disconnected", 3)
  end)
end)

describe("random_matching", function()
  -- The partner of every worker, as text.
  local function partners(seed, n, s)
    local w, list = topology.create("random_matching", n, {seed = seed}):matrix(s), {}
    for i = 1, n do
      list[i] = i
      for j = 1, n do
        if j ~= i and w[i][j] > 0 then list[i] = j end
      end
    end
    return table.concat(list, " ")
  end

  it("depends on seed and mixing alone, not on what was asked before", function()
    local t = topology.create("random_matching", 8, {seed = 3})
    local later = t:matrix(9)
    for s = 0, 8 do t:matrix(s) end
    assert.same(later, t:matrix(9))
    assert.same(later, topology.create("random_matching", 8, {seed = 3}):matrix(9))
    assert.not_equal(partners(3, 8, 9), partners(4, 8, 9))
    assert.not_equal(partners(3, 8, 9), partners(3, 8, 10))
  end)

  it("pairs everybody for even N and leaves one alone for odd N", function()
    for n = 2, 9 do
      for s = 0, 5 do
        local w, alone = topology.create("random_matching", n, {seed = 1}):matrix(s), 0
        for i = 1, n do
          if w[i][i] == 1 then alone = alone + 1 else assert.equal(0.5, w[i][i]) end
        end
        assert.equal(n % 2, alone)
      end
    end
  end)

  it("gives each of the three pairings of four workers a third of the time", function()
    local counts = {}
    for s = 0, 2999 do
      local name = partners(1, 4, s)
      counts[name] = (counts[name] or 0) + 1
    end
    local kinds = 0
    for _, count in pairs(counts) do
      kinds = kinds + 1
      assert.is_true(math.abs(count - 1000) < 5 * math.sqrt(3000 * 2 / 9))
    end
    assert.equal(3, kinds)
  end)
end)

describe("the spectral gap", function()
  local cos, pi = math.cos, math.pi

  it("is 1 where a period averages exactly, for every N", function()
    for n = 2, 33 do
      assert.equal(1, topology.create("complete", n):spectral_gap())
      assert.equal(1, topology.create("hierarchical", n, options_for(n)):spectral_gap())
    end
    for _, n in ipairs({2, 4, 8, 16, 32, 64}) do
      assert.equal(1, topology.create("one_peer_exponential", n):spectral_gap())
      assert.equal(1, topology.create("hypercube", n):spectral_gap())
    end
  end)

  it("is 0 for disconnected", function()
    for n = 2, 40 do assert_gap(0, "disconnected", n) end
  end)

  it("of circulant matrices is that of their eigenvalues", function()
    for n = 3, 40 do
      local ring, one_peer, torus = 0, 0, 0
      for k = 1, n - 1 do
        local c = cos(2 * pi * k / n)
        ring = math.max(ring, math.abs(1 + 2 * c) / 3)
        one_peer = math.max(one_peer, (1 + c) / 2) -- |1 + w|^2 / 4 over two mixings
        torus = math.max(torus, math.abs(3 + 2 * c) / 5)
      end
      assert_gap(1 - ring, "ring", n)
      assert_gap(1 - math.sqrt(one_peer), "one_peer_ring", n)
      if n == 5 or n == 7 or n == 31 then assert_gap(1 - torus, "torus", n) end -- 1 x N
    end
  end)

  it("of the static exponential graph of 2^K workers is 2 / (K + 1)", function()
    for k = 2, 6 do assert_gap(2 / (k + 1), "exponential", 2 ^ k) end
  end)

  it("of a torus is that of its two rings together", function()
    local largest = 0
    for a = 0, 3 do
      for b = 0, 4 do
        local eigenvalue = (1 + 2 * cos(2 * pi * a / 4) + 2 * cos(2 * pi * b / 5)) / 5
        if a + b > 0 then largest = math.max(largest, math.abs(eigenvalue)) end
      end
    end
    assert_gap(1 - largest, "torus", 20)
  end)

  it("of a star is 1/N", function()
    for n = 3, 40 do assert_gap(1 / n, "star", n) end
  end)

  it("of products that are not symmetric is that of their singular values", function()
    -- Offsets 1, 2 and 4 in turn among N: circulant, so eigenvalues multiply.
    for _, n in ipairs({5, 6, 7}) do
      local largest = 0
      for k = 1, n - 1 do
        local product = 1
        for e = 0, 2 do product = product * math.abs(cos(pi * k * 2 ^ e / n)) end
        largest = math.max(largest, product)
      end
      assert_gap(1 - largest ^ (1 / 3), "one_peer_exponential", n)
    end
    -- 2 x 2 blocks by hand: W = [[a, 1-a], [1-a, a]] has sigma 2a - 1.
    local function f() return {{0.9, 0.1}, {0.1, 0.9}} end
    local t = topology.create(f, 2, {period = 1})
    assert.is_true(math.abs(t:spectral_gap() - 0.2) < 1e-15)
    assert.is_true(math.abs(t:spectral_gap(7) - 0.2) < 1e-15)
  end)

  it("needs to know over how many mixings where there is no period", function()
    local t = topology.create("random_matching", 4, {seed = 1})
    local gap, message = t:spectral_gap()
    assert.is_nil(gap)
    assert.truthy(message:find("no period", 1, true))
    assert.is_true(math.abs(t:spectral_gap(1)) < 1e-14) -- two pairs do not know of each other
    assert.is_true(t:spectral_gap(10) > 0.1)
  end)
end)

describe("second_singular_value", function()
  it("keeps the digits of small values", function()
    -- W = J + e u v^T with u, v orthogonal to ones: sigma_2 = e exactly.
    local e, w = 2 ^ -30, {}
    local u, v = {0.5, -0.5, 0.5, -0.5}, {0.5, 0.5, -0.5, -0.5}
    for i = 1, 4 do
      w[i] = {}
      for j = 1, 4 do w[i][j] = 0.25 + e * u[i] * v[j] end
    end
    assert.is_true(math.abs(spectrum.second_singular_value(w) / e - 1) < 1e-6)
  end)
end)

describe("a topology function", function()
  it("is called with N and the number of the mixing, anew unless it has a period", function()
    local calls = {}
    local function f(n, s)
      calls[#calls + 1] = n .. ":" .. s
      return {{1, 0}, {0, 1}}
    end
    local t = topology.create(f, 2)
    t:matrix(0); t:matrix(3); t:matrix(3)
    assert.same({"2:0", "2:3", "2:3"}, calls)
    calls = {}
    t = topology.create(f, 2, {period = 2})
    for s = 0, 4 do t:matrix(s) end
    assert.same({"2:0", "2:1"}, calls)
  end)

  local function matrix_refused(text, w)
    local t = topology.create(function() return w end, 2)
    refused(text, t.matrix, t, 4)
  end

  it("is refused with row, column and value where its matrix is not doubly stochastic", function()
    matrix_refused("row of worker 1 (number 2 of W) sums to 0.9", {{0.5, 0.5}, {0.5, 0.4}})
    matrix_refused("column of worker 0 (number 1 of W) sums to 1.5", {{1, 0}, {0.5, 0.5}})
    matrix_refused("W[1][2], what worker 0 takes from worker 1, is -0.5", {{1.5, -0.5}, {-0.5, 1.5}})
    matrix_refused("W[2][1], what worker 1 takes from worker 0, is nan", {{1, 0}, {0 / 0, 1}})
    matrix_refused("is inf", {{math.huge, 0}, {0, 1}})
    matrix_refused("W[1][1], what worker 0 takes from worker 0, is 1", {{"1", 0}, {0, 1}})
    matrix_refused("W has 1 rows for 2 workers", {{1}})
    matrix_refused("W[2], the row of worker 1, has 1 entries for 2 workers", {{1, 0}, {1}})
    matrix_refused("W[2], the row of worker 1, is a number", {{1, 0}, 1})
    matrix_refused("W is a nil", nil)
    matrix_refused("2 workers, mixing 4", {{1, 1}, {0, 0}})
  end)

  it("may be off by 1e-13 but not by 1e-11", function()
    local function f(_, s)
      local d = s == 0 and 1e-13 or 1e-11
      return {{0.5 + d, 0.5}, {0.5, 0.5}}
    end
    local t = topology.create(f, 2)
    assert.equal(0.5 + 1e-13, t:matrix(0)[1][1])
    refused("must be doubly stochastic to 1e-12", t.matrix, t, 1)
  end)

  it("that fails shows its own file and line and a traceback through it", function()
    local line
    local function fails()
      line = debug.getinfo(1, "l").currentline + 1
      error("no such graph")
    end
    local t = topology.create(fails, 2)
    local good, message = xpcall(function() return t:matrix(0) end, debug.traceback)
    assert.is_false(good)
    assert.truthy(message:find(("topology_spec.lua:%d: no such graph"):format(line), 1, true))
    assert.truthy(message:find("in function 'fails'", 1, true)
      or message:find(("topology_spec.lua:%d: in function"):format(line), 1, true))
  end)
end)

describe("topology.validate", function()
  local function says(text, name, n, options)
    local good, message = topology.validate(name, n, options)
    assert.is_nil(good)
    assert(message:find(text, 1, true), message)
    refused(text, topology.create, name, n, options)
  end

  it("names the valid numbers of workers", function()
    says("topology hypercube is not valid for N = 6: N must be a power of two (1, 2, 4, 8", "hypercube", 6)
    says("group 3 does not divide it; groups of 1, 2, 4, 8 do", "hierarchical", 8, {group = 3})
    says("it needs group", "hierarchical", 8)
    says("period must be a whole number", "hierarchical", 8, {group = 2, period = 0})
    for _, n in ipairs({0, -1, 2.5, 0 / 0, "4"}) do
      says("it must be a whole number of at least 1", "ring", n)
    end
    says("it needs a seed", "random_matching", 4, {seed = -1})
    says("the period of a topology function is 0", function() end, 4, {period = 0})
    for _, n in ipairs({1, 2, 4, 64}) do assert.is_true(topology.validate("hypercube", n)) end
  end)

  it("names the topologies when there is no such one", function()
    says("there is no topology circle; there are complete, one_peer_ring", "circle", 4)
  end)

  it("knows the names of the configuration", function()
    assert.same(require("pack.config.schema").topologies, topology.names())
  end)
end)

describe("a topology", function()
  it("describes its matrices and gap as text", function()
    assert.equal(table.concat({
      "one_peer_ring, 3 workers, period 2, spectral gap 0.500000",
      " mixing 0",
      "   0  0.500     . 0.500",
      "   1  0.500 0.500     .",
      "   2      . 0.500 0.500",
      " mixing 1",
      "   0  0.500 0.500     .",
      "   1      . 0.500 0.500",
      "   2  0.500     . 0.500"}, "\n"), topology.create("one_peer_ring", 3):describe())
    local wide = tostring(topology.create("one_peer_exponential", 32))
    assert.truthy(wide:find("32 workers, period 5, spectral gap 1.000000", 1, true))
    assert.truthy(wide:find("   3  2: 0.500  3: 0.500\n", 1, true))
    assert.truthy(tostring(topology.create("random_matching", 4)):find("no period", 1, true))
  end)

  it("refuses a mixing that is not a number from 0", function()
    local t = topology.create("ring", 4)
    for _, s in ipairs({-1, 0.5, "0"}) do refused("must be a whole number", t.matrix, t, s) end
  end)
end)

describe("mix_every", function()
  it("mixes at the last step of each group and counts mixings", function()
    local mixed, count = {}, 0
    for t = 0, 9 do
      assert.equal(count, topology.mix_count(t, 3))
      if topology.mixes(t, 3) then mixed[#mixed + 1], count = t, count + 1 end
      assert.is_true(topology.mixes(t, 1))
      assert.equal(t, topology.mix_count(t, 1))
    end
    assert.same({2, 5, 8}, mixed)
  end)
end)

describe("a topology of rows", function()
  local config = require "pack.config"

  local function resolved_with(decentralized)
    return config.resolve {table = {decentralized = decentralized, training = {micro_batch_size = 2}}}
  end

  it("is given in a configuration, one matrix or several in turn", function()
    local one = topology.create({{0.75, 0.25}, {0.25, 0.75}}, 2)
    assert.same({0.75, 0.25}, one:matrix(5)[1])
    local two = topology.create({{{1, 0}, {0, 1}}, {{0.5, 0.5}, {0.5, 0.5}}}, 2)
    assert.equal(2, two.period)
    assert.same({1, 0}, two:matrix(2)[1])
    assert.same({0.5, 0.5}, two:matrix(3)[1])
    local resolved = resolved_with {num_models = 2, topology = {{0.5, 0.5}, {0.5, 0.5}}}
    assert.same({{0.5, 0.5}, {0.5, 0.5}}, resolved.decentralized.topology)
  end)

  it("is refused with row or column and sum where it does not fit the workers or the algorithm", function()
    local function refused_with(message, decentralized)
      decentralized.num_models = 2
      local good, problem = pcall(resolved_with, decentralized)
      assert.is_false(good)
      assert.is_truthy(tostring(problem):find(message, 1, true), tostring(problem))
    end
    refused_with("the row of worker 0 (number 1 of W) sums to 0.75, not 1; W must be doubly stochastic",
      {topology = {{0.5, 0.25}, {0.5, 0.75}}})
    refused_with("W has 1 rows for 2 workers", {topology = {{1}}})
    local directed = {{0.5, 0}, {0.5, 1}}
    refused_with("the row of worker 0", {topology = directed})
    local resolved = resolved_with {num_models = 2, topology = directed, algorithm = "push_sum"}
    assert.same(directed, resolved.decentralized.topology)
    refused_with("the column of worker 1 (number 2 of W) sums to 0.5, not 1; W must be column-stochastic",
      {topology = {{0.5, 0}, {0.5, 0.5}}, algorithm = "push_sum"})
  end)

  it("of a recipe is known by its name", function()
    topology.define("two_by_two", function(n, s)
      local rows = {}
      for i = 1, n do
        rows[i] = {}
        local peer = (i - 1 + (s % 2 == 0 and 1 or -1) * ((i % 2 == 1) and 1 or -1)) % n + 1
        for j = 1, n do rows[i][j] = (j == i or j == peer) and 0.5 or 0 end
      end
      return rows
    end, 2)
    local resolved = resolved_with {num_models = 4, topology = "two_by_two"}
    assert.same({name = "two_by_two", defined_by = "topology_spec.lua"}, resolved.decentralized.topology)
    local one = topology.create(resolved.decentralized.topology, 4)
    assert.same({0.5, 0.5, 0, 0}, one:matrix(0)[1])
    assert.same({0.5, 0, 0, 0.5}, one:matrix(1)[1])
    -- Another program, which does not know it, reads the configuration.
    local text = config.encode(resolved)
    assert.is_truthy(text:find('"defined_by": "topology_spec.lua"', 1, true), text)
  end)
end)
