#!/usr/bin/env python3
"""Greedy decoding of one sequence, GPT-2 124M's size, in Rondo and in PyTorch's fastest form, in turns.

For each dtype the peer's forms (sliced cache, static cache with a mask, the static one compiled) first run alone, and the
fastest goes into the rounds. Prints the median of the ratios within each round, and our share of the memory stream.

    paired_generate.py --rondo-bin build/release/bin/bench_generate --json generate.json
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import paired_gpt

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "generate.py")
FORMS = {"sliced": [], "static": ["--cache", "static"], "compiled": ["--cache", "static", "--compile"]}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_generate")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--dtypes", default="f32,bf16")
    p.add_argument("--forms", default="sliced,static,compiled")
    p.add_argument("--prompt", type=int, default=64)
    p.add_argument("--new_tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--repeats", type=int, default=1, help="runs of a turn, of which the best counts")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--timeout", type=float, default=600.0, help="seconds a single turn may take, compilation included")
    p.add_argument("--json", metavar="FILE")
    return p.parse_args()


def compare(a, dtype, env):
    sizes = {"dtype": dtype, "prompt": a.prompt, "new_tokens": a.new_tokens, "threads": a.threads}
    common = [f"--{name}={value}" for name, value in sizes.items()]

    def peer(form):
        command = [a.python, PEER, "--serve", *common, *FORMS[form]]
        return paired_gpt.Contender(f"pytorch {form}", command, env, a.timeout)

    alone = {}
    for form in a.forms.split(","):
        contender = peer(form)
        try:
            alone[form] = contender.turn(3)["ms_per_token"]
            print(f"  {dtype} pytorch {form}: {alone[form]:.2f} ms a token", flush=True)
        except SystemExit as failure:
            print(f"  {dtype} pytorch {form}: {failure}", flush=True)
        contender.close()
    best = min(alone, key=alone.get)
    ours = paired_gpt.Contender("rondo", [a.rondo_bin, "--serve", *common], env, a.timeout)
    theirs = peer(best)
    for contender in (ours, theirs):
        contender.turn(1)
    rounds = []
    for r in range(a.rounds):
        answers = {}
        for c in ((ours, theirs), (theirs, ours))[r % 2]:
            time.sleep(0.3)  # until the other's threads have stopped spinning
            answers[c.name] = c.turn(a.repeats)
        rounds.append((answers[ours.name], answers[theirs.name]))
    for contender in (ours, theirs):
        contender.close()
    median = statistics.median
    result = {"dtype": dtype, "forms_alone_ms": alone, "best": best, "rounds": rounds,
              "rondo_ms": median(o["ms_per_token"] for o, _ in rounds),
              "pytorch_ms": median(t["ms_per_token"] for _, t in rounds),
              "share": median(o["share"] for o, _ in rounds),
              "stream_gb_per_s": median(o["stream_gb_per_s"] for o, _ in rounds),
              "speed_ratio": median(t["ms_per_token"] / o["ms_per_token"] for o, t in rounds)}
    print(f"{dtype}: {1e3 / result['rondo_ms']:.1f} tokens/s, pytorch {best} {1e3 / result['pytorch_ms']:.1f}: "
          f"{result['speed_ratio']:.2f} times as fast; {result['share']:.2f} of the memory stream "
          f"({result['stream_gb_per_s']:.1f} GB/s)", flush=True)
    return result


def main():
    a = parse_args()
    env = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    with tempfile.TemporaryDirectory(prefix="rondo-peer-") as cache:
        env["TORCHINDUCTOR_CACHE_DIR"] = cache
        results = [compare(a, dtype, env) for dtype in a.dtypes.split(",")]
    if a.json:
        with open(a.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
