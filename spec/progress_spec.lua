-- Progress of a long loop, on a terminal and elsewhere.
local progress = require "pack.io.progress"
local support = require "spec.support.helper"

-- A stream that keeps what is written, and a clock that stands still until it is moved.
local function stage(options)
  local written, clock = {}, {now = 100}
  options.stream = {
    write = function(_, ...)
      for _, text in ipairs {...} do written[#written + 1] = text end
    end,
    flush = function() end,
  }
  options.clock = function() return clock.now end
  local bar = progress.create(options)
  return bar, clock, function()
    local text = table.concat(written)
    written = {}
    return text
  end
end

-- A stand-in for a run: what is printed and what only goes into its file.
local function fake_run()
  local run = {printed = {}, noted = {}}
  function run:note(format, ...) table.insert(self.noted, format:format(...)) end
  function run:log(format, ...)
    local line = format:format(...)
    table.insert(self.noted, line)
    if self.through then return self.through(line) end
    table.insert(self.printed, line)
  end
  function run:print_through(through) self.through = through end
  return run
end

describe("Numbers of progress", function()
  it("are counts in three digits", function()
    local expected = {[0] = "0", [7] = "7", [999] = "999", [999.6] = "1k", [1000] = "1k", [12345] = "12.3k",
      [999499] = "999k", [999500] = "1M", [1.5e9] = "1.5G", [2e12] = "2T", [0.25] = "0.25", [-4200] = "-4.2k"}
    for number, text in pairs(expected) do assert.equal(text, progress.count(number)) end
    assert.equal("inf", progress.count(1 / 0))
  end)

  it("are durations", function()
    local expected = {[0] = "0:00", [59.4] = "0:59", [59.6] = "1:00", [723] = "12:03", [3600] = "1:00:00",
      [86399] = "23:59:59", [86400 * 2 + 3723] = "2d 01:02:03", [1 / 0] = "?", [-1] = "?"}
    for seconds, text in pairs(expected) do assert.equal(text, progress.duration(seconds)) end
    assert.equal("?", progress.duration(0 / 0))
  end)
end)

describe("Progress outside of a terminal", function()
  it("is a plain line at the first, every so many and the last", function()
    local bar, clock, output = stage {total = 25, terminal = false, every = 10}
    for step = 1, 25 do
      clock.now = clock.now + 2
      bar:update(step, "loss %.1f", step / 10)
    end
    bar:finish()
    assert.equal("step 1/25 (4%)  loss 0.1  eta 0:48\n" ..
      "step 10/25 (40%)  loss 1.0  eta 0:30\n" ..
      "step 20/25 (80%)  loss 2.0  eta 0:10\n" ..
      "step 25/25 (100%)  loss 2.5\n", output())
  end)

  it("asks for a text when it is shown", function()
    local bar, _, output = stage {total = 4, terminal = false, every = 3}
    local asked = {}
    local function describe(row, more)
      asked[#asked + 1] = row
      return row .. more
    end
    for step = 1, 4 do bar:update(step, describe, "row " .. step, "!") end
    assert.same({"row 1", "row 3", "row 4"}, asked)
    assert.equal("step 1/4 (25%)  row 1!  eta 0:00\nstep 3/4 (75%)  row 3!  eta 0:00\nstep 4/4 (100%)  row 4!\n", output())
  end)

  it("forecasts from the pace after the first update, which is often slow", function()
    local bar, clock, output = stage {total = 11, terminal = false}
    clock.now = clock.now + 1000
    bar:update(1)
    output()
    clock.now = clock.now + 3
    bar:update(2)
    assert.equal("step 2/11 (18%)  eta 0:27\n", output())
  end)

  it("counts what was done before", function()
    local bar, clock, output = stage {total = 100, start = 90, terminal = false, unit = "shard"}
    clock.now = clock.now + 4
    bar:update(92)
    assert.equal("shard 92/100 (92%)  eta 0:16\n", output())
  end)

  it("goes through a run's log, as do lines between", function()
    local run = fake_run()
    local bar = stage {total = 2, terminal = false, log = run}
    bar:update(1)
    bar:print("epoch %d", 1)
    bar:update(2)
    assert.same({"step 1/2 (50%)  eta 0:00", "epoch 1", "step 2/2 (100%)"}, run.printed)
    assert.same(run.printed, run.noted)
  end)

  it("takes text without arguments literally", function()
    local bar, _, output = stage {total = 1, terminal = false}
    bar:update(1, "100%")
    bar:print("50%d")
    assert.equal("step 1/1 (100%)  100%\n50%d\n", output())
  end)

  it("has no control characters when the program writes to a pipe", function()
    local code, out = support.run([[packlua -e '
      local bar = require("pack.io.progress").create {total = 3}
      for i = 1, 3 do bar:update(i, "x") end
      bar:finish()' | cat]])
    assert.equal(0, code)
    assert.is_nil(out:find("[%z\1-\9\11-\31\127]"))
    assert.equal(3, select(2, out:gsub("\n", "")))
  end)
end)

describe("Progress on a terminal", function()
  local function terminal(options)
    local columns = options.columns
    options.terminal, options.width = true, function() return columns end
    return stage(options)
  end

  it("is one line that is drawn over", function()
    local bar, clock, output = terminal {total = 4, columns = 60}
    clock.now = clock.now + 1
    bar:update(1, "loss 2")
    assert.equal("\r\27[K 25% [######                   ] step 1/4  loss 2  eta 0:03", output())
    clock.now = clock.now + 5
    bar:update(4, "loss 1")
    assert.equal("\r\27[K100% [###################################] step 4/4  loss 1", output())
    bar:finish()
    bar:finish()
    assert.equal("\r\27[K100% [###################################] step 4/4  loss 1\n", output())
  end)

  it("is redrawn ten times a second at most, and at the end", function()
    local bar, clock, output = terminal {total = 1000, columns = 60}
    for step = 1, 999 do
      clock.now = clock.now + 0.001
      bar:update(step)
    end
    local _, drawn = output():gsub("\r", "")
    assert.is_true(drawn >= 9 and drawn <= 10, drawn)
    bar:update(1000)
    assert.is_truthy(output():find("100%", 1, true))
  end)

  it("leaves the last column free at any width, and does without the bar where it has no room", function()
    for columns = 1, 120 do
      local bar, _, output = terminal {total = 300, columns = columns}
      bar:update(20, "loss 3.25  12.3k tok/s")
      local line = output():gsub("^\r\27%[K", "")
      assert.is_true(#line <= math.max(columns - 1, 0), columns)
      assert.equal(columns >= 64, line:find("[", 1, true) ~= nil, columns)
    end
  end)

  it("never cuts a character in two", function()
    for columns = 1, 40 do
      local bar, _, output = terminal {total = 10, columns = columns}
      bar:update(1, ("\195\169"):rep(30))
      assert.is_nil(output():gsub("\195\169", ""):find("[\128-\255]"))
    end
  end)

  it("stays below lines that are printed, and notes in the log file what plain lines would say", function()
    local run = fake_run()
    local bar, _, output = terminal {total = 4, columns = 40, log = run, every = 2}
    bar:update(1)
    output()
    run:log("a line")
    local drawn = output()
    assert.equal("\r\27[Ka line\n\r\27[K 25% [", drawn:sub(1, 21))
    for step = 2, 4 do bar:update(step) end
    bar:finish()
    run:log("after")
    assert.same({"after"}, run.printed)
    assert.equal("step 1/4 (25%)|a line|step 2/4 (50%)|step 4/4 (100%)|after",
      (table.concat(run.noted, "|"):gsub("  eta 0:00", "")))
  end)

  it("fills the whole bar of an empty loop", function()
    local bar, _, output = terminal {total = 0, columns = 60}
    bar:finish()
    assert.is_truthy(output():find("100% [########", 1, true))
  end)
end)
