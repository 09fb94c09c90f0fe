#!/usr/bin/env python3
"""The packed training step in PyTorch: N Llama models whose parameters are the rows of one arena, one step for all.

    python scripts/peers/torch_packed.py --layers 8 --width 320 --heads 5 --ffn 896 --num-models 4 --rows 8 [--compile]
    python scripts/peers/torch_packed.py --check CASE.safetensors --dtype f64

The first form times whole steps (forward, loss, backward, clip, mixing, AdamW) on made-up tokens and prints one line of
JSON. The second re-runs a golden case and compares losses, norms, gradients and final state; exit code 1 if they
differ. Computes what packlua computes: losses of the workers are summed, not averaged; one norm per worker; weight decay
on matrices alone; mixing before AdamW (awc) or after it (atc).

Written to be as fast as plain PyTorch gets: batched products over workers, its fused attention, weights that are
views of one arena, updates in place, a head that never holds all logits (--chunk-head), all of it under torch.compile
when asked. Needs torch; --check also needs safetensors.
"""
import argparse
import json
import math
import os
import resource
import statistics
import sys
import time
import warnings

import torch
import torch.nn.functional as F

IGNORED = -100
# Gradients are views of an arena on purpose.
warnings.filterwarnings("ignore", message="grad and param do not obey")
DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16}


class Shape:
    """Sizes of one model and its batch: rows is the number of sequences per worker and micro-step."""

    def __init__(self, options):
        self.vocab, self.layers, self.width = options.vocab, options.layers, options.width
        self.heads, self.ffn, self.context = options.heads, options.ffn, options.context
        self.theta, self.eps, self.workers = options.theta, options.norm_eps, options.num_models

    def parameters(self):
        """(name, shape) of each parameter of one model, in arena order."""
        d, f = self.width, self.ffn
        yield "embedding.weight", (self.vocab, d)
        for i in range(self.layers):
            block = f"blocks.{i}."
            yield block + "attention_norm.weight", (d,)
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                yield block + f"attention.{name}.weight", (d, d)
            yield block + "ffn_norm.weight", (d,)
            yield block + "ffn.gate_proj.weight", (f, d)
            yield block + "ffn.up_proj.weight", (f, d)
            yield block + "ffn.down_proj.weight", (d, f)
        yield "norm.weight", (d,)

    def operations_per_target(self):
        """Floating-point operations forward and backward: 6 per weight of a matrix, and causal attention's half."""
        matrices = self.vocab * self.width + self.layers * (4 * self.width**2 + 3 * self.width * self.ffn)
        return 6 * matrices + 6 * self.layers * self.context * self.width


class Arena:
    """[N, D] numbers with a view [N, ...] for each parameter, which starts at a multiple of 64 elements."""

    def __init__(self, shape, dtype):
        self.places, columns = {}, 0
        for name, extents in shape.parameters():
            self.places[name] = (columns, math.prod(extents), extents)
            columns += (math.prod(extents) + 63) // 64 * 64
        self.tensor = torch.zeros(shape.workers, columns, dtype=dtype)

    def view(self, name):
        start, count, extents = self.places[name]
        return self.tensor[:, start:start + count].unflatten(1, extents)


def rope_tables(shape, dtype):
    """cos and sin [T, 1, head_dim / 2] of the angles, in the given dtype, computed in f64."""
    half = shape.width // shape.heads // 2
    rates = shape.theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(shape.context, dtype=torch.float64)[:, None, None] * rates
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rope(x, cos, sin):
    first, second = x.float().chunk(2, -1) if x.dtype == torch.bfloat16 else x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def rmsnorm(x, weight, eps):
    return F.rms_norm(x, x.shape[-1:], None, eps) * weight[:, None]


