#!/usr/bin/env python3
"""Twelve blocks that users write from plain ops: Rondo, eager and compiled, and PyTorch, eager and compiled, in turns.
Prints for each block the medians, what compilation gives over our eager execution, and our compiled against the
peer's best; both ratios are medians over the rounds.

    paired_blocks.py --rondo-bin build/release/bin/bench_blocks
"""
import argparse
import json
import statistics
import subprocess
import os

import paired_gpt

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocks.py")
NAMES = "mlp,swiglu,softmax,focal,vae,rotary,moe,lstm,messages,batch_norm,diffusion,adam"


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.process.args}: it ended at {words}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_blocks")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--blocks", default=NAMES)
    p.add_argument("--dtypes", default="f32,bf16")
    p.add_argument("--sizes", default="8x64,2048x1024")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=0.1)
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args()
    servers = {"rondo": Server([a.rondo_bin, "--serve"]), "pytorch": Server([a.python, PEER])}
    contenders = [(who, mode) for who in servers for mode in ("eager", "compiled")]
    table = []
    print(f"{'block':12}{'dtype':6}{'size':10}{'eager us':>11}{'compiled':>11}{'peer eager':>12}{'compiled':>11}"
          f"{'gain':>7}{'of peer':>9}{'kernels':>9}{'library':>9}")
    for size in a.sizes.split(","):
        for dtype in a.dtypes.split(","):
            for name in a.blocks.split(","):
                rounds, counts = [], {}
                for r in range(a.rounds + 1):
                    times = {}
                    for who, mode in contenders[r % 4:] + contenders[:r % 4]:
                        answer = servers[who].measure(name, mode, dtype, size, a.seconds)
                        times[who, mode] = answer["us"]
                        counts = answer.get("counts") or counts
                    if r > 0:  # the first one warms up
                        rounds.append(times)
                middle = [statistics.median(t[c] for t in rounds) for c in contenders]
                gain = statistics.median(t["rondo", "eager"] / t["rondo", "compiled"] for t in rounds)
                peer = statistics.median(min(t["pytorch", "eager"], t["pytorch", "compiled"]) / t["rondo", "compiled"]
                                         for t in rounds)
                table.append({"block": name, "dtype": dtype, "size": size, "us": middle, "gain": gain, "of_peer": peer,
                              "counts": counts})
                print(f"{name:12}{dtype:6}{size:10}{middle[0]:11.1f}{middle[1]:11.1f}{middle[2]:12.1f}{middle[3]:11.1f}"
                      f"{gain:7.2f}{peer:9.2f}{counts['kernels']:9}{counts['library_calls']:9}", flush=True)
    for what in ("gain", "of_peer"):
        values = [row[what] for row in table]
        print(f"{what}: median {statistics.median(values):.2f}, lowest {min(values):.2f}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(table, f, indent=1)


if __name__ == "__main__":
    main()
