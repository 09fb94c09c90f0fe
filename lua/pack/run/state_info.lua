--- What a training state says of itself, checked when it is opened: its fields, its configuration, that they agree,
-- and that the tensors are those of the model.
local config = require "pack.config"
local failure = require "pack.core.failure"
local json = require "pack.io.json"
local architectures = require "pack.model.architectures"
local C = require("pack.native").C
local schedule = require "pack.train.schedule"
local schema = require "pack.config.schema"

local state_info = {}

local MOST = 2 ^ 53 - 1

-- Types -------------------------------------------------------------------------------------------

local function is_number(x)
  return type(x) == "number" and x - x == 0
end

-- By type of a field: whether a value is of it, and what it must be.
local types = {
  count = {function(field, x)
    return is_number(x) and x == math.floor(x) and x >= field.least and x <= field.most
  end, function(field) return ("a whole number from %d to %.0f"):format(field.least, field.most) end},
  text = {function(_, x) return type(x) == "string" end, function() return "a string" end},
  evaluation = {function(_, x)
    return type(x) == "table" and is_number(x.loss) and is_number(x.step) and x.split == "validation"
  end, function() return "an evaluation with step and loss" end},
  recipe = {function(_, x)
    return type(x) == "table" and type(x.file) == "string" and type(x.sha256) == "string" and x.sha256:find("^%x+$")
      and #x.sha256 == 64
  end, function() return "file and sha256 of a recipe" end},
}

local function count(name, least, most) return {name = name, type = "count", least = least, most = most or MOST} end
local function text(name, optional) return {name = name, type = "text", optional = optional} end

-- Fields that are not known are left to future versions.
local fields = {
  count("format", 1, 1), count("step", 0), count("tokens", 0), count("epoch", 0), count("mixings", 0), count("cursor", 0),
  count("num_models", 1, schema.find("decentralized.num_models").maximum), count("total_steps", 1),
  count("metrics_lines", 0), count("threads", 1), text("recipe", true), text("data", true), text("device"),
  text("instruction_set"), text("build"), {name = "best", type = "evaluation", optional = true},
  {name = "made_by", type = "recipe", optional = true},
}

local function show(x)
  if x == nil then return "not there" end
  if type(x) == "table" and x ~= json.null then return "a table" end
  local shown = type(x) == "string" and '"' .. x:sub(1, 60):gsub("%c", "?") .. '"' or tostring(x)
  return "= " .. shown
end

local function field_problem(info)
  for _, field in ipairs(fields) do
    local x, is = info[field.name], types[field.type]
    local missing = x == nil or x == json.null
    if not (missing and field.optional) and not (not missing and is[1](field, x)) then
      return ("its %s is %s; it must be %s"):format(field.name, (show(x):gsub("^= ", "")), is[2](field))
    end
  end
end

-- What follows from the step ----------------------------------------------------------------------

local function course_problem(info, resolved, course)
  local step, training = info.step, resolved.training
  if step > course.total_steps then
    return ("its step is %d, and the run has %d"):format(step, course.total_steps)
  end
  local expected = {
    {"total_steps", course.total_steps}, {"tokens", step * training.batch_tokens},
    {"epoch", step > 0 and course:epoch_of_step(step - 1) or 0}, {"mixings", course:mixings(step)},
    {"num_models", resolved.decentralized.num_models},
    {"cursor", step * training.batch_tokens / resolved.model.context_length},
  }
  for _, one in ipairs(expected) do
    if info[one[1]] ~= one[2] then
      return ("its %s is %.0f; after step %d of this configuration it is %.0f"):format(one[1], info[one[1]], step, one[2])
    end
  end
end

-- Tensors -----------------------------------------------------------------------------------------

local function tensor_problem(file, name, dtypes, shape)
  if not file:has(name) then return ("there is no tensor '%s'"):format(name) end
  local entry = file:entry(name)
  local found, wanted = table.concat(entry.shape, ", "), table.concat(shape, ", ")
  if not dtypes[entry.dtype] or found ~= wanted then
    return ("tensor '%s' is %s [%s]; [%s] of %s is wanted"):format(name, entry.dtype, found, wanted, (next(dtypes)))
  end
end

-- What a state that does not say so keeps: that of AdamW.
local plain = {{name = "parameters"}, {name = "exp_avg"}, {name = "exp_avg_sq"}}

-- What is wrong with the list of what is kept, as text.
local function kept_problem(kept)
  if kept == nil then return nil end
  if type(kept) ~= "table" or type(kept[1]) ~= "table" or kept[1].name ~= "parameters" then
    return "its list of what is kept is none"
  end
  for _, one in ipairs(kept) do
    local named = type(one) == "table" and type(one.name) == "string"
    local known = {name = "string", rows = "number", parameters = "table", whole = "boolean"}
    for key, x in pairs(named and one or {}) do named = named and type(x) == known[key] end
    if not named then return "its list of what is kept is none" end
  end
end

local function tensors_problem(file, info, resolved)
  local problem = kept_problem(info.kept)
  if problem then return problem end
  local parameters = architectures.of(resolved.model).parameter_list(resolved.model)
  for _, kept in ipairs(info.kept or plain) do
    local rows = kept.rows or info.num_models
    local wanted = kept.parameters and {}
    for _, name in ipairs(kept.parameters or {}) do wanted[name] = true end
    for _, parameter in ipairs(not kept.whole and parameters or {}) do
      local name, shape = parameter[1], {rows, unpack(parameter[2])}
      problem = (not wanted or wanted[name]) and tensor_problem(file, kept.name .. "/" .. name, {F32 = true}, shape)
      if problem then return problem end
    end
    if kept.whole and not file:has(kept.name) then return ("there is no tensor '%s'"):format(kept.name) end
  end
  return tensor_problem(file, "guard", {I32 = true}, {C.PK_GUARD_SIZE})
end

-- Reading -----------------------------------------------------------------------------------------

local function without_place(message)
  return (tostring(message):gsub("^[^ ]*%.lua:%d+: ", ""))
end

local function decode(file, key)
  local decoded, message = json.decode(file:metadata(key) or "", ("%s (%s)"):format(file.path, key))
  if type(decoded) == "table" and #decoded == 0 then return decoded end
  return nil, message or ("its %s is no table of names"):format(key)
end

-- The configuration of a state's file and its course, or nil and what is wrong.
local function read_config(file)
  local saved, message = decode(file, "config")
  if not saved then return nil, message end
  local good, resolved = failure.pcall(config.resolve, {table = saved, source = "its configuration"})
  if not good then return nil, without_place(resolved) end
  local course
  good, course = failure.pcall(schedule.create, resolved)
  if not good then return nil, "its configuration: " .. without_place(course) end
  return resolved, course
end

--- What an open safetensors file says of itself as a training state (see checkpoint.metadata), or nil and what is
-- wrong with it.
function state_info.read(file)
  if file:metadata("content") ~= "state" then return nil, "not a training state" end
  local info, message = decode(file, "state")
  if not info then return nil, message end
  if info.format ~= fields[1].most then
    return nil, ("format %s, which this version does not read"):format(show(info.format):gsub("^= ", ""))
  end
  local problem = field_problem(info)
  if problem then return nil, problem end
  local resolved, course = read_config(file)
  if not resolved then return nil, course end
  problem = course_problem(info, resolved, course) or tensors_problem(file, info, resolved)
  if problem then return nil, problem end
  return info
end

return state_info
