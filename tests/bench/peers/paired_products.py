#!/usr/bin/env python3
"""f32 products (bench_products): Rondo and PyTorch in turns. Prints the median times, and the median of the ratios
within each round. Without AVX-512, though the CPU has it: in front of the command
ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2

    paired_products.py --rondo-bin build/release/bin/bench_products
"""
import argparse
import itertools
import os
import statistics
import time

import paired_gpt

SIZES = "32x256x1024,128x1024x1024,256x1024x2048,1024x1024x1024,2048x1024x2048,2064x1024x2064,2048x768x3072,2048x3072x768"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_products")
    paired_gpt.add_beside(p)
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--sizes", default=SIZES, help="rows x inner x columns, separated by commas")
    p.add_argument("--layouts", default="nn,tn,nt")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--timeout", type=float, default=300.0)
    a = p.parse_args()
    peer, command = paired_gpt.peer_of(a, "products.py")
    for size, layout in itertools.product(a.sizes.split(","), a.layouts.split(",")):
        options = [f"--sizes={size}", f"--layouts={layout}"]
        pair = [paired_gpt.Contender("rondo", [a.rondo_bin, "--serve", *options], dict(os.environ), a.timeout),
                paired_gpt.Contender(peer, [*command, *options], dict(os.environ), a.timeout)]
        rounds = []
        for r in range(-1, a.rounds):  # the first one warms up
            times = {}
            for c in pair if r % 2 else reversed(pair):
                time.sleep(0.05)  # until the other's threads have stopped spinning
                times[c.name] = c.turn(a.steps)["step_ms_median"]
            rounds.append(times)
        for c in pair:
            c.close()
        rounds = rounds[1:]
        ours, theirs = (statistics.median(t[name] for t in rounds) for name in ("rondo", peer))
        ratio = statistics.median(t[peer] / t["rondo"] for t in rounds)
        print(f"{layout} {size}: rondo {ours:.3f} ms, {peer} {theirs:.3f} ms, {ratio:.3f} times as fast", flush=True)


if __name__ == "__main__":
    main()
