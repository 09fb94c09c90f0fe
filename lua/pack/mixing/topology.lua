--- Topologies: the mixing matrices W of X <- W X over the workers.
--
-- A matrix is a list of N rows of N numbers, W[i][j] with indices from 1 as always in Lua; worker w is
-- row w + 1. Row i says from whom worker i takes: peers are incoming. W must be doubly stochastic to
-- 1e-12. It may depend on s, the number of the mixing, from 0.
local name_rules = require "pack.core.names"
local spectrum = require "pack.mixing.spectrum"

local topology = {}

local tolerance = 1e-12

-- N x N zeros.
local function zeros(n)
  local w = {}
  for i = 1, n do
    w[i] = {}
    for j = 1, n do w[i][j] = 0 end
  end
  return w
end

-- Every worker takes weight 1/#peers from each of peers(i), workers from 0; coinciding ones add up.
local function equal_shares(n, peers)
  local w = zeros(n)
  for i = 0, n - 1 do
    local list = peers(i)
    local row = w[i + 1]
    for _, peer in ipairs(list) do
      local j = peer % n + 1
      row[j] = row[j] + 1
    end
    for j = 1, n do row[j] = row[j] / #list end
  end
  return w
end

-- max(1, ceil(log2 n)), exactly.
local function exponents(n)
  local k = 1
  while 2 ^ k < n do k = k + 1 end
  return k
end

local function is_power_of_two(n)
  return n == 1 or 2 ^ exponents(n) == n
end

local is_whole = require("pack.core.numbers").is_whole

