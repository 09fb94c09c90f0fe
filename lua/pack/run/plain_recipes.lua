--- Recipes that add nothing to training as the library does it, so that recipes/resume.lua can continue their runs: by
-- file name, the SHA-256 of the file in this version and in those before whose runs go on.
local plain = {
  ["sweep.lua"] = {"9701f7ca4ed408145c969e0561ffaa1b46722fb650eaf6f3497895802f1348f0"},
  ["train.lua"] = {
    "1afcbe0f9afa397e753304e6cea51ca53f625eee1b1f1c126d6510496ed10c06",
    "08b3acfcf32baf46accb8395ab04c356fbd7cfda6d3dc7ce494603b76d826f25",
    "5640778ba96c8625aa1a34fdb4e1b9ff4ddfe3089dc66c93c148e04c6155abe6",
  },
}

local plain_recipes = {}

--- Whether a recipe, {file, sha256}, is one of them.
function plain_recipes.has(recipe)
  for _, digits in ipairs(plain[recipe.file] or {}) do
    if digits == recipe.sha256 then return true end
  end
  return false
end

--- Whether there is one of this name, perhaps with other digits.
function plain_recipes.has_name(file)
  return plain[file] ~= nil
end

return plain_recipes
