--- pack.hvp(fn, leaves, directions): Hessian-vector products; see pack.grad.
return require("pack.grad").hvp
