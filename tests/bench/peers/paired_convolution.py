#!/usr/bin/env python3
"""Convolutions of ResNet-50 (bench_convolution): Rondo and PyTorch in turns. Prints the median of the ratios within
each round, Rondo over PyTorch.

    paired_convolution.py --rondo-bin build/release/bin/bench_convolution
"""
import argparse
import itertools
import os
import statistics
import time

import convolution
import paired_gpt


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_convolution")
    paired_gpt.add_beside(p)
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--cases", default=",".join(convolution.CASES))
    p.add_argument("--dtypes", default="f32,bf16")
    p.add_argument("--passes", default="forward,backward")
    p.add_argument("--layouts", default="usual,last")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--timeout", type=float, default=300.0)
    a = p.parse_args()
    peer, command = paired_gpt.peer_of(a, "convolution.py")
    ratios = []
    for case, dtype, direction, layout in itertools.product(
            a.cases.split(","), a.dtypes.split(","), a.passes.split(","), a.layouts.split(",")):
        options = [f"--case={case}", f"--dtype={dtype}", f"--pass={direction}", f"--layout={layout}",
                   f"--batch={a.batch}"]
        contenders = [paired_gpt.Contender("rondo", [a.rondo_bin, "--serve", *options], dict(os.environ), a.timeout),
                      paired_gpt.Contender(peer, [*command, *options], dict(os.environ), a.timeout)]
        for c in contenders:
            c.turn(1)
        rounds = []
        for r in range(a.rounds):
            times = {}
            for c in contenders[r % 2:] + contenders[:r % 2]:
                time.sleep(0.05)  # until the other's threads have stopped spinning
                times[c.name] = c.turn(a.steps)["step_ms_median"]
            rounds.append(times)
        for c in contenders:
            c.close()
        ratio = statistics.median(t["rondo"] / t[peer] for t in rounds)
        ratios.append(ratio)
        ours, theirs = (statistics.median(t[name] for t in rounds) for name in ("rondo", peer))
        print(f"{case:10} {dtype:5} {direction:8} {layout:6} {ours:8.2f} ms, {peer} {theirs:8.2f}: {ratio:.2f}",
              flush=True)
    print(f"median {statistics.median(ratios):.2f}, worst {max(ratios):.2f} of {len(ratios)}")


if __name__ == "__main__":
    main()
