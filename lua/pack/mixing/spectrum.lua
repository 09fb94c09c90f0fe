--- Small dense matrices (lists of rows): their product, and how fast mixing contracts.
local spectrum = {}

--- The product a b of two n x n matrices.
function spectrum.product(a, b)
  local n, result = #a, {}
  for i = 1, n do
    local row = {}
    for j = 1, n do row[j] = 0 end
    for k = 1, n do
      local x, from = a[i][k], b[k]
      if x ~= 0 then
        for j = 1, n do row[j] = row[j] + x * from[j] end
      end
    end
    result[i] = row
  end
  return result
end

-- Turns rows a and b into each other so that they become orthogonal; returns how far they were from it, as
-- the cosine of their angle. Rows whose squares are below negligible are rounding and stay.
local function orthogonalize(a, b, n, negligible)
  local aa, bb, ab = 0, 0, 0
  for k = 1, n do
    aa, bb, ab = aa + a[k] * a[k], bb + b[k] * b[k], ab + a[k] * b[k]
  end
  if ab == 0 or aa <= negligible or bb <= negligible then return 0 end
  local zeta = (bb - aa) / (2 * ab)
  local t = (zeta >= 0 and 1 or -1) / (math.abs(zeta) + math.sqrt(1 + zeta * zeta))
  local c = 1 / math.sqrt(1 + t * t)
  local s = c * t
  for k = 1, n do
    a[k], b[k] = c * a[k] - s * b[k], s * a[k] + c * b[k]
  end
  return math.abs(ab) / math.sqrt(aa * bb)
end

local function largest_row_norm(rows, n)
  local largest = 0
  for i = 1, n do
    local squares = 0
    for k = 1, n do squares = squares + rows[i][k] * rows[i][k] end
    largest = math.max(largest, squares)
  end
  return math.sqrt(largest)
end

--- The second largest singular value of a doubly stochastic matrix.
--
-- The largest is 1, for the vector of ones, so that the second is the largest of w - 1/n: found by
-- one-sided Jacobi rotations (Hestenes 1958), which keep small values accurate where those of w^T w
-- would lose half their digits. Below the rounding of w's entries it is 0: a period that averages
-- exactly has to have a gap of exactly 1, whatever root is taken of it.
function spectrum.second_singular_value(w)
  local n, rows = #w, {}
  for i = 1, n do
    rows[i] = {}
    for j = 1, n do rows[i][j] = w[i][j] - 1 / n end
  end
  local floor = n * 2 ^ -50
  local negligible, sweeps = (floor / n) ^ 2, 0
  repeat
    local worst = 0
    for i = 1, n - 1 do
      for j = i + 1, n do
        worst = math.max(worst, orthogonalize(rows[i], rows[j], n, negligible))
      end
    end
    sweeps = sweeps + 1
  until worst < 1e-14 or sweeps == 60
  local sigma = math.min(1, largest_row_norm(rows, n)) -- above 1 by rounding only
  return sigma <= floor and 0 or sigma
end

return spectrum
