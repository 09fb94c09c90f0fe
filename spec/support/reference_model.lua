--- A small model for comparisons with other programs: every size differs, and so do all of its weights, norms too.
-- Run as a program it writes the weights and their configuration:
--   packlua spec/support/reference_model.lua DIR [ARCHITECTURE]
local json = require "pack.io.json"
local packed = require "pack.model.packed"
local safetensors = require "pack.io.safetensors"

local reference = {}

--- The model section of its configuration.
reference.config = {
  vocab_size = 61, layers = 2, width = 24, heads = 3, ffn_width = 20, context_length = 16, rope_theta = 50,
  norm_eps = 1e-3, init_std = 0.3,
}

--- The same of an architecture, "llama" or "gpt2".
function reference.config_of(architecture)
  local config = {architecture = architecture}
  for key, value in pairs(reference.config) do config[key] = value end
  return config
end

--- The model, N = 1, of an architecture (default llama).
function reference.create(architecture)
  local config = reference.config_of(architecture)
  local model = packed.create(config, {num_models = 1})
  model:initialize(5)
  for _, name in ipairs(model.names) do
    local mean, deviation = model.architecture.initial(config, name)
    if deviation == 0 then model.weight[name]:seed_normal(5, name, mean, 0.3) end
  end
  return model
end

--- Writes DIR/weights.safetensors, under packlua's names and without metadata, and DIR/config.json.
function reference.write(folder, architecture)
  local model, list = reference.create(architecture), {}
  for i, name in ipairs(model.names) do
    local shape = model.weight[name]:sizes()
    table.remove(shape, 1)
    list[i] = {name = name, tensor = model.weight[name], shape = shape}
  end
  safetensors.write(folder .. "/weights.safetensors", list)
  model:free()
  local file = assert(io.open(folder .. "/config.json", "wb"))
  file:write((json.encode {model = reference.config_of(architecture), training = {batch_tokens = 16, micro_batch_size = 1}}))
  file:close()
end

if arg and arg[0] and arg[0]:find("reference_model%.lua$") then reference.write(arg[1], arg[2]) end

return reference
