#!/usr/bin/env python3
"""One GPT-2 training step in plain PyTorch: the peer of `bench_gpt`.

A step is zero_grad, forward, cross-entropy, backward, clip_grad_norm(1.0), AdamW.
One JSON line goes to stdout. With --serve the process warms up on the first line of
stdin, then for every line `N` runs N steps and answers with one JSON line (`0` only
warms up); between lines it is blocked on the pipe, so another process can be timed.

    gpt_step.py --n_layer 6 --n_head 6 --n_embd 384 --block_size 256 --batch_size 8
"""
import argparse
import json
import math
import os
import resource
import statistics
import sys
import tempfile
import time


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--n_layer", type=int, default=4)
    p.add_argument("--n_head", type=int, default=4)
    p.add_argument("--n_embd", type=int, default=128)
    p.add_argument("--block_size", type=int, default=64)
    p.add_argument("--batch_size", type=int, default=12)
    p.add_argument("--vocab_size", type=int, default=65)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--device", default="cpu", help="cuda: a step's time is that of N steps, from one wait to the next")
    p.add_argument("--tf32", action="store_true", help="products of f32 may round their operands (cuda)")
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: autocast, f32 parameters")
    p.add_argument("--compile", choices=["none", "whole", "block"], default="none")
    p.add_argument("--compile_mode", choices=["default", "reduce-overhead", "max-autotune"], default="default")
    p.add_argument("--inference", action="store_true", help="a step is the forward pass alone, under no_grad")
    p.add_argument("--warm_cache", action="store_true", help="use the user's compile cache, not an empty one")
    p.add_argument("--dropout", type=float, default=0.0,
                   help="of the embeddings, the attention weights, and the results of attention and MLP")
    p.add_argument("--optimizer", choices=["fused", "foreach", "for-loop"], default="fused")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--zipf", action="store_true", help="tokens are as frequent as in texts, not equally likely")
    p.add_argument("--seed", type=int, default=1337)
    p.add_argument("--serve", action="store_true")
    return p.parse_args()


ARGS = parse_args()
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = str(ARGS.threads)
if ARGS.compile != "none" and not ARGS.warm_cache:
    # compile_ms is meant to be a cold start, so the cache begins empty and goes when we do.
    _cache = tempfile.TemporaryDirectory(prefix="rondo-peer-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = _cache.name
    os.environ["TRITON_CACHE_DIR"] = _cache.name

import torch  # noqa: E402  (the thread count has to be in the environment first)
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402


class Attention(nn.Module):
    def __init__(self, c, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(c, 3 * c)
        self.c_proj = nn.Linear(c, c)
        self.drop = nn.Dropout(ARGS.dropout)

    def forward(self, x):  # (B, T, C)
        b, t, c = x.shape
        heads = self.c_attn(x).view(b, t, 3, self.n_head, c // self.n_head)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=ARGS.dropout if self.training else 0.0)
        return self.drop(self.c_proj(y.transpose(1, 2).reshape(b, t, c)))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c, 4 * c)
        self.c_proj = nn.Linear(4 * c, c)
        self.drop = nn.Dropout(ARGS.dropout)

    def forward(self, x):
        return self.drop(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))


class Block(nn.Module):
    def __init__(self, c, n_head):
        super().__init__()
        self.ln_1 = nn.LayerNorm(c)
        self.attn = Attention(c, n_head)
        self.ln_2 = nn.LayerNorm(c)
        self.mlp = Mlp(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    def __init__(self, n_layer, n_head, n_embd, block_size, vocab_size):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)  # also the output matrix (tied)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(ARGS.dropout)
        self.h = nn.ModuleList(Block(n_embd, n_head) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                std = 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02
                nn.init.normal_(p, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids, targets=None):  # both (B, T); logits without targets
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # (B, T, V)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_optimizer(params, kind):
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    how = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False, "fused": False}}
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, **how[kind])


