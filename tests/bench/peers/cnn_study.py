#!/usr/bin/env python3
"""Training steps of six networks for images (bench_cnn): Rondo, eager and compiled, and PyTorch, eager and compiled, in
turns, each in the layout that is faster for it, beside the floor of Rondo's products alone. Prints for each network and
dtype the medians, ratios within a round, memory, and what compiling takes from an empty and from a warm cache.

    cnn_study.py --rondo-bin build/release/bin/bench_cnn --json study.json

Rondo is compiled block by block (regions) and as one region (whole). --full takes the sizes of the recipes; --device
cuda measures both there (the floor is for the CPU).
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import tempfile

import cnn
import paired_gpt

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cnn.py")
KINDS = ("rondo eager", "rondo regions", "rondo whole", "pytorch eager", "pytorch compiled")


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_cnn")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--models", default=",".join(cnn.MODELS))
    p.add_argument("--dtypes", default="f32,bf16")
    p.add_argument("--layouts", default="usual,last")
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--device", default="cpu")
    p.add_argument("--full", action="store_true", help="the sizes of the recipes")
    p.add_argument("--ema", action="store_true", help="with moving averages of all parameters")
    p.add_argument("--timeout", type=float, default=900.0, help="seconds a single turn may take")
    p.add_argument("--rest-ms", type=float, default=50.0)
    p.add_argument("--quiet", type=float, default=1.0,
                   help="a round counts if other processes used at most this share of the machine in each of its turns")
    p.add_argument("--priority", type=int, default=0,
                   help="of the contenders once they have warmed up (chrt -f): on a machine that does other work, too")
    p.add_argument("--json", metavar="FILE")
    return p.parse_args()


def options_of(a, model, dtype, layout, sizes):
    batch, height, width = sizes
    return [f"--model={model}", f"--dtype={dtype}", f"--layout={layout}", f"--device={a.device}", f"--batch={batch}",
            f"--height={height}", f"--width={width}", *(["--ema"] if a.ema else [])]


def start(a, kind, options):
    who, mode = kind.split()
    if who == "rondo":
        mode = {"eager": "none"}.get(mode, mode)
        command = [a.rondo_bin, "--serve", f"--compile={mode}", *options]
    else:
        command = [a.python, PEER, "--serve", f"--mode={mode}", *options]
    return paired_gpt.Contender(kind, command, dict(os.environ), a.timeout)


def raise_priority(a, contender):
    if a.priority > 0:
        subprocess.run(["chrt", "-a", "-f", "-p", str(a.priority), str(contender.process.pid)], check=True)


def fastest(a, kind, model, dtype, sizes):
    """The contender in its faster layout; the others are closed."""
    best = None
    for layout in a.layouts.split(","):
        contender = start(a, kind, options_of(a, model, dtype, layout, sizes))
        try:
            contender.first = contender.turn(0)
            raise_priority(a, contender)
            contender.ms = contender.turn(2)["step_ms_median"]
        except SystemExit as failed:
            if kind != "pytorch compiled":
                raise
            print(f"left out: {kind}, {layout}: {str(failed).partition(': ')[0]}", flush=True)
            contender.close()
            continue
        contender.layout = layout
        if best is not None:
            loser, best = (best, contender) if contender.ms < best.ms else (contender, best)
            loser.close()
        else:
            best = contender
    return best


def compile_times(a, model, dtype, layout, sizes):
    """ms of compiling with no cache, and with a cache that an earlier process has filled."""
    command = [*(["chrt", "-f", str(a.priority)] if a.priority > 0 else []), a.rondo_bin, "--compile=regions", "--steps=0", "--warmup=0",
               *options_of(a, model, dtype, layout, sizes)]

    def run(**more):
        out = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, check=True).stdout
        return json.loads(out)

    cold = run(RONDO_CACHE="off")
    with tempfile.TemporaryDirectory() as folder:
        run(RONDO_CACHE_DIR=folder)
        warm = run(RONDO_CACHE_DIR=folder)
    return {"cold_ms": cold["compile_ms"], "warm_ms": warm["compile_ms"], "compilations": cold["compilations"],
            "entries": cold["entries"]}


def measure(a, model, dtype, sizes):
    contenders = [c for c in (fastest(a, kind, model, dtype, sizes) for kind in a.kinds.split(",")) if c is not None]
    if a.device == "cpu":
        ours = [c.layout for c in contenders if c.name.startswith("rondo")]
        floor = start(a, "rondo floor", options_of(a, model, dtype, ours[-1] if ours else "usual", sizes))
        floor.first, floor.layout = floor.turn(0), ours[-1] if ours else "usual"
        raise_priority(a, floor)
        contenders.append(floor)
    tried = kept = 0
    while kept < a.rounds and tried < 4 * a.rounds:
        k = tried % len(contenders)
        turns = {}
        for c in contenders[k:] + contenders[:k]:
            steps = 1 if c.name == "rondo floor" else a.steps
            turns[c.name] = paired_gpt.timed_turn(c, contenders, steps, a.rest_ms)
        tried += 1
        if max(t["others_share"] for t in turns.values()) > a.quiet:
            continue
        kept += 1
        for c in contenders:
            c.turns.append(turns[c.name])
    for c in contenders:
        c.close()
    if kept == 0:
        print(f"{model} {dtype}: no round of {tried} was quiet", flush=True)
        return None
    row = {"model": model, "dtype": dtype, "sizes": sizes, "rounds": kept, "tried": tried, "parameters": {},
           "contenders": {}}
    for c in contenders:
        last = c.turns[-1]
        row["parameters"][c.name] = last["parameters"]
        row["contenders"][c.name] = {
            "layout": c.layout, "ms": statistics.median(t["step_ms_median"] for t in c.turns),
            "per_round": [t["step_ms_median"] for t in c.turns],
            **({"per_round_with_rest": [t["with_rest_ms"] for t in c.turns]} if "with_rest_ms" in last else {}),
            "others_share": statistics.median(t["others_share"] for t in c.turns),
            **{key: last[key] for key in ("peak_rss_mib", "base_rss_mib", "peak_device_mib", "first_ms", "forward_ms",
                                          "backward_ms", "optimizer_ms", "rest_mb", "stream_gb_per_s",
                                          "graph_breaks", "eager_runs") if key in last}}
    if len(set(row["parameters"].values())) != 1:
        raise SystemExit(f"{model}: the numbers of parameters differ: {row['parameters']}")
    if "rondo regions" in row["contenders"] and a.device == "cpu":
        row["compile"] = compile_times(a, model, dtype, row["contenders"]["rondo regions"]["layout"], sizes)
    row["ratios"] = ratios_of(row["contenders"])
    return row


def ratios_of(contenders):
    rounds = {name: c["per_round"] for name, c in contenders.items()}

    def median_ratio(over, under):
        return statistics.median(x / y for x, y in zip(over, under))

    ratios = {}
    peers = [r for name, r in rounds.items() if name.startswith("pytorch")]
    for mode in ("regions", "whole"):
        ours = rounds.get(f"rondo {mode}")
        if ours is None:
            continue
        if "rondo eager" in rounds:
            ratios[f"eager over {mode}"] = median_ratio(rounds["rondo eager"], ours)
        if peers:
            ratios[f"PyTorch's best over {mode}"] = median_ratio([min(p) for p in zip(*peers)], ours)
        if "rondo floor" in rounds:
            ratios[f"floor over {mode}"] = median_ratio(rounds["rondo floor"], ours)
            ratios[f"floor with the rest over {mode}"] = median_ratio(contenders["rondo floor"]["per_round_with_rest"],
                                                                      ours)
    return ratios


def print_row(row):
    batch, height, width = row["sizes"]
    print(f"{row['model']} {row['dtype']} {batch}x3x{height}x{width}, {row['rounds']} of {row['tried']} rounds")
    for name, c in row["contenders"].items():
        line = f"  {name:17} {c['layout']:6} {c['ms']:8.1f} ms"
        if "forward_ms" in c and name != "rondo floor":
            line += f" (forward {c['forward_ms']:.0f}, backward {c['backward_ms']:.0f}, optimizer {c['optimizer_ms']:.1f})"
        if name == "rondo floor":
            line += (f"; with {c['rest_mb']:.0f} MB of the rest at {c['stream_gb_per_s']:.0f} GB/s: "
                     f"{c['ms'] + c['rest_mb'] / c['stream_gb_per_s']:.1f} ms")
        else:
            line += f", peak {c['peak_rss_mib']:.0f} MiB, {c['peak_rss_mib'] - c['base_rss_mib']:.0f} above the start"
        print(line + (f", others {c['others_share']:.0%}" if c["others_share"] > 0.05 else ""))
    print("  " + "; ".join(f"{name} {value:.2f}" for name, value in row["ratios"].items()))
    if "compile" in row:
        c = row["compile"]
        print(f"  compiling {c['cold_ms']:.0f} ms, from a warm cache {c['warm_ms']:.0f} ms: {c['entries']} recordings, "
              f"{c['compilations']} compilations", flush=True)


def main():
    a = parse_args()
    full = ["--full"] if a.full else []
    sizes = json.loads(subprocess.run([a.rondo_bin, "--sizes", *full], capture_output=True, text=True, check=True).stdout)
    rows = []
    for model, dtype in itertools.product(a.models.split(","), a.dtypes.split(",")):
        row = measure(a, model, dtype, sizes[model])
        if row is None:
            continue
        rows.append(row)
        print_row(row)
        if a.json:
            with open(a.json, "w") as f:
                json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
