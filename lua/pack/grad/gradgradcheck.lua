--- pack.gradgradcheck(fn, inputs, options): second derivatives against differences; see pack.gradcheck.
return require("pack.grad.gradcheck").gradgradcheck
