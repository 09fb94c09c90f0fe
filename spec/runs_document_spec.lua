-- docs/runs.md says what is so: its table of keys, and every field of metrics.jsonl.
local files = require "pack.io.files"
local native = require "pack.native"
local support = require "spec.support.helper"

describe("docs/runs.md", function()
  local document = files.read(native.home() .. "/docs/runs.md")

  it("has the table of configuration keys that scripts/config_table.lua makes of the schema", function()
    local code, out, err = support.run("packlua scripts/config_table.lua")
    assert.equal("", err)
    assert.equal(0, code)
    assert.equal(out, document, "packlua scripts/config_table.lua --write brings it up to date")
    assert.is_truthy(document:find("\n| `optimizer.lr` | 0.001 | ", 1, true))
    assert.is_truthy(document:find("\n| `decentralized.adaptive_consensus.p` | ", 1, true))
  end)

  it("names every field that a run writes into metrics.jsonl, and every file that it leaves", function()
    local folder = support.temporary()
    local code, _, err = support.run("packlua recipes/train.lua --sample 0 --output " .. folder .. "/run "
      .. "--set model.layers=1 --set model.width=16 --set model.heads=2 --set model.ffn_width=24 "
      .. "--set model.context_length=16 --set training.batch_tokens=128 --set training.micro_batch_size=2 "
      .. "--set training.max_tokens=512 --set training.epoch_tokens=256 --set training.log_every=1 "
      .. "--set evaluation.subset_blocks=2 --set evaluation.batch_size=512")
    assert.equal("", err)
    assert.equal(0, code)
    for line in files.read(folder .. "/run/metrics.jsonl"):gmatch("[^\n]+") do
      for name in line:gmatch('"([%a_]+)":') do
        assert.is_truthy(document:find("\n| `" .. name .. "` |", 1, true), name)
      end
    end
    for _, name in ipairs(files.list(folder .. "/run")) do
      local general = name:gsub("%d%d%d", "NNN")
      assert.is_truthy(document:find("| `" .. general, 1, true), name)
    end
    support.remove(folder)
  end)
end)
