#!/usr/bin/env python3
"""Reductions and copies across 200 MB (bench_layouts): Rondo and PyTorch, eager and compiled, in turns. Prints the
share of the machine's stream, and the median of the ratios within each round to PyTorch's best.

    paired_layouts.py --rondo-bin build/release/bin/bench_layouts
"""
import argparse
import json
import os
import statistics
import time

import paired_gpt

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "layouts.py")


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_layouts")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--cases", default="statistics,softmax,transpose,channels")
    p.add_argument("--peer-modes", default="eager,compiled")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--timeout", type=float, default=300.0)
    p.add_argument("--json", metavar="FILE")
    return p.parse_args()


def compare(a, case, env):
    contenders = [paired_gpt.Contender(mode, [a.rondo_bin, "--serve", f"--mode={mode}", f"--case={case}"], env,
                                       a.timeout) for mode in ("eager", "compiled")]
    peers = [f"pytorch {mode}" for mode in a.peer_modes.split(",")]
    contenders += [paired_gpt.Contender(name, [a.python, PEER, "--case", case, "--mode", name.split()[1]], env,
                                        a.timeout) for name in peers]
    for c in contenders:
        c.turn(1)
    rounds = []
    for r in range(a.rounds):
        answers = {}
        first = r % len(contenders)
        for c in contenders[first:] + contenders[:first]:
            time.sleep(0.1)  # until the other's threads have stopped spinning
            answers[c.name] = c.turn(a.steps)
        rounds.append(answers)
    for c in contenders:
        c.close()
    line = [case]
    for mode in ("eager", "compiled"):
        step = statistics.median(t[mode]["step_ms_median"] for t in rounds)
        share = statistics.median(t[mode]["stream_ms_median"] / t[mode]["step_ms_median"] for t in rounds)
        ratio = statistics.median(t[mode]["step_ms_median"] / min(t[p]["step_ms_median"] for p in peers)
                                  for t in rounds)
        line.append(f"{mode} {step:.1f} ms, {share:.2f} of the stream, {ratio:.2f} of PyTorch's best")
    for p in peers:
        line.append(f"{p} {statistics.median(t[p]['step_ms_median'] for t in rounds):.1f} ms")
    print("; ".join(line), flush=True)
    return {"case": case, "rounds": rounds}


def main():
    a = parse_args()
    env = dict(os.environ)
    results = [compare(a, case, env) for case in a.cases.split(",")]
    if a.json:
        with open(a.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
