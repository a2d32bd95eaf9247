#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention at the sizes of `bench_device --only=attention`, causal.

Prints a line for each dtype, and with --json FILE writes a JSON list. On CUDA times are those of events.

    sdpa.py --device cuda
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F


def seconds_of(work, runs, device):
    for _ in range(2):
        work()
    if device == "cpu":
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return statistics.median(times)
    marks = []
    for _ in range(runs):
        mark = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        mark[0].record()
        work()
        mark[1].record()
        marks.append(mark)
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in marks) / 1e3


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--shape", type=int, nargs=4, default=[4, 12, 1024, 64], metavar=("B", "H", "T", "D"))
    p.add_argument("--runs", type=int, default=10)
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args()
    torch.set_float32_matmul_precision("highest")
    rows = []
    for name, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        q, k, v = (torch.randn(a.shape, device=a.device, dtype=dtype, requires_grad=True) for _ in range(3))
        grad = torch.ones(a.shape, device=a.device, dtype=dtype)

        def forward():
            with torch.no_grad():
                F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def both():
            q.grad = k.grad = v.grad = None
            F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)

        row = {"peer": "pytorch", "dtype": name, "forward_ms": 1e3 * seconds_of(forward, a.runs, a.device),
               "both_ms": 1e3 * seconds_of(both, a.runs, a.device)}
        rows.append(row)
        print(f"attention {name:<5} PyTorch  forward {row['forward_ms']:8.3f} ms   "
              f"with backward {row['both_ms']:8.3f} ms", flush=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f)


if __name__ == "__main__":
    main()
