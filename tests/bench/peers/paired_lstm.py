#!/usr/bin/env python3
"""A training step of a language model of LSTM layers: Rondo's cells in a C++ loop (eager, a region for each cell, a
region for each layer) and PyTorch's nn.LSTM (eager, compiled), in turns. Prints the median of the ratios within each
round.

    paired_lstm.py --rondo-bin build/release/bin/bench_lstm
"""
import argparse
import os
import statistics
import time

import paired_gpt

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lstm.py")


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_lstm")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--modes", default="eager,cell,layer", help="of bench_lstm")
    p.add_argument("--T", default="128,512", help="one or several")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--timeout", type=float, default=300.0)
    return p.parse_args()


def compare(a, T, env):
    ours = [paired_gpt.Contender(mode, [a.rondo_bin, "--serve", f"--mode={mode}", f"--T={T}"], env, a.timeout)
            for mode in a.modes.split(",")]
    theirs = [paired_gpt.Contender("pytorch" + flag, [a.python, PEER, "--T", T, *([flag] if flag else [])], env, a.timeout)
              for flag in ("", "--compile")]
    everybody = [*ours, *theirs]
    for c in everybody:
        c.turn(0)
    rounds = []
    for r in range(a.rounds):
        times = {}
        for c in everybody[r % len(everybody):] + everybody[:r % len(everybody)]:
            time.sleep(0.1)  # until the other's threads have stopped spinning
            c.turn(1)
            times[c.name] = c.turn(a.steps)["step_ms_median"]
        rounds.append(times)
    for c in everybody:
        c.close()
    best = [min(t[c.name] for c in theirs) for t in rounds]
    for c in everybody:
        print(f"T {T} {c.name}: {statistics.median(t[c.name] for t in rounds):.1f} ms a step, "
              f"{statistics.median(t[c.name] / b for t, b in zip(rounds, best)):.2f} of PyTorch's best", flush=True)


def main():
    a = parse_args()
    for T in a.T.split(","):
        compare(a, T, dict(os.environ))


if __name__ == "__main__":
    main()
