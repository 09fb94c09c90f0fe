#!/usr/bin/env packlua
-- What do algorithms cost and reach when workers see the same data, and when they do not? A study of 42 runs:
--   packlua recipes/study_algorithms.lua [--output DIR] [--set data.sources=A,B,...]
--   packlua recipes/report.lua DIR
-- Sources are labels that are shared out among the workers. Without any, packlua's own files are sorted by language.
local pack = require "pack"

-- One text for each language of packlua's own files, written once.
local function own_sources()
  local folder, texts, paths = "runs/languages", {}, {}
  for _, path in ipairs(pack.text.own_files()) do
    local language = path:match("%.(%w+)$") or "text"
    texts[language] = texts[language] or {}
    table.insert(texts[language], pack.files.read(path))
  end
  pack.files.mkdir(folder)
  for _, language in ipairs {"c", "cu", "lua", "md", "h"} do
    local path = ("%s/%s.txt"):format(folder, language)
    if not pack.files.exists(path) then pack.files.write(path, table.concat(texts[language] or {}, "\n")) end
    paths[#paths + 1] = path
  end
  return table.concat(paths, ",")
end

local given = table.concat(arg, " "):find("data.sources=", 1, true)
if not given then
  table.insert(arg, "--set")
  table.insert(arg, "data.sources=" .. own_sources())
end

pack.sweep {
  recipe = "study_algorithms",
  summary = "Compares algorithms with the same data for all workers and with different data, three seeds each.",
  arg = arg,
  default_config = "configs/study.lua",
  zip = {
    "decentralized.variant=complete,ring,one_peer,local_sgd,diloco,tracking,choco",
    "decentralized.topology=complete,ring,one_peer_exponential,complete,complete,ring,ring",
    "decentralized.algorithm=gossip,gossip,gossip,gossip,diloco,gradient_tracking,choco",
    "decentralized.mix_every=1,1,1,20,1,1,1",
  },
  over = {"data.dirichlet.alpha=1000,0.1", "runtime.seed=1,2,3"},
  run = function(task) task:train() end,
}
