#!/usr/bin/env python3
"""The cases of bench_layouts in PyTorch, eager or compiled. Speaks the serve protocol of README.md."""
import argparse
import json
import statistics
import sys
import time


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--case", choices=["statistics", "softmax", "transpose", "channels"], required=True)
    p.add_argument("--mode", choices=["eager", "compiled"], default="eager")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    import torch

    torch.set_num_threads(a.threads)
    torch.set_grad_enabled(False)
    sizes = {"statistics": (32, 64, 160, 160), "transpose": (7168, 7168)}.get(a.case, (16, 64, 224, 224))
    x = torch.randn(sizes)
    run = {"statistics": lambda x: torch.var_mean(x, (0, 2, 3), correction=0), "softmax": lambda x: x.softmax(1),
           "transpose": lambda x: x.t().contiguous(), "channels": lambda x: x.permute(0, 2, 3, 1).contiguous()}[a.case]
    if a.mode == "compiled":
        run = torch.compile(run)
    run(x)
    run(x)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            run(x)
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps({"peer": "pytorch", "mode": a.mode, "step_ms_all": times, "compile_ms": 0.0,
                          "step_ms_median": statistics.median(times) if times else 0.0}), flush=True)


if __name__ == "__main__":
    main()