def hidden(shape, weight, tokens, tables, operand):
    """Last hidden states [N, R * T, d] in the dtype of products. weight: views by name; operand: cast for a product."""
    n, rows, length = tokens.shape
    heads = (n * rows, length, shape.heads, shape.width // shape.heads)

    def linear(x, name):
        return torch.bmm(x, operand(weight[name]).transpose(1, 2))

    table = weight["embedding.weight"]
    x = torch.stack([F.embedding(tokens[i].flatten(), table[i]) for i in range(n)])
    for i in range(shape.layers):
        block = f"blocks.{i}."
        a = operand(rmsnorm(x, weight[block + "attention_norm.weight"], shape.eps))
        q, k, v = (linear(a, block + f"attention.{name}_proj.weight").view(heads) for name in "qkv")
        q, k = rope(q, *tables), rope(k, *tables)
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        o = o.transpose(1, 2).reshape(n, rows * length, shape.width)
        x = x + linear(o, block + "attention.out_proj.weight")
        f = operand(rmsnorm(x, weight[block + "ffn_norm.weight"], shape.eps))
        gate, up = linear(f, block + "ffn.gate_proj.weight"), linear(f, block + "ffn.up_proj.weight")
        x = x + linear(F.silu(gate) * up, block + "ffn.down_proj.weight")
    return operand(rmsnorm(x, weight["norm.weight"], shape.eps))


def loss_sums(logits, targets):
    """Sums [N] of the cross-entropy of whole logits [N, R, V]."""
    losses = F.cross_entropy(logits.flatten(0, 1).float() if logits.dtype == torch.bfloat16 else logits.flatten(0, 1),
                             targets.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(targets.shape).sum(1)


def softmax_slopes(logits, targets):
    """Loss sums [N] of a chunk of logits [N, C, V], and their gradient by the logits."""
    wide = logits.float() if logits.dtype == torch.bfloat16 else logits
    valid = targets != IGNORED
    at = torch.where(valid, targets, 0).unsqueeze(-1)
    lse = wide.logsumexp(-1, keepdim=True)
    losses = (lse - wide.gather(-1, at)).squeeze(-1) * valid
    slopes = (wide - lse).exp()
    slopes = slopes.scatter_add(-1, at, -torch.ones_like(lse)) * valid.unsqueeze(-1)
    return losses.sum(1), slopes.to(logits.dtype)


class ChunkedHead(torch.autograd.Function):
    """Head and loss over chunks of rows; gradients are made on the way forward, so that nothing is computed twice."""

    @staticmethod
    def forward(ctx, x, weight, targets, chunk, slopes_of):
        x_grad, weight_grad, total = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.promote_types(
            weight.dtype, torch.float32)), 0
        for first in range(0, x.shape[1], chunk):
            part = x[:, first:first + chunk]
            losses, slopes = slopes_of(torch.bmm(part, weight.transpose(1, 2)), targets[:, first:first + chunk])
            total = total + losses
            x_grad[:, first:first + chunk] = torch.bmm(slopes, weight)
            if slopes.dtype == weight_grad.dtype:
                weight_grad.baddbmm_(slopes.transpose(1, 2), part)
            else:
                weight_grad += torch.bmm(slopes.transpose(1, 2), part)
        ctx.save_for_backward(x_grad, weight_grad)
        return total

    @staticmethod
    def backward(ctx, g):
        x_grad, weight_grad = ctx.saved_tensors
        scale = g[:, None, None]
        return (x_grad * scale).to(x_grad.dtype), weight_grad * scale, None, None, None


def update(x, g, m, v, scale, mixing, decays, lr, beta1, beta2, eps, correction1, correction2, clip, mix_last):
    """Scale, norm, clip, mixing and AdamW of whole arenas in place; returns the norms [N] before clipping."""
    norm = torch.linalg.vector_norm(g, dim=1) * scale
    factor = scale * torch.clamp(clip / (norm + 1e-6), max=1) if clip else scale
    g = g * factor[:, None]
    if not mix_last:
        x.copy_(mixing @ x)
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    denominator = (v / correction2).sqrt_().add_(eps)
    x.mul_(1 - lr * decays).addcdiv_(m * (lr / correction1), denominator, value=-1)
    if mix_last:
        x.copy_(mixing @ x)
    return norm


def compiled_update(x, g, m, v, scale, mixing, decays, lr, beta1, beta2, eps, correction1, correction2, clip, mix_last):
    """The same arithmetic without intermediate results in place, which the compiler fuses into few passes."""
    norm = torch.linalg.vector_norm(g, dim=1) * scale
    factor = scale * torch.clamp(clip / (norm + 1e-6), max=1) if clip else scale
    g = g * factor[:, None]
    mixed = x if mix_last else mixing @ x
    moment = beta1 * m + (1 - beta1) * g
    square = beta2 * v + (1 - beta2) * g * g
    stepped = (1 - lr * decays) * mixed - lr * (moment / correction1) / ((square / correction2).sqrt() + eps)
    m.copy_(moment)
    v.copy_(square)
    x.copy_(mixing @ stepped if mix_last else stepped)
    return norm


class Trainer:
    """Parameters, gradients and moments of N workers, and steps over them."""

    def __init__(self, shape, dtype, compiled=False, chunk=0, optimizer=None, scheme="awc"):
        self.shape, self.scheme, self.optimizer = shape, scheme, optimizer
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.products, self.chunk = dtype, chunk
        self.x, self.g, self.m, self.v = (Arena(shape, self.dtype) for _ in range(4))
        self.decays = torch.zeros(self.x.tensor.shape[1], dtype=self.dtype)
        self.weight = {}
        for name, (start, count, extents) in self.x.places.items():
            if len(extents) > 1:
                self.decays[start:start + count] = optimizer["weight_decay"]
            leaf = self.x.view(name).detach().requires_grad_()
            leaf.grad = self.g.view(name)
            self.weight[name] = leaf
        self.tables = rope_tables(shape, self.dtype)
        self.loss = self.compute_loss
        self.slopes_of, self.update = softmax_slopes, update
        self.hidden = hidden
        if compiled:
            self.hidden = torch.compile(hidden, dynamic=False)
            self.slopes_of = torch.compile(softmax_slopes, dynamic=False)
            self.update = torch.compile(compiled_update, dynamic=False)
            self.whole_loss = torch.compile(self.whole_loss, dynamic=False)
        self.t = 0

    def initialize(self, deviation=0.02):
        """Norms 1, weights normal, the same for every worker."""
        generator = torch.Generator().manual_seed(42)
        with torch.no_grad():
            for name, leaf in self.weight.items():
                if leaf.dim() == 2:
                    leaf.fill_(1)
                    continue
                residual = "out_proj" in name or "down_proj" in name
                spread = deviation / math.sqrt(2 * self.shape.layers) if residual else deviation
                leaf.copy_(torch.randn(leaf.shape[1:], generator=generator, dtype=self.dtype) * spread)

    def operand(self, t):
        return t.to(self.products)

    def whole_loss(self, tokens, targets):
        x = hidden(self.shape, self.weight, tokens, self.tables, self.operand)
        logits = torch.bmm(x, self.operand(self.weight["embedding.weight"]).transpose(1, 2))
        return loss_sums(logits, targets.flatten(1))

    def compute_loss(self, tokens, targets):
        """Loss sums [N] of a micro-batch."""
        if not self.chunk:
            return self.whole_loss(tokens, targets)
        x = self.hidden(self.shape, self.weight, tokens, self.tables, self.operand)
        head = self.operand(self.weight["embedding.weight"])
        return ChunkedHead.apply(x, head, targets.flatten(1), self.chunk, self.slopes_of)

    def backward(self, micro_batches):
        """Gradients of the loss sums of a list of (tokens, targets); returns loss sums and counts [N]."""
        self.g.tensor.zero_()
        losses, counts = 0, 0
        for tokens, targets in micro_batches:
            sums = self.loss(tokens, targets)
            sums.sum().backward()
            losses = losses + sums.detach()
            counts = counts + (targets != IGNORED).flatten(1).sum(1)
        return losses, counts

    def step(self, micro_batches, lr, mixing):
        """One optimizer step; returns mean losses and gradient norms [N]."""
        losses, counts = self.backward(micro_batches)
        scale = (counts > 0) / counts.clamp(min=1).to(self.dtype)
        self.t += 1
        s = self.optimizer
        as_tensor = lambda number: torch.tensor(number, dtype=self.dtype)  # not a constant to compile anew
        with torch.no_grad():
            norm = self.update(self.x.tensor, self.g.tensor, self.m.tensor, self.v.tensor, scale, mixing, self.decays,
                               as_tensor(lr), s["beta1"], s["beta2"], s["eps"], as_tensor(1 - s["beta1"]**self.t),
                               as_tensor(1 - s["beta2"]**self.t), s["grad_clip"], self.scheme == "atc")
        if not (torch.isfinite(norm).all() and torch.isfinite(losses).all()):
            raise ArithmeticError("a loss or norm is not finite")
        return losses * scale, norm


# --- golden cases ---

TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "bf16": 3e-2}


