#!/usr/bin/env python3
"""AdamW, compiled, in Rondo and in PyTorch's best form, in turns: median of the ratios within each round.

For each list of tensors the peer's variants (foreach, fused, compiled foreach) first run alone, and the fastest goes into
the rounds. One that takes longer than --timeout, compiling included, is reported as such and left out.

    paired_optimizer.py --rondo-bin build/release/bin/bench_optimizer --json optimizer.json
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import paired_gpt

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "adamw.py")


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_optimizer")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--lists", default="gpt2_124m,1000x1024,10000x64")
    p.add_argument("--variants", default="foreach,fused,compiled")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--timeout", type=float, default=300.0, help="seconds a single turn may take, compilation included")
    p.add_argument("--json", metavar="FILE")
    return p.parse_args()


def peer(a, name, variant, env):
    command = [a.python, PEER, "--threads", str(a.threads), "--serve", name, variant]
    return paired_gpt.Contender(f"pytorch {variant}", command, env, a.timeout)


def compare(a, name, env):
    variants = {}
    for variant in a.variants.split(","):
        contender = peer(a, name, variant, env)
        try:
            contender.turn(0)
            answer = contender.turn(a.steps)
            variants[variant] = {"step_ms": answer["step_ms_median"], "compile_ms": answer["compile_ms"]}
        except SystemExit as failure:
            variants[variant] = {"failed": str(failure)}
        contender.close()
        print(f"  {name} pytorch {variant}: {variants[variant]}", flush=True)
    best = min((v for v in variants if "step_ms" in variants[v]), key=lambda v: variants[v]["step_ms"])
    ours = paired_gpt.Contender("rondo", [a.rondo_bin, "--serve", "--list", name, "--threads", str(a.threads)], env, a.timeout)
    theirs = peer(a, name, best, env)
    rounds = []
    for contender in (ours, theirs):
        contender.turn(0)
    for r in range(a.rounds):
        times = {}
        for c in ((ours, theirs), (theirs, ours))[r % 2]:
            time.sleep(0.2)  # until the other's threads have stopped spinning
            c.turn(1)
            times[c.name] = c.turn(a.steps)["step_ms_median"]
        rounds.append((times[ours.name], times[theirs.name]))
    for contender in (ours, theirs):
        contender.close()
    result = {"list": name, "variants": variants, "best": best, "rounds": rounds,
              "rondo_ms": statistics.median(o for o, _ in rounds), "pytorch_ms": statistics.median(t for _, t in rounds),
              "speed_ratio": statistics.median(t / o for o, t in rounds)}
    print(f"{name}: {result['rondo_ms']:.3f} ms, pytorch {best} {result['pytorch_ms']:.3f} ms: "
          f"{result['speed_ratio']:.2f} times as fast", flush=True)
    return result


def main():
    a = parse_args()
    # Threads wait as they do by default: passively, the peer's fused step is ten times slower with many small tensors.
    env = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    results = []
    with tempfile.TemporaryDirectory(prefix="rondo-peer-") as cache:
        env |= {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache}
        for name in a.lists.split(","):
            results.append(compare(a, name, env))
            if a.json:
                with open(a.json, "w") as f:
                    json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
