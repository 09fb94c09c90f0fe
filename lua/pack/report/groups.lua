--- What runs have in common and what differs: settings, groups over seeds, means, tables over N and topology.
local failure = require "pack.core.failure"
local json = require "pack.io.json"
local schema = require "pack.config.schema"
local statistics = require "pack.measure.statistics"
local topology = require "pack.mixing.topology"

local report_groups = {}

local N, TOPOLOGY, VARIANT = "decentralized.num_models", "decentralized.topology", "decentralized.variant"

--- The key under which the recipe of a run counts as a setting.
report_groups.recipe = "recipe"
local RECIPE = report_groups.recipe

-- Runs that differ in these alone are repetitions of one another.
local seeds = {["runtime.seed"] = true, ["data.shuffle_seed"] = true}

-- A value of a configuration as text.
local function show(x)
  if x == nil or x == json.null then return "off" end
  if type(x) == "table" and #x == 0 and not x.name then
    local parts = {}
    for key, inner in pairs(x) do parts[#parts + 1] = ("%s %s"):format(key, schema.show(inner)) end
    table.sort(parts)
    return #parts > 0 and table.concat(parts, ", ") or "off"
  end
  return schema.show(x)
end

--- The setting `key` ("optimizer.lr") of a run as text.
function report_groups.setting(run, key)
  if key == RECIPE then return run.recipe_label or run.recipe or "not known" end
  local section, name = key:match("^(%w+)%.(.+)$")
  local values = run.config[section]
  return show(type(values) == "table" and values[name])
end

-- Settings ---------------------------------------------------------------------------------------

-- Recipes ----------------------------------------------------------------------------------------

-- Gives every run recipe_label: the recipe's name, with its file and the beginning of the file's SHA-256 where runs of
-- one name come from several files. Older runs, which name no file, belong to the only one.
local function label_recipes(runs)
  local digests, count = {}, {}
  for _, run in ipairs(runs) do
    local name, digest = run.recipe or "not known", run.recipe_sha256
    digests[name] = digests[name] or {}
    if digest and not digests[name][digest] then
      digests[name][digest] = true
      count[name] = (count[name] or 0) + 1
    end
  end
  for _, run in ipairs(runs) do
    local name = run.recipe or "not known"
    run.recipe_label = name
    if (count[name] or 0) > 1 then
      run.recipe_label = run.recipe_sha256
        and ("%s (%s %s)"):format(name, run.recipe_file or name, run.recipe_sha256:sub(1, 8)) or name .. " (file not known)"
    end
  end
end

local function differ(runs, key)
  for _, run in ipairs(runs) do
    if report_groups.setting(run, key) ~= report_groups.setting(runs[1], key) then return true end
  end
  return false
end

--- The keys whose values differ between runs, those of `schema` in its order but the recipe, variant, N and topology first. The
-- folder of the run is none of them.
function report_groups.differing(runs)
  label_recipes(runs)
  local keys, first = {}, {differ(runs, RECIPE) and RECIPE or nil}
  if differ(runs, VARIANT) then first[#first + 1] = VARIANT end
  for _, row in ipairs(schema.rows) do
    if row.key ~= "runtime.output_dir" and row.key ~= VARIANT and differ(runs, row.key) then
      local list = (row.key == N or row.key == TOPOLOGY) and first or keys
      list[#list + 1] = row.key
    end
  end
  for _, key in ipairs(keys) do first[#first + 1] = key end
  return first
end

--- The keys without their sections, where no two are the same then.
function report_groups.short(keys)
  local count, names = {}, {}
  local function last(key) return key:match("([^.]+)$") end
  for _, key in ipairs(keys) do count[last(key)] = (count[last(key)] or 0) + 1 end
  for i, key in ipairs(keys) do names[i] = count[last(key)] == 1 and last(key) or key end
  return names
end

local function values_of(run, keys)
  local values = {}
  for i, key in ipairs(keys) do values[i] = report_groups.setting(run, key) end
  return table.concat(values, "\0")
end

-- Whether equal values of `keys` always come with equal values of `key`, as the micro-batch follows N.
local function follows(runs, key, keys)
  local seen = {}
  for _, run in ipairs(runs) do
    local place, text = values_of(run, keys), report_groups.setting(run, key)
    if seen[place] and seen[place] ~= text then return false end
    seen[place] = text
  end
  return #keys > 0
end

--- Of differing keys those that groups are told apart by: no seeds, nothing that a resumed run may change, and
-- nothing that follows from the keys before it.
function report_groups.distinguishing(runs, keys)
  local kept = {}
  for _, key in ipairs(keys) do
    local counts = key == RECIPE or schema.find(key).resume == "same"
    if not seeds[key] and counts and not follows(runs, key, kept) then
      kept[#kept + 1] = key
    end
  end
  return kept
end

local short_names = {[RECIPE] = "", [VARIANT] = "", [N] = "N", [TOPOLOGY] = "", ["decentralized.scheme"] = ""}

--- "N=4 ring lr=0.01": a run by the given keys.
function report_groups.label(run, keys)
  local parts = {}
  for i, key in ipairs(keys) do
    local name, text = short_names[key] or key:match("([^.]+)$"), report_groups.setting(run, key)
    parts[i] = name == "" and text or name .. "=" .. text
  end
  return table.concat(parts, " ")
end

-- Numbers ----------------------------------------------------------------------------------------

local function finite(x)
  return type(x) == "number" and x - x == 0 and x or nil
end

--- What a run came to: loss, perplexity, consensus_distance, steps and tokens_per_second as result.json has them
-- (the last, where it has none, the median of the steps), best_loss, and the largest memory_bytes. What is not there
-- or not finite is nil.
function report_groups.numbers(run)
  local result = run.result or {}
  local best = type(result.best) == "table" and result.best or {}
  return {
    loss = finite(result.loss), perplexity = finite(result.perplexity), steps = finite(result.steps),
    consensus_distance = finite(result.consensus_distance), best_loss = finite(best.loss),
    tokens_per_second = finite(result.tokens_per_second) or statistics.median(run.steps.tokens_per_second),
    memory_bytes = finite(run.steps.memory_bytes[#run.steps.memory_bytes]),
  }
end

--- By how much one mixing of the run's topology shrinks the distance from the average at least, or nil: the topology
-- is not one by name.
function report_groups.spectral_gap(run)
  local settings = run.config.decentralized or {}
  local good, gap = failure.pcall(function()
    local function option(x) return type(x) == "number" and x or nil end
    return topology.create(settings.topology, settings.num_models, {seed = run.config.runtime.seed,
      group = option(settings.group), period = option(settings.period)}):spectral_gap()
  end)
  return good and finite(gap) or nil
end

-- Groups -----------------------------------------------------------------------------------------

local order_of_topology = {}
for i, name in ipairs(schema.topologies) do order_of_topology[name] = i end

-- Numbers by size, topologies as they are listed, other texts by name.
local function before(a, b)
  local x, y = tonumber(a) or order_of_topology[a], tonumber(b) or order_of_topology[b]
  if x and y then return x < y end
  return a < b
end

local function group_before(keys)
  return function(a, b)
    for _, key in ipairs(keys) do
      local x, y = report_groups.setting(a.runs[1], key), report_groups.setting(b.runs[1], key)
      if x ~= y then return before(x, y) end
    end
    return a.place < b.place
  end
end

local measured = {"loss", "perplexity", "consensus_distance", "best_loss", "tokens_per_second", "memory_bytes"}

local function add_statistics(group)
  group.statistics, group.complete = {}, 0
  for _, name in ipairs(measured) do
    local list = {}
    for _, run in ipairs(group.runs) do
      if run.status == "complete" then list[#list + 1] = run.numbers[name] end
    end
    group.statistics[name] = statistics.moments(list)
  end
  for _, run in ipairs(group.runs) do group.complete = group.complete + (run.status == "complete" and 1 or 0) end
end

--- Groups of runs that differ in seeds alone, told apart by `keys`: {label, runs, complete (how many are), statistics
-- (moments by name, over those)}, sorted. Every run gets `numbers`.
function report_groups.groups(runs, keys)
  local groups, by_place = {}, {}
  for _, run in ipairs(runs) do
    run.numbers = report_groups.numbers(run)
    local place = values_of(run, keys)
    local group = by_place[place]
    if not group then
      group = {label = report_groups.label(run, keys), runs = {}, place = #groups + 1}
      by_place[place], groups[#groups + 1] = group, group
    end
    table.insert(group.runs, run)
  end
  for _, group in ipairs(groups) do add_statistics(group) end
  table.sort(groups, group_before(keys))
  return groups
end

--- The group with the least mean loss, or nil.
function report_groups.best(groups)
  local best
  for _, group in ipairs(groups) do
    local loss = group.statistics.loss
    if loss and (not best or loss.mean < best.statistics.loss.mean) then best = group end
  end
  return best
end

--- Groups over N and topology: {workers, topologies (labels), cells[topology][worker] (a group or nil), shared},
-- or nil where neither differs. Of several groups in a cell the one with the least loss stays; shared says that
-- there were such cells.
function report_groups.grid(groups)
  local grid = {workers = {}, topologies = {}, cells = {}}
  local seen = {workers = {}, topologies = {}}
  local function note(list, text)
    if not seen[list][text] then table.insert(grid[list], text) end
    seen[list][text] = true
  end
  for _, group in ipairs(groups) do
    local n, name = report_groups.setting(group.runs[1], N), report_groups.setting(group.runs[1], TOPOLOGY)
    note("workers", n)
    note("topologies", name)
    local row = grid.cells[name] or {}
    grid.cells[name] = row
    if row[n] then grid.shared = true end
    row[n] = row[n] and report_groups.best {row[n], group} or row[n] or group
  end
  if #grid.workers * #grid.topologies < 2 then return nil end
  table.sort(grid.workers, before)
  table.sort(grid.topologies, before)
  return grid
end

return report_groups
