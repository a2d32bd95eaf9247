#!/usr/bin/env python3
"""relu(batch_norm(x) + residual) (bench_norms): Rondo and PyTorch, eager and compiled, in turns. Prints the medians, and
the median of the ratios within each round to PyTorch's best.

    paired_norms.py --rondo-bin build/release/bin/bench_norms
"""
import argparse
import itertools
import os
import statistics
import time

import norms
import paired_gpt

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "norms.py")
MODES = ("eager", "compiled")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_norms")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--cases", default=",".join(norms.CASES))
    p.add_argument("--dtypes", default="f32,bf16")
    p.add_argument("--passes", default="forward,step")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--timeout", type=float, default=300.0)
    a = p.parse_args()
    for case, dtype, direction in itertools.product(a.cases.split(","), a.dtypes.split(","), a.passes.split(",")):
        options = [f"--case={case}", f"--dtype={dtype}", f"--pass={direction}"]
        ours = [paired_gpt.Contender(mode, [a.rondo_bin, "--serve", f"--mode={mode}"] + options, dict(os.environ),
                                     a.timeout) for mode in MODES]
        peers = [paired_gpt.Contender(f"pytorch {mode}", [a.python, PEER, f"--mode={mode}"] + options,
                                      dict(os.environ), a.timeout) for mode in MODES]
        contenders = ours + peers
        for c in contenders:
            c.turn(1)
        rounds = []
        for r in range(a.rounds):
            times = {}
            first = r % len(contenders)
            for c in contenders[first:] + contenders[:first]:
                time.sleep(0.05)  # until the other's threads have stopped spinning
                times[c.name] = c.turn(a.steps)["step_ms_median"]
            rounds.append(times)
        for c in contenders:
            c.close()
        line = [f"{case:4} {dtype:4} {direction:7}"]
        for c in contenders:
            line.append(f"{c.name} {statistics.median(t[c.name] for t in rounds):.2f} ms")
        for c in ours:
            ratio = statistics.median(t[c.name] / min(t[p.name] for p in peers) for t in rounds)
            line.append(f"{c.name} over PyTorch's best {ratio:.2f}")
        print("; ".join(line), flush=True)


if __name__ == "__main__":
    main()
