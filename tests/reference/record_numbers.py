#!/usr/bin/env python3
"""Records what PyTorch makes of a tensor and a number in comparisons and selections: dtype and values, or an error.

    record_numbers.py [folder]      writes numbers.txt (default: beside this file)

A line `dtype: values` is the tensor of all lines that follow; a line `op number: dtype values` or `op number: error` is
a result. Integers are written in full, floats with 17 digits.
"""
import os
import sys

import torch

BIG, MOST = 2**53 + 1, 2**63 - 1  # no double is BIG
NAN, INF = float("nan"), float("inf")
FLOATS = [-1.5, 0.3, 2.5, NAN, INF, -0.0]
CASES = {
    "i64": (torch.int64, [-3, 2, 3, BIG - 1, BIG, MOST], [2, 2.5, BIG, MOST, -MOST - 1, NAN, INF]),
    "i32": (torch.int32, [-3, 0, 2, 3, 2**31 - 1, -2**31], [2, 2.5, NAN]),
    "u8": (torch.uint8, [0, 1, 2, 3, 44, 255], [2, 2.5, 255]),
    "bool": (torch.bool, [0, 1, 1, 0, 1, 0], [True, 1, 0.5]),
    "f64": (torch.float64, FLOATS, [0.3, BIG, NAN, -INF]),
    "f32": (torch.float32, FLOATS, [0.3, 2, BIG, NAN, INF]),
    "bf16": (torch.bfloat16, FLOATS, [0.3, 2.5, INF]),
    "f16": (torch.float16, [-1.5, 0.3, 2.5, NAN, INF, 1e-8], [0.3, 1e-8, NAN]),
}
NAMES = {case[0]: name for name, case in CASES.items()}
MASK = torch.tensor([True, False, True, False, True, False])


def number_tensor(x, number):
    """torch.maximum takes tensors only: a 0-dim one in the dtype that a number promotes to."""
    dtype = x.dtype if x.is_floating_point() or isinstance(number, bool) else None
    return torch.tensor(number, dtype=dtype)


OPS = {
    "equal": lambda x, n: x == n,
    "not_equal": lambda x, n: x != n,
    "less": lambda x, n: x < n,
    "less_equal": lambda x, n: x <= n,
    "greater": lambda x, n: x > n,
    "greater_equal": lambda x, n: x >= n,
    "maximum": lambda x, n: torch.maximum(x, number_tensor(x, n)),
    "minimum": lambda x, n: torch.minimum(x, number_tensor(x, n)),
    "where": lambda x, n: torch.where(MASK, x, n),
    "where_not": lambda x, n: torch.where(MASK, n, x),
    "masked_fill": lambda x, n: x.masked_fill(MASK, n),
}


def text(values):
    return " ".join(str(int(v)) if isinstance(v, (bool, int)) else "%.17g" % v for v in values)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "numbers.txt"), "w") as out:
        for name, (dtype, values, numbers) in CASES.items():
            x = torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else None).to(dtype)
            print(f"{name}: {text(x.tolist())}", file=out)
            for number in numbers:
                for op, run in OPS.items():
                    try:
                        result = run(x, number)
                        cell = f"{NAMES[result.dtype]} {text(result.tolist())}"
                    except RuntimeError:
                        cell = "error"
                    print(f"{op} {str(number).lower()}: {cell}", file=out)


if __name__ == "__main__":
    main()
