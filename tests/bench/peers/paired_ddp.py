#!/usr/bin/env python3
"""Jobs of two ranks with a thread each, in turns: bench_ddp under rondorun, and PyTorch's DistributedDataParallel over
Gloo. Prints the median of the ratios of their steps, and what DDP adds to a step of ours.

    paired_ddp.py --bin build/release/bin
"""
import argparse
import json
import os
import statistics
import subprocess

import paired_gpt

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddp_step.py")


def last_json(command, env):
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", required=True, help="folder of rondorun and bench_ddp")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--n_layer", type=int, default=6)
    p.add_argument("--n_head", type=int, default=6)
    p.add_argument("--n_embd", type=int, default=384)
    p.add_argument("--block_size", type=int, default=256)
    p.add_argument("--batch_size", type=int, default=4, help="of each rank")
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    p.add_argument("--compile", choices=["none", "whole", "block"], default="none", help="the peer's")
    a = p.parse_args()
    model = [f"--{name}={getattr(a, name)}" for name in ("n_layer", "n_head", "n_embd", "block_size", "batch_size", "dtype")]
    env = dict(os.environ)
    ours_command = [f"{a.bin}/rondorun", f"--nproc-per-node={a.ranks}", "--no-prefix", f"{a.bin}/bench_ddp", "--rounds=5", *model]
    theirs_command = [a.python, "-m", "torch.distributed.run", f"--nproc-per-node={a.ranks}", "--master-port=29517", PEER,
                      "--threads=1", "--steps=10", f"--compile={a.compile}", *model]
    rounds = []
    for r in range(a.rounds):
        pair = {}
        for name, command in (("ours", ours_command), ("theirs", theirs_command))[:: 1 if r % 2 == 0 else -1]:
            pair[name] = last_json(command, env)
        rounds.append(pair)
        print(f"round {r + 1}: ours {pair['ours']['step_ms']:.0f} ms, PyTorch {pair['theirs']['step_ms']:.0f} ms; "
              f"CPU over a model alone {pair['ours']['cpu_over_alone']:.3f}", flush=True)
    ratios = [x["theirs"]["step_ms"] / x["ours"]["step_ms"] for x in rounds]
    added = [x["ours"]["cpu_over_alone"] for x in rounds]
    print(f"PyTorch's step over ours: {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]; "
          f"CPU of a step over a model alone: {statistics.median(added):.3f} [{min(added):.3f}, {max(added):.3f}]")


if __name__ == "__main__":
    main()
