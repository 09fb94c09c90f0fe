-- Charts: what is drawn, what is refused, and texts and values that a script or a page must not take for code.
local gnuplot = require "pack.report.gnuplot"
local plot = require "pack.report.plot"
local support = require "spec.support.helper"

local has_gnuplot = os.execute("command -v gnuplot > /dev/null 2>&1") == 0

-- The texts of an <svg> element, joined by line ends, without entities.
local function texts(svg)
  local list = {}
  for text in svg:gmatch("<text[^>]*>%s*(.-)</text>") do
    list[#list + 1] = text:gsub("&lt;", "<"):gsub("&gt;", ">"):gsub("&amp;", "&")
  end
  return table.concat(list, "\n")
end

-- Points of the curve in the given colour: pairs of coordinates of its path.
local function points(svg, color)
  local r, g, b = color:match("#(%x%x)(%x%x)(%x%x)")
  local stroke = ("rgb%%(%%s*%d,%%s*%d,%%s*%d%%)"):format(tonumber(r, 16), tonumber(g, 16), tonumber(b, 16))
  local list = {}
  for path in svg:gmatch("<path stroke='" .. stroke .. "'%s+d='([^']*)'") do
    for command, x, y in path:gmatch("([ML])([%d.]+),([%d.]+)") do
      list[#list + 1] = {command, tonumber(x), tonumber(y)}
    end
  end
  return list
end

describe("quoting for gnuplot", function()
  it("leaves nothing special between single quotes", function()
    assert.equal([['50% \n {/Bold x} `date` @a "b"']], gnuplot.quote([[50% \n {/Bold x} `date` @a "b"]]))
    assert.equal([['it'."\47".'s']], gnuplot.quote("it's"))
    assert.equal([['a'."\n".'b']], gnuplot.quote("a\r\nb"))
  end)

  it("writes the percent sign of a tic twice, as it is a format", function()
    assert.equal("'50%%'", gnuplot.quote_tic("50%"))
  end)

  it("replaces control characters and what is not UTF-8", function()
    assert.equal("'a b\239\191\189'", gnuplot.quote("a\27b\255"))
  end)

  it("writes data with all digits, and gaps as empty lines", function()
    assert.equal("$d << END_OF_DATA\n0.10000000000000001 2\n\n3 -4\nEND_OF_DATA",
      gnuplot.block("d", {{0.1, 2}, {1, 0 / 0}, {3, -4}}))
    assert.equal("$d << END_OF_DATA\n\nEND_OF_DATA", gnuplot.block("d", {{1 / 0, 1}}))
  end)
end)

describe("charts without gnuplot", function()
  it("are nil and a reason", function()
    local code, out = support.run([[PACKLUA_GNUPLOT='/nowhere/it'"'"'s' packlua -e '
      print(require("pack.report.plot").lines {x = "x", y = "y", series = {{x = {1}, y = {1}}}})']])
    assert.equal(0, code)
    assert.equal("nil\t/nowhere/it's is not there (Debian: gnuplot-nox; PACKLUA_GNUPLOT names another one)\n", out)
  end)

  it("are nil and what the program said, if it fails", function()
    local folder = support.temporary()
    support.write(folder .. "/plotter", "#!/bin/sh\necho 'no terminal svg' >&2\nexit 3\n")
    support.run("chmod +x " .. folder .. "/plotter")
    local _, out = support.run(("PACKLUA_GNUPLOT=%s/plotter packlua -e '%s'"):format(folder,
      [[print(require("pack.report.plot").lines {x = "x", y = "y", series = {{x = {1}, y = {1}}}})]]))
    support.remove(folder)
    assert.equal(("nil\t%s/plotter: no terminal svg\n"):format(folder), out)
  end)

  it("refuse what cannot be drawn before it is asked for", function()
    local svg, reason = plot.lines {x = "x", y = {"y", log = true}, series = {{x = {1, 2}, y = {0, -1}}}}
    assert.is_nil(svg)
    assert.equal("there is nothing to draw: no finite values", reason)
    assert.is_nil((plot.bars {groups = {"a"}, series = {{values = {0 / 0}}}}))
    assert.is_nil((plot.heatmap {x = {"x", labels = {"a"}}, y = {"y", labels = {"b"}}, values = {{}}}))
    assert.has_error(function() plot.lines {x = "x", y = "y", series = {{x = {1, 2}, y = {1}}}} end,
      "plot.lines: series 1 has 2 values of x and 1 of y")
  end)
end)

local case = has_gnuplot and it or function(name) pending(name .. " (gnuplot is not there)") end

describe("charts by gnuplot", function()
  case("show every text as it is", function()
    local odd = [[it's "50%" \n <b>&amp; {/Bold x}_1^2 `date` @y $(date)]]
    local svg = assert(plot.lines {title = odd, x = {odd, unit = "50%"}, y = odd, series = {{name = odd, x = {1, 2}, y = {1, 2}}}})
    local shown = texts(svg)
    local _, count = shown:gsub(odd:gsub("%p", "%%%0"), "")
    assert.equal(4, count)
    assert.truthy(shown:find(odd .. " (50%)", 1, true))
    assert.truthy(svg:find("<title>it&#39;s &quot;50%&quot; \\n &lt;b&gt;&amp;amp;", 1, true))
  end)

  case("cannot be left by a text that looks like data or commands", function()
    local folder = support.temporary()
    local odd = ("END_OF_DATA\n!touch %s/a\n'; system 'touch %s/b'; '"):format(folder, folder)
    local svg = assert(plot.bars {title = odd, x = odd, y = odd, groups = {odd}, labels = function() return odd end,
      series = {{name = odd, values = {1}}}})
    local map = assert(plot.heatmap {title = odd, x = {odd, labels = {odd}}, y = {odd, labels = {odd}},
      values = {{1}}, format = function() return odd end})
    assert.truthy(texts(svg):find("END_OF_DATA", 1, true))
    assert.truthy(texts(map):find("END_OF_DATA", 1, true))
    assert.same({}, require("pack.io.files").list(folder))
    support.remove(folder)
  end)

  case("place points in proportion, and break curves at gaps", function()
    local ys = {0, 1, 0 / 0, 3, 4}
    local svg = assert(plot.lines {x = {"x", min = 0, max = 4}, y = {"y", min = 0, max = 4},
      series = {{x = {0, 1, 2, 3, 4}, y = ys}}})
    local found = points(svg, plot.palette[1])
    local shape = {}
    for i, point in ipairs(found) do shape[i] = point[1] end
    assert.equal("MLML", table.concat(shape))
    local width, height = found[4][2] - found[1][2], found[1][3] - found[4][3]
    assert.near(0.25, (found[2][2] - found[1][2]) / width, 1e-3)
    assert.near(0.75, (found[1][3] - found[3][3]) / height, 1e-3)
  end)

  case("have the legend below the axis, however many curves there are", function()
    for _, count in ipairs {1, 3, 14, 40} do
      local series = {}
      for i = 1, count do series[i] = {name = ("curve %d of quite a name"):format(i), x = {1, 2}, y = {i, i}} end
      local svg = assert(plot.lines {x = "tokens", y = "y", series = series})
      local height, label, highest, lowest, found = tonumber(svg:match('viewBox="0 0 %d+ (%d+)"')), nil, math.huge, 0, 0
      for y, text in svg:gmatch('<g transform="translate%([%d.]+,([%d.]+)%)[^>]*>%s*<text[^>]*>%s*(.-)</text>') do
        if text == "tokens" then label = tonumber(y) end
        if text:find("^curve") then
          highest, lowest, found = math.min(highest, tonumber(y)), math.max(lowest, tonumber(y)), found + 1
        end
      end
      assert.equal(count, found)
      assert.truthy(highest > label + 8 and lowest < height, ("%d curves: %g, %g"):format(count, highest, lowest))
    end
  end)

  case("count in thousands and millions where asked for", function()
    local svg = assert(plot.lines {x = {"tokens", si = true}, y = {"y", unit = "B", si = true},
      series = {{x = {0, 2e6}, y = {0, 5000}}}})
    assert.truthy(texts(svg):find("tokens (M)", 1, true))
    assert.truthy(texts(svg):find("y (k B)", 1, true))
  end)

  case("label the cells of a heat map, and mark those without a value", function()
    local svg = assert(plot.heatmap {x = {"N", labels = {"2", "50%"}}, y = {"topology", labels = {"a_b", "c"}},
      values = {{1.25, 2}, {nil, 4}}, format = "%.3f", missing = "n/a"})
    local shown = texts(svg)
    for _, text in ipairs {"1.250", "2.000", "4.000", "n/a", "50%", "a_b"} do
      assert.truthy(("\n" .. shown .. "\n"):find("\n" .. text .. "\n", 1, true), text)
    end
    assert.truthy(svg:find("rgb( 68,   1,  84)", 1, true)) -- the smallest value's colour
    assert.truthy(svg:find("rgb(253, 231,  37)", 1, true)) -- the largest one's
  end)

  case("are elements that can stand in one page", function()
    local function draw() return assert(plot.lines {x = "x", y = "y", series = {{x = {1, 2}, y = {1, 2}}}}) end
    local seen = {}
    for _, svg in ipairs {draw(), draw()} do
      assert.equal("<svg", svg:sub(1, 4))
      assert.is_nil(svg:find("<!DOCTYPE", 1, true))
      for id in svg:gmatch("%sid=['\"]([^'\"]+)") do
        assert.is_nil(seen[id], id)
        seen[id] = true
      end
      for target in svg:gmatch("href=['\"]#([^'\"]+)") do assert.truthy(seen[target], target) end
    end
  end)

  case("are written as PNG too", function()
    local folder = support.temporary()
    assert(plot.lines {x = "x", y = "y", png = folder .. "/it's.png", width = 300, height = 200,
      series = {{x = {1, 2}, y = {1, 2}}}})
    local png = support.read(folder .. "/it's.png")
    support.remove(folder)
    assert.equal("\137PNG\r\n\26\n", png:sub(1, 8))
    assert.same({0, 0, 2, 88, 0, 0, 1, 144}, {png:byte(17, 24)}) -- 600 x 400
  end)
end)
