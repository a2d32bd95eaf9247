#!/usr/bin/env python3
"""Compiled training and inference: Rondo beside the best that torch.compile can do, in turns.

For every width and dtype, first each way to compile the PyTorch step (whole model or each block; default,
reduce-overhead, max-autotune) runs alone for a few steps; the one with the fastest step is the peer. Then eager and
compiled, ours and the peer's, run in turns (paired_gpt.py), and the medians of the ratios within a round are reported,
with peak memory and with the share of our step that is the matmul floor measured in the same turns. The same for
inference (no_grad, --infer_batches). Both phases share one fresh compile cache, so that a variant compiles once.

    paired_compiled.py --rondo-bin build/release/bin/bench_gpt --json compiled.json
    paired_compiled.py --rondo-bin build/release/bin/bench_gpt --shapes 128x4x2 --dtypes f32 --modes default   # a trial
"""
import argparse
import json
import os
import tempfile

import paired_gpt

# Floor shares at which a step counts as fast whatever the peer does.
FLOOR_SHARE = {"f32": 0.85, "bf16": 0.75}
SPEED = 1.25


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", required=True, help="path of bench_gpt")
    p.add_argument("--python", default=paired_gpt.default_python(), help="interpreter that has torch")
    p.add_argument("--shapes", default="384x6x6,768x12x6", help="n_embd x n_head x n_layer, comma separated")
    p.add_argument("--dtypes", default="f32,bf16")
    p.add_argument("--what", default="block,whole")
    p.add_argument("--modes", default="default,reduce-overhead,max-autotune")
    p.add_argument("--block_size", type=int, default=256)
    p.add_argument("--batch_size", type=int, default=8)
    p.add_argument("--vocab_size", type=int, default=65)
    p.add_argument("--infer_batches", default="1,64", help="batch sizes of inference; empty: none")
    p.add_argument("--infer_block_size", type=int, default=64)
    p.add_argument("--infer_dtypes", default="f32")
    p.add_argument("--no-train", action="store_true")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--select-steps", type=int, default=5, help="steps that choose the peer's best variant")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--timeout", type=float, default=900.0, help="seconds a single turn may take, compilation included")
    p.add_argument("--json", metavar="FILE")
    return p.parse_args()


def base_args(a, shape, dtype, batch, inference):
    n_embd, n_head, n_layer = shape
    args = paired_gpt.parse_args([])
    vars(args).update(
        rondo_bin=a.rondo_bin, python=a.python, n_embd=n_embd, n_head=n_head, n_layer=n_layer, dtype=dtype,
        block_size=a.infer_block_size if inference else a.block_size, batch_size=batch, vocab_size=a.vocab_size,
        rounds=a.rounds, steps=a.steps, threads=a.threads, timeout=a.timeout, inference=inference,
        pytorch_args="--warm_cache")  # of the folder that main() makes
    return args


def select(a, args):
    """Runs every variant alone; the fastest step of each, in ms. None: it failed or took too long."""
    times = {}
    for what in a.what.split(","):
        for mode in a.modes.split(","):
            alone = argparse.Namespace(**vars(args))
            vars(alone).update(rondo_bin=None, pytorch_compile=[f"{what}:{mode}"], pytorch_eager=False, rounds=1,
                               steps=a.select_steps)
            try:
                row = paired_gpt.run(alone)["contenders"][0]
                times[f"{what}:{mode}"] = {"step_ms_min": row["step_ms_min"], "first_ms": row["compile_ms"],
                                           "peak_rss_mib": row["peak_rss_mib"]}
            except SystemExit as failure:
                print(f"  {what}:{mode}: {failure}", flush=True)
                times[f"{what}:{mode}"] = None
    return times


def compare(a, shape, dtype, batch, inference):
    args = base_args(a, shape, dtype, batch, inference)
    variants = select(a, args)
    done = {name: v["step_ms_min"] for name, v in variants.items() if v is not None}
    if not done:
        raise SystemExit("no way to compile the PyTorch model worked")
    best = min(done, key=done.get)
    args.pytorch_compile = [best]
    result = paired_gpt.run(args)
    result["variants"], result["best"], result["inference"] = variants, best, inference
    rows = {r["name"]: r for r in result["contenders"]}
    ratios = {r["name"]: r["median"] for r in result["speed_ratios"]}
    ours, eager, theirs, their_eager = (rows[n] for n in ("rondo regions", "rondo none", f"pytorch {best}", "pytorch eager"))
    result["verdict"] = {
        "speed_over_best": ratios[f"rondo regions over pytorch {best}"],
        "speed_over_eager": ratios["rondo regions over rondo none"],
        "pytorch_speed_over_its_eager": ratios.get(f"pytorch eager over pytorch {best}", 0) and
        1 / ratios[f"pytorch eager over pytorch {best}"],
        "floor_share": ours["floor_share"],
        "peak_rss_mib": {"rondo": ours["peak_rss_mib"], "rondo eager": eager["peak_rss_mib"],
                         "pytorch": theirs["peak_rss_mib"], "pytorch eager": their_eager["peak_rss_mib"]},
    }
    return result


def print_result(result):
    m, v = result["model"], result["verdict"]
    what = "inference" if result["inference"] else "training"
    print(f"\n== {what}, n_embd {m['n_embd']}, {m['dtype']}, B {m['batch_size']}")
    for name, variant in result["variants"].items():
        text = "failed" if variant is None else f"{variant['step_ms_min']:.1f} ms, first step + {variant['first_ms']:.0f} ms"
        print(f"  pytorch {name:<26}{text}{'   <- the best' if name == result['best'] else ''}")
    paired_gpt.print_table(result)
    line = f"{what}: {v['speed_over_best']:.2f}x PyTorch's best, {v['speed_over_eager']:.2f}x our eager"
    if v["floor_share"] is not None:
        passes = v["speed_over_best"] >= SPEED or v["floor_share"] >= FLOOR_SHARE[m["dtype"]]
        line += f", {v['floor_share']:.0%} of the step is the matmul floor ({'fast enough' if passes else 'too slow'})"
    memory = v["peak_rss_mib"]
    print(f"{line}\nPyTorch's best over its eager: {v['pytorch_speed_over_its_eager']:.2f}x; peak MiB: " +
          ", ".join(f"{who} {mib:.0f}" for who, mib in memory.items()), flush=True)


def main():
    a = parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="rondo-peer-") as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = cache
        for text in a.shapes.split(","):
            shape = tuple(int(n) for n in text.split("x"))
            cases = [] if a.no_train else [(dtype, a.batch_size, False) for dtype in a.dtypes.split(",")]
            cases += [(dtype, int(batch), True) for dtype in a.infer_dtypes.split(",")
                      for batch in a.infer_batches.split(",") if batch]
            for dtype, batch, inference in cases:
                results.append(compare(a, shape, dtype, batch, inference))
                print_result(results[-1])
                if a.json:  # after every case: a long run that is cut off keeps what it has
                    with open(a.json, "w") as f:
                        json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
