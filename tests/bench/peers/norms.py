#!/usr/bin/env python3
"""The cases of bench_norms in PyTorch, eager or compiled. Speaks the serve protocol of README.md."""
import argparse
import json
import statistics
import sys
import time

CASES = {"wide": (16, 64, 56, 56), "deep": (16, 512, 14, 14)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--case", choices=CASES, required=True)
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    p.add_argument("--mode", choices=["eager", "compiled"], default="eager")
    p.add_argument("--pass", dest="direction", choices=["forward", "step"], default="step")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    import torch

    torch.set_num_threads(a.threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
    bn = torch.nn.BatchNorm2d(CASES[a.case][1])
    x, residual, grad = (torch.randn(CASES[a.case]).to(dtype) for _ in range(3))
    x.requires_grad_()
    residual.requires_grad_()

    def forward(x, residual):
        return torch.relu(bn(x) + residual)

    if a.mode == "compiled":
        forward = torch.compile(forward)

    def step():
        y = forward(x, residual)
        if a.direction == "step":
            torch.autograd.grad(y, (x, residual, bn.weight, bn.bias), grad)

    for _ in range(3):
        step()
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps({"peer": "pytorch", "step_ms_all": times, "compile_ms": 0.0,
                          "step_ms_median": statistics.median(times) if times else 0.0}), flush=True)


if __name__ == "__main__":
    main()
