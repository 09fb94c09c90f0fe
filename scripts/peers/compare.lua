--- Compares packlua's training step with the same step in PyTorch; started by scripts/peers/compare.sh.
--
-- In every round each candidate runs once, in a process of its own, packlua and PyTorch in turn. Round 1 runs all;
-- later ones leave out PyTorch's variants that were more than a quarter slower than its best of the same dtype. A
-- ratio is packlua's rate over that of the best PyTorch variant of any dtype in the same round.
local json = require "pack.io.json"
local options = require "pack.run.options"
local plan = require "pack.train.plan"
local statistics = require "pack.measure.statistics"

local given = options.parse {
  recipe = "compare", summary = "Compares packlua's training step with the same step in PyTorch.", arg = arg,
  config = false,
  extra = {
    {name = "config", value = "FILE", default = "configs/20m.lua", help = "configuration"},
    {name = "workers", value = "N", type = "integer", minimum = 1, default = 4, help = "number of workers"},
    {name = "dtypes", value = "LIST", help = "of both: f32,bf16 (with --quick f32 alone: a processor without bf16 "
      .. "takes PyTorch long)"},
    {name = "variants", value = "LIST", default = "eager+chunk,compile+chunk",
      help = "of PyTorch: eager, compile, each with +chunk for a head that never holds all logits"},
    {name = "rounds", value = "R", type = "integer", minimum = 1, default = 3, help = "how often"},
    {name = "steps", value = "K", type = "integer", minimum = 1, default = 2, help = "timed in each process"},
    {name = "warmup", value = "K", type = "integer", minimum = 0, default = 1, help = "steps before these"},
    {name = "threads", value = "T", type = "integer", minimum = 1, help = "of both (default: all cores)"},
    {name = "micro-batch", value = "ROWS", type = "integer", minimum = 1,
      help = "sequences per worker at once in PyTorch (default: the configuration's; halved while memory runs out)"},
    {name = "chunk", value = "ROWS", type = "integer", minimum = 1, default = 512, help = "of the chunked head"},
    {name = "budget-seconds", value = "S", type = "number", minimum = 1, default = 900,
      help = "of one PyTorch process: past it, a smaller batch"},
    {name = "timeout", value = "S", type = "number", minimum = 1, default = 1800, help = "ends a process"},
    {name = "quick", help = "4,096 targets, one round of one step: a few minutes"},
    {name = "output", value = "FILE", help = "every process's figures, a line of JSON each"},
  },
}

-- As torch_packed.py has it; what is left different are the random numbers of the first weights.
local settings = {"optimizer.schedule=constant", "optimizer.warmup_fraction=0", "optimizer.lr=0.001",
  "decentralized.topology=one_peer_exponential"}
