--- The recorded step of a trainer: one program, or, where gradients accumulate or updates have several forms, parts.
--
-- With one micro-step and one form of the update everything is one program. Else there are the first micro-step, which
-- overwrites the gradients, a later one, which adds to them, and an update for each form (see pack.updater). They run one
-- after the other and share their memory. The bits are those of the operations one by one.
local program = require "pack.core.program"

local recorded = {}

local Step = {}
Step.__index = Step

local function record(trainer, fn)
  return program.record(fn, {}, trainer.context, {recompute = trainer.config.runtime.recompute})
end

local function record_whole(trainer)
  return record(trainer, function()
    local losses, counts = trainer:compute(1)
    return losses, counts, trainer.updater:update(losses, counts)
  end)
end

local function record_micro_step(trainer, index)
  return record(trainer, function() trainer:compute(index) end)
end

-- The update of step t, whose form is the updater's from here on.
local function record_update(trainer, t)
  trainer.updater:form_of {t = t + 1, mixes = trainer.schedule:mixes(t), mixings = trainer.schedule:mixings(t)}
  return record(trainer, function()
    return trainer.losses, trainer.counts, trainer.updater:update(trainer.losses, trainer.counts)
  end)
end

--- Records a trainer's step: its micro-steps, and an update for each form that coming steps have.
function recorded.create(trainer)
  local self = setmetatable({trainer = trainer, accumulation = trainer.accumulation, updates = {}, sent = {}}, Step)
  local forms = trainer:forms()
  self.first_form = forms[1].form
  if self.accumulation == 1 and #forms == 1 then
    trainer.updater:form_of(trainer:plan_step(forms[1].t, 0, 1))
    self.micro_steps = {record_whole(trainer)}
    self.whole = forms[1].form
    self.sent[self.whole] = trainer.updater:sent()
  else
    self.micro_steps = {record_micro_step(trainer, 1), self.accumulation > 1 and record_micro_step(trainer, 2) or nil}
    for _, one in ipairs(forms) do self:record_form(one.form, one.t) end
  end
  return self
end

--- Records the update of step t, of a form that there is none of yet.
function Step:record_form(form, t)
  self.updates[form] = record_update(self.trainer, t)
  self.sent[form] = self.trainer.updater:sent()
end

--- All programs, a list.
function Step:parts()
  local list, forms = {unpack(self.micro_steps)}, {}
  for form in pairs(self.updates) do forms[#forms + 1] = form end
  table.sort(forms)
  for _, form in ipairs(forms) do list[#list + 1] = self.updates[form] end
  return list
end

--- Runs the step: for each micro-step writes its part of the batch, then runs its program; then the update of this form (default: of the
-- first step).
-- Returns loss sums, counts of valid targets and gradient norms per worker, tensors [N] that the next step overwrites.
function Step:run(form)
  form = form or self.first_form
  local last = self.micro_steps[1]
  if self.whole ~= form and not self.updates[form] then self:record_form(form, self.trainer.step_number) end
  if not self.ready then program.share(self:parts()) end
  self.ready = true
  self.trainer:write_batch(1)
  last:run()
  for micro = 2, self.accumulation do
    self.trainer:write_batch(micro)
    self.micro_steps[2]:run()
  end
  if self.whole ~= form then
    last = self.updates[form]
    last:run()
  end
  return unpack(last.results)
end

-- The form of update that has most operations.
local function longest_update(self)
  local longest
  for _, one in pairs(self.updates) do
    if not longest or one:memory().operations > longest then longest = one:memory().operations end
  end
  return longest or 0
end

--- The plan of the step: operations, how many run in it with the longest form of update; activations, workspace and slab,
-- bytes that the parts share; and what was recorded, dropped, merged, fused and recomputed in all parts (see
-- Program:memory).
function Step:memory()
  local plan = {}
  for _, part in ipairs(self:parts()) do
    for name, value in pairs(part:memory()) do
      local is_shared = name == "activations" or name == "workspace" or name == "slab"
      plan[name] = is_shared and math.max(plan[name] or 0, value) or (plan[name] or 0) + value
    end
  end
  local first, later = self.micro_steps[1], self.micro_steps[2]
  plan.operations = first:memory().operations + longest_update(self)
    + (later and later:memory().operations * (self.accumulation - 1) or 0)
  return plan
end

--- Why a part is run operation by operation although the device could run it as one; "" if there is nothing to say.
function Step:remark()
  for _, part in ipairs(self:parts()) do
    if part:remark() ~= "" then return part:remark() end
  end
  return ""
end

--- Gives the memory back now.
function Step:free()
  for _, part in ipairs(self:parts()) do part:free() end
end

return recorded
