-- The prompt, as somebody at a terminal meets it: lines are typed into a pseudo-terminal, and answers read from it.
local support = require "spec.support.helper"
local terminal = require "spec.support.terminal"

local _, version = support.run("packlua --version")
local edits = version:find("\nlibedit ", 1, true) ~= nil

-- A run that takes many steps, each of a few thousand operations, in a fraction of a second.
local small = [[{"model.layers=2", "model.width=16", "model.heads=2", "model.ffn_width=24", "model.context_length=16",
"training.batch_tokens=128", "training.micro_batch_size=2", "training.max_tokens=1280000",
"training.epoch_tokens=640000"}]]

describe("the prompt", function()
  local folder, session

  -- A session whose prompt is there.
  local function open(options)
    session = terminal.open(options)
    session:wait("> ")
    return session
  end

  before_each(function() folder = support.temporary() end)

  after_each(function()
    if session then session:close() end
    session = nil
    support.remove(folder)
  end)

  -- What a line typed without a terminal is answered; and what is said about errors.
  local function answers(input)
    support.write(folder .. "/input", input)
    local code, out, err = support.run(("packlua -i < %s/input"):format(folder))
    assert.equal(0, code)
    return out, err
  end

  describe("at a terminal", function()
    it("greets, answers, and ends with ^D or :quit", function()
      open()
      assert.equal("2", session:answer("1 + 1"))
      session:type("\4")
      assert.equal(0, (session:finish()))
      open()
      session:type(":quit\r")
      assert.equal(0, (session:finish()))
    end)

    it("shows that a statement goes on, and takes a line back with ^C", function()
      open()
      session:type("for i = 1, 2 do\r")
      session:wait("\n>> ")
      session:type("print(i * 111)\r")
      session:wait("\n>> ")
      assert.equal("111\n222", session:answer("end"))
      session:type("x = {\r")
      session:wait("\n>> ")
      session:type("\3")
      session:wait("^C\r\n> ")
      assert.equal("nil", session:answer("x"))
    end)

    it("clears a line with ^C", function()
      open()
      session:type("some nonsense")
      session:wait("nonsense")
      session:type("\3")
      session:wait("^C\r\n> ")
      assert.equal("7", session:answer("3 + 4"))
    end)

    it("is stopped by ^C in a loop, and by a second one where the loop catches errors", function()
      open()
      session:type("count = 41 io.write('g', 'o\\n') while true do end\r")
      session:wait("go\r\n")
      session:type("\3")
      session:wait("interrupted\r\n> ")
      assert.equal("42", session:answer("count + 1"))
      session:type("tries = 0 while true do pcall(function() tries = tries + 1 io.write('try', tries, '\\n') " ..
        "while true do end end) end\r")
      session:wait("try1\r\n")
      session:type("\3")
      session:wait("try2\r\n")
      session:type("\3")
      session:wait("interrupted\r\n> ")
      assert.equal("2", session:answer("tries"))
    end)

    local unhooked = {
      ["the handler of an error"] = "xpcall(function() begin() end, function() while true do end end)",
      ["a hook of its own"] = "debug.sethook(function() pcall(begin) end, '', 1) while true do end",
      ["a finaliser"] = "x = require'ffi'.gc(require'ffi'.new('int[1]'), begin) x = nil collectgarbage()",
    }
    for name, code in pairs(unhooked) do
      it("is stopped by some ^C in " .. name, function()
        open()
        session:answer("function begin() io.write('be', 'gin\\n') while true do end end")
        session:type(code .. "\r")
        session:wait("begin\r\n")
        session:interrupt_until("\n> ")
        session:type("\21'ali' .. 've'\r") -- ^U: one ^C may come too late
        session:wait('"alive"\r\n> ')
      end)
    end

    it("is told how to end the program where no ^C is met", function()
      open()
      session:answer("jit.on()")
      session:answer("function count(n) local i = 0 while i < n do i = i + 1 end end")
      session:answer("count(1e6)") -- and is compiled
      session:type("io.write('be', 'gin\\n') count(1e300)\r")
      session:wait("begin\r\n")
      os.execute("sleep 0.3") -- until the compiled loop runs: what comes before it can be interrupted
      session:interrupt_until("^\\ ends the program")
      session:type("\28")
      assert.equal(128 + 3, (session:finish()))
    end)

    it("is stopped by ^C while it waits for input or for a command", function()
      open()
      session:type("io.write('now', 'here\\n') io.read()\r")
      session:wait("nowhere\r\n")
      session:type("\3")
      session:wait("interrupted\r\n> ")
      assert.equal("1", session:answer("1"))
    end)

    it("knows the width of its window, also when it changes as a line is typed", function()
      open {columns = 120}
      session:type("long_name_of_one, long_name_of_two, long_name_of_three = 1, 2, 3\r")
      session:wait("\n> ")
      local listing = "long_name_of_one    long_name_of_three  long_name_of_two"
      if edits then
        session:type("long_name_of_\t")
        session:wait(listing)
        session:type("\21")
      end
      session:type("1 +")
      session:wait("1 +")
      session:resize(30)
      session:type(" 2\r")
      session:wait("3\r\n> ")
      if edits then
        session:type("long_name_of_\t")
        session:wait("long_name_of_one\r\nlong_name_of_three\r\nlong_name_of_two\r\n")
      end
    end)

    it("goes on after errors and when memory runs out", function()
      open()
      local shown = session:answer("error('oh no')")
      assert.is_truthy(shown:find("packlua: prompt:1: oh no\n", 1, true), shown)
      shown = session:answer("pack.zeros({2^20, 2^20})")
      assert.is_truthy(shown:find("out of memory: 4194304.0 MiB more for activations", 1, true), shown)
      assert.is_truthy(shown:find("in use: nothing", 1, true), shown)
      shown = session:answer("setmetatable({}, {__tostring = function() error('not printable') end})")
      assert.is_truthy(shown:find("not printable", 1, true), shown)
      assert.equal("6", session:answer("pack.full({3}, 2):sum():item()"))
    end)
  end)

  describe("during training", function()
    -- What a run of count whole steps leaves: numbers that tell its weights, moments and position.
    local summary = "return run.step_number, run.mixings, run:cursor(), run.updater:status().updates, " ..
      "run.model.arena.tensor:sum():item(), run.optimizer.exp_avg.tensor:sum():item(), " ..
      "run.optimizer.exp_avg_sq.tensor:sum():item()"

    local function train(settings, update)
      support.write(folder .. "/text.txt", ("a line of text, and another one\n"):rep(400))
      support.write(folder .. "/open.lua", ("run = pack.trainer.open(nil, %s)"):format((small:gsub("}$",
        (', "data.text=%s/text.txt", %s}'):format(folder, settings)))))
      support.write(folder .. "/state.lua", summary)
      open()
      session:answer(":load " .. folder .. "/open.lua")
      session:type(update .. "\r")
      session:wait("step3\r\n")
      session:type("\3")
      session:wait("interrupted\r\n> ")
      local steps = tonumber(session:answer("run.step_number"))
      assert.is_true(steps >= 3)
      assert.equal("true", session:answer("run:cursor() == run.step_number * run.batches.batch_samples"))
      -- One more step, to see that it takes the batch that the interrupted one had taken.
      session:answer("run:step() = nil")
      session:answer("last = run:step()")
      local interrupted = session:answer(":load " .. folder .. "/state.lua")
      session:answer(":load " .. folder .. "/open.lua")
      session:answer(("for _ = 1, %d do run:step() end"):format(steps + 1))
      assert.equal(session:answer(":load " .. folder .. "/state.lua"), interrupted)
    end

    local forever = "while true do if run:step().step < 3 then io.write('step', run.step_number, '\\n') end end"

    it("stops a recorded step at the next operation: it has happened whole or not at all", function()
      train('"runtime.compile=true"', forever)
    end)

    it("stops a step of single operations in the same way", function()
      train('"runtime.compile=false"', forever)
    end)

    it("stops on the second ^C, without ending the session, where a run saves on the first", function()
      support.write(folder .. "/text.txt", ("a line of text, and another one\n"):rep(400))
      open()
      session:type(("run = pack.trainer.open(nil, %s)\r"):format((small:gsub("\n", " "):gsub("}$",
        (', "data.text=%s/text.txt"}'):format(folder)))))
      session:wait("\n> ")
      session:type("require([[pack.native]]).C.pk_signals_hold() io.write('be', 'gin\\n') while true do run:step() end\r")
      session:wait("begin\r\n")
      session:type("\3")
      session:wait("stopping after this step")
      session:type("\3")
      session:wait("interrupted\r\n> ")
      assert.equal("true", session:answer("run:cursor() == run.step_number * run.batches.batch_samples"))
    end)
  end)

  if edits then
    describe("with line editing", function()
      it("completes globals, fields, methods and the library's names", function()
        open()
        session:type("answer_to_all = {first_half = 20, second_half = 22}\r")
        session:wait("\n> ")
        session:type("answer_t\t")
        session:wait("o_all")
        session:type(".f\t")
        session:wait("irst_half")
        session:type("+ answer_to_all['s\t")
        session:wait("econd_half']")
        session:type("\r")
        session:wait("\r\n42\r\n> ")
        session:type("pack.topol\t")
        session:wait("ogy")
        session:type(".cr\t")
        session:wait("eate")
        session:type("('ring', 4).num_mod\21t = pack.ze\t") -- ^U: what a call would give is not known
        session:wait("ros")
        session:type("({2, 3})\r")
        session:wait("\n> ")
        session:type("t:consensus\t")
        session:wait("_distance")
        session:type("()\r")
        session:wait("f64 {1} on cpu")
        session:wait("\n> ")
        session:type("('abc'):upp\21text = 'abc'\r")
        session:wait("\n> ")
        session:type("text:upp\t")
        session:wait("er")
        session:type("()\r")
        session:wait('"ABC"')
      end)

      it("lists what fits when nothing can be preferred", function()
        open()
        session:type("pack.ops.rmsnorm\t")
        session:wait("rmsnorm       rmsnorm_grad\r\n")
        session:wait("> pack.ops.rmsnorm")
        session:type("\21:he\t")
        session:wait("lp ")
        session:type("ops.rmsnorm_g\t")
        session:wait("rad")
        session:type("\r")
        session:wait("gradients of rmsnorm")
      end)

      it("completes the names of files inside quotes, and not what no file has", function()
        support.write(folder .. "/first.lua", "return 'from the file'")
        support.write(folder .. "/.hidden", "")
        open()
        session:type(("dofile '%s/\t"):format(folder))
        session:wait("first.lua'")
        session:type("\r")
        session:wait('"from the file"\r\n> ')
        session:type((":load %s/fi\t"):format(folder))
        session:wait("rst.lua")
        session:type("\r")
        session:wait('"from the file"\r\n> ')
        session:type(("x = '%s/none\t"):format(folder))
        session:wait("\a")
        session:type("'\r")
        session:wait("\n> ")
        assert.equal(('"%s/none"'):format(folder), session:answer("x"))
      end)

      it("takes tabs of pasted text as they are, and completes nothing there", function()
        support.write(folder .. "/texts.z", "")
        open()
        session:type(("ma\t= 3\rs = '%s/tex\tz'\r\tprint('got', ma, #s, type(math))\r"):format(folder))
        session:wait(("got\t3\t%d\ttable"):format(#folder + 6))
      end)

      it("does not run what a table brings along when it completes", function()
        open()
        session:answer("trap = setmetatable({}, {__index = function() io.write('sprung\\n') error('sprung') end})")
        for _, keys in ipairs {"trap.field.x\t", "\t"} do
          session:type(keys)
          session:wait("\a")
        end
        session:type("\21")
        assert.equal("1", session:answer("1"))
        assert.is_nil(session.all:find("\nsprung"))
      end)

      it("brings earlier lines back, from earlier sessions too, and keeps what begins with a space out", function()
        local file = folder .. "/state/packlua/history"
        local where = {environment = {PACKLUA_HISTORY = false, XDG_STATE_HOME = folder .. "/state"}}
        open(where)
        session:answer("1000 + 1")
        session:answer("2000 + 2")
        session:answer(" 'a secret'")
        session:type("\27[A\27[A\r") -- up, up
        session:wait("1001\r\n> ")
        session:close()
        assert.equal("1000 + 1\n2000 + 2\n1000 + 1\n", support.read(file))
        open(where)
        session:type("\27[A\27[A\r")
        session:wait("2002\r\n> ")
        session:type("\0181000\r") -- ^R searches backwards
        session:wait("1001\r\n> ")
        session:close()
        assert.equal("-rw-------", io.popen("ls -l " .. file):read("*a"):match("^[%-rwx]+"))
      end)

      it("cuts its file to the newest lines, and adds to those of another session", function()
        local file = folder .. "/history"
        local lines = {}
        for i = 1, 5000 do lines[i] = "-- line " .. i .. "\n" end
        support.write(file, table.concat(lines))
        local where = {environment = {PACKLUA_HISTORY = file}}
        local first = open(where)
        local second = open(where)
        first:answer("'one'")
        second:answer("'two'")
        first:answer("'three'")
        first:close()
        local text = support.read(file)
        assert.equal(2003, select(2, text:gsub("\n", "")))
        assert.equal("-- line 3001\n", text:match("^[^\n]*\n"))
        assert.equal("-- line 5000\n'one'\n'two'\n'three'\n", text:match("%-%- line 5000.*"))
      end)

      it("works without a file where none can be, and says so once", function()
        support.write(folder .. "/file", "")
        open {environment = {PACKLUA_HISTORY = folder .. "/file/history"}}
        assert.is_truthy(session:answer("'one'"):find("no history: .*/file/history: .*\n\"one\""))
        assert.equal('"two"', session:answer("'two'"))
        session:close()
        assert.equal("", support.read(folder .. "/file"))
      end)

      it("edits letters of more than a byte", function()
        open()
        session:type("#'ä€x'")
        session:wait("x'")
        session:type("\27[D\127\27[C\r") -- left of the quote, the x goes
        session:wait("5\r\n> ")
      end)
    end)
  end

  describe("without a terminal", function()
    it("shows no prompts, and runs what is there of a last statement", function()
      assert.equal("3\n", (answers "= 1 +\n2"))
      local out, err = answers "for i = 1, 2 do"
      assert.equal("", out)
      assert.is_truthy(err:find("'end' expected near '<eof>'", 1, true), err)
    end)

    it("loads a module again whose loading failed", function()
      support.write(folder .. "/broken.lua", "error('broken ' .. tostring(times))")
      local out, err = answers(("package.path = '%s/?.lua'\nrequire 'broken'\ntimes = 2\nrequire 'broken'\n"):format(folder))
      assert.equal("", out)
      assert.is_truthy(err:find("broken nil", 1, true), err)
      assert.is_truthy(err:find("broken 2", 1, true), err)
    end)

    it("says why a module of the library cannot be loaded", function()
      local home = folder .. "/home"
      assert.equal(0, (support.run(("mkdir -p %s/lua && cp -r %s/lua/pack %s/lua/pack && : > %s/lua/pack/extra.lua"):format(
        home, require("pack.native").home(), home, home))))
      local code, _, err = support.run(("PACKLUA_HOME=%s packlua -e 'require \"ffi\".cdef \"int setrlimit(int, void *);\" "
        .. "local pack = require \"pack\"; local none = pack.version; ffi = require \"ffi\"; "
        .. "ffi.C.setrlimit(7, ffi.new(\"unsigned long[2]\", 3, 3)); print(pack.extra)'"):format(home))
      assert.equal(1, code)
      assert.is_truthy(err:find("cannot load module 'pack.core.dispatch': cannot open ", 1, true), err)
      assert.is_truthy(err:find("Too many open files", 1, true), err)
    end)

    it("keeps the last value as _, and the names of what a script calls local", function()
      assert.equal("5\n50\n", (answers "2 + 3\n_ * 10\n"))
      assert.equal("7\n", (answers "local a, b = 3, 4\na + b\n"))
      assert.equal("9\n", (answers "local function square(x)\n  return x * x\nend\nsquare(3)\n"))
    end)

    it("shows values so that they can be read", function()
      assert.equal('"a\\nb"', (answers "{'a\\nb'}\n"):match("^{(.*)}\n"))
      assert.equal('{1, 2, ["a b"] = {3, {...}}, name = "x"}\n', (answers "{1, 2, name='x', ['a b']={3, {4}}}\n"))
      assert.equal("a\nb\n", (answers "'a\\nb'\n"))
      assert.equal("{self = <cycle>}\n", (answers "t = {} t.self = t\nt\n"))
      assert.equal("nil\ttrue\n", (answers "nil, true\n"))
      assert.equal("<error in __tostring: it returned a number>\n",
        (answers "setmetatable({}, {__tostring = function() return 5 end})\n"))
      assert.equal("", (answers "(function() end)()\n"))
    end)

    it("runs no half of a line that has a NUL byte", function()
      local out, err = answers "y = 1\0 + 1\ny\n"
      assert.same({"nil\n", "packlua: a line with a NUL byte is left out\n"}, {out, err})
    end)

    it("bounds what it shows of large tables", function()
      local out = answers "t = {} for i = 1, 1000 do t[i] = i end\nt\n"
      assert.is_truthy(out:find(" 23, 24,\n  ... 976 more\n}", 1, true), out)
      out = answers "t = {} for i = 1, 100 do t['key' .. i] = ('x'):rep(1000) end\nt\n"
      assert.is_truthy(out:find("... 76 more keys", 1, true), out)
      assert.is_truthy(out:find('x"... (1000 bytes)', 1, true), out)
      out = answers "t = {} for i = 1, 20 do t[i] = {} for j = 1, 20 do t[i][j] = ('word'):rep(10) end end\nt\n"
      assert.is_truthy(out:find("\n... %d+ more lines\n"), out)
    end)

    it("shows tensors with statistics and a corner", function()
      assert.equal("f64 {2, 3} on cpu: min -1, max 5, mean 2, std 2.28035, non-finite 1\n{{-1, 2, 5},\n {0, 4, inf}}\n",
        (answers "pack.from({{-1, 2, 5}, {0, 4, 1/0}}, 'f64')\n"))
      assert.equal("f32 {2, 0} on cpu, no elements\n", (answers "pack.zeros {2, 0}\n"))
      assert.equal("f32 {2} (freed)\n", (answers "t = pack.zeros {2}\nt:free()\nt\n"))
      assert.equal("{x = f32 {2} on cpu}\n", (answers "{x = pack.zeros {2}}\n"))
    end)

    it("says where functions are from", function()
      assert.equal("function (builtin)\n", (answers "print\n"))
      assert.is_truthy((answers "pack.updater.create\n"):find("^function %(lua/pack/train/updater%.lua:%d+%)\n$"))
      assert.equal("operation ops.matmul\n", (answers "pack.matmul\n"))
    end)
  end)

  describe("knows the command", function()
    it(":help of functions, methods, operations, keys and modules", function()
      local out = answers ":help ops.matmul\n"
      assert.is_truthy(out:find("ops.matmul(a, b, {transpose_a, transpose_b}) -> y: batched matrix product", 1, true))
      assert.is_truthy(out:find("inputs +a; b\n"))
      assert.is_truthy(out:find("transpose_a (integer or boolean, default 0)", 1, true))
      assert.is_truthy((answers ":help pack.topology.create\n"):find("^topology%.create%(spec, n, options%)\nThe topology"))
      assert.is_truthy((answers ":help Trainer:step\n"):find("^Trainer:step%(%)\nTakes one optimizer step"))
      assert.is_truthy((answers ":help optimizer.lr\n"):find("^optimizer%.lr: peak learning rate\n.*default 0%.001"))
      assert.is_truthy((answers ":help topology\n"):find("topology%.create%(.-%)%s+%u"))
      assert.is_truthy((answers "t = pack.zeros {1}\n:help t\n"):find("tensor:size%(d%)%s+The extent of dimension d"))
      assert.is_truthy((answers ":help time\n"):find("^:time EXPR\n"))
      assert.is_truthy((answers ":help\n"):find(":load FILE", 1, true))
      assert.is_truthy((answers ":help pack\n"):find("pack%.optim%s+Optimizers: what a worker"))
    end)

    it(":help of what is not there, with the nearest name", function()
      assert.equal("There is nothing about topolgy; did you mean topology?\n", (answers ":help topolgy\n"))
    end)

    it(":mem, :devices and :time", function()
      local out = answers ":mem\n"
      assert.is_truthy(out:find("^no device is open\nLua %d"), out)
      out = answers "t = pack.zeros({2^18}, 'f32', {category = 'data'})\n:mem\n"
      assert.is_truthy(out:find("\n  data +1.0 MiB +1.0 MiB\n"), out)
      assert.is_truthy((answers ":devices\n"):find("^cpu"))
      assert.is_truthy((answers ":time 1 + 1, 'x'\n"):find('^[%d.e-]+ s\n2\t"x"\n$'))
      assert.is_truthy((answers ":time x = 3\nx\n"):find("^[%d.e-]+ s\n3\n$"))
    end)

    it(":load, whose globals stay", function()
      support.write(folder .. "/some.lua", "loaded = 12\nlocal own = 1\nreturn own + loaded")
      assert.equal("13\n12\n", (answers((":load %s/some.lua\nloaded\n"):format(folder))))
      local out, err = answers(":load nowhere.lua\n1\n")
      assert.equal("1\n", out)
      assert.is_truthy(err:find("nowhere.lua", 1, true), err)
    end)

    it(":quit, and the nearest one to what is none", function()
      assert.equal("1\n", (answers "1\n:quit\n2\n"))
      local out, err = answers ":qit\n1\n"
      assert.equal("1\n", out)
      assert.equal("packlua: there is no command :qit; did you mean :quit?\n", err)
    end)
  end)

  it("survives when the interpreter's own memory runs out", function()
    support.write(folder .. "/input", "list = {}\nfor i = 1, 700 do list[i] = ('x'):rep(2^20) .. i end\nlist = nil\n'alive'\n")
    local code, out, err = support.run(("ulimit -v 700000; packlua -i < %s/input"):format(folder))
    if not err:find("not enough memory", 1, true) then pending("address space cannot be limited here") return end
    assert.equal(0, code)
    assert.equal('"alive"\n', out)
  end)
end)
