--- What a random program is made of: sizes, and genes, one for each statement.
--
-- A gene remembers every choice that its statement made, so that a program can be made again with a gene fewer or with
-- smaller sizes, and the rest of it stays as it was. That is all that shrinking needs (shrink.lua).
local genome = {}

local Gene = {}
Gene.__index = Gene

--- Whole numbers from a seed (Park and Miller 1988): random(low, high).
function genome.random(seed)
  local state = (seed * 7919 + 104729) % 2147483646 + 1
  for _ = 1, 3 do state = state * 48271 % 2147483647 end
  return function(low, high)
    state = state * 48271 % 2147483647
    return low + math.floor(state / 2147483647 * (high - low + 1))
  end
end

--- A gene of a kind of statement. random gives its choices until it is frozen; a frozen one repeats them.
function genome.gene(id, kind, random)
  return setmetatable({id = id, kind = kind, random = random, tape = {}, at = 0, children = {}}, Gene)
end

--- Starts again with the first choice.
function Gene:rewind()
  self.at = 0
end

--- No choice of the gene, or of its children, is made anew any more.
function Gene:freeze()
  self.random = nil
  for _, child in ipairs(self.children) do child:freeze() end
end

--- A copy that can be changed on its own.
function Gene:copy()
  local copy = genome.gene(self.id, self.kind)
  for i, choice in ipairs(self.tape) do copy.tape[i] = choice end
  for i, child in ipairs(self.children) do copy.children[i] = child:copy() end
  return copy
end

--- A whole number. What is not chosen yet is drawn, or low where nothing is drawn any more.
function Gene:draw(low, high)
  self.at = self.at + 1
  local choice = self.tape[self.at]
  if choice == nil and self.random then
    choice = self.random(low, high)
    self.tape[self.at] = choice
  end
  if type(choice) ~= "number" then return low end
  return math.max(low, math.min(high, choice))
end

--- True once in so many times; the simpler choice is false.
function Gene:chance(times)
  return self:draw(0, times - 1) == times - 1
end

--- One of a list.
function Gene:one_of(list)
  return list[self:draw(1, #list)]
end

--- One of a list of variables, of which the later are likelier; it is remembered by its key. nil if the list is empty.
function Gene:pick(list)
  self.at = self.at + 1
  local choice = self.tape[self.at]
  if #list == 0 then
    self.tape[self.at] = choice or ""
    return nil
  end
  if choice == nil and self.random then
    local back = self.random(0, 2) == 0 and self.random(0, #list - 1) or self.random(0, math.min(#list, 4) - 1)
    choice = list[#list - back].key
    self.tape[self.at] = choice
  end
  for _, one in ipairs(list) do
    if one.key == choice then return one end
  end
  return list[#list]
end

return genome
