-- What a training state says of itself, changed in hundreds of ways: refused in one line, or without effect.
local checkpoint = require "pack.run.checkpoint"
local config = require "pack.config"
local failure = require "pack.core.failure"
local ffi = require "ffi"
local files = require "pack.io.files"
local json = require "pack.io.json"
local run = require "pack.run.folder"
local safetensors = require "pack.io.safetensors"
local saver = require "pack.run.saver"
local schema = require "pack.config.schema"
local support = require "spec.support.helper"
local trainers = require "pack.train.trainer"

-- Values that are not what a field should be, or are and lie.
local values = {
  json.null, true, false, "", "3", "x\n\27[31m", {}, {1, 2}, {a = 1}, {loss = 1}, {loss = "x", step = 1, split = "validation"},
  -1, 0, 1, 2, 3, 0.5, 1e300, -1e300, 2 ^ 53 - 1, 2 ^ 31, ("9"):rep(400),
}

-- Fields that only people read, or that are what the run is compared with.
local free = {device = true, instruction_set = true, build = true, threads = true, recipe = true, data = true, best = true,
  metrics_lines = true, made_by = true, kept = true}

describe("A training state", function()
  local folder, path, metadata, tensors, trainer, opened, described, data
  setup(function()
    folder = support.temporary()
    path = folder .. "/changed.safetensors"
    trainer = trainers.open("configs/tiny.lua", {"model.vocab_size=257", "model.layers=1", "model.width=16", "model.heads=2",
      "model.ffn_width=24", "model.context_length=8", "training.micro_batch_size=2", "training.batch_tokens=48",
      "training.max_tokens=480", "training.epoch_tokens=96", "decentralized.num_models=3", "decentralized.topology=ring",
      "decentralized.mix_every=2", "runtime.compile=off", "runtime.device=cpu"})
    for _ = 1, 3 do trainer:step() end
    local owner = run.create {recipe = "train", output = folder .. "/run", config = trainer.config}
    owner:metrics {step = 3, split = "validation", loss = 2}
    local keeper = saver.create {run = owner, trainer = trainer, data = "data"}
    keeper:save_step()
    keeper:finish()
    keeper:close()
    owner:close()
    opened = assert(checkpoint.open(folder .. "/run/" .. checkpoint.step_name(3)))
    metadata, tensors = opened.file:metadata(), {}
    for _, name in ipairs(opened.file:names()) do
      tensors[#tensors + 1] = {name = name, tensor = opened.file:read_tensor(name)}
    end
    safetensors.write(path, {unpack(tensors)})
    local text = files.read(path)
    local size = ffi.cast("const uint64_t *", text)[0]
    described, data = text:sub(9, 8 + tonumber(size)):match("^{.-},(.*)$"), text:sub(9 + tonumber(size))
  end)
  teardown(function()
    opened:close()
    for _, item in ipairs(tensors) do item.tensor:free() end
    trainer:free()
    support.remove(folder)
  end)

  -- Opens the state with other metadata: the state, or nil and the message. Without checksums, and without waiting for
  -- the disk.
  local function reopen(changes)
    local all = {}
    for key, text in pairs(metadata) do all[key] = text end
    for key, text in pairs(changes) do all[key] = text or nil end
    local header = ('{"__metadata__":%s,%s'):format(json.encode(all), described)
    local size = ffi.new("uint64_t[1]", #header)
    support.write(path, ffi.string(size, 8) .. header .. data)
    return checkpoint.open(path)
  end

  -- The same with other tensors.
  local function reopen_with(list)
    list.metadata = metadata
    safetensors.write(path, list)
    return checkpoint.open(path)
  end

  -- Fails unless a refusal is a single line that names the file and has nothing of the library's inside.
  local function assert_refused(message, what)
    assert.equal("string", type(message), what)
    assert.equal(path, message:sub(1, #path), what)
    assert.is_falsy(message:find("[%c]"), what .. ": " .. message)
    assert.is_falsy(message:find("%.lua:%d"), what .. ": " .. message)
    assert.is_falsy(message:find("attempt to", 1, true), what .. ": " .. message)
  end

  -- Goes on from a state that opened, as recipes/resume.lua does: refusals are usage errors or failures.
  local function go_on(state)
    local good, problem = pcall(function()
      state:check(state:config(), {data = "data"})
      state:remarks(trainer.context)
      state:restore(trainer)
    end)
    assert.is_true(good or failure.is(problem), tostring(problem))
  end

  it("is read as it was written", function()
    local state = assert(reopen {})
    assert.same(opened.info, state.info)
    go_on(state)
    assert.equal(3, trainer.step_number)
    state:close()
  end)

  it("is refused, or says the same of what counts, whatever one of its fields says", function()
    local info = json.decode(metadata.state)
    local names, refused = {}, 0
    for name in pairs(info) do names[#names + 1] = name end
    table.sort(names)
    assert.is_true(#names >= 16)
    for _, name in ipairs(names) do
      local before = info[name]
      for i = 0, #values do
        info[name] = values[i] -- values[0] is nil: the field is not there
        local text = json.encode(info)
        local what = ("%s = %s"):format(name, i == 0 and "nil" or json.encode(values[i]))
        local state, message = reopen {state = text}
        if state then
          assert.is_true(free[name] or values[i] == before, what)
          for key, x in pairs(opened.info) do
            if not free[key] then assert.equal(x, state.info[key]) end
          end
          go_on(state)
          state:close()
        else
          refused = refused + 1
          assert_refused(message, what)
        end
      end
      info[name] = before
    end
    assert.is_true(refused > 200, refused .. " were refused")
  end)

  it("is refused when its metadata are no table, or not there", function()
    for _, key in ipairs {"state", "config"} do
      for _, text in ipairs {"", "{", "[]", "[1]", "5", "null", '"x"', "{}", ('{"a":'):rep(200)} do
        local state, message = reopen {[key] = text}
        assert.is_nil(state, key .. " = " .. text)
        assert_refused((message:gsub("\n", " ")), key .. " = " .. text)
      end
      local state, message = reopen {[key] = false}
      assert.is_nil(state)
      assert_refused(message, "no " .. key)
    end
  end)

  it("is refused, or goes on or not without an internal error, whatever its configuration says", function()
    local saved = json.decode(metadata.config)
    local count = 0
    for _, row in ipairs(schema.rows) do
      local before = saved[row.section][row.name]
      for i = 0, #values, 3 do
        saved[row.section][row.name] = values[i]
        local state, message = reopen {config = json.encode(saved)}
        local what = ("%s = %s"):format(row.key, tostring(values[i]))
        count = count + 1
        if state then
          go_on(state)
          state:close()
        else
          assert_refused(message, what)
        end
      end
      saved[row.section][row.name] = before
    end
    assert.is_true(count > 300)
  end)

  it("is refused when a tensor is missing, or of another shape or dtype", function()
    for place, item in ipairs(tensors) do
      local list = {unpack(tensors)}
      table.remove(list, place)
      local state, message = reopen_with(list)
      assert.is_nil(state)
      assert.is_truthy(message:find(("there is no tensor '%s'"):format(item.name), 1, true), message)
      assert_refused(message, item.name)
      local flat = {name = item.name, tensor = item.tensor, shape = {tonumber(item.tensor.numel), 1}}
      for _, other in ipairs {flat, {name = item.name, tensor = item.tensor, dtype = "f64"}} do
        list = {unpack(tensors)}
        list[place] = other
        state, message = reopen_with(list)
        assert.is_nil(state)
        assert.is_truthy(message:find(("tensor '%s' is "):format(item.name), 1, true), message)
        assert_refused(message, item.name)
      end
    end
  end)

  it("that lies changes nothing in its run's folder", function()
    local info = json.decode(metadata.state)
    local place = folder .. "/run/" .. checkpoint.step_name(3)
    local listed = files.list(folder .. "/run")
    for name, x in pairs {step = 1e300, cursor = -1, mixings = "3", num_models = json.null, best = 5} do
      local before = info[name]
      info[name] = x
      assert.is_nil((reopen {state = json.encode(info)}))
      info[name] = before
      files.write(place, files.read(path))
      local environment = files.read(folder .. "/run/environment.json")
      local code, _, err = support.run(("packlua recipes/resume.lua %s/run"):format(folder))
      assert.equal(1, code, err)
      assert.is_truthy(err:find(("%s: its %s is "):format(place, name), 1, true), err)
      assert.is_falsy(err:find("traceback", 1, true), err)
      assert.equal(environment, files.read(folder .. "/run/environment.json"))
      assert.same(listed, files.list(folder .. "/run"))
    end
    assert.same(trainer.config, config.load(folder .. "/run/resolved.json", {}))
  end)
end)
