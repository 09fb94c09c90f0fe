--- Configurations: defaults, then a file, then --set, checked against the schema and resolved into one
--- plain table config.SECTION.KEY in which every key is there and false means off or not given.
local algorithms = require "pack.algorithms"
local architectures = require "pack.model.architectures"
local batch = require "pack.config.batch"
local failure = require "pack.core.failure"
local numbers = require "pack.core.numbers"
local schema = require "pack.config.schema"
local topology = require "pack.mixing.topology"
local value = require "pack.io.value"

local config = {}

-- Levenshtein's distance.
local function edit_distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local cost = a:byte(i) == b:byte(j) and 0 or 1
      diagonal, row[j] = row[j], math.min(row[j] + 1, row[j - 1] + 1, diagonal + cost)
    end
  end
  return row[#b]
end

--- The entry of `names` nearest to `name`, or nil if none is near.
function config.nearest(name, names)
  local best, least = nil, math.max(2, #name * 0.5) + 0.75
  for _, candidate in ipairs(names) do
    local distance = edit_distance(name:lower(), candidate:lower())
    if distance < least then best, least = candidate, distance end
  end
  return best
end

-- The key that somebody who wrote `name` in `section` may have meant.
local function nearest_key(section, name)
  local names, key_of = {}, {}
  local function offer(row, text)
    names[#names + 1] = text
    key_of[text] = key_of[text] or row.key
  end
  local function offer_all(wanted)
    for _, row in ipairs(schema.rows) do
      if (row.section == section) == wanted then
        offer(row, row.name)
        for _, alias in ipairs(row.also or {}) do offer(row, alias) end
      end
    end
  end
  offer_all(true)
  local found = config.nearest(name, names)
  if not found then
    offer_all(false)
    found = config.nearest(name, names)
  end
  return found and key_of[found]
end

local function refuse_unknown(source, section, name)
  local key = section and section .. "." .. name or name
  local near
  if section and not schema.section(section) then
    near = config.nearest(section, schema.sections)
    near = near and near .. "." .. name
    near = near and schema.find(near) and near or nearest_key(section, name)
  else
    near = nearest_key(section, name)
  end
  if not section and not near then near = config.nearest(name, schema.sections) end
  failure.usage("%s: there is no key %s%s", source, key,
    near and ("; did you mean %s?"):format(near) or "; --help lists them all")
end

local function show(x)
  if x == value.null then return "null" end
  if type(x) == "string" then
    local text = #x > 60 and x:sub(1, 57) .. "..." or x
    return '"' .. text:gsub("%c", "?") .. '"'
  end
  return type(x) == "table" and "a table" or tostring(x)
end

local function refuse_value(source, row, x)
  failure.usage("%s: %s = %s; it must be %s", source, row.key, show(x), schema.expected(row))
end

local function in_range(row, x)
  return type(x) == "number" and x - x == 0 and math.abs(x) < 2 ^ 53
    and not (row.minimum and x < row.minimum) and not (row.maximum and x > row.maximum)
    and not (row.above and x <= row.above) and not (row.below and x >= row.below)
end

local function is_whole(row, x)
  return in_range(row, x) and x == math.floor(x)
end

local function list_of(x, accepts)
  if type(x) ~= "table" or #x == 0 then return nil end
  local copy, count = {}, 0
  for _ in pairs(x) do count = count + 1 end
  if count ~= #x then return nil end
  for i, entry in ipairs(x) do
    if not accepts(entry) then return nil end
    copy[i] = entry
  end
  return copy
end

local function is_text(x)
  return type(x) == "string" and x ~= ""
end

-- By type: the accepted form of x, or nil.
local accept = {}

function accept.integer(row, x) return is_whole(row, x) and x or nil end
function accept.number(row, x) return in_range(row, x) and x or nil end

function accept.boolean(_, x)
  if type(x) == "boolean" then return x end
  return nil
end

-- The text, or for a row of paths what it stands for. Usage error: a ~ that stands for nothing.
local function expanded(row, x, source)
  if not row.path then return x end
  local path, message = require("pack.io.files").expand(x)
  if not path then failure.usage("%s: %s: %s", source, row.key, message) end
  return path
end

function accept.string(row, x, source)
  if not is_text(x) then return nil end
  for _, pattern in ipairs(row.pattern or {""}) do
    if x:find(pattern) then return expanded(row, x, source) end
  end
  return nil
end

function accept.choice(row, x)
  for _, choice in ipairs(row.choices) do
    if x == choice then return x end
  end
  return nil
end

function accept.list(row, x, source)
  local list = is_text(x) and {x} or list_of(x, is_text)
  for i, entry in ipairs(list or {}) do list[i] = expanded(row, entry, source) end
  return list
end

function accept.numbers(row, x)
  return list_of(type(x) == "number" and {x} or x, function(entry) return in_range(row, entry) end)
end

function accept.epochs(row, x)
  local function whole(entry) return is_whole(row, entry) end
  return whole(x) and x or list_of(x, whole)
end

local check

function accept.fields(row, x, source)
  if type(x) ~= "table" then return nil end
  local result, known = {}, {}
  for _, field in ipairs(row.fields) do
    known[field.name] = true
    result[field.name] = x[field.name] == nil and field.default or check(source, field, x[field.name])
  end
  for name in pairs(x) do
    if not known[name] then
      failure.usage("%s: there is no key %s.%s; %s is %s", source, row.key, tostring(name), row.key,
        schema.expected(row))
    end
  end
  return result
end

-- Options of an algorithm that a recipe defines, when another program reads its configuration: kept as they are.
local function foreign_algorithm(x)
  local result = {}
  for name, entry in pairs(x) do
    if type(name) ~= "string" or type(entry) == "table" then return nil end
    result[name] = entry
  end
  return result
end

-- A list of rows of numbers, and lists of such.
local function numbers_within(x, depth)
  return list_of(x, function(entry)
    if depth == 1 then return type(entry) == "number" and entry - entry == 0 end
    return numbers_within(entry, depth - 1) ~= nil
  end)
end

-- A name, what a recipe defined, or matrices. Whether those fit is checked with the number of workers.
function accept.topology(row, x)
  if type(x) == "string" then return accept.choice(row, x) or topology.find(x) end
  if type(x) ~= "table" then return nil end
  if x.name then
    local known = topology.find(x.name)
    return known or is_text(x.name) and x.defined_by and {name = x.name, defined_by = x.defined_by} or nil
  end
  return numbers_within(x, 2) or numbers_within(x, 3)
end

-- A name, or a table with a name and options; options that are not given get their defaults.
function accept.algorithm(_, x, source)
  local given = is_text(x) and {name = x} or x
  if type(given) ~= "table" or not is_text(given.name) then return nil end
  local algorithm = algorithms.find(given.name)
  if not algorithm then return given.defined_by and foreign_algorithm(given) or nil end
  local result, known = {name = given.name, defined_by = algorithm.defined_by}, {name = true, defined_by = true}
  for _, option in ipairs(algorithm.options) do
    known[option.name] = true
    result[option.name] = given[option.name] == nil and option.default or check(source, option, given[option.name])
  end
  for name in pairs(given) do
    if not known[name] then
      local names = {}
      for i, option in ipairs(algorithm.options) do names[i] = option.name end
      failure.usage("%s: algorithm %s has no option %s; %s", source, given.name, tostring(name),
        #names > 0 and "it has " .. table.concat(names, ", ") or "it has none")
    end
  end
  return result
end

-- The accepted form of x for row, or a usage error.
function check(source, row, x)
  if x == value.null or (x == false and row.nullable) then
    if not row.nullable then refuse_value(source, row, x) end
    return false
  end
  local result = accept[row.type](row, x, source)
  if result == nil then refuse_value(source, row, x) end
  return result
end

local off_words = {off = true, none = true, null = true, ["false"] = true, no = true, [""] = true}
local switches = {
  on = true, yes = true, ["true"] = true, ["1"] = true,
  off = false, no = false, ["false"] = false, ["0"] = false,
}

-- Text that is no number, or one that cannot be held as it is meant, stays text and is refused by its row.
local function number_from(text)
  return numbers.read(text) or text
end

local function split(text)
  local parts = {}
  for part in (text .. ","):gmatch("(.-),") do parts[#parts + 1] = part end
  return parts
end

-- By type: what the text after "=" stands for; what it cannot be comes back as text and is refused.
local read = {}

function read.integer(_, text) return number_from(text) end
function read.number(_, text) return number_from(text) end
function read.string(_, text) return text end
function read.list(_, text) return split(text) end
function read.algorithm(_, text) return text end
function read.topology(_, text) return text end

function read.numbers(_, text)
  local parts = split(text)
  for i, part in ipairs(parts) do parts[i] = number_from(part) end
  return parts
end

function read.fields(_, text) return text end

function read.boolean(_, text)
  if switches[text] == nil then return text end
  return switches[text]
end

function read.choice(row, text)
  local switch = switches[text]
  if switch ~= nil and accept.choice(row, switch) == switch then return switch end
  return text
end

function read.epochs(_, text)
  if not text:find(",") then return number_from(text) end
  local parts = split(text)
  for i, part in ipairs(parts) do parts[i] = number_from(part) end
  return parts
end

local function read_text(row, text)
  if row.nullable and off_words[text] then return false end
  return read[row.type](row, text)
end

local function apply_section(result, source, section, body)
  if body == value.null then return end
  if type(body) ~= "table" or #body > 0 then
    failure.usage("%s: %s = %s; it must be a table of keys", source, section, show(body))
  end
  local names = {}
  for name in pairs(body) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for _, name in ipairs(names) do
    local row = schema.find(section .. "." .. name)
    if not row then refuse_unknown(source, section, name) end
    result[section][name] = check(source, row, body[name])
  end
end

-- Lays a table of sections over result.
local function apply(result, source, layer)
  if type(layer) ~= "table" or #layer > 0 then
    failure.usage("%s: it must hold a table of sections (%s)", source, table.concat(schema.sections, ", "))
  end
  local sections = {}
  for section in pairs(layer) do sections[#sections + 1] = tostring(section) end
  table.sort(sections)
  for _, section in ipairs(sections) do
    if not schema.section(section) then refuse_unknown(source, nil, section) end
    apply_section(result, source, section, layer[section])
  end
end

-- An algorithm's table with another name, or another value of an option.
local function with_option(source, current, name, text)
  if name == "name" then return {name = text} end
  local changed = {}
  for key, entry in pairs(current) do changed[key] = entry end
  local algorithm = algorithms.find(current.name)
  for _, option in ipairs(algorithm and algorithm.options or {}) do
    if option.name == name then changed[name] = check(source, option, read_text(option, text)) end
  end
  if changed[name] == nil then changed[name] = number_from(text) end
  return changed
end

-- Applies one --set argument, "section.key=value" or "section.key.field=value".
local function apply_setting(result, setting)
  local key, text = setting:match("^([^=]+)=(.*)$")
  if not key then failure.usage("--set %s: expected section.key=value", setting) end
  local source = "--set " .. setting
  local row = schema.find(key)
  if row then
    result[row.section][row.name] = check(source, row, read_text(row, text))
    return
  end
  local parent, name = key:match("^(.+)%.([^.]+)$")
  row = parent and schema.find(parent)
  if row and row.type == "fields" then
    local body = {}
    for field, x in pairs(result[row.section][row.name] or {}) do body[field] = x end
    body[name] = number_from(text)
    result[row.section][row.name] = check(source, row, body)
    return
  end
  if row and row.type == "algorithm" then
    local target = result[row.section]
    target[row.name] = check(source, row, with_option(source, target[row.name], name, text))
    return
  end
  refuse_unknown(source, key:match("^([^.]+)%."), key:match("%.(.+)$") or key)
end

--- A copy of a value with all tables in it.
function config.copy(x)
  if type(x) ~= "table" then return x end
  local result = {}
  for key, entry in pairs(x) do result[key] = config.copy(entry) end
  return result
end

--- A table with every key at its default; not checked across fields.
function config.defaults()
  local result = {}
  for _, section in ipairs(schema.sections) do result[section] = {} end
  for _, row in ipairs(schema.rows) do
    local default = config.copy(row.default)
    result[row.section][row.name] = row.type == "algorithm" and accept.algorithm(row, default, row.key) or default
  end
  return result
end

--- The number of parameters of one model; model is the section of a configuration.
function config.parameters(model)
  return architectures.parameters(model)
end

--- Resolves a configuration from layers: options.table (a table of sections; options.source names it in
--- messages) over the defaults, then options.set, a list of "section.key=value". Usage errors name key,
--- value and what is allowed.
function config.resolve(options)
  local result = config.defaults()
  if options.table then apply(result, options.source or "configuration", options.table) end
  for _, setting in ipairs(options.set or {}) do apply_setting(result, setting) end
  require("pack.config.checks")(result, config.parameters(result.model))
  return result
end

--- A resolved configuration for N workers at the same global batch: micro_batch_size follows N. Returns nil and a message
--- where the batch cannot be shared out. source names it in messages.
function config.with_workers(base, workers, source)
  local rows, message = batch.micro_batch_size(base, workers)
  if not rows then return nil, message end
  local changed = config.copy(base)
  changed.decentralized.num_models, changed.training.micro_batch_size = workers, rows
  return config.resolve {table = changed, source = source}
end

local function language_of(path, text)
  local extension = path:lower():match("%.(%w+)$")
  local known = {lua = "lua", json = "json", yaml = "yaml", yml = "yaml"}
  if known[extension] then return known[extension] end
  text = text:gsub("^\239\187\191", "") -- a byte order mark
  if text:find("^%s*{") then return "json" end
  return (text:find("^%s*return%f[^%w_]") or text:find("^%s*%-%-[^-]") or text:find("^%s*local%f[^%w_]"))
    and "lua" or "yaml"
end

-- Where packlua's own files lie: above this file (lua/pack/config/init.lua).
local function home()
  local known = require("pack.native").home()
  if known ~= "" then return known end
  local above = debug.getinfo(1, "S").source:match("^@(.*)lua/pack/[^/]*$") or ""
  return above == "" and "." or above:sub(1, -2)
end

--- The path of a configuration file: as given, or under packlua's home (configs/20m.lua works anywhere).
function config.find(path)
  local native = require "pack.native"
  local own = home() .. "/" .. path
  for _, candidate in ipairs({path, own}) do
    if native.C.pk_path_kind(candidate) == ("f"):byte() then return candidate end
  end
  if native.C.pk_path_kind(path) ~= 0 then failure.usage("--config %s: not a file", path) end
  failure.usage("--config %s: there is no such file (nor %s)", path, own)
end

--- Reads and resolves a configuration file (.lua, .json, .yaml; otherwise by its content), then applies
--- `settings`, a list of "section.key=value".
function config.load(path, settings)
  local found = config.find(path)
  local text, message = value.read_file(found)
  if not text then failure.usage("%s", message) end
  local layer
  layer, message = value.parse(language_of(found, text), text, found)
  if layer == nil then failure.usage("%s", message) end
  if layer == value.null then layer = {} end
  return config.resolve({table = layer, source = found, set = settings})
end

--- The configuration as JSON text, null where a key is off; config.load reads it back to the same.
function config.encode(resolved)
  local json = require "pack.io.json"
  local plain = config.copy(resolved)
  for _, row in ipairs(schema.rows) do
    local section = plain[row.section]
    if row.nullable and section[row.name] == false then section[row.name] = json.null end
  end
  return json.encode(plain, {pretty = true}) .. "\n"
end

return config
