#!/usr/bin/env python3
"""Is Rondo a good guest? Its speed alone, and beside one and two busy processes. Standard library only.

Measured: a training step of the quickstart's model (compiled regions, the sizes of train_gpt's defaults), a mean over
131,072 elements and a cat, and, with an interpreter that has torch, PyTorch's same step. In every round each contender
takes a turn under each load, in rotating order. Beside a busy process a step's time is its mean, as a thread that was
held up is what is measured.

With --old, the folder of an older build's programs, every round also runs old and new alone, one after the other, in
alternating order: `slowdown` is new over old, and its bound is the upper end of a one-sided 95% interval (Student's t on
the logarithms). --realtime gives the turns without busy processes real-time priority, where the system allows it: other
work on the machine then disturbs them less. Do not start the script itself under `chrt`, as busy processes of real-time
priority take turns with nobody.

    neighbour.py --bin build/release/bin --old /path/to/old/build/release/bin --python /path/to/python --rounds 15
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
from paired_gpt import Contender, default_python, timed_turn  # noqa: E402

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "gpt_step.py")
MODEL = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "batch_size": 12, "vocab_size": 97}
# Student's t, one-sided 95%, by degrees of freedom.
T95 = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833, 10: 1.812, 11: 1.796,
       12: 1.782, 13: 1.771, 14: 1.761, 15: 1.753, 19: 1.729, 24: 1.711, 29: 1.699}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="build/release/bin", help="folder with bench_gpt and bench_neighbour")
    p.add_argument("--old", help="the same folder of an older build, to compare with")
    p.add_argument("--python", default=default_python(), help="interpreter that may have torch")
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--loads", default="0,1,2", help="numbers of busy processes")
    p.add_argument("--steps", type=int, default=40, help="training steps of one turn")
    p.add_argument("--runs", type=int, default=1000, help="runs of each small op in one turn")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--realtime", action="store_true", help="turns without busy processes run at real-time priority")
    p.add_argument("--rest-ms", type=float, default=30.0, help="pause between turns: spinning pools fall asleep")
    p.add_argument("--json", metavar="FILE", help="write all that was measured")
    return p.parse_args()


class Busy:
    """`n` processes that compute, while in scope."""

    def __init__(self, n):
        self.n = n

    def __enter__(self):
        loop = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
        self.processes = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(self.n)]

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


def set_priority(contender, realtime):
    policy, priority = (os.SCHED_FIFO, 10) if realtime else (os.SCHED_OTHER, 0)
    for task in os.listdir(f"/proc/{contender.process.pid}/task"):
        os.sched_setscheduler(int(task), policy, os.sched_param(priority))


def has_torch(python):
    try:
        return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0
    except OSError:
        return False


def step_ms(answer):
    return statistics.fmean(answer["step_ms_all"])


def upper_bound(ratios):
    logs = [math.log(r) for r in ratios]
    n = len(logs)
    if n < 2:
        return math.inf
    t = T95.get(n - 1) or T95[max(k for k in T95 if k <= n - 1)]
    return math.exp(statistics.fmean(logs) + t * statistics.stdev(logs) / math.sqrt(n))


def main():
    a = parse_args()
    loads = [int(n) for n in a.loads.split(",")]
    env = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RONDO_NUM_THREADS"):
        env[name] = str(a.threads)
    model = [f"--{key}={value}" for key, value in MODEL.items()] + [f"--threads={a.threads}", "--serve"]

    def gpt(name, folder):
        return Contender(name, [os.path.join(folder, "bench_gpt"), "--compile=regions", *model], env, 600)

    trainers = [gpt("rondo", a.bin)]
    if a.old:
        trainers.append(gpt("rondo, old", a.old))
    if has_torch(a.python):
        trainers.append(Contender("pytorch", [a.python, PEER, *model], env, 600))
    else:
        print(f"{a.python} has no torch: PyTorch is left out")
    small = []
    for name, folder in (("rondo", a.bin), ("rondo, old", a.old)):
        program = os.path.join(folder or "", "bench_neighbour")
        if folder and os.path.exists(program):
            small.append(Contender(name, [program, "--serve"], env, 600))
    everyone = trainers + small

    steps = {c: {n: [] for n in loads} for c in trainers}
    ops = {c: {n: [] for n in loads} for c in small}
    pairs = []

    def turn(c, n, load):
        if a.realtime:
            set_priority(c, load == 0)
        return timed_turn(c, everyone, n, a.rest_ms)

    try:
        for c in everyone:
            turn(c, 5, 0)
        for i in range(a.rounds):
            order = everyone[i % len(everyone):] + everyone[:i % len(everyone)]
            for n in loads:
                with Busy(n):
                    for c in order:
                        if c in steps:
                            steps[c][n].append(step_ms(turn(c, a.steps, n)))
                        else:
                            ops[c][n].append(turn(c, a.runs, n))
            if a.old:
                # Both orders, so that neither is always the second.
                new, old = trainers[:2]
                first, second = (new, old) if i % 2 == 0 else (old, new)
                ms = {first: 0.0, second: 0.0}
                for c in (first, second, second, first):
                    ms[c] += statistics.median(turn(c, a.steps, 0)["step_ms_all"])
                pairs.append(ms[new] / ms[old])
            print(f"round {i + 1} of {a.rounds}", file=sys.stderr)
    finally:
        for c in everyone:
            c.close()

    tokens = MODEL["batch_size"] * MODEL["block_size"]
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {a.threads} threads, {a.rounds} rounds, model {MODEL}")
    print(f"{'busy processes':<34}" + "".join(f"{n:>12}" for n in loads))
    for c in trainers:
        median = {n: statistics.median(steps[c][n]) for n in loads}
        print(f"{c.name + ': step, ms':<34}" + "".join(f"{median[n]:>12.2f}" for n in loads))
        print(f"{'  tokens/s':<34}" + "".join(f"{1e3 * tokens / median[n]:>12.0f}" for n in loads))
        quiet = steps[c][loads[0]]
        ratio = {n: statistics.median(b / q for b, q in zip(steps[c][n], quiet)) for n in loads}
        print(f"{'  times a quiet step':<34}" + "".join(f"{ratio[n]:>12.2f}" for n in loads))
    for c in small:
        for op in ("mean", "cat"):
            for key in ("median_ms", "mean_ms", "p99_ms"):
                values = {n: statistics.median(answer[op][key] for answer in ops[c][n]) for n in loads}
                label = f"{c.name}: {op}, {key.replace('_ms', '')}, ms"
                print(f"{label:<34}" + "".join(f"{values[n]:>12.4f}" for n in loads))
    if pairs:
        print(f"alone, new over old: median {statistics.median(pairs):.4f}, upper 95% bound {upper_bound(pairs):.4f} "
              f"(rounds {min(pairs):.3f} to {max(pairs):.3f})")
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"steps": {c.name: steps[c] for c in trainers}, "ops": {c.name: ops[c] for c in small},
                       "slowdown": pairs}, f, indent=1)


if __name__ == "__main__":
    main()