local function divisors(n)
  local list = {}
  for d = 1, n do
    if n % d == 0 then list[#list + 1] = d end
  end
  return list
end

-- One entry per topology: make(n, s, options) -> matrix; period(n, options), nil if there is none, default
-- 1; refuse(n, options) -> message naming what would be valid; phase(s, options), a short name for
-- mixings with the same matrix, default s mod period.
local kinds = {}

function kinds.complete()
  return {make = function(n)
    local w = zeros(n)
    for i = 1, n do
      for j = 1, n do w[i][j] = 1 / n end
    end
    return w
  end}
end

function kinds.one_peer_ring()
  return {
    period = function() return 2 end,
    make = function(n, s)
      local offset = s % 2 == 0 and 1 or -1
      return equal_shares(n, function(i) return {i, i - offset} end)
    end,
  }
end

function kinds.one_peer_exponential()
  return {
    period = exponents,
    make = function(n, s)
      local offset = 2 ^ (s % exponents(n))
      return equal_shares(n, function(i) return {i, i - offset} end)
    end,
  }
end

function kinds.ring()
  return {make = function(n)
    return equal_shares(n, function(i) return {i, i - 1, i + 1} end)
  end}
end

function kinds.exponential()
  return {make = function(n)
    return equal_shares(n, function(i)
      local peers = {i}
      for k = 0, exponents(n) - 1 do peers[#peers + 1] = i - 2 ^ k end
      return peers
    end)
  end}
end

-- Worker i is at row floor(i / c), column i mod c of r x c, r the largest divisor of N up to sqrt(N).
function kinds.torus()
  return {make = function(n)
    local r = 1
    for d = 1, math.floor(math.sqrt(n)) do
      if n % d == 0 then r = d end
    end
    local c = n / r
    return equal_shares(n, function(i)
      local row, column = math.floor(i / c), i % c
      local function at(a, b) return a % r * c + b % c end
      return {i, at(row - 1, column), at(row + 1, column), at(row, column - 1), at(row, column + 1)}
    end)
  end}
end

function kinds.hypercube()
  local function dimensions(n) return n == 1 and 0 or exponents(n) end
  return {
    refuse = function(n)
      if is_power_of_two(n) then return nil end
      return "N must be a power of two (1, 2, 4, 8, 16, ...)"
    end,
    period = function(n) return math.max(1, dimensions(n)) end,
    make = function(n, s)
      if n == 1 then return {{1}} end
      local offset = 2 ^ (s % dimensions(n))
      return equal_shares(n, function(i) return {i, require("bit").bxor(i, offset)} end)
    end,
  }
end

-- Metropolis weights 1 / (1 + max(degree_i, degree_j)) on the edges, the rest stays with oneself: every
-- edge has worker 0, of degree N - 1, at one end.
function kinds.star()
  return {make = function(n)
    local w = zeros(n)
    for j = 1, n do
      w[1][j], w[j][1] = 1 / n, 1 / n
      if j > 1 then w[j][j] = (n - 1) / n end
    end
    return w
  end}
end

-- Neighbours in a permutation of the workers that depends on (seed, s) alone are partners.
function kinds.random_matching()
  return {
    refuse = function(_, options)
      if is_whole(options.seed, 0) then return nil end
      return "it needs a seed, a whole number of at least 0"
    end,
    period = function() return nil end,
    make = function(n, s, options)
      local order = require("ffi").new("int64_t[?]", n)
      local C = require("pack.native").C
      C.pk_random_permutation(options.seed, ("random_matching/%d"):format(s), n, order)
      local partner = {}
      for i = 0, n - 1 do partner[i] = i end
      for k = 0, n - 2, 2 do
        local a, b = tonumber(order[k]), tonumber(order[k + 1])
        partner[a], partner[b] = b, a
      end
      return equal_shares(n, function(i) return {i, partner[i]} end)
    end,
  }
end

function kinds.hierarchical()
  -- Mixings period - 1, 2 period - 1, ... are across all workers.
  local function is_across(s, options) return (s + 1) % options.period == 0 end
  return {
    refuse = function(n, options)
      local group, period = options.group, options.period
      if not is_whole(group, 1) then return "it needs group, the number of workers in a group" end
      if n % group ~= 0 then
        return ("group %d does not divide it; groups of %s do"):format(group,
          table.concat(divisors(n), ", "))
      end
      if not is_whole(period, 1) then return "period must be a whole number of at least 1" end
    end,
    period = function(_, options) return options.period end,
    phase = function(s, options) return is_across(s, options) and "across" or "within" end,
    make = function(n, s, options)
      local group = is_across(s, options) and n or options.group
      return equal_shares(n, function(i)
        local peers = {}
        for k = 0, group - 1 do peers[k + 1] = i - i % group + k end
        return peers
      end)
    end,
  }
end

function kinds.disconnected()
  return {make = function(n)
    return equal_shares(n, function(i) return {i} end)
  end}
end

local defined = {} -- topologies of recipes by name: {name, make, period, defined_by}

local names = {"complete", "one_peer_ring", "one_peer_exponential", "ring", "exponential", "torus",
  "hypercube", "star", "random_matching", "hierarchical", "disconnected"}

--- Makes a topology of a recipe's own known by a name, for configurations: make(N, s) -> matrix of mixing s, a list of N
-- rows; period (optional), after how many mixings it repeats. Returns what a configuration holds of it.
function topology.define(name, make, period)
  if not name_rules.is_word(name) or kinds[name] then
    error(("topology.define: %s is not a new word"):format(tostring(name)), 2)
  end
  if type(make) ~= "function" then error(("topology %s: make is a %s, not a function"):format(name, type(make)), 2) end
  local source = debug.getinfo(2, "S").source
  defined[name] = {name = name, make = make, period = period, defined_by = source:match("([^/@]+)$")}
  return topology.find(name)
end

--- What a configuration holds of a defined topology, {name, defined_by}, or nil.
function topology.find(name)
  local own = defined[name]
  return own and {name = name, defined_by = own.defined_by}
end

--- The names of all: those that are built in, then those that were defined.
function topology.list()
  return name_rules.all(names, defined)
end

--- The names of the topologies, in the order of the documents.
function topology.names()
  return {unpack(names)}
end

local function with_defaults(options)
  local all = {seed = 0, period = 2}
  for key, value in pairs(options or {}) do all[key] = value end
  return all
end

local function check_count(n)
  if is_whole(n, 1) then return true end
  return nil, ("the number of workers is %s; it must be a whole number of at least 1")
    :format(tostring(n))
end

local function check_user(options)
  local period = options.period
  if period == nil or is_whole(period, 1) then return true end
  return nil, ("the period of a topology function is %s; it must be a whole number of at least 1")
    :format(tostring(period))
end

-- The matrices of a spec that is one, or a list of some.
local function matrices_of(spec)
  local first = spec[1]
  local is_list = type(first) == "table" and type(first[1]) == "table"
  return is_list and spec or {spec}
end

local function check_matrices(spec, n, options)
  for s, w in ipairs(matrices_of(spec)) do
    local good, message = topology.check(w, n, options)
    if not good then return nil, #matrices_of(spec) > 1 and ("mixing %d: %s"):format(s - 1, message) or message end
  end
  return true
end

--- Whether topology `spec` (see topology.create) exists for n workers with these options: true, or nil
-- and a message that says what is valid. Options as in topology.create.
function topology.validate(spec, n, options)
  local good, message = check_count(n)
  if not good then return nil, message end
  if type(spec) == "function" then return check_user(options or {}) end
  if type(spec) == "table" and not spec.name then return check_matrices(spec, n, options) end
  local name = type(spec) == "table" and spec.name or spec
  if defined[name] then return true end
  if not kinds[name] then
    return nil, ("there is no topology %s; there are %s, and any function (N, s) -> matrix or list of rows")
      :format(tostring(name), table.concat(topology.list(), ", "))
  end
  local kind = kinds[spec]()
  local refusal = kind.refuse and kind.refuse(n, with_defaults(options))
  if not refusal then return true end
  return nil, ("topology %s is not valid for N = %d: %s"):format(spec, n, refusal)
end

local function is_number(x)
  return type(x) == "number" and x - x == 0
end

local function check_entries(w, n)
  for i = 1, n do
    if type(w[i]) ~= "table" then
      return nil, ("W[%d], the row of worker %d, is a %s, not a list of numbers")
        :format(i, i - 1, type(w[i]))
    end
    if #w[i] ~= n then
      return nil, ("W[%d], the row of worker %d, has %d entries for %d workers")
        :format(i, i - 1, #w[i], n)
    end
    for j = 1, n do
      local x = w[i][j]
      if not is_number(x) or x < 0 then
        return nil, ("W[%d][%d], what worker %d takes from worker %d, is %s; it must be a finite number of "
          .. "at least 0"):format(i, j, i - 1, j - 1, tostring(x))
      end
    end
  end
  return true
end

local function check_sum(what, index, sum, columns_alone)
  if math.abs(sum - 1) <= tolerance then return true end
  return nil, ("the %s of worker %d (number %d of W) sums to %.17g, not 1; W must be %s to %g")
    :format(what, index - 1, index, sum, columns_alone and "column-stochastic" or "doubly stochastic", tolerance)
end

--- Whether w is a doubly stochastic matrix for n workers: true, or nil and a message that names the row,
-- column or entry at fault and its value. options: column_stochastic, where its columns alone must sum to 1.
function topology.check(w, n, options)
  local columns_alone = options and options.column_stochastic
  if type(w) ~= "table" then
    return nil, ("W is a %s, not a list of %d rows"):format(type(w), n)
  end
  if #w ~= n then return nil, ("W has %d rows for %d workers"):format(#w, n) end
  local good, message = check_entries(w, n)
  if not good then return nil, message end
  for i = 1, n do
    local row, column = 0, 0
    for j = 1, n do row, column = row + w[i][j], column + w[j][i] end
    good, message = true, nil
    if not columns_alone then good, message = check_sum("row", i, row) end
    if good then good, message = check_sum("column", i, column, columns_alone) end
    if not good then return nil, message end
  end
  return true
end

local Topology = {}
Topology.__index = Topology

-- Matrices that were given in the form of a kind.
local function given_kind(spec)
  local list = matrices_of(spec)
  return {
    period = function() return #list end,
    make = function(_, s) return list[s % #list + 1] end,
  }
end

-- A function of the user's in the form of a kind. Errors in it pass through as they are, so that their
-- position and traceback are those of the user's file.
local function user_kind(f)
  return {
    period = function(_, options) return options.period end,
    make = function(n, s) return f(n, s) end,
  }
end

--- The topology `spec` of n workers.
-- spec: a name of topology.names() or of one that was defined, a function (N, s) -> matrix, a list of N rows, or a list of
-- such matrices, which are used in turn.
-- options: column_stochastic (an algorithm says that columns alone need to sum to 1), seed (random_matching; default 0),
-- group (hierarchical: workers per group) and period (hierarchical: complete across all workers at every period-th mixing,
-- default 2; function: after how many mixings it repeats, if it does, so that matrices are kept).
-- The object has name, num_models and period (nil if it never repeats). Raises what topology.validate says.
function topology.create(spec, n, options)
  local good, message = topology.validate(spec, n, options)
  if not good then error(message, 2) end
  local self = setmetatable({num_models = n, kept = {}}, Topology)
  if type(spec) == "function" then
    local info = debug.getinfo(spec, "S")
    self.name = ("function at %s:%d"):format(info.short_src, info.linedefined)
    self.kind, self.options = user_kind(spec), options or {}
  elseif type(spec) == "table" and not spec.name then
    self.name, self.kind, self.options = "given matrix", given_kind(spec), options or {}
  else
    self.name = type(spec) == "table" and spec.name or spec
    local own = defined[self.name]
    self.kind = own and user_kind(own.make) or kinds[self.name]()
    self.options = with_defaults(options)
    if own then self.options.period = own.period end
  end
  self.column_stochastic = options and options.column_stochastic
  self.period = 1
  if self.kind.period then self.period = self.kind.period(n, self.options) end
  return self
end

--- W at mixing s (from 0), checked to be doubly stochastic. Do not change it: periodic ones are kept.
function Topology:matrix(s)
  if not is_whole(s, 0) then
    error(("mixing %s: its number must be a whole number of at least 0"):format(tostring(s)), 2)
  end
  local kind, options = self.kind, self.options
  local phase = kind.phase and kind.phase(s, options) or self.period and s % self.period
  if self.kept[phase] then return self.kept[phase] end
  local w = kind.make(self.num_models, s, options)
  local good, message = topology.check(w, self.num_models, self)
  if not good then
    error(("topology %s, %d workers, mixing %d: %s"):format(self.name, self.num_models, s, message), 2)
  end
  if phase then self.kept[phase] = w end
  return w
end

--- A copy of W at mixing s that may be changed.
function Topology:copy(s)
  local rows = {}
  for i, row in ipairs(self:matrix(s)) do rows[i] = {unpack(row)} end
  return rows
end

-- w^count by squaring.
local function power(w, count)
  local result
  while count > 0 do
    if count % 2 == 1 then result = result and spectrum.product(result, w) or w end
    count = math.floor(count / 2)
    if count > 0 then w = spectrum.product(w, w) end
  end
  return result
end

-- W_{count-1} ... W_0; equal neighbours are gathered first.
local function product_of(self, count)
  local product
  local s = 0
  while s < count do
    local w, first = self:matrix(s), s
    repeat s = s + 1 until s == count or self:matrix(s) ~= w
    local run = power(w, s - first)
    product = product and spectrum.product(run, product) or run
  end
  return product
end

--- 1 - sigma_2(W_{P-1} ... W_0)^(1/P), by how much one mixing shrinks the distance from the average
-- at least, on average over P mixings: the period, or `mixings` if given. 1 for one worker. A topology
-- without a period needs `mixings`; without, the result is nil and a message.
function Topology:spectral_gap(mixings)
  local count = mixings or self.period
  if not count then
    return nil, "topology " .. self.name .. " has no period; say over how many mixings"
  end
  return 1 - spectrum.second_singular_value(product_of(self, count)) ^ (1 / count)
end

local function dense_lines(w, lines)
  for i = 1, #w do
    local cells = {}
    for j = 1, #w do cells[j] = w[i][j] == 0 and "    ." or ("%.3f"):format(w[i][j]) end
    lines[#lines + 1] = ("  %2d  %s"):format(i - 1, table.concat(cells, " "))
  end
end

local function peer_lines(w, lines)
  for i = 1, #w do
    local cells = {}
    for j = 1, #w do
      if w[i][j] ~= 0 then cells[#cells + 1] = ("%d: %.3f"):format(j - 1, w[i][j]) end
    end
    if #cells > 8 then cells = {unpack(cells, 1, 8)}; cells[9] = "..." end
    lines[#lines + 1] = ("  %2d  %s"):format(i - 1, table.concat(cells, "  "))
  end
end

local MIXINGS_LOOKED_AT = 64 -- of a topology that never repeats
local most_shown = 8 -- matrices of one period

--- Text that shows the matrices of a period (the first 8) and the spectral gap; print(t) prints it.
function Topology:describe()
  local n, period = self.num_models, self.period
  local gap = self:spectral_gap(not period and MIXINGS_LOOKED_AT or nil)
  local lines = {("%s, %d worker%s, %s"):format(self.name, n, n == 1 and "" or "s",
    period and ("period %d, spectral gap %.6f"):format(period, gap)
      or ("no period, spectral gap %.6f over %d mixings"):format(gap, MIXINGS_LOOKED_AT))}
  local shown = math.min(period or 1, most_shown)
  for s = 0, shown - 1 do
    if period ~= 1 then lines[#lines + 1] = (" mixing %d"):format(s) end
    local show = n <= 16 and dense_lines or peer_lines
    show(self:matrix(s), lines)
  end
  if shown < (period or math.huge) then lines[#lines + 1] = " ..." end
  return table.concat(lines, "\n")
end

Topology.__tostring = Topology.describe

--- Whether step t (from 0) mixes when every mix_every-th step does: the last of each such group.
function topology.mixes(t, mix_every)
  return (t + 1) % mix_every == 0
end

--- How many of the steps 0 .. t - 1 mix: the number s of the first mixing from step t on.
function topology.mix_count(t, mix_every)
  return math.floor(t / mix_every)
end

return topology
