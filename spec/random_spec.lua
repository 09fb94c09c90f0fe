-- Random numbers: known answers of Philox and FNV, values from an independent program, and statistics.
local ffi = require "ffi"
local C = require("pack.native").C

local function philox(counter, key)
  local words = ffi.new("uint32_t[4]")
  C.pk_philox(ffi.new("uint32_t[4]", counter), ffi.new("uint32_t[2]", key), words)
  return ("%08x %08x %08x %08x"):format(words[0], words[1], words[2], words[3])
end

local function normals(seed, name, first, count, mean, deviation)
  local values = ffi.new("double[?]", math.max(count, 1))
  C.pk_random_normal(seed, name, first, count, mean or 0, deviation or 1, values)
  return values
end

local function uniforms(seed, name, first, count)
  local values = ffi.new("double[?]", count)
  C.pk_random_uniform(seed, name, first, count, values)
  return values
end

local function permutation(seed, name, count)
  local order, list = ffi.new("int64_t[?]", math.max(count, 1)), {}
  C.pk_random_permutation(seed, name, count, order)
  for i = 1, count do list[i] = tonumber(order[i - 1]) end
  return list
end

-- Fails unless a is b but for a difference in the last bits.
local function assert_near(expected, got)
  assert(math.abs(got - expected) <= 4 * 2 ^ -53 * math.abs(expected),
    ("%.17g is not %.17g"):format(got, expected))
end

-- The distribution function of the standard normal, by its series and, far out, its continued fraction.
local function normal_cdf(x)
  local a = math.abs(x)
  local density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
  local upper
  if a < 4 then
    local term, sum = a, a
    for k = 1, 100 do
      term = term * a * a / (2 * k + 1)
      sum = sum + term
    end
    upper = 0.5 - density * sum
  else
    local fraction = a
    for k = 60, 1, -1 do fraction = a + k / fraction end
    upper = density / fraction
  end
  return x < 0 and upper or 1 - upper
end

-- The largest difference between the distribution of count values and cdf.
local function kolmogorov_smirnov(values, count, cdf)
  local sorted = {}
  for i = 1, count do sorted[i] = values[i - 1] end
  table.sort(sorted)
  local worst = 0
  for i = 1, count do
    local p = cdf(sorted[i])
    worst = math.max(worst, math.abs(p - (i - 1) / count), math.abs(i / count - p))
  end
  return worst
end

describe("Philox4x32-10", function()
  it("gives the published words", function()
    assert.equal("6627e8d5 e169c58d bc57ac4c 9b00dbd8", philox({0, 0, 0, 0}, {0, 0}))
    local ones = 2 ^ 32 - 1
    assert.equal("408f276d 41c83b0e a20bc7c6 6d5451fd", philox({ones, ones, ones, ones}, {ones, ones}))
    assert.equal("d16cfe09 94fdcceb 5001e420 24126ea1", philox(
      {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}))
  end)
end)

describe("FNV-1a", function()
  it("gives the published hashes", function()
    assert.is_true(C.pk_fnv1a("", 0) == 0xcbf29ce484222325ULL)
    assert.is_true(C.pk_fnv1a("a", 1) == 0xaf63dc4c8601ec8cULL)
    assert.is_true(C.pk_fnv1a("foobar", 6) == 0x85944171f73967e8ULL)
  end)
end)

