#!/usr/bin/env python3
"""The products of bench_products in PyTorch. Speaks the serve protocol of README.md."""
import argparse
import json
import statistics
import sys
import time


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sizes", required=True, help="2048x1024x2048: rows, inner, columns")
    p.add_argument("--layouts", choices=["nn", "tn", "nt"], required=True)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    import torch

    torch.set_num_threads(a.threads)
    rows, inner, columns = map(int, a.sizes.split("x"))
    left = torch.randn(inner, rows).t() if a.layouts[0] == "t" else torch.randn(rows, inner)
    right = torch.randn(columns, inner).t() if a.layouts[1] == "t" else torch.randn(inner, columns)
    for _ in range(3):
        left @ right
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            left @ right
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps({"peer": "pytorch", "step_ms_all": times, "compile_ms": 0.0,
                          "step_ms_median": statistics.median(times) if times else 0.0}), flush=True)


if __name__ == "__main__":
    main()
