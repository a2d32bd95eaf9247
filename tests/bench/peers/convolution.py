#!/usr/bin/env python3
"""The cases of bench_convolution in PyTorch. Speaks the serve protocol of README.md."""
import argparse
import json
import statistics
import sys
import time

# name: channels, size, outputs, kernel, stride, groups; the same list is in convolution_bench.cc.
CASES = {
    "stem": (3, 224, 64, 7, 2, 1), "conv2": (64, 56, 64, 3, 1, 1), "expand2": (64, 56, 256, 1, 1, 1),
    "reduce3": (256, 56, 128, 1, 1, 1), "down3": (128, 56, 128, 3, 2, 1), "conv3": (128, 28, 128, 3, 1, 1),
    "side3": (256, 56, 512, 1, 2, 1), "conv4": (256, 14, 256, 3, 1, 1), "expand4": (256, 14, 1024, 1, 1, 1),
    "conv5": (512, 7, 512, 3, 1, 1), "depthwise": (128, 56, 128, 3, 1, 128),
}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--case", choices=CASES, required=True)
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    p.add_argument("--pass", dest="direction", choices=["forward", "backward"], default="forward")
    p.add_argument("--layout", choices=["usual", "last"], default="usual")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    import torch

    torch.set_num_threads(a.threads)
    channels, size, outputs, kernel, stride, groups = CASES[a.case]
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
    layout = torch.channels_last if a.layout == "last" else torch.contiguous_format
    backward = a.direction == "backward"

    def make(*sizes):
        return torch.randn(sizes).to(dtype).to(memory_format=layout)

    x = make(a.batch, channels, size, size).requires_grad_(backward)
    w = make(outputs, channels // groups, kernel, kernel).requires_grad_(backward)

    def forward():
        return torch.nn.functional.conv2d(x, w, None, stride, kernel // 2, 1, groups)

    y = forward()
    grad = make(*y.shape)

    def step():
        if backward:
            torch.autograd.grad(y, (x, w), grad, retain_graph=True)
        else:
            forward()

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