def check(path, dtype, compiled, chunk):
    """Largest ||a - b|| / ||b|| over a golden case's tensors, per quantity."""
    from safetensors import safe_open
    file = safe_open(path, "pt")
    case = json.loads(file.metadata()["case"])
    model = case["model"]
    shape = Shape(argparse.Namespace(
        vocab=model["vocab_size"], layers=model["layers"], width=model["width"], heads=model["heads"],
        ffn=model["ffn_width"], context=model["context_length"], theta=model["rope_theta"],
        norm_eps=model["norm_eps"], num_models=case["num_models"]))
    trainer = Trainer(shape, DTYPES[dtype], compiled, chunk, dict(case["optimizer"], grad_clip=case["grad_clip"]),
                      case["scheme"])
    worst = {}

    def compare(quantity, mine, reference):
        mine, reference = mine.double().flatten(), reference.double().flatten()
        size = reference.norm()
        difference = ((mine - reference).norm() / (size if size > 0 else 1)).item()
        worst[quantity] = max(worst.get(quantity, 0), difference)

    with torch.no_grad():
        for name, leaf in trainer.weight.items():
            leaf.copy_(file.get_tensor("init/" + name))
    parts = case.get("accumulate", 1)
    tokens, targets, mixing = (file.get_tensor(name) for name in ("tokens", "targets", "W"))
    for step in range(case["steps"]):
        batch = [(a.long(), b.long()) for a, b in zip(tokens[step].chunk(parts, 1), targets[step].chunk(parts, 1))]
        if step == 0:
            _, counts = trainer.backward(batch)
            for name in trainer.weight:
                mean = trainer.g.view(name).transpose(0, -1) / counts.clamp(min=1)
                compare("grad0", mean.transpose(0, -1), file.get_tensor("grad0/" + name))
        losses, norms = trainer.step(batch, case["lr"][step], mixing[step].to(trainer.dtype))
        compare("loss", losses, file.get_tensor("loss")[step])
        compare("grad_norm", norms, file.get_tensor("grad_norm")[step])
    for name in trainer.weight:
        for quantity, arena in (("final", trainer.x), ("exp_avg", trainer.m), ("exp_avg_sq", trainer.v)):
            compare(quantity, arena.view(name), file.get_tensor(f"{quantity}/{name}"))
    judged = ("loss", "grad_norm", "grad0") if dtype == "bf16" else worst
    good = all(worst[quantity] <= TOLERANCES[dtype] for quantity in judged)
    print(json.dumps({"case": os.path.basename(path), "dtype": dtype, "compile": compiled, "chunk_head": chunk,
                      "agrees": good, "worst": worst}))
    return good


