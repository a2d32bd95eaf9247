#!/usr/bin/env python3
"""What one 64-element f32 add costs in PyTorch from Python, on one thread, without and with
the tape. Prints one JSON line; the empty loop's cost is taken off."""
import json
import os
import statistics
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402

COUNT, REPEATS = 200_000, 7


def ns_per_call(body):
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter_ns()
        body()
        times.append((time.perf_counter_ns() - start) / COUNT)
    return times


def adds(a, b):
    for _ in range(COUNT):
        c = a + b
    return c


def nothing():
    for _ in range(COUNT):
        c = None
    return c


def main():
    torch.set_num_threads(1)
    a, b = torch.randn(64), torch.randn(64)
    weight = torch.randn(64, requires_grad=True)
    empty = min(ns_per_call(nothing))
    with torch.no_grad():
        adds(a, b)
        plain = ns_per_call(lambda: adds(a, b))
    adds(weight, b)
    taped = ns_per_call(lambda: adds(weight, b))
    print(json.dumps({
        "peer": "pytorch", "version": torch.__version__, "op": "add f32[64]", "threads": 1,
        "no_grad_ns": round(statistics.median(plain) - empty, 1), "no_grad_ns_min": round(min(plain) - empty, 1),
        "tape_ns": round(statistics.median(taped) - empty, 1), "tape_ns_min": round(min(taped) - empty, 1),
        "empty_loop_ns": round(empty, 1),
    }))


if __name__ == "__main__":
    main()
