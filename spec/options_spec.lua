-- The command line of recipes: what is accepted, what is refused, what --help says.
local options = require "pack.run.options"
local schema = require "pack.config.schema"
local support = require "spec.support.helper"

local function spec_with(arguments, changes)
  local spec = {
    recipe = "train",
    summary = "Trains packed workers.",
    arg = arguments,
    extra = {
      {name = "output", value = "DIR", help = "folder of the run"},
      {name = "num-models", value = "N", type = "integer", minimum = 1, many = true, help = "numbers of workers"},
      {name = "dtype", value = "f64|f32", default = "f32", help = "precision"},
      {name = "quiet", help = "prints less"},
    },
  }
  for key, x in pairs(changes or {}) do spec[key] = x end
  return spec
end

local function parse(...)
  return options.parse(spec_with {...})
end

local function refused(message, ...)
  local good, object = pcall(parse, ...)
  assert.is_false(good)
  assert.equal(2, object.exit, tostring(object))
  assert.is_truthy(tostring(object):find(message, 1, true),
    ("%q does not contain %q"):format(tostring(object), message))
end

describe("A recipe's command line", function()
  it("without arguments uses configs/tiny.lua and the defaults", function()
    local got = parse()
    assert.equal(128, got.config.model.width)
    assert.equal("f32", got.dtype)
    assert.is_nil(got.output)
    assert.is_nil(got.quiet)
  end)

  it("takes --config, repeated --set, --device and --output, with a space or =", function()
    local got = parse("--config", "configs/20m.lua", "--set", "optimizer.lr=0.5", "--set=model.layers=2",
      "--device", "cpu", "--output=runs/a", "--quiet")
    assert.equal(320, got.config.model.width)
    assert.equal(0.5, got.config.optimizer.lr)
    assert.equal(2, got.config.model.layers)
    assert.equal("cpu", got.config.runtime.device)
    assert.equal("runs/a", got.output)
    assert.equal("runs/a", got.config.runtime.output_dir)
    assert.is_true(got.quiet)
  end)

  it("knows its output folder from the configuration too", function()
    assert.equal("runs/b", parse("--set", "runtime.output_dir=runs/b").output)
  end)

  it("takes a leading ~/ of a file or folder for the home folder", function()
    local home = os.getenv("HOME")
    local got = parse("--output=~/runs/a")
    assert.equal(home .. "/runs/a", got.output)
    assert.equal(home .. "/runs/a", got.config.runtime.output_dir)
    refused("--config " .. home .. "/gone.lua: there is no such file", "--config=~/gone.lua")
    refused("--output ~somebody/a: only ~/ is known", "--output=~somebody/a")
  end)

  it("takes several values after one flag", function()
    assert.same({4, 8}, parse("--num-models", "4", "8", "--quiet").num_models)
  end)

  it("refuses what it does not know, with a suggestion", function()
    refused("there is no option --ouput; did you mean --output?", "--ouput", "x")
    refused("did you mean --set optimizer.lr=VALUE?", "--optimizer.lr=1")
    refused("there is no option -x", "-x")
    refused("unexpected argument file", "file")
    refused("--config needs a value: --config FILE", "--config")
    refused("--quiet takes no value", "--quiet=1")
    refused("--dtype f16: expected one of f64, f32", "--dtype", "f16")
    refused("--num-models two: expected a whole number", "--num-models", "two")
    refused("--num-models 0: expected a whole number, at least 1", "--num-models", "0")
    refused("there is no key optimizer.learning_rat; did you mean optimizer.lr?", "--set", "optimizer.learning_rat=1")
    refused("usage: packlua recipes/train.lua [options]", "--nonsense")
  end)

  it("refuses what belongs to --plan without it, unless the recipe has it too", function()
    local good, object = pcall(parse, "--memory", "100")
    assert.is_false(good)
    assert.equal(2, object.exit)
    assert.is_truthy(tostring(object):find("--memory needs --plan", 1, true))
    assert.same({4, 8}, parse("--num-models", "4", "8").num_models)
  end)

  it("takes files where a recipe wants them, and then no configuration", function()
    local changes = {config = false, positional = {name = "FILE", min = 1, help = "golden case"}}
    local got = options.parse(spec_with({"a", "--dtype", "f64", "b", "--", "--c"}, changes))
    assert.same({"a", "b", "--c"}, got.positional)
    assert.is_nil(got.config)
    local good, object = pcall(options.parse, spec_with({}, changes))
    assert.is_false(good)
    assert.is_truthy(tostring(object):find("at least 1 FILE expected, 0 given", 1, true))
    good, object = pcall(options.parse, spec_with({"a", "--set", "x=1"}, changes))
    assert.is_false(good)
    assert.equal(2, object.exit)
  end)
end)

describe("--help", function()
  it("names the script that was called", function()
    local code, out = support.run("packlua scripts/bench_ops.lua --help")
    assert.equal(0, code)
    assert.is_truthy(out:find("usage: packlua scripts/bench_ops.lua [options] [N PATTERN...]", 1, true))
    local err
    code, out, err = support.run("packlua scripts/bench_ops.lua 3")
    assert.equal(2, code)
    assert.equal("", out)
    assert.is_truthy(err:find("3 workers cannot share 32 sequences", 1, true))
  end)

  it("shows this text", function()
    local expected = [[
usage: packlua recipes/train.lua [options]

Trains packed workers.

options:
  --output DIR       folder of the run
  --num-models N...  numbers of workers
  --dtype f64|f32    precision (default f32)
  --quiet            prints less
  --config FILE      configuration: Lua table, JSON or YAML (default configs/tiny.lua)
  --set KEY=VALUE    changes a key; may be repeated
  --device DEVICE    the same as --set runtime.device=DEVICE
  --plan             shows the memory of a training step, and ends
  --memory MIB       with --plan: also the most workers that fit in this
  --help             shows this text

configuration keys, their defaults and meaning:
]]
    assert.equal(expected, options.help(spec_with {}):sub(1, #expected))
  end)

  it("lists every key with its default and meaning, in lines of at most 120 characters", function()
    local text = options.help(spec_with {})
    for _, row in ipairs(schema.rows) do
      local line = text:match("\n  " .. row.key:gsub("%p", "%%%0") .. " [^\n]*")
      assert.is_not_nil(line, row.key)
      assert.is_truthy(line:find(schema.show(row.default), 1, true), row.key)
      assert.is_truthy(line:find(row.help, 1, true), row.key)
    end
    for line in text:gmatch("[^\n]+") do assert.is_true(#line <= 120, line) end
  end)

  it("ends the program with code 0 and loads no configuration", function()
    local written = {}
    local stdout = io.stdout
    io.stdout = {write = function(_, text) written[#written + 1] = text end} -- luacheck: ignore 122
    local good, object = pcall(parse, "--config", "/nowhere", "--help")
    io.stdout = stdout -- luacheck: ignore 122
    assert.is_false(good)
    assert.equal(0, object.exit)
    assert.equal("", tostring(object))
    assert.is_truthy(table.concat(written):find("usage:", 1, true))
  end)
end)