# --- timing ---

def made_up(shape, rows, parts):
    """The tokens of scripts/bench_step.lua, as a list of parts micro-batches."""
    each = shape.workers * rows * shape.context
    i = torch.arange(parts * each + 1)
    tokens = (i * 7919 + i * i % 31) % shape.vocab
    def batch(part, shift):
        return tokens[part * each + shift:(part + 1) * each + shift].view(shape.workers, rows, shape.context)
    return [(batch(part, 0), batch(part, 1)) for part in range(parts)]


def exponential_mixing(workers, step, dtype):
    """one_peer_exponential."""
    offset = 2 ** (step % max(1, math.ceil(math.log2(workers)))) if workers > 1 else 0
    mixing = torch.zeros(workers, workers, dtype=dtype)
    for i in range(workers):
        mixing[i, i] += 0.5
        mixing[i, (i - offset) % workers] += 0.5
    return mixing


def ceiling(dtype):
    """GFLOP/s of the best of five large square products."""
    size = 2048 if dtype != torch.bfloat16 else 1024
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    out, best = torch.mm(a, b), 0
    for _ in range(5):
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        best = max(best, 2 * size**3 / (time.perf_counter() - began) / 1e9)
    return best


def peak_rss_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def out_of_memory(problem):
    return isinstance(problem, MemoryError) or "allocate memory" in str(problem)


def measure(shape, options, rows, parts):
    """Wall and CPU seconds of each timed step, seconds of the warm-up, and the losses of the last step, for
    rows x parts sequences per worker. Raises when memory runs out."""
    began = time.perf_counter()
    trainer = Trainer(shape, DTYPES[options.dtype], options.compile, options.chunk_head,
                      {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0},
                      options.scheme)
    trainer.initialize(options.init_std)
    batch = made_up(shape, rows, parts)
    seconds, cpu_seconds, losses = [], [], None
    for step in range(options.warmup + options.steps):
        if step == options.warmup:
            warmup = time.perf_counter() - began
        start, cpu_start = time.perf_counter(), time.process_time()
        losses, _ = trainer.step(batch, 1e-3, exponential_mixing(shape.workers, step, trainer.dtype))
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    return seconds[options.warmup:], cpu_seconds[options.warmup:], warmup, losses.tolist()


