#!/usr/bin/env python3
"""The twelve blocks of tests/bench/blocks.cc in PyTorch. Answers lines "NAME MODE DTYPE NxC SECONDS" with a line of JSON,
as bench_blocks --serve does. MODE: eager or compiled (torch.compile of the block)."""
import json
import sys
import time

import torch
from torch.nn import functional as F


def blocks(N, C, dtype):
    def number(*sizes, scale=1.0):
        return (torch.randn(sizes) * scale).to(dtype)

    def param(*sizes, scale=1.0):
        return number(*sizes, scale=scale).requires_grad_()

    def weight(*sizes):
        return param(*sizes, scale=sizes[-1] ** -0.5)

    def mean_square(y):
        return (y * y).mean()

    def mlp(x, up, down):
        h = F.linear(x, up)
        return mean_square(F.linear(h * torch.tanh(F.softplus(h)) + 0.1 * h, down))

    def swiglu(x, scale, gate, up, down):
        h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * scale
        a = F.linear(h, gate)
        return mean_square(x + F.linear(a * torch.sigmoid(a) * F.linear(h, up), down))

    def softmax(x, mask, v):
        scores = torch.where(mask, x / 0.7, -1e9)
        e = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
        return (e / e.sum(-1, keepdim=True) * v).mean()

    def focal(x, y):
        p = torch.sigmoid(x)
        right = p * y + (1 - p) * (1 - y)
        return ((0.25 * y + 0.75 * (1 - y)) * (1 - right) ** 2.0 * (F.softplus(x) - x * y)).mean()

    def vae(mu, log_var, eps, x):
        d = torch.tanh(mu + torch.exp(0.5 * log_var) * eps) - x
        kl = -0.5 * (1 + log_var - mu * mu - torch.exp(log_var)).sum(-1)
        return ((d * d).sum(-1) + kl).mean()

    def rotary(x, cos, sin, k):
        a, b = x.chunk(2, -1)
        return (torch.cat([a * cos - b * sin, b * cos + a * sin], -1) * k).mean()

    def moe(x, router, experts):
        logits = F.linear(x, router)
        e = torch.exp(logits - logits.amax(-1, keepdim=True).detach())
        p = e / e.sum(-1, keepdim=True)
        chosen = p.detach()
        best = chosen.amax(-1, keepdim=True)
        second = torch.where(chosen >= best, -1.0, chosen).amax(-1, keepdim=True)
        kept = torch.where(chosen >= second, p, 0.0)
        gates = kept / kept.sum(-1, keepdim=True)
        balance = 8.0 * ((chosen >= second).to(p.dtype).mean(0) * p.mean(0)).sum()
        return mean_square(x * (gates @ experts)) + 0.01 * balance

    def lstm(x, h, c, w, u, b):
        i, f, g, o = (F.linear(x, w, b) + F.linear(h, u)).chunk(4, -1)
        return mean_square(torch.sigmoid(o) * torch.tanh(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)))

    def messages(x, strength, source, to, w, none):
        sums = none.scatter_add(0, to, x.index_select(0, source) * strength)
        return mean_square(torch.relu(F.linear(sums, w) + x))

    def batch_norm(x, scale, bias):
        d = x - x.mean(0, keepdim=True)
        return mean_square(torch.relu(d * torch.rsqrt((d * d).mean(0, keepdim=True) + 1e-5) * scale + bias))

    def diffusion(x, noise, a, w, b):
        h = F.linear(torch.sqrt(a) * x + torch.sqrt(1 - a) * noise, w, b)
        error = h * torch.sigmoid(h) - noise
        return ((a / (1 - a)).clamp(0.0, 5.0) * error * error).mean()

    def adam(p, g, m, v, step):
        m1, v1 = 0.9 * m + (1 - 0.9) * g, 0.95 * v + (1 - 0.95) * g * g
        change = (m1 / (1 - 0.9**step)) / (torch.sqrt(v1 / (1 - 0.95**step)) + 1e-8)
        return p - 3e-4 * (change + 0.1 * p), m1, v1

    E, D = 4 * N, 64
    return {
        "mlp": (mlp, lambda: [param(N, C), weight(2 * C, C), weight(C, 2 * C)]),
        "swiglu": (swiglu, lambda: [param(N, C), weight(C), weight(2 * C, C), weight(2 * C, C), weight(C, 2 * C)]),
        "softmax": (softmax, lambda: [param(N, C), torch.rand(N, C) > 0.2, number(N, C)]),
        "focal": (focal, lambda: [param(N, C), (torch.rand(N, C) > 0.9).to(dtype)]),
        "vae": (vae, lambda: [param(N, C), param(N, C, scale=0.1), number(N, C), number(N, C)]),
        "rotary": (rotary, lambda: [param(N, C // D, D), number(N, 1, D // 2), number(N, 1, D // 2),
                                    number(N, C // D, D)]),
        "moe": (moe, lambda: [param(N, C), weight(8, C), weight(8, C)]),
        "lstm": (lstm, lambda: [param(N, C), param(N, C), param(N, C), weight(4 * C, C), weight(4 * C, C),
                                weight(4 * C)]),
        "messages": (messages, lambda: [param(N, C), number(E, 1), torch.randint(N, (E,)),
                                        torch.randint(N, (E, 1)).expand(E, C).contiguous(), weight(C, C),
                                        torch.zeros(N, C, dtype=dtype)]),
        "batch_norm": (batch_norm, lambda: [param(N, C), weight(C), weight(C)]),
        "diffusion": (diffusion, lambda: [number(N, C), number(N, C), (torch.rand(N, 1) * 0.9 + 0.05).to(dtype),
                                          weight(C, C), weight(C)]),
        "adam": (adam, lambda: [number(N, C), number(N, C), number(N, C, scale=0.1), torch.rand(N, C).to(dtype)]),
    }


class Contender:
    def __init__(self, name, mode, dtype, size):
        torch.manual_seed(5)
        N, C = map(int, size.split("x"))
        function, inputs = blocks(N, C, {"f32": torch.float32, "bf16": torch.bfloat16}[dtype])[name]
        self.inputs = inputs()
        self.trains = name != "adam"
        torch._dynamo.reset()
        self.function = torch.compile(function) if mode == "compiled" else function
        # A number that changes is a tensor for the peer, so that it compiles once.
        self.count = 0
        self.number = torch.zeros(()) if mode == "compiled" else None
        for _ in range(3):
            self.step()

    def step(self):
        self.count += 1
        if not self.trains:
            step = self.count if self.number is None else self.number.fill_(self.count)
            with torch.no_grad():
                self.function(*self.inputs, step)
            return
        self.function(*self.inputs).backward()
        for t in self.inputs:
            t.grad = None

    def measure(self, seconds):
        times, batch, end = [], 1, time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            for _ in range(batch):
                self.step()
            us = 1e6 * (time.perf_counter() - start)
            if us < 200 and batch < 64:
                batch *= 2
            else:
                times.append(us / batch)
        times.sort()
        return times[len(times) // 2]


def main():
    torch.set_num_threads(2)
    known, latest = {}, None
    for line in sys.stdin:
        name, mode, dtype, size, seconds = line.split()
        if latest != (name, dtype, size):
            known, latest = {}, (name, dtype, size)
        if mode not in known:
            known[mode] = Contender(name, mode, dtype, size)
        print(json.dumps({"us": known[mode].measure(float(seconds))}), flush=True)


if __name__ == "__main__":
    main()
