-- Event files for TensorBoard: their bytes, and that they say what metrics.jsonl says.
local bit = require "bit"
local ffi = require "ffi"
local files = require "pack.io.files"
local json = require "pack.io.json"
local support = require "spec.support.helper"
local tfevents = require "pack.run.tfevents"

local function hex(text)
  return (text:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

-- CRC-32C bit by bit, apart from the library's.
local function crc32c(text)
  local x = 0xffffffff
  for i = 1, #text do
    x = bit.bxor(x, text:byte(i))
    for _ = 1, 8 do
      local odd = bit.band(x, 1) == 1
      x = bit.rshift(x, 1)
      if odd then x = bit.bxor(x, 0x82f63b78) end
    end
  end
  return bit.bnot(x) % 2 ^ 32
end

local function integer(text, at, count)
  local x = 0
  for i = count - 1, 0, -1 do x = x * 256 + text:byte(at + i) end
  return x
end

local function check_sum(text, sum)
  local x = crc32c(text)
  local turned = math.floor(x / 2 ^ 15) + x % 2 ^ 15 * 2 ^ 17
  assert.equal((turned + 0xa282ead8) % 2 ^ 32, sum)
end

-- The messages of a file, whose checksums must be right and which must end with a record.
local function records(text)
  local list, at = {}, 1
  while at <= #text do
    local length = integer(text, at, 8)
    check_sum(text:sub(at, at + 7), integer(text, at + 8, 4))
    local message = text:sub(at + 12, at + 11 + length)
    assert.equal(length, #message)
    check_sum(message, integer(text, at + 12 + length, 4))
    list[#list + 1] = message
    at = at + 16 + length
  end
  return list
end

local function varint(text, at)
  local x, scale = 0, 1
  repeat
    local byte = text:byte(at)
    x, scale, at = x + byte % 128 * scale, scale * 128, at + 1
  until byte < 128
  return x, at
end

-- The fields of a protobuf message: {number = list of contents}.
local function fields(text)
  local found, at = {}, 1
  while at <= #text do
    local key, x
    key, at = varint(text, at)
    local kind = key % 8
    if kind == 0 then
      x, at = varint(text, at)
    else
      local length = kind == 1 and 8 or 4
      if kind == 2 then length, at = varint(text, at) end
      x, at = text:sub(at, at + length - 1), at + length
    end
    local number = math.floor(key / 8)
    found[number] = found[number] or {}
    table.insert(found[number], x)
  end
  return found
end

local function float(text)
  return tonumber(ffi.cast("const float *", text)[0])
end

-- The events of a file: {step, version, status, scalars = {tag = value}}.
local function events(path)
  local list = {}
  for i, message in ipairs(records(support.read(path))) do
    local own = fields(message)
    local event = {step = own[2] and own[2][1] or 0, version = own[3] and own[3][1]}
    if own[7] then event.status = fields(own[7][1])[1][1] end
    if own[5] then
      event.scalars = {}
      for _, value in ipairs(fields(own[5][1])[1]) do
        local scalar = fields(value)
        event.scalars[scalar[1][1]] = float(scalar[2][1])
      end
    end
    list[i] = event
  end
  return list
end

local function event_files(folder)
  local list = {}
  for _, name in ipairs(files.list(folder)) do
    if name:find("^events%.out%.tfevents%.%d+%.") then list[#list + 1] = folder .. "/" .. name end
  end
  return list
end

local function as_float(x)
  return tonumber(ffi.new("float", x))
end

describe("CRC-32C", function()
  it("is that of RFC 3720", function()
    assert.equal(0x8a9136aa, tfevents.crc32c(("\0"):rep(32)))
    assert.equal(0x62a8ab43, tfevents.crc32c(("\255"):rep(32)))
    assert.equal(0xe3069283, tfevents.crc32c("123456789"))
    assert.equal(0, tfevents.crc32c(""))
  end)
end)

describe("A record of an event", function()
  -- The bytes are those that TensorBoard's own writer makes of the same events.
  it("has TensorBoard's bytes", function()
    assert.equal("1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c",
      hex(tfevents.record(tfevents.version(1.5))))
    assert.equal("100000000000000095fbfe1809000000000000f83f10ac023a020801713b788a",
      hex(tfevents.record(tfevents.start(1.5, 300))))
    local message = tfevents.scalars(1234567890.25, 2 ^ 40 + 5, {{"loss", 3.25}, {"loss_worker/0", 0 / 0}})
    local record = hex(tfevents.record(message))
    assert.equal("3500000000000000d6c55de609000090b48065d241108580808080202a230a0b0a046c6f737315000050400a140a0d6c6f73735f"
      .. "776f726b65722f3015", record:sub(1, -17))
    assert.truthy(float(message:sub(-4)) ~= float(message:sub(-4)))
  end)
end)

describe("A run with runtime.tensorboard", function()
  local folder
  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  local settings = " --set model.layers=1 --set model.width=16 --set model.heads=2 --set model.ffn_width=24"
    .. " --set model.context_length=8 --set training.micro_batch_size=2 --set training.batch_tokens=64"
    .. " --set training.max_tokens=384 --set training.epoch_tokens=128 --set training.log_every=2"
    .. " --set evaluation.subset_blocks=2 --set evaluation.batch_size=2 --set data.text=LICENSE --sample 0"

  local function rows(run)
    local list = {}
    for line in support.read(run .. "/metrics.jsonl"):gmatch("[^\n]+") do list[#list + 1] = json.decode(line) end
    return list
  end

  -- What TensorBoard shows of files in this order: {tag = {{step, value}}}; a start drops what stands from its step on.
  local function shown(paths)
    local curves = {}
    for _, path in ipairs(paths) do
      for _, event in ipairs(events(path)) do
        for _, points in pairs(event.status == 1 and curves or {}) do
          while points[1] and points[#points][1] >= event.step do table.remove(points) end
        end
        for tag, value in pairs(event.scalars or {}) do
          curves[tag] = curves[tag] or {}
          table.insert(curves[tag], {event.step, value})
        end
      end
    end
    return curves
  end

  -- The same of metrics.jsonl.
  local function recorded(run)
    local curves = {}
    local function add(tag, step, x)
      curves[tag] = curves[tag] or {}
      table.insert(curves[tag], {step, as_float(x)})
    end
    for _, row in ipairs(rows(run)) do
      if row.split then
        add("validation/loss", row.step - 1, row.loss)
      else
        for _, name in ipairs {"loss", "lr", "gamma", "tokens_per_second", "consensus_distance"} do
          if row[name] then add(name, row.step, row[name]) end
        end
        for i, x in ipairs(row.loss_worker) do add("loss_worker/" .. i - 1, row.step, x) end
        for i, x in ipairs(row.grad_norm_worker) do add("grad_norm_worker/" .. i - 1, row.step, x) end
      end
    end
    return curves
  end

  it("has the curves of metrics.jsonl in an event file", function()
    local run = folder .. "/run"
    local code, _, err = support.run("packlua recipes/train.lua --set runtime.tensorboard=true --output " .. run .. settings)
    assert.same({0, ""}, {code, err})
    local paths = event_files(run)
    assert.equal(1, #paths)
    local list = events(paths[1])
    assert.equal("brain.Event:2", list[1].version)
    assert.same({1, 0}, {list[2].status, list[2].step})
    local found = shown(paths)
    for tag, points in pairs(recorded(run)) do assert.same(points, found[tag], tag) end
    assert.is_nil(found.step)
  end)

  it("does not show a step twice when it goes on", function()
    local run = folder .. "/run"
    local code = support.run("packlua recipes/train.lua --set runtime.tensorboard=true --set training.checkpoint_steps=2"
      .. " --set training.keep=9 --output " .. run .. settings)
    assert.equal(0, code)
    -- As if killed after the last step, of which the state of step 4 knows nothing.
    for _, name in ipairs(files.list(run)) do
      if name == "result.json" or name:find("^epoch%-003") then os.remove(run .. "/" .. name) end
    end
    local out, err
    code, out, err = support.run("packlua recipes/resume.lua " .. run)
    assert.same({0, ""}, {code, err}, out)
    local paths = event_files(run)
    assert.equal(2, #paths)
    assert.same({1, 4}, {events(paths[2])[2].status, events(paths[2])[2].step})
    local found = shown(paths)
    for tag, points in pairs(recorded(run)) do assert.same(points, found[tag], tag) end
  end)

  it("writes no event file where it is off", function()
    local run = folder .. "/run"
    support.run("packlua recipes/train.lua --output " .. run .. settings)
    assert.same({}, event_files(run))
  end)
end)
