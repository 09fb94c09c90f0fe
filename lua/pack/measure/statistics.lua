--- Figures of lists of numbers.
local statistics = {}

--- The middle of the numbers of a list, the mean of the two middle ones of an even count; NaNs do not count. Nil of
-- none.
function statistics.median(list)
  local sorted = {}
  for _, x in ipairs(list) do
    if x == x then sorted[#sorted + 1] = x end
  end
  if #sorted == 0 then return nil end
  table.sort(sorted)
  local middle = math.floor((#sorted + 1) / 2)
  return (sorted[middle] + sorted[#sorted + 1 - middle]) / 2
end

--- Mean and sample deviation (over n - 1; nil of one) of numbers: {mean, std, count}, or nil of none.
function statistics.moments(list)
  if #list == 0 then return nil end
  local sum, squares = 0, 0
  for _, x in ipairs(list) do sum = sum + x end
  local mean = sum / #list
  for _, x in ipairs(list) do squares = squares + (x - mean) ^ 2 end
  return {mean = mean, std = #list > 1 and math.sqrt(squares / (#list - 1)) or nil, count = #list}
end

return statistics
