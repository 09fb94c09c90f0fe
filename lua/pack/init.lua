--- The library: require "pack" gives its modules, tensor makers, derivatives and operations by name.
--
-- pack.topology is the module that pack.modules names, loaded at first use so that starting stays a matter of
-- milliseconds. pack.zeros and its like are the functions that pack.functions names, and any operation
-- of pack.ops can be called as pack.matmul. Everything else in lua/pack is for the library's own use.
local pack = {
  --- The version of the library and of the program.
  version = require "pack.version",
}

--- The public modules: name -> the module that require knows.
pack.modules = {
  -- tensors and devices
  context = "pack.core.context",
  failure = "pack.core.failure",
  ops = "pack.core.ops",
  phase = "pack.core.phase",
  program = "pack.core.program",
  tensor = "pack.core.tensor",
  -- derivatives
  grad = "pack.grad",
  gradcheck = "pack.grad.gradcheck",
  -- models
  arena = "pack.model.arena",
  generate = "pack.model.generate",
  hf = "pack.model.hf",
  llama = "pack.model.llama",
  packed = "pack.model.packed",
  -- data
  cache = "pack.data.cache",
  data = "pack.data.source",
  inspect = "pack.data.inspect",
  loader = "pack.data.loader",
  prepare = "pack.data.prepare",
  text = "pack.data.text",
  tokenizer = "pack.data.tokenizer",
  workers = "pack.data.workers",
  -- training
  golden = "pack.train.golden",
  golden_algorithm = "pack.train.golden_algorithm",
  algorithms = "pack.algorithms",
  optim = "pack.optim",
  step = "pack.train.step",
  updater = "pack.train.updater",
  plan = "pack.train.plan",
  schedule = "pack.train.schedule",
  topology = "pack.mixing.topology",
  trainer = "pack.train.trainer",
  -- runs and their files
  checkpoint = "pack.run.checkpoint",
  compare = "pack.run.compare",
  evaluate = "pack.run.evaluate",
  run = "pack.run.folder",
  runs = "pack.report.runs",
  study = "pack.run.study",
  weights = "pack.run.weights",
  -- configurations and command lines
  config = "pack.config",
  options = "pack.run.options",
  runtime = "pack.config.runtime",
  schema = "pack.config.schema",
  -- files and processes
  files = "pack.io.files",
  json = "pack.io.json",
  process = "pack.io.process",
  progress = "pack.io.progress",
  safetensors = "pack.io.safetensors",
  utf8 = "pack.io.utf8",
  -- measurements and studies
  benchmark = "pack.benchmark",
  ceiling = "pack.measure.ceiling",
  plot = "pack.report.plot",
  report = "pack.report",
  statistics = "pack.measure.statistics",
  sweep = "pack.sweep",
  trace = "pack.measure.trace",
  tune = "pack.benchmark.tune",
  work = "pack.measure.work",
}

--- The public functions with a name of their own: name -> {module, its name there}.
pack.functions = {
  zeros = {"pack.core.tensor", "zeros"},
  ones = {"pack.core.tensor", "ones"},
  full = {"pack.core.tensor", "full"},
  from = {"pack.core.tensor", "from"},
  arange = {"pack.core.tensor", "arange"},
  normal = {"pack.core.tensor", "normal"},
  uniform = {"pack.core.tensor", "uniform"},
  compile = {"pack.core.program", "compile"},
  hvp = {"pack.grad", "hvp"},
  gradgradcheck = {"pack.grad.gradcheck", "gradgradcheck"},
}

local function find(name)
  if pack.modules[name] then return require(pack.modules[name]) end
  local place = pack.functions[name]
  if place then return require(place[1])[place[2]] end
  if require("pack.core.dispatch").operations[name] then return require("pack.core.ops")[name] end
end

return setmetatable(pack, {
  __index = function(self, name)
    local value = type(name) == "string" and find(name)
    if not value then
      error(("pack has no module, function or operation '%s'"):format(tostring(name)), 2)
    end
    rawset(self, name, value)
    return value
  end,
})
