--- busted's plain report, and the counts for scripts/test.sh: "passed failed skipped" in the file that
-- PACKLUA_COUNTS names.
return function(options)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.plainTerminal"(options)

  busted.subscribe({"suite", "end"}, function()
    local name = os.getenv("PACKLUA_COUNTS")
    if name then
      local file = assert(io.open(name, "w"))
      file:write(("%d %d %d\n"):format(handler.successesCount,
        handler.failuresCount + handler.errorsCount, handler.pendingsCount))
      file:close()
    end
    return nil, true
  end)

  return handler
end
