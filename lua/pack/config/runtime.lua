-- From the runtime section of a configuration to a device context.
local context = require "pack.core.context"
local failure = require "pack.core.failure"
local native = require "pack.native"

local runtime = {}

--- The device that a setting means: "auto" is the first CUDA device, where this build has CUDA and there is a GPU that it
-- can use, else "cpu". Returns its name and, where a build with CUDA uses the CPU, why.
function runtime.device(name)
  if name ~= "auto" then return name end
  if native.C.pk_device_check("cuda") == 0 then return "cuda:0" end
  local why = native.message()
  return "cpu", not why:find("this build has no", 1, true) and why or nil
end

--- The attention option of a context for a setting: plain operations are the model's matter.
function runtime.attention(setting)
  return setting ~= "reference" and setting or nil
end

-- What computes the attention of a configuration on a device where it is left to the device.
local function chosen_attention(config, opened)
  local head_dim = config.model.width / config.model.heads
  local fits = config.runtime.amp == true and head_dim % 8 == 0 and head_dim <= 128
  return fits and opened:attention() or "flash"
end

-- A context of settings on a device of that name, or nil and why there is none.
local function try_device(settings, name)
  local good, opened = failure.pcall(context.create, {device = name,
    threads = settings.threads or nil, memory_limit_mib = settings.memory_limit_mib or nil,
    deterministic = settings.deterministic or nil, attention = runtime.attention(settings.attention),
    forecast = settings.forecast})
  if good then return opened end
  return nil, (tostring(opened):gsub("^[^ ]*:%d+: ", ""))
end

--- A context of settings (device, threads, memory_limit_mib, deterministic, attention, forecast; false or nil: as
-- context.create has it). A device that is not there is the user's mistake: a usage error.
function runtime.context(settings)
  local opened, message = try_device(settings, settings.device)
  if not opened then failure.usage("%s", message) end
  return opened
end

-- Opens the device that a setting asks for; where that is "auto" and the GPU that is there cannot be opened, the CPU.
-- Returns the context, the device's name and, where a build with CUDA uses the CPU, why.
local function open_device(settings)
  local name, why = runtime.device(settings.device)
  local opened, message = try_device(settings, name)
  if not opened and settings.device == "auto" and name ~= "cpu" then
    opened, name, why = try_device(settings, "cpu"), "cpu", message
  end
  if not opened then failure.usage("%s", message) end
  return opened, name, why
end

--- Opens the device that a resolved configuration asks for and makes it the default. What "auto" and
-- options of this build mean is written into config.runtime, so that resolved.json says what was run:
-- device, amp (true only where the device multiplies bf16 faster than f32) and attention. Returns the context
-- and a list of remarks for the log.
function runtime.open(config)
  local settings, remarks = config.runtime, {}
  local opened, device, why = open_device(settings)
  settings.device = device
  if why then remarks[#remarks + 1] = "device: cpu, as " .. why end
  if settings.amp == "auto" then
    settings.amp = opened:has_bf16()
    if not settings.amp then
      remarks[#remarks + 1] = "amp off: this device multiplies bf16 no faster than f32"
    end
  end
  if settings.attention == "auto" then settings.attention = chosen_attention(config, opened) end
  return context.set_default(opened), remarks
end

return runtime