if given.quick then
  given.rounds, given.steps, given.dtypes = 1, 1, given.dtypes or "f32"
  for _, setting in ipairs {"training.batch_tokens=4096", "training.micro_batch_size=" .. math.max(1, 4 / given.workers),
    "decentralized.num_models=" .. math.min(given.workers, 4)} do
    settings[#settings + 1] = setting
  end
end
local config = plan.with_workers(given.config, {"training.max_tokens=1073741824", unpack(settings)}, given.workers)
if not config then
  require("pack.core.failure").usage("the batch of %s cannot be shared out among %d workers", given.config, given.workers)
end

local function words(text)
  local list = {}
  for word in text:gmatch("[^,]+") do list[#list + 1] = word end
  return list
end

local function quote(text)
  return "'" .. tostring(text):gsub("'", "'\\''") .. "'"
end

local function packlua_command(candidate)
  local parts = {quote(os.getenv "PACKLUA"), "scripts/bench_step.lua --json --config", quote(given.config),
    "--workers", given.workers, "--steps", given.steps, "--warmup", given.warmup}
  if candidate.dtype == "bf16" then parts[#parts + 1] = "--amp" end
  if given.threads then parts[#parts + 1] = "--set runtime.threads=" .. given.threads end
  for _, setting in ipairs(settings) do parts[#parts + 1] = "--set " .. setting end
  return table.concat(parts, " ")
end

-- The allocator keeps what was freed, as PyTorch's guide to CPUs advises: else each step faults its activations in anew.
local torch_environment = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=1000000000000 MALLOC_ARENA_MAX=1 "
  .. "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"

if config.model.architecture ~= "llama" then
  error("--config: the peers compute the llama architecture, and no other", 0)
end

local function torch_command(candidate)
  local model, training = config.model, config.training
  local rows = given.micro_batch or training.micro_batch_size
  local accumulation = training.batch_tokens / (given.workers * rows * model.context_length)
  local parts = {"env", torch_environment, quote(os.getenv "PYTHON"), "scripts/peers/torch_packed.py"}
  for _, pair in ipairs {{"layers", model.layers}, {"width", model.width}, {"heads", model.heads},
    {"ffn", model.ffn_width}, {"vocab", model.vocab_size}, {"context", model.context_length}, {"num-models", given.workers},
    {"micro-batch", rows}, {"accumulation", math.max(1, math.floor(accumulation))}, {"steps", given.steps},
    {"warmup", given.warmup}, {"dtype", candidate.dtype}, {"budget-seconds", given.budget_seconds}} do
    parts[#parts + 1] = "--" .. pair[1] .. " " .. pair[2]
  end
  if candidate.variant:find "compile" then parts[#parts + 1] = "--compile" end
  if candidate.variant:find "chunk" then parts[#parts + 1] = "--chunk-head " .. given.chunk end
  if given.threads then parts[#parts + 1] = "--threads " .. given.threads end
  return table.concat(parts, " ")
end

local function candidates()
  local list = {}
  for _, dtype in ipairs(words(given.dtypes or "f32,bf16")) do
    list[#list + 1] = {name = "packlua " .. dtype, dtype = dtype, command = packlua_command {dtype = dtype}}
    for _, variant in ipairs(words(given.variants)) do
      local one = {name = ("torch %s %s"):format(dtype, variant), dtype = dtype, variant = variant, torch = true}
      one.command = torch_command(one)
      list[#list + 1] = one
    end
  end
  for _, one in ipairs(list) do one.rates, one.runs = {}, {} end
  return list
end

local output = given.output and assert(io.open(given.output, "w"))

-- Runs a candidate's process; notes its rate, or why there is none.
local function measure(candidate, round)
  local errors = os.tmpname()
  local pipe = assert(io.popen(("timeout -k 10 %g %s 2> %s; echo \"$?\""):format(given.timeout, candidate.command,
    quote(errors))))
  local text = pipe:read "*a"
  pipe:close()
  local line, code = text:match("({[^\n]*})\n"), tonumber(text:match("(%d+)%s*$"))
  local result = line and json.decode(line)
  local file = io.open(errors)
  local problem = file:read("*a"):gsub("%s+$", ""):match("[^\n]*$")
  file:close()
  os.remove(errors)
  if code == 124 or code == 137 then
    candidate.failure = code == 124 and ("took more than %g s"):format(given.timeout) or "was killed (out of memory?)"
  elseif result and result.out_of_memory then
    candidate.failure = "out of memory with one sequence per worker"
  elseif code ~= 0 or not result then
    candidate.failure = ("failed (%s): %s"):format(tostring(code), problem)
  else
    candidate.failure = nil
    local rate = result.targets / statistics.median(result.seconds)
    candidate.rates[#candidate.rates + 1], candidate.runs[#candidate.runs + 1] = rate, result
    candidate.latest = {round = round, rate = rate}
  end
  if output and line then
    output:write(line, "\n")
    output:flush()
  end
  io.stderr:write(("round %d: %-26s %s\n"):format(round, candidate.name,
    candidate.failure or ("%.0f tok/s"):format(candidate.rates[#candidate.rates])))
end

local function best_of(list, wanted)
  local best
  for _, one in ipairs(list) do
    local rate = wanted(one) and statistics.median(one.rates)
    if rate and (not best or rate > statistics.median(best.rates)) then best = one end
  end
  return best
end

-- Whether a candidate runs in this round.
local function takes_part(list, one, round)
  if round == 1 or not one.torch then return true end
  local best = best_of(list, function(other) return other.torch and other.dtype == one.dtype end)
  return best and not one.failure and statistics.median(one.rates) >= 0.75 * statistics.median(best.rates)
end

local list = candidates()
local ratios = {} -- by candidate of packlua, one for each round
for round = 1, given.rounds do
  for _, one in ipairs(list) do
    if takes_part(list, one, round) then measure(one, round) end
  end
  local best
  for _, one in ipairs(list) do
    if one.torch and one.latest and one.latest.round == round then best = math.max(best or 0, one.latest.rate) end
  end
  for _, one in ipairs(list) do
    ratios[one] = ratios[one] or {}
    if best and one.latest and one.latest.round == round then table.insert(ratios[one], one.latest.rate / best) end
  end
end
if output then output:close() end

-- The largest of a field over the runs of some candidates.
local function largest(wanted, field)
  local most = 0
  for _, one in ipairs(list) do
    for _, run in ipairs(wanted(one) and one.runs or {}) do most = math.max(most, run[field] or 0) end
  end
  return most
end

local function spread(values, format)
  local least, most = math.huge, -math.huge
  for _, x in ipairs(values) do least, most = math.min(least, x), math.max(most, x) end
  return (format .. " (" .. format .. " to " .. format .. ")"):format(statistics.median(values), least, most)
end

local function is_torch(one) return one.torch end
local function is_packlua(one) return not one.torch end
local ours, theirs = largest(is_packlua, "ceiling_gflops"), largest(is_torch, "ceiling_f32_gflops")
local ceiling = math.max(ours, theirs)
local work = require "pack.measure.work"
local flops_per_target = work.model_flops(config) / config.training.batch_tokens

print(("%s, N = %d, %d targets a step; %d rounds of %d steps after %d\nlargest f32 ceiling of the session: packlua %.1f, "
  .. "torch %.1f GFLOP/s; shares are of the larger"):format(given.config, given.workers, config.training.batch_tokens,
  given.rounds, given.steps, given.warmup, ours, theirs))
print "\n| candidate | tok/s | CPU s/step | share | over best torch | RSS, MiB | loss | remarks |\n|---|---|---|---|---|---|---|---|"
for _, one in ipairs(list) do
  local remarks = {one.failure}
  if #one.rates == 0 then
    print(("| %s | | | | | | | %s |"):format(one.name, one.failure))
  else
    local last = one.runs[#one.runs]
    if last.targets ~= config.training.batch_tokens then
      remarks[#remarks + 1] = ("batch of %d targets, for time"):format(last.targets)
    end
    if last.out_of_memory_at_micro_batch and last.out_of_memory_at_micro_batch ~= json.null then
      remarks[#remarks + 1] = ("out of memory at %d sequences per worker, measured at %d x %d"):format(
        last.out_of_memory_at_micro_batch, last.micro_batch, last.accumulation)
    end
    local rss = 0
    for _, run in ipairs(one.runs) do rss = math.max(rss, run.peak_rss_mib) end
    print(("| %s | %s | %.1f | %.0f%% | %s | %.0f | %.3f | %s |"):format(one.name, spread(one.rates, "%.0f"),
      statistics.median(last.cpu_seconds), 100 * statistics.median(one.rates) * flops_per_target / ceiling / 1e9,
      #ratios[one] > 0 and spread(ratios[one], "%.2f") or "", rss, last.loss[1], table.concat(remarks, "; ")))
  end
end
