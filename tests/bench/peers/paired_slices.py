#!/usr/bin/env python3
"""A loop over the parts of one tensor: Rondo, eager and compiled, and PyTorch's split, in turns. Prints the median of
the ratios within each round.

    paired_slices.py --rondo-bin build/release/bin/bench_slices
"""
import argparse
import json
import os
import statistics
import time

import paired_gpt

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slices.py")


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_slices")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--parts", default="split,unbind,select,slice", help="how Rondo cuts; the peer always splits")
    p.add_argument("--functions", default="tanh,scale,square")
    p.add_argument("--T", type=int, default=512)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--timeout", type=float, default=300.0)
    p.add_argument("--json", metavar="FILE")
    return p.parse_args()


def compare(a, parts, function, env):
    ours = [paired_gpt.Contender(mode, [a.rondo_bin, "--serve", f"--mode={mode}", f"--parts={parts}",
                                        f"--function={function}", f"--T={a.T}"], env, a.timeout)
            for mode in ("eager", "compiled")]
    theirs = paired_gpt.Contender("pytorch", [a.python, PEER, "--function", function, "--T", str(a.T)], env, a.timeout)
    all_of_them = [*ours, theirs]
    for c in all_of_them:
        c.turn(0)
    rounds = []
    for r in range(a.rounds):
        times = {}
        for c in all_of_them[r % 3:] + all_of_them[:r % 3]:
            time.sleep(0.1)  # until the other's threads have stopped spinning
            c.turn(1)
            times[c.name] = c.turn(a.steps)["step_ms_median"]
        rounds.append(times)
    for c in all_of_them:
        c.close()
    middle = {name: statistics.median(t[name] for t in rounds) for name in rounds[0]}
    ratio = {name: statistics.median(t[name] / t["pytorch"] for t in rounds) for name in ("eager", "compiled")}
    region = statistics.median(t["compiled"] / t["eager"] for t in rounds)
    print(f"{parts} {function}: eager {middle['eager']:.1f} ms, {ratio['eager']:.2f} of PyTorch's split; compiled "
          f"{middle['compiled']:.1f} ms, {ratio['compiled']:.2f}; PyTorch {middle['pytorch']:.1f} ms; compiled over eager "
          f"{region:.2f}", flush=True)
    return {"parts": parts, "function": function, "rounds": rounds, "ratio": ratio, "compiled_over_eager": region}


def main():
    a = parse_args()
    env = dict(os.environ)
    results = [compare(a, parts, function, env) for function in a.functions.split(",") for parts in a.parts.split(",")]
    if a.json:
        with open(a.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
