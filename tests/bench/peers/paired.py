#!/usr/bin/env python3
"""A benchmark of Rondo beside the same work in PyTorch, in turns. For each case: the median times, and how many times as
fast as PyTorch's best ours is, the median of the ratios within each round.

    paired.py products --rondo-bin build/release/bin/bench_products
    paired.py norms --rondo-bin build/release/bin/bench_norms --case wide --dtype f32,bf16 --pass step

Without AVX-512, though the CPU has it: in front of the command
ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2
"""
import argparse
import dataclasses
import itertools
import json
import os
import shlex
import statistics
import time

import convolution
import norms
import paired_gpt

HERE = os.path.dirname(os.path.abspath(__file__))
BOTH = "eager,compiled"


@dataclasses.dataclass
class Bench:
    what: str
    cases: dict                 # options of both sides: each combination of their values is a case
    ours: str = ""              # --mode of ours
    peers: dict = dataclasses.field(default_factory=lambda: {"pytorch": []})  # its variants, with their arguments
    only_ours: tuple = ()       # cases that the peer does not have
    steps: int = 3


EAGER_AND_COMPILED = {f"pytorch {mode}": [f"--mode={mode}"] for mode in BOTH.split(",")}
BENCHES = {
    "convolution": Bench("convolutions of ResNet-50",
                         {"case": ",".join(convolution.CASES), "dtype": "f32,bf16", "pass": "forward,backward",
                          "layout": "usual,last", "batch": "16"}),
    "graph": Bench("a training step of a graph network (bench_index): 2 layers, 100,000 nodes, 1 million edges", {},
                   "eager,exact,compiled",
                   {f"pytorch {mode} {total}": [f"--mode={mode}", f"--sum={total}"]
                    for mode in BOTH.split(",") for total in ("index_add", "scatter_add")}, steps=2),
    "layouts": Bench("reductions and copies across 200 MB, with their share of the machine's stream",
                     {"case": "statistics,softmax,transpose,channels"}, BOTH, EAGER_AND_COMPILED),
    "lstm": Bench("a training step of LSTM layers: cells in a C++ loop, and nn.LSTM", {"T": "128,512"},
                  "eager,cell,layer", {"pytorch eager": [], "pytorch compiled": ["--compile"]}),
    "norms": Bench("relu(batch_norm(x) + residual)",
                   {"case": ",".join(norms.CASES), "dtype": "f32,bf16", "pass": "forward,step", "layout": "usual,last"},
                   BOTH, EAGER_AND_COMPILED, steps=10),
    "products": Bench("f32 products, rows x inner x columns",
                      {"sizes": "32x256x1024,128x1024x1024,256x1024x2048,1024x1024x1024,2048x1024x2048,2064x1024x2064,"
                                "2048x768x3072,2048x3072x768", "layouts": "nn,tn,nt"}, steps=5),
    "slices": Bench("a loop over the parts of one tensor; the peer always splits",
                    {"parts": "split,unbind,select,slice", "function": "tanh,scale,square", "T": "512"}, BOTH,
                    only_ours=("parts",)),
}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    benches = p.add_subparsers(dest="bench", required=True, metavar="BENCHMARK")
    for name, bench in BENCHES.items():
        b = benches.add_parser(name, help=bench.what, description=bench.what)
        b.add_argument("--rondo-bin", required=True, help="path of the benchmark's program")
        paired_gpt.add_beside(b)
        b.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
        for option, values in bench.cases.items():
            b.add_argument(f"--{option}", default=values, help="one or several; default: %(default)s")
        if bench.ours:
            b.add_argument("--modes", default=bench.ours, help="of ours; default: %(default)s")
        b.add_argument("--peers", default=",".join(bench.peers), help="default: %(default)s")
        b.add_argument("--rounds", type=int, default=7)
        b.add_argument("--steps", type=int, default=bench.steps, help="of a turn")
        b.add_argument("--timeout", type=float, default=600.0, help="seconds of a turn, compiling included")
        b.add_argument("--json", metavar="FILE")
    return p.parse_args()


def contenders(a, bench, case):
    """Ours by mode, and whom each is compared with: all of PyTorch's variants, or the same mode of another build."""
    def start(name, command):
        return paired_gpt.Contender(name, command, dict(os.environ), a.timeout)
    options = [f"--{name}={value}" for name, value in case.items()]
    modes = {mode: [f"--mode={mode}"] for mode in a.modes.split(",")} if bench.ours else {"rondo": []}
    ours = [start(name, [a.rondo_bin, "--serve", *mode, *options]) for name, mode in modes.items()]
    if a.beside:
        others = [start(f"beside {name}", [*shlex.split(a.beside), "--serve", *mode, *options])
                  for name, mode in modes.items()]
        return ours, others, {c.name: [other.name] for c, other in zip(ours, others)}
    script = os.path.join(HERE, f"{a.bench}.py")
    known = [f"--{name}={value}" for name, value in case.items() if name not in bench.only_ours]
    others = [start(name, [a.python, script, *bench.peers[name], *known]) for name in a.peers.split(",")]
    return ours, others, {c.name: [other.name for other in others] for c in ours}


def compare(a, bench, case):
    """Prints the case's line. Returns its rounds and the ratio of each of ours."""
    ours, others, rivals = contenders(a, bench, case)
    everybody = [*ours, *others]
    for c in everybody:
        c.turn(1)
    rounds = []
    for r in range(a.rounds):
        answers = {}
        first = r % len(everybody)
        for c in everybody[first:] + everybody[:first]:
            time.sleep(0.1)  # until the other's threads have stopped spinning
            c.turn(1)
            answers[c.name] = c.turn(a.steps)
        rounds.append(answers)
    for c in everybody:
        c.close()

    def median(value):
        return statistics.median(value(answers) for answers in rounds)
    ratios, parts = {}, []
    for c in everybody:
        text = f"{c.name} {median(lambda t: t[c.name]['step_ms_median']):.3f} ms"
        if "stream_ms_median" in rounds[0][c.name]:
            share = median(lambda t: t[c.name]["stream_ms_median"] / t[c.name]["step_ms_median"])
            text += f", {share:.2f} of the stream"
        if c in ours:
            ratios[c.name] = median(lambda t: min(t[other]["step_ms_median"] for other in rivals[c.name]) /
                                    t[c.name]["step_ms_median"])
            text += f", {ratios[c.name]:.3f} times as fast"
        parts.append(text)
    print(f"{' '.join(case.values()) or a.bench}: {'; '.join(parts)}", flush=True)
    return {"case": case, "rounds": rounds, "ratios": ratios}


def main():
    a = parse_args()
    bench = BENCHES[a.bench]
    values = [getattr(a, name).split(",") for name in bench.cases]
    results = [compare(a, bench, dict(zip(bench.cases, chosen))) for chosen in itertools.product(*values)]
    for name in results[0]["ratios"]:
        ratios = [result["ratios"][name] for result in results]
        print(f"{name}: median {statistics.median(ratios):.3f}, lowest {min(ratios):.3f} of {len(ratios)}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
