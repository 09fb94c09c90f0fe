#!/usr/bin/env packlua
-- Where the time of a training step goes, on made-up tokens:
--   packlua recipes/profile.lua [--config FILE] [--steps K] [--eager] [--output DIR]
local pack = require "pack"

local options = pack.options.parse {
  recipe = "profile",
  summary = "Traces training steps on made-up tokens: operations by time, and how near each is to what this machine can do.",
  arg = arg,
  extra = {
    {name = "steps", value = "K", type = "integer", minimum = 1, default = 3, help = "steps that are traced"},
    {name = "warmup", value = "K", type = "integer", minimum = 0, default = 1, help = "steps before them"},
    {name = "eager", help = "operations one by one instead of a recorded program"},
    {name = "apart", help = "clip, mix and AdamW as operations of their own"},
    {name = "top", value = "K", type = "integer", minimum = 0, default = 20, help = "operations that are printed"},
    {name = "output", value = "DIR", help = "folder for trace.json and profile.json (default runs/profile-UTCTIME)"},
  },
}
local config = options.config
if options.eager then config.runtime.compile = false end

local context, remarks = pack.runtime.open(config)
local run = pack.run.create {recipe = "profile", output = options.output, config = config, context = context}
run:log("%s", context:describe())
for _, remark in ipairs(remarks) do run:log("%s", remark) end

-- What this machine can do at most: the best large square product, and copying.
local ceilings = pack.ceiling.measure(context)
local product = ceilings.flops_per_second[config.runtime.amp and "bf16" or "f32"]
run:log("ceilings: %.1f GFLOP/s for products in f32, %.1f in bf16; %.1f GB/s for copying",
  ceilings.flops_per_second.f32 / 1e9, ceilings.flops_per_second.bf16 / 1e9, ceilings.bytes_per_second / 1e9)

-- The steps. Those before the trace record the program and fault memory in.
local trainer = pack.trainer.create(config,
  {context = context, train = pack.data.synthetic(config).train, fused = not options.apart})
-- On a GPU the first traced step of a recorded program takes longer: with two or more before, it is among these.
for step = 1, options.warmup do
  local function run_step() trainer:step() end
  if step > 1 and step == options.warmup then pack.trace.capture(context, run_step):free() else run_step() end
end
local trace = pack.trace.capture(context, function(trace)
  for _ = 1, options.steps do
    trace:step()
    trainer:step()
  end
end)

-- What came of it.
local rows, totals, phases = trace:table(ceilings), trace:totals(), trace:phases()
local tokens = options.steps * config.training.batch_tokens
local flops = options.steps * pack.work.model_flops(config)
run:log("%d steps of %d targets: %.3f s each, %s tok/s, %.1f%% of the ceiling of products", options.steps,
  config.training.batch_tokens, trace.seconds / options.steps, pack.progress.count(tokens / trace.seconds),
  100 * flops / trace.seconds / product)
run:log("%d operations take %.1f%% of the time", totals.count, 100 * totals.seconds / trace.seconds)
for _, name in ipairs {"forward", "backward", "clip", "mix", "optimizer"} do
  if phases[name] then run:log("  %-9s %5.1f%%", name, 100 * phases[name] / trace.seconds) end
end
for _, line in ipairs(pack.trace.lines(rows, options.top)) do run:log("%s", line) end
if trace.dropped > 0 then run:log("%d events are missing from all of this", trace.dropped) end
if trace.note ~= "" then run:log("note: %s", trace.note) end

trace:write(run:path("trace.json"))
pack.json.write(run:path("profile.json"), {
  device = context:describe(), steps = options.steps, seconds = trace.seconds, tokens_per_second = tokens / trace.seconds,
  model_flops = flops, ceilings = ceilings, operations = pack.json.array(rows), totals = totals, phases = phases,
  dropped_events = trace.dropped, note = trace.note,
})
run:log("%s opens in ui.perfetto.dev and chrome://tracing", run:path("trace.json"))
run:close()
