-- The packlua program: its options, errors and exit codes, its prompt, and where it finds its library.
local process = require "pack.io.process"
local support = require "spec.support.helper"
local version = require "pack.version"

local function run_ok(command)
  local code, out, err = support.run(command)
  assert.are.equal("", err)
  assert.are.equal(0, code)
  return out
end

describe("packlua", function()
  local folder

  before_each(function() folder = support.temporary() end)
  after_each(function() support.remove(folder) end)

  local function script(text, name)
    local path = folder .. "/" .. (name or "script.lua")
    support.write(path, text)
    return path
  end

  describe("runs a script", function()
    it("with its arguments in ... and in arg, the program before them", function()
      local path = script "print(select('#', ...), arg[0], arg[1], arg[2], arg[-1], ...)"
      assert.are.equal(("2\t%s\ta\t-e\t%s\ta\t-e\n"):format(path, support.program),
        run_ok(("packlua %s a -e"):format(path)))
    end)

    it("whose first line is #!", function()
      assert.are.equal("ran\n", run_ok("packlua " .. script "#!/usr/bin/env packlua\nprint 'ran'"))
    end)

    it("from standard input with -, or when nothing else is named", function()
      assert.are.equal("x\ty\n", run_ok "echo 'print(...)' | packlua - x y")
      assert.are.equal("here\n", run_ok "echo 'print \"here\"' | packlua")
    end)

    it("that lies under its own folder, from any working directory", function()
      local code, out = support.run("cd / && packlua recipes/train.lua --help")
      assert.are.equal(0, code)
      assert.is_truthy(out:find("train", 1, true))
    end)

    it("whose name starts with a dash, after --", function()
      script("print 'dashed'", "-x.lua")
      assert.are.equal("dashed\n", run_ok(("cd %s && packlua -- -x.lua"):format(folder)))
    end)

    it("whose prints stay out of its files when the standard files are closed", function()
      local path = script([[
        local file = io.open(arg[1], "w")
        print "stray"
        io.stderr:write "stray"
        file:write "mine"
        file:close()]])
      run_ok(("packlua %s %s/own <&- >&- 2>&-"):format(path, folder))
      assert.are.equal("mine", support.read(folder .. "/own"))
    end)

    it("compiled, and not with --no-jit", function()
      local path = script "print((jit.status()))"
      assert.are.equal("true\n", run_ok("packlua " .. path))
      assert.are.equal("false\n", run_ok("packlua --no-jit " .. path))
    end)
  end)

  describe("has options", function()
    it("-e to run code, several times and in order, before the script", function()
      assert.are.equal("1\n2\n3\n", run_ok("packlua -e 'print(1)' -e'print(2)' " .. script "print(3)"))
    end)

    it("-l to load a module", function()
      assert.are.equal("table\n",
        run_ok "packlua -l pack.version -e 'print(type(package.loaded))'")
      local code, _, err = support.run "packlua -l no.such.module"
      assert.are.equal(1, code)
      assert.is_truthy(err:find("module 'no.such.module' not found", 1, true))
    end)

    it("-v for the version, and --version for those of the libraries too", function()
      assert.are.equal(("packlua %s\n"):format(version), run_ok "packlua -v")
      local out = run_ok "packlua --version"
      assert.are.equal(("packlua %s"):format(version), out:match("^[^\n]*"))
      for _, library in ipairs {"compiler", "luajit", "cjson", "zstd", "zlib", "libyaml"} do
        assert.is_truthy(out:find("\n" .. library .. " %S*%d"), library)
      end
    end)

    it("--devices, which names the CPU", function()
      assert.is_truthy(run_ok("packlua --devices"):find("^cpu: .*thread"))
    end)

    it("--help, which describes every option", function()
      local out = run_ok "packlua --help"
      assert.are.equal(out, run_ok "packlua -h")
      for _, option in ipairs {"-e CODE", "-l NAME", "-i", "-v", "--version", "--devices", "--jit",
        "--no-jit", "-h, --help", "--", "-"} do
        assert.is_truthy(out:find("\n  " .. option .. " ", 1, true), option)
      end
    end)
  end)

  describe("exits with 2 and says why", function()
    local function refused(arguments, message)
      local code, out, err = support.run("packlua " .. arguments)
      assert.are.equal(2, code)
      assert.are.equal("", out)
      assert.is_truthy(err:find(message, 1, true), err)
      assert.is_nil(err:find("traceback", 1, true))
    end

    it("when an option is unknown or lacks its value", function()
      refused("--bogus", "unknown option '--bogus'")
      refused("-x", "unknown option '-x'")
      refused("-e", "option '-e' needs a value")
      refused("-l", "option '-l' needs a value")
    end)

    it("when the script is missing, a folder or unreadable", function()
      refused("no/such.lua", "no script 'no/such.lua'")
      refused(folder, ("'%s' is a folder"):format(folder))
    end)

    it("when PACKLUA_HOME has no library", function()
      local code, _, err = support.run(("PACKLUA_HOME=%s packlua -e ''"):format(folder))
      assert.are.equal(2, code)
      assert.is_truthy(err:find(("PACKLUA_HOME=%s has no lua/pack/init.lua"):format(folder), 1, true))
    end)

    it("when the library reports a usage error", function()
      refused([[-e 'require("pack.core.failure").usage("width %d is odd", 3)']], "packlua: width 3 is odd\n")
    end)
  end)

  describe("exits with 1", function()
    local function failed(command, ...)
      local code, _, err = support.run(command)
      assert.are.equal(1, code)
      for _, message in ipairs {...} do assert.is_truthy(err:find(message, 1, true), err) end
      return err
    end

    it("on a syntax error, with file and line", function()
      local path = script "local x = 1\nlocal y = = 2\n"
      failed("packlua " .. path, path .. ":2: unexpected symbol near '='")
    end)

    it("on an error, with file and line of the script all the way down", function()
      local path = script "local function inner()\n  error('boom')\nend\ninner()\n"
      local err = failed("packlua " .. path, "packlua: " .. path .. ":2: boom", path .. ":4: in main chunk")
      assert.is_nil(err:find("at 0x", 1, true))
    end)

    it("on an error in code and on standard input", function()
      failed("packlua -e 'error(\"early\")'", "(command line):1: early")
      failed("echo 'nil()' | packlua -", "stdin:1:")
    end)

    it("when what it prints cannot be written", function()
      for _, arguments in ipairs {"-e 'print(1)'", "--version", "recipes/train.lua --help"} do
        failed("packlua " .. arguments .. " > /dev/full", "standard output could not be written")
      end
    end)

    it("on an error object, by its __tostring if there is one", function()
      failed("packlua " .. script "error(setmetatable({}, {__tostring = function() return 'mine' end}))",
        "packlua: mine\n")
      failed("packlua -e 'error({})'", "the error is a table value")
    end)

    it("and no words on a nil error, as lua has it", function()
      assert.are.equal("", failed "packlua -e 'error()'")
    end)
  end)

  it("exits with the code that os.exit or an error object gives", function()
    assert.are.equal(75, (support.run "packlua -e 'os.exit(75)'"))
    assert.are.equal(0, (support.run "packlua -e 'os.exit(true)'"))
    assert.are.equal(1, (support.run "packlua -e 'os.exit(false)'"))
    local code, out, err = support.run [[packlua -e 'error({message = "", exit = 75})']]
    assert.are.same({75, "", ""}, {code, out, err})
  end)

  it("exits with 130 when it is interrupted, saying where", function()
    local path = script "io.stdout:write('up\\n') io.stdout:flush()\nwhile true do end\n"
    local log = folder .. "/log"
    -- Not from a shell, which has its background jobs ignore SIGINT.
    local child = process.start {command = {support.program, "--no-jit", path}, log = log}
    repeat child:poll(0.02) until child.ended or support.read(log):find("up")
    child:send("INT")
    assert.is_true(child:poll(60))
    assert.are.equal(130, child.code)
    assert.are.equal(("up\npacklua: %s:2: interrupted\n"):format(path), support.read(log))
    child:close()
  end)

  it("lets signals be ignored that its caller ignores", function()
    local path = script([[
      local C = require("pack.native").C
      require("ffi").cdef "int kill(int pid, int signal); int getpid(void);"
      local function send() for _, number in ipairs {1, 2, 10} do C.kill(C.getpid(), number) end end
      send()
      C.pk_signals_hold()
      send()
      print(C.pk_signals_pending())]])
    local code, out, err = support.run("trap '' HUP INT USR1; exec " .. support.quote(support.program) .. " " .. path)
    assert.are.same({0, "0\n", ""}, {code, out, err})
  end)

  describe("has a prompt with -i that", function()
    local function answers(input)
      local path = folder .. "/input"
      support.write(path, input)
      local code, out, err = support.run("packlua -i < " .. path)
      assert.are.equal(0, code)
      return out, err
    end

    it("prints the values of expressions, and no prompts where nobody sits at a terminal", function()
      assert.are.equal("2\t\"x\"\n", (answers "1 + 1, 'x'\n"))
    end)

    it("reads statements over several lines", function()
      assert.are.equal("1\n2\n", (answers "for i = 1, 2 do\nprint(i)\nend\n"))
      assert.are.equal("3\n", (answers "1 +\n2\n"))
    end)

    it("goes on after errors, which carry their place", function()
      local out, err = answers "error('one')\nx = = 1\n'alive'\n"
      assert.are.equal("\"alive\"\n", out)
      assert.is_truthy(err:find("packlua: prompt:1: one\n", 1, true))
      assert.is_truthy(err:find("packlua: prompt:1: unexpected symbol near '='\n", 1, true))
    end)

    it("has the library at hand and does not compile unless asked to", function()
      assert.are.equal(("\"%s\"\nfalse\n"):format(version), (answers "pack.version\n(jit.status())\n"))
      support.write(folder .. "/input", "(jit.status())\n")
      local _, out = support.run(("packlua -i --jit < %s/input"):format(folder))
      assert.are.equal("true\n", out)
    end)
  end)

  describe("finds its library", function()
    local home = 'print(require("pack.native").home(), require("pack").version)'

    it("where PACKLUA_HOME says", function()
      local native = require "pack.native"
      run_ok(("mkdir %s/home && cp -r %s/lua %s/home/"):format(folder, native.home(), folder))
      assert.are.equal(("%s/home\t%s\n"):format(folder, version),
        run_ok(("PACKLUA_HOME=%s/home packlua -e '%s'"):format(folder, home)))
    end)

    it("when installed, together with recipes and configs", function()
      local build = support.program:match("^(.*)/[^/]*$")
      run_ok(("cmake --install %s --prefix %s/usr > %s/log"):format(build, folder, folder))
      local installed = folder .. "/usr/bin/packlua"
      assert.are.equal(("%s/usr/share/packlua\t%s\n"):format(folder, version),
        run_ok(("cd / && %s -e '%s'"):format(installed, home)))
      local out = run_ok(("cd / && %s recipes/train.lua --help"):format(installed))
      assert.is_truthy(out:find("train", 1, true))
      assert.is_truthy(support.read(folder .. "/usr/share/packlua/configs/tiny.lua"))
    end)

    it("and refuses one of another version", function()
      local native = require "pack.native"
      run_ok(("mkdir %s/home && cp -r %s/lua %s/home/"):format(folder, native.home(), folder))
      support.write(folder .. "/home/lua/pack/version.lua", 'return "0.0.1"\n')
      local code, _, err = support.run(("PACKLUA_HOME=%s/home packlua -l pack.native"):format(folder))
      assert.are.equal(1, code)
      assert.is_truthy(err:find("the Lua library is packlua 0.0.1, the program " .. version, 1, true))
    end)
  end)
end)
