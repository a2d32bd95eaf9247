#!/usr/bin/env python3
"""A training step of a graph network (2 layers, 100,000 nodes, 1 million edges, 64 features): Rondo, eager and compiled,
and PyTorch's variants, in turns. Prints the median of the ratios, within each round, to PyTorch's best.

    paired_graph.py --rondo-bin build/release/bin/bench_index
"""
import argparse
import json
import os
import statistics
import time

import paired_gpt

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "graph.py")


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_index")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--peers", default="eager/index_add,eager/scatter_add,compiled/index_add,compiled/scatter_add")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--timeout", type=float, default=600.0)
    p.add_argument("--json", metavar="FILE")
    return p.parse_args()


def main():
    a = parse_args()
    env = dict(os.environ)
    contenders = [paired_gpt.Contender(mode, [a.rondo_bin, "--serve", f"--mode={mode}"], env, a.timeout)
                  for mode in ("eager", "exact", "compiled")]
    ours = [c.name for c in contenders]
    for peer in a.peers.split(","):
        mode, total = peer.split("/")
        contenders.append(paired_gpt.Contender(peer, [a.python, PEER, "--mode", mode, "--sum", total], env, a.timeout))
    for c in contenders:
        c.turn(0)
    rounds = []
    for r in range(a.rounds):
        times = {}
        first = r % len(contenders)
        for c in contenders[first:] + contenders[:first]:
            time.sleep(0.1)  # until the other's threads have stopped spinning
            times[c.name] = c.turn(a.steps)["step_ms_median"]
        rounds.append(times)
    for c in contenders:
        c.close()
    for name in rounds[0]:
        print(f"{name}: {statistics.median(t[name] for t in rounds):.1f} ms")
    for name in ours:
        ratio = statistics.median(min(t[p] for p in t if p not in ours) / t[name] for t in rounds)
        print(f"{name}: {ratio:.2f} times PyTorch's best")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rounds, f, indent=1)


if __name__ == "__main__":
    main()