class Trainer:
    def __init__(self, a):
        self.a = a
        torch.manual_seed(a.seed)
        torch.set_float32_matmul_precision("high" if a.tf32 else "highest")
        self.model = Gpt2(a.n_layer, a.n_head, a.n_embd, a.block_size, a.vocab_size).to(a.device)
        self.params = list(self.model.parameters())
        self.optimizer = make_optimizer(self.params, a.optimizer)
        mode = None if a.compile_mode == "default" else a.compile_mode
        self.forward = self.model
        if a.compile == "whole":
            self.forward = torch.compile(self.model, mode=mode)
        elif a.compile == "block":
            for block in self.model.h:
                block.compile(mode=mode)
        shape = (a.batch_size, a.block_size + 1)
        if a.zipf:  # log(id + 1) is uniform
            tokens = ((a.vocab_size + 1) ** torch.rand(shape, dtype=torch.float64)).long().sub(1)
            tokens = tokens.clamp_(0, a.vocab_size - 1).to(a.device)
        else:
            tokens = torch.randint(a.vocab_size, shape).to(a.device)
        self.ids, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if a.inference:
            self.model.eval()
        self.loss = torch.zeros(())
        self.first_ms = None

    def autocast(self):
        return torch.autocast(self.a.device.split(":")[0], dtype=torch.bfloat16, enabled=self.a.dtype == "bf16")

    def wait(self):
        if self.a.device != "cpu":
            torch.cuda.synchronize(self.a.device)

    def step(self):
        """Runs one step; returns its (forward, backward, optimizer) times in ms. zero_grad and clipping
        count as optimizer."""
        if self.a.inference:
            return self.infer(), 0.0, 0.0
        t0 = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        t1 = time.perf_counter()
        with self.autocast():
            self.loss = self.forward(self.ids, self.targets)
        t2 = time.perf_counter()
        self.loss.backward()
        t3 = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        self.optimizer.step()
        t4 = time.perf_counter()
        return (t2 - t1) * 1e3, (t3 - t2) * 1e3, (t1 - t0 + t4 - t3) * 1e3

    def infer(self):
        start = time.perf_counter()
        with torch.no_grad(), self.autocast():
            self.forward(self.ids)
        return (time.perf_counter() - start) * 1e3

    def warm_up(self):
        for _ in range(max(1, self.a.warmup)):
            start = time.perf_counter()
            self.step()
            self.wait()
            ms = (time.perf_counter() - start) * 1e3
            self.first_ms = self.first_ms or ms
            self.warm_ms = ms  # the last one, when caches and allocator are warm

    def measure(self, n):
        a = self.a
        start = time.perf_counter()
        phases = [self.step() for _ in range(n)]
        self.wait()
        wall = (time.perf_counter() - start) * 1e3
        steps = [sum(p) for p in phases]
        host = statistics.median(steps) if steps else 0.0
        if a.device != "cpu" and n > 0:  # phases are the host's time only
            steps = [wall / n]
        median = statistics.median(steps) if steps else 0.0
        fwd, bwd, opt = (statistics.median(column) for column in zip(*phases)) if phases else (0.0, 0.0, 0.0)
        compiling = 0.0 if a.compile == "none" else self.first_ms - (median or self.warm_ms)
        report = {
            "peer": "pytorch",
            "version": torch.__version__,
            "mode": "none" if a.compile == "none" else f"{a.compile}/{a.compile_mode}",
            "dtype": a.dtype,
            "threads": torch.get_num_threads(),
            "optimizer": a.optimizer,
            "n_parameters": sum(p.numel() for p in self.params),
            "step_ms_median": round(median, 3),
            "step_ms_all": [round(ms, 3) for ms in steps],
            "tokens_per_s": round(a.batch_size * a.block_size / median * 1e3, 1) if median else 0.0,
            "compile_ms": round(compiling, 1),
            "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            "loss": round(self.loss.item(), 6),
        }
        if a.device == "cpu":
            report.update(forward_ms=round(fwd, 3), backward_ms=round(bwd, 3), optimizer_ms=round(opt, 3))
        else:
            report.update(device=torch.cuda.get_device_name(a.device), host_ms=round(host, 3),
                          peak_device_mib=round(torch.cuda.max_memory_allocated(a.device) / 2**20, 1))
        print(json.dumps(report), flush=True)


def main():
    torch.set_num_threads(ARGS.threads)
    if not ARGS.serve:
        trainer = Trainer(ARGS)
        trainer.warm_up()
        trainer.measure(ARGS.steps)
        return
    trainer = None
    for line in sys.stdin:
        if not line.strip():
            continue
        if trainer is None:  # not before the first line: another process may be under the clock
            trainer = Trainer(ARGS)
            trainer.warm_up()
        trainer.measure(int(line))


if __name__ == "__main__":
    main()
