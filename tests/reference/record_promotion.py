#!/usr/bin/env python3
"""Records PyTorch's dtype promotion: dtype and value, or error, of every op in every pair of dtypes.

    record_promotion.py [folder]      writes promotion.txt (default: beside this file)

A line is `op form dtype: cells`. Pairs have one cell for each dtype of the second operand, in the order of DTYPES; other
forms have one line `op form: cells` with a cell for each dtype of the tensor. A cell is `dtype=value` or `error`.
Forms: tt tensor and tensor, tz tensor and 0-dim tensor, zt, zz; ti and it tensor and integer, tf and ft tensor and float;
x one tensor. An op whose name ends in _ writes into its first operand.
"""
import os
import sys

import torch

DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
          "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool}
NAMES = {v: k for k, v in DTYPES.items()}
CONDITION = torch.tensor([True])


def operand(dtype, which, zero_dim=False):
    """The first operand is 5.3, 5 or true, the second 1.7, 3 or true."""
    t = DTYPES[dtype]
    value = True if t == torch.bool else ((5.3, 1.7) if t.is_floating_point else (5, 3))[which]
    return torch.tensor(value if zero_dim else [value], dtype=t)


def cell(run):
    try:
        result = run()
    except (RuntimeError, NotImplementedError, TypeError):
        return "error"
    return f"{NAMES[result.dtype]}={result.reshape(-1)[0].item():.9g}".replace("True", "1").replace("False", "0")


ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}
COMPARISONS = {
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
}
OF_TENSORS = {"maximum": torch.maximum, "minimum": torch.minimum}
WHERE = {"where": lambda a, b: torch.where(CONDITION, a, b)}
IN_PLACE = {
    "add_": lambda a, b: a.add_(b),
    "sub_": lambda a, b: a.sub_(b),
    "mul_": lambda a, b: a.mul_(b),
    "div_": lambda a, b: a.div_(b),
    "copy_": lambda a, b: a.copy_(b),
}
ONE = {name: getattr(torch, name) for name in
       "exp log sqrt rsqrt tanh erf sigmoid sin cos log1p expm1 neg square relu sum mean".split()}
ONE |= {
    "abs": lambda x: x.abs(),
    "max": lambda x: x.amax(),
    "min": lambda x: x.amin(),
    "cumsum": lambda x: x.cumsum(0),
    "pow_2": lambda x: x**2,
    "pow_2.0": lambda x: x**2.0,
    "pow_0.5": lambda x: x**0.5,
    "clamp_1_2": lambda x: x.clamp(1, 2),
    "clamp_0.5_2.5": lambda x: x.clamp(0.5, 2.5),
    "clamp_-9_300": lambda x: x.clamp(-9, 300),
    "fill__0.5": lambda x: x.fill_(0.5),
    "fill__-3": lambda x: x.fill_(-3),
    "fill__300": lambda x: x.fill_(300),
    "fill__1e5": lambda x: x.repeat(2).fill_(1e5),  # of one element, f16 alone would become infinite
    "fill__inf": lambda x: x.fill_(float("inf")),
    "masked_fill_0.5": lambda x: x.masked_fill(CONDITION, 0.5),
    "masked_fill_-inf": lambda x: x.masked_fill(CONDITION, float("-inf")),
    "scatter_0.5": lambda x: x.scatter(0, torch.tensor([0]), 0.5),
}


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    version = torch.__version__.split("+")[0]
    lines = [f"# Made by tests/reference/record_promotion.py with torch {version}"]

    def pairs(name, run, form):
        for a in DTYPES:
            cells = [cell(lambda: run(operand(a, 0, form[0] == "z"), operand(b, 1, form[1] == "z"))) for b in DTYPES]
            lines.append(f"{name} {form} {a}: " + " ".join(cells))

    def row(name, run, form):
        lines.append(f"{name} {form}: " + " ".join(cell(lambda: run(operand(a, 0))) for a in DTYPES))

    for name, run in (ARITHMETIC | COMPARISONS | OF_TENSORS | WHERE).items():
        for form in ("tt", "tz", "zt", "zz"):
            pairs(name, run, form)
    for name, run in (ARITHMETIC | COMPARISONS | WHERE).items():
        row(name, lambda x: run(x, 3), "ti")
        row(name, lambda x: run(x, 1.7), "tf")
        row(name, lambda x: run(3, x), "it")
        row(name, lambda x: run(1.7, x), "ft")
    for name, run in IN_PLACE.items():
        for form in ("tt", "tz"):
            pairs(name, run, form)
        if name != "copy_":
            row(name, lambda x: run(x, 3), "ti")
            row(name, lambda x: run(x, 1.7), "tf")
    pairs("cat", lambda a, b: torch.cat([a, b]), "tt")
    pairs("stack", lambda a, b: torch.stack([a, b]), "zz")
    for name, run in ONE.items():
        row(name, run, "x")
    path = os.path.join(folder, "promotion.txt")
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")
    print(f"{os.path.basename(path)}: {len(lines)} lines, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
