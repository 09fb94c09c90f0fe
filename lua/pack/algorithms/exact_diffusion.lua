--- Exact diffusion, or D2: diffusion whose bias of heterogeneous data is corrected (Yuan et al. 2017, arXiv:1702.05122;
-- Tang et al. 2018, arXiv:1803.07068).
--
--   psi' = U(x, g)          phi = psi' + x - psi (first step: psi')          x <- (I + W)/2 phi          psi <- psi'
--
-- W must be symmetric and the same in every mixing, and every step mixes.
local exact_diffusion = {
  summary = "diffusion that is exact with heterogeneous data; W symmetric and constant",
}

local constant = {complete = true, ring = true, torus = true, star = true, disconnected = true}

--- Topologies whose matrix is not symmetric or changes, and steps that do not mix.
function exact_diffusion.refuse(config)
  local decentralized = config.decentralized
  if decentralized.mix_every > 1 then return "every step must mix; decentralized.mix_every is more than 1" end
  if type(decentralized.topology) == "string" and not constant[decentralized.topology] then
    return ("topology %s does not have a symmetric matrix that stays the same; complete, ring, torus and star do")
      :format(decentralized.topology)
  end
end

--- The topology's matrix, which must be symmetric and that of the mixings before.
function exact_diffusion:matrix(w, k)
  self.first = self.first or w
  for i = 1, #w do
    for j = 1, #w do
      if w[i][j] ~= w[j][i] or w[i][j] ~= self.first[i][j] then
        error(("exact_diffusion: the matrix of mixing %d is not symmetric, or not that of the mixings before"):format(k), 0)
      end
    end
  end
  return w
end

--- psi is x before the first step.
function exact_diffusion:start(s)
  self.psi = s:keep("psi", s:copy(s.x))
end

--- The optimizer, the correction, and (I + W)/2.
function exact_diffusion:step(s)
  local phi = s.x - self.psi
  s:optimize()
  s:assign(self.psi, s.x)
  s:add(s.x, phi, 1)
  local mixed = s:copy(s.x)
  s:mix(mixed)
  s:lerp(s.x, mixed, 0.5)
end

return exact_diffusion