def probe(shape, options):
    """Seconds per target of one eager step of one sequence per worker, the first."""
    once = argparse.Namespace(**vars(options))
    once.compile, once.warmup, once.steps = False, 0, 1
    seconds = measure(shape, once, 1, 1)[0]
    return seconds[0] / (shape.workers * shape.context)


def bench(options):
    shape = Shape(options)
    rows, parts = options.micro_batch, options.accumulation
    targets = shape.workers * rows * parts * shape.context
    reduced = False
    if options.budget_seconds:
        each = probe(shape, options)
        while rows * parts > 1 and each * targets * (options.warmup + options.steps) > options.budget_seconds:
            if parts > 1:
                parts = (parts + 1) // 2
            else:
                rows = (rows + 1) // 2
            targets = shape.workers * rows * parts * shape.context
            reduced = True
    out_at = None
    while True:
        try:
            seconds, cpu_seconds, warmup, losses = measure(shape, options, rows, parts)
            break
        except (RuntimeError, MemoryError) as problem:
            if not out_of_memory(problem):
                raise
            out_at = out_at or rows
            if rows == 1:
                print(json.dumps({"peer": "torch", "out_of_memory": True, "message": str(problem)[:200]}))
                return False
        rows, parts = rows // 2, parts * 2 if rows % 2 == 0 else (rows * parts) // (rows // 2)
    rate = [targets / one for one in seconds]
    operations = shape.operations_per_target()
    best = ceiling(DTYPES[options.dtype])
    print(json.dumps({
        "peer": "torch", "version": torch.__version__, "dtype": options.dtype, "compile": options.compile,
        "chunk_head": options.chunk_head, "threads": torch.get_num_threads(), "workers": shape.workers,
        "targets": targets, "micro_batch": rows, "accumulation": parts, "reduced_batch": reduced,
        "out_of_memory_at_micro_batch": out_at, "seconds": seconds, "cpu_seconds": cpu_seconds,
        "warmup_seconds": warmup,
        "tokens_per_second": {"min": min(rate), "median": statistics.median(rate), "max": max(rate)},
        "gflops": statistics.median(rate) * operations / 1e9, "ceiling_gflops": best, "ceiling_f32_gflops":
        best if options.dtype == "f32" else ceiling(torch.float32), "peak_rss_mib": peak_rss_mib(), "loss": losses}))
    return True


def limit_memory(mib):
    """Makes the system refuse private memory beyond mib, so that running out is an error and not a kill."""
    if not mib:
        with open("/proc/meminfo", encoding="ascii") as file:
            available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
        mib = available / 1024 - 512
    bytes_ = int(mib * 2**20)
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_, bytes_))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--check", metavar="FILE", help="a golden case to re-run")
    for name, default in (("layers", 8), ("width", 320), ("heads", 5), ("ffn", 896), ("vocab", 32000),
                          ("context", 1024), ("num-models", 4), ("micro-batch", 8), ("accumulation", 1),
                          ("steps", 3), ("warmup", 1)):
        add(f"--{name}", type=int, default=default, help=f"default {default}")
    add("--theta", type=float, default=1e4, help="of the rotary embedding")
    add("--norm-eps", type=float, default=1e-5)
    add("--init-std", type=float, default=0.02)
    add("--dtype", choices=DTYPES, default="f32", help="bf16: operands of products, f32 elsewhere")
    add("--scheme", choices=("awc", "atc"), default="awc")
    add("--compile", action="store_true", help="torch.compile of the step")
    add("--chunk-head", type=int, default=0, metavar="ROWS", help="head and loss in chunks of so many rows per worker")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--memory-limit-mib", type=float, default=0, help="default: what is available, less 512; past it, the "
        "micro-batch is halved")
    add("--budget-seconds", type=float, default=0, help="fewer sequences where all steps would take longer")
    return parser.parse_args()


def main():
    options = parse()
    torch.set_num_threads(options.threads)
    if options.check:
        return check(options.check, options.dtype, options.compile, options.chunk_head)
    limit_memory(options.memory_limit_mib)
    return bench(options)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
