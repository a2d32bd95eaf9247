#!/usr/bin/env python3
"""The loop of bench_slices in PyTorch: x (16, T, 512) f32 is cut along T, each part goes through a function, and the
results add up; forward and backward. Speaks the serve protocol of README.md."""
import argparse
import json
import statistics
import sys
import time


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--parts", choices=["unbind", "split", "select", "slice"], default="split")
    p.add_argument("--function", choices=["tanh", "scale", "square"], default="tanh")
    p.add_argument("--T", type=int, default=512)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    import torch

    torch.set_num_threads(a.threads)
    x = torch.randn(16, a.T, 512, requires_grad=True)
    cut = {"unbind": lambda: x.unbind(1), "split": lambda: x.split(1, 1),
           "select": lambda: [x[:, t] for t in range(a.T)], "slice": lambda: [x[:, t:t + 1] for t in range(a.T)]}[a.parts]
    function = {"tanh": torch.tanh, "scale": lambda v: v * 0.5, "square": lambda v: v * v}[a.function]

    def step():
        x.grad = None
        total = None
        for part in cut():
            y = function(part)
            total = y if total is None else total + y
        total.sum().backward()

    warm = False
    for line in sys.stdin:
        if not warm:
            step()
            step()
            warm = True
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps({"peer": "pytorch", "mode": a.parts, "step_ms_all": times, "compile_ms": 0.0,
                          "step_ms_median": statistics.median(times) if times else 0.0}), flush=True)


if __name__ == "__main__":
    main()
