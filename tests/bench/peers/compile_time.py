#!/usr/bin/env python3
"""What compiling costs: torch.compile and Rondo on the models of tests/bench/regional_bench.cc, in turns.

Two models, forward and backward, f32, cold caches: `recipe` (PyTorch's regional compilation recipe:
64 x [Linear 10-10, ReLU, sigmoid, Linear, ReLU] behind a Linear) and `gpt2` (12 blocks of GPT-2 124M,
B=4, T=64). torch.compile takes the whole model or each block, in three modes. Each figure comes from a
process of its own with an empty TORCHINDUCTOR_CACHE_DIR that has compiled a trivial function first
(forward and backward), as bench_regional loads LLVM first: the compiler is in memory, nothing of the model is.
compile_s is the first step less the fastest of the later ones, after an eager step.

    compile_time.py --rondo-bin build/release/bin/bench_regional --json compile.json
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from paired_gpt import default_python

HERE = os.path.dirname(os.path.abspath(__file__))
DEPTHS = {"recipe": 64, "gpt2": 12}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", help="path of bench_regional; without it only PyTorch runs")
    p.add_argument("--python", default=default_python(), help="interpreter that has torch")
    p.add_argument("--models", default="recipe,gpt2")
    p.add_argument("--what", default="block,whole")
    p.add_argument("--modes", default="default,reduce-overhead,max-autotune")
    p.add_argument("--layers", type=int, default=0, help="0: 64 for recipe, 12 for gpt2")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--timeout", type=float, default=900.0, help="seconds for one figure")
    p.add_argument("--json", metavar="FILE", help="write all that was measured (-: stdout, no table)")
    p.add_argument("--case", help=argparse.SUPPRESS)  # MODEL:WHAT:MODE, in this process
    return p.parse_args()


def build(name, n_layer):
    import torch
    import torch.nn as nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear1, self.linear2 = nn.Linear(10, 10), nn.Linear(10, 10)

        def forward(self, x):  # (10, 10)
            return torch.relu(self.linear2(torch.sigmoid(torch.relu(self.linear1(x)))))

    class Recipe(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(10, 10)
            self.blocks = nn.ModuleList(Layer() for _ in range(n_layer))

        def forward(self, x):
            x = self.linear(x)
            for block in self.blocks:
                x = block(x)
            return x

    class Gpt2Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            sys.argv = [sys.argv[0]]  # gpt_step reads flags of its own
            from gpt_step import Block
            self.blocks = nn.ModuleList(Block(768, 12) for _ in range(n_layer))

        def forward(self, x):  # (B, T, 768)
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    if name == "recipe":
        return Recipe(), torch.randn(10, 10)
    return Gpt2Blocks(), torch.randn(4, 64, 768, requires_grad=True)  # as behind an embedding


def run_case(a):
    name, what, mode = a.case.split(":")
    import torch
    torch.set_num_threads(a.threads)
    model, x = build(name, a.layers)

    def step(f):
        start = time.perf_counter()
        f(x).mean().backward()
        model.zero_grad()
        return time.perf_counter() - start

    step(model)
    mode = None if mode == "default" else mode
    warm = torch.randn(8, requires_grad=True)
    torch.compile(lambda t: torch.relu(t) + 1, mode=mode)(warm).sum().backward()
    counters = torch._dynamo.utils.counters
    counters.clear()
    forward = model
    if what == "whole":
        forward = torch.compile(model, mode=mode)
    else:
        for block in model.blocks:
            block.compile(mode=mode)
    first = step(forward)
    later = [step(forward) for _ in range(3)]
    print(json.dumps({"compile_s": first - min(later), "graphs": counters["stats"]["unique_graphs"]}), flush=True)


def run_pytorch(a, name, layers, what, mode):
    env = dict(os.environ, OMP_NUM_THREADS=str(a.threads))
    with tempfile.TemporaryDirectory(prefix="rondo-peer-") as cache:
        env["TORCHINDUCTOR_CACHE_DIR"] = env["TRITON_CACHE_DIR"] = cache
        command = [a.python, os.path.abspath(__file__), f"--case={name}:{what}:{mode}", f"--layers={layers}",
                   f"--threads={a.threads}"]
        try:
            out = subprocess.run(command, env=env, timeout=a.timeout, check=True, stdout=subprocess.PIPE, text=True).stdout
        except subprocess.TimeoutExpired:
            return {"compile_s": None, "why": f"not done after {a.timeout:.0f} s"}
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))


def run_rondo(a, name, layers):
    env = dict(os.environ, RONDO_NUM_THREADS=str(a.threads))
    command = [a.rondo_bin, "--json", f"--model={name}", f"--layers={layers}", "--repeats=1"]
    return json.loads(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout)[0]


def measure(a, name):
    layers = a.layers or DEPTHS[name]
    figures = {}
    for _ in range(a.rounds):
        if a.rondo_bin:
            answer = run_rondo(a, name, layers)
            for key, label in [("full_ms", "rondo whole"), ("regional_ms", "rondo block"), ("warm_ms", "rondo block, disk"),
                               ("artifact_ms", "rondo block, artifact")]:
                if answer[key] is not None:
                    figures.setdefault(label, []).append({"compile_s": answer[key] / 1e3})
        for what in a.what.split(","):
            for mode in a.modes.split(","):
                figure = run_pytorch(a, name, layers, what, mode)
                figures.setdefault(f"pytorch {what} {mode}", []).append(figure)
    return {"model": name, "layers": layers, "threads": a.threads, "figures": figures}


def best(row, prefix):
    """The fastest cold variant by its median: (label, seconds)."""
    medians = {}
    for label, runs in row["figures"].items():
        seconds = [r["compile_s"] for r in runs if r["compile_s"] is not None]
        if label.startswith(prefix) and "," not in label and seconds:
            medians[label] = statistics.median(seconds)
    return min(medians.items(), key=lambda item: item[1]) if medians else None


def print_row(row):
    print(f"{row['model']}, {row['layers']} layers, {row['threads']} threads")
    for label, runs in row["figures"].items():
        cells = [f"{r['compile_s']:.3f}" if r["compile_s"] is not None else r["why"] for r in runs]
        print(f"  {label:<34}{'  '.join(cells):>12} s")
    for what in ("block", "whole"):
        ours, theirs = best(row, f"rondo {what}"), best(row, f"pytorch {what}")
        if ours and theirs:
            print(f"  {what}: {theirs[1] / ours[1]:.0f}x shorter than {theirs[0]}")


def main():
    a = parse_args()
    if a.case:
        return run_case(a)
    rows = []
    for name in a.models.split(","):
        rows.append(measure(a, name))
        if a.json != "-":
            print_row(rows[-1])
    if a.json:
        with open(1 if a.json == "-" else a.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
