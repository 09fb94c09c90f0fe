--- How far the weights of two candidates are from each other.
local safetensors = require "pack.io.safetensors"

local parity = {}

local PIECE_ELEMENTS = 2 ^ 20

-- Sums of squares of a - b and of b, over all elements.
local function squares(a, b, name)
  local entry, other = a:entry(name), b:entry(name)
  local difference, norm = 0, 0
  for first = 0, entry.numel - 1, PIECE_ELEMENTS do
    local count = math.min(PIECE_ELEMENTS, entry.numel - first)
    local x, y = a:doubles(entry, first, count), b:doubles(other, first, count)
    for k = 0, count - 1 do
      local d = x[k] - y[k]
      difference, norm = difference + d * d, norm + y[k] * y[k]
    end
  end
  return difference, norm
end

--- The largest |a - b| / |b| over the tensors of two safetensors files with the same tensors, and its tensor's name.
function parity.of(path, other)
  local a, b = safetensors.open(path), safetensors.open(other)
  local worst, worst_name = 0, a:names()[1]
  for _, name in ipairs(a:names()) do
    local difference, norm = squares(a, b, name)
    local relative = difference == 0 and 0 or math.sqrt(difference / norm)
    if relative ~= relative or relative > worst then worst, worst_name = relative, name end
    if relative ~= relative then break end
  end
  a:close()
  b:close()
  return worst, worst_name
end

return parity