describe("normal values", function()
  it("are those of an independent program with 40 digits", function()
    local expected = {-0.44018261339113524, -1.9813567799697867, 1.0632783575627147,
      0.1746135566413187, 0.5357466503694399, 0.07120184760200918}
    local got = normals(42, "embedding.weight", 0, 6)
    for i = 1, 6 do assert_near(expected[i], got[i - 1]) end
    expected = {-0.611617890865953, -0.27613104558236723, -0.03301654886869618}
    got = normals(0, "", 2 ^ 34 + 3, 3)
    for i = 1, 3 do assert_near(expected[i], got[i - 1]) end
  end)

  it("have these very bits on every machine", function()
    local expected = {-0x1.c2bf3b232185fp-2, -0x1.fb3a32abad981p+0, 0x1.103302ac46c5bp+0,
      0x1.659bcad9b3a00p-3, 0x1.124d628c8e7c1p-1}
    local got = normals(42, "embedding.weight", 0, 5)
    for i = 1, 5 do assert.equal(expected[i], got[i - 1]) end
  end)

  it("are within a few units of the last place of what libm gives for the same words", function()
    local count = 40000
    local words = uniforms(3, "libm", 0, count)
    local got, worst = normals(3, "libm", 0, count), 0
    for i = 0, count - 2, 2 do
      local radius = math.sqrt(-2 * math.log(words[i] + 2 ^ -33))
      local angle = 2 * math.pi * words[i + 1]
      -- libm gets an angle that is rounded: its error is about 4e-16 * radius, whatever the value.
      worst = math.max(worst, math.abs(got[i] - radius * math.cos(angle)) / radius,
        math.abs(got[i + 1] - radius * math.sin(angle)) / radius)
    end
    assert.is_true(worst < 4e-15)
  end)

  it("do not depend on where a request begins or ends", function()
    local all = normals(1, "stream", 0, 40)
    for first = 0, 9 do
      for count = 0, 9 do
        local part = normals(1, "stream", first, count)
        for i = 0, count - 1 do assert(all[first + i] == part[i]) end
      end
    end
  end)

  it("write nothing when none are asked for", function()
    local values = ffi.new("double[1]", 7)
    C.pk_random_normal(1, "stream", 5, 0, 0, 1, values)
    C.pk_random_uniform(1, "stream", 5, 0, values)
    assert.equal(7, values[0])
  end)

  it("are scaled and shifted in two roundings", function()
    local plain, scaled = normals(9, "x", 0, 8), normals(9, "x", 0, 8, 0.5, 0.02)
    for i = 0, 7 do assert.equal(0.5 + 0.02 * plain[i], scaled[i]) end
  end)

  it("have the moments of the normal distribution", function()
    local count = 200000
    local values, sums = normals(42, "moments", 0, count), {0, 0, 0, 0}
    for i = 0, count - 1 do
      for k = 1, 4 do sums[k] = sums[k] + values[i] ^ k end
    end
    -- The bounds are 5 standard deviations of each mean: those of x, x^2, x^3, x^4 are 1, 2, 15, 96 (squared).
    for k, moment in ipairs({0, 1, 0, 3}) do
      local deviation = math.sqrt(({1, 2, 15, 96})[k] / count)
      assert(math.abs(sums[k] / count - moment) < 5 * deviation, "moment " .. k)
    end
  end)

  it("pass the test of Kolmogorov and Smirnov at the level of 1 in 1000", function()
    local count = 50000
    assert.is_true(kolmogorov_smirnov(normals(7, "ks", 0, count), count, normal_cdf)
      < 1.95 / math.sqrt(count))
  end)

  it("are uncorrelated between neighbours, names and seeds", function()
    local count = 100000
    local a, b, c = normals(1, "a", 0, count + 1), normals(1, "b", 0, count), normals(2, "a", 0, count)
    local neighbours, names, seeds = 0, 0, 0
    for i = 0, count - 1 do
      neighbours, names, seeds = neighbours + a[i] * a[i + 1], names + a[i] * b[i], seeds + a[i] * c[i]
    end
    for _, sum in ipairs {neighbours, names, seeds} do
      assert.is_true(math.abs(sum) / math.sqrt(count) < 4.5)
    end
  end)
end)

describe("uniform values", function()
  it("are the words over 2^32", function()
    local expected = {0.468790837097913, 0.5082712392322719, 0.22171310079284012, 0.18860444659367204,
      0.302907150471583}
    local got = uniforms(7, "x", 0, 5)
    for i = 1, 5 do assert.equal(expected[i], got[i - 1]) end
  end)

  it("lie in [0, 1) and pass the test of Kolmogorov and Smirnov", function()
    local count = 50000
    local values = uniforms(11, "ks", 3, count)
    local least, largest = 1, 0
    for i = 0, count - 1 do least, largest = math.min(least, values[i]), math.max(largest, values[i]) end
    assert.is_true(least >= 0 and least < 0.001 and largest > 0.999 and largest < 1)
    assert.is_true(kolmogorov_smirnov(values, count, function(x) return x end) < 1.95 / math.sqrt(count))
  end)
end)

describe("permutations", function()
  it("are those of an independent program", function()
    assert.same({9, 3, 8, 4, 5, 0, 6, 1, 2, 7}, permutation(1, "order", 10))
    assert.same({4, 1, 2, 6, 7, 8, 9, 3, 5, 0}, permutation(2, "order", 10))
  end)

  it("hold every number once", function()
    for count = 0, 70 do
      local seen = permutation(count, "all", count)
      table.sort(seen)
      for i = 1, count do assert(seen[i] == i - 1) end
    end
  end)

  it("of four are all equally likely", function()
    local counts, draws = {}, 24000
    for seed = 1, draws do
      local name = table.concat(permutation(seed, "fair", 4))
      counts[name] = (counts[name] or 0) + 1
    end
    local chi_squared, kinds = 0, 0
    for _, count in pairs(counts) do
      kinds = kinds + 1
      chi_squared = chi_squared + (count - draws / 24) ^ 2 / (draws / 24)
    end
    assert.equal(24, kinds)
    assert.is_true(chi_squared < 49.7) -- 1 in 1000 with 23 degrees of freedom
  end)
end)
