#!/usr/bin/env python3
"""DiLoCo and gossip over N models in one process, as one writes them in PyTorch: the models one after the other.

  python3 scripts/peers/torch_strategies.py [--workers 4] [--strategy gossip|diloco] [--steps 20] [--compile]

The model is that of configs/tiny.lua (836,000 parameters), a step has 2,048 targets over all workers, f32. Prints the median
tokens per second of the steps after three that warm up, and their quartiles. To compare with, in the same minutes:

  packlua scripts/bench_step.lua --config configs/tiny.lua --workers N --steps 20 --warmup 3
    --set decentralized.algorithm=diloco|gossip --set decentralized.topology=complete
"""

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, LAYERS, WIDTH, HEADS, FFN, LENGTH, TARGETS = 257, 4, 128, 4, 352, 128, 2048


def rotate(x):
    """Half-split rotary embedding of x [B, H, T, K]."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * frequencies
    cosine, sine = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, 1e-5), nn.RMSNorm(WIDTH, 1e-5)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * FFN, bias=False)
        self.down = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x):
        batch = x.shape[0]
        q, k, v = self.qkv(self.norm1(x)).view(batch, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, LENGTH, WIDTH))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, 1e-5)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.embedding.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def average(lists):
    """The means over workers of lists of tensors."""
    return [torch.stack(tensors).mean(0) for tensors in zip(*lists)]


class DiLoCo:
    def __init__(self, weights, every=20, rate=0.7, momentum=0.9):
        self.anchor = [w.clone() for w in weights[0]]
        self.outer = torch.optim.SGD(self.anchor, lr=rate, momentum=momentum, nesterov=True)
        self.every, self.steps = every, 0

    def step(self, weights):
        self.steps += 1
        if self.steps % self.every:
            return
        for anchor, mean in zip(self.anchor, average(weights)):
            anchor.grad = anchor - mean
        self.outer.step()
        for own in weights:
            torch._foreach_copy_(own, self.anchor)


class Gossip:
    def __init__(self, weights):
        del weights

    def step(self, weights):
        mean = average(weights)
        for own in weights:
            torch._foreach_copy_(own, mean)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--strategy", choices=("gossip", "diloco"), default="diloco")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(1)
    first = Model()
    models = [Model() for _ in range(given.workers)]
    for model in models:
        model.load_state_dict(first.state_dict())
    runnable = [torch.compile(model) if given.compile else model for model in models]
    weights = [[p.data for p in model.parameters()] for model in models]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=4e-3, betas=(0.9, 0.98), foreach=True) for m in models]
    strategy = {"gossip": Gossip, "diloco": DiLoCo}[given.strategy](weights)
    rows, rates = TARGETS // LENGTH // given.workers, []
    for step in range(given.steps + 3):
        began = time.perf_counter()
        for model, run, optimizer in zip(models, runnable, optimizers):
            data = torch.randint(VOCABULARY, (rows, LENGTH + 1))
            loss = run(data[:, :-1], data[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
        strategy.step(weights)
        if step >= 3:
            rates.append(TARGETS / (time.perf_counter() - began))
    low, middle, high = statistics.quantiles(rates, n=4)
    form = "compiled" if given.compile else "eager"
    print(f"torch {torch.__version__} {form} {given.strategy} N={given.workers}: {middle:.0f} tok/s ({low:.0f} .. {high:.0f})")


if __name__ == "__main__":
    main()
