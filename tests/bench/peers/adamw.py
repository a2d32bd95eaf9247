#!/usr/bin/env python3
"""AdamW in PyTorch, f32: for-loop, foreach, fused, compiled foreach, over three lists of tensors.

GB/s counts 28 bytes a parameter: param, grad, exp_avg, exp_avg_sq read; param and both averages
written. A case that does not end within --timeout is reported as such, not left out: each case
runs in a process of its own. Prints one JSON object a line.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

GPT2_124M = [(50257, 768), (1024, 768)] + [
    shape
    for _ in range(12)
    for shape in [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,),
                  (768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)]
] + [(768,), (768,)]
LISTS = {"gpt2_124m": GPT2_124M, "1000x1024": [(1024,)] * 1000, "10000x64": [(64,)] * 10000}
VARIANTS = ["for-loop", "foreach", "fused", "compiled"]


def prepare(name, variant, a):
    """The step to time, warm, the seconds its first call took, and the parameters."""
    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    import torch

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    params = [torch.randn(s).requires_grad_() for s in LISTS[name]]
    for p in params:
        p.grad = torch.randn_like(p)
    how = {"for-loop": {"foreach": False, "fused": False}, "foreach": {"foreach": True},
           "fused": {"fused": True}, "compiled": {"foreach": True}}
    optimizer = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **how[variant])
    step = optimizer.step
    if variant == "compiled":
        optimizer.step()  # the state exists before the graph is recorded
        step = torch.compile(lambda: optimizer.step())
    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    step()
    return step, first, params


def serve(name, variant, a):
    """The serve protocol of README.md, for paired_optimizer.py."""
    step = None
    for line in sys.stdin:
        if step is None:
            step, first, _ = prepare(name, variant, a)
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps({"peer": "pytorch", "list": name, "variant": variant, "step_ms_all": times,
                          "step_ms_median": statistics.median(times) if times else 0.0,
                          "compile_ms": 1e3 * first if variant == "compiled" else 0.0}), flush=True)


def run_case(name, variant, a):
    step, first, params = prepare(name, variant, a)
    import torch

    times = []
    while len(times) < a.steps and (sum(times) < a.seconds or len(times) < 3):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    n = sum(p.numel() for p in params)
    return {"peer": "pytorch", "version": torch.__version__, "list": name, "variant": variant, "threads": a.threads,
            "n_tensors": len(params), "n_parameters": n, "step_ms_median": round(median * 1e3, 3),
            "step_ms_min": round(min(times) * 1e3, 3), "gb_per_s": round(28 * n / median / 1e9, 2),
            "compile_ms": round((first - median) * 1e3, 1) if variant == "compiled" else 0.0}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--lists", default=",".join(LISTS))
    p.add_argument("--variants", default=",".join(VARIANTS))
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--seconds", type=float, default=3.0, help="stop a case after this much timed work")
    p.add_argument("--timeout", type=float, default=300.0, help="seconds one case may take, compiling included")
    p.add_argument("--serve", nargs=2, metavar=("LIST", "VARIANT"), help="answer lines \"N\" with the times of N steps")
    p.add_argument("--one-case", nargs=2, metavar=("LIST", "VARIANT"), help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.serve:
        serve(*a.serve, a)
        return
    if a.one_case:
        print(json.dumps(run_case(*a.one_case, a)), flush=True)
        return
    for name in a.lists.split(","):
        for variant in a.variants.split(","):
            command = [sys.executable, __file__, "--threads", str(a.threads), "--steps", str(a.steps), "--seconds",
                       str(a.seconds), "--one-case", name, variant]
            failed = {"peer": "pytorch", "list": name, "variant": variant}
            with tempfile.TemporaryDirectory(prefix="rondo-peer-") as cache:  # compiling starts cold
                env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache}
                child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)
                try:
                    text = child.communicate(timeout=a.timeout)[0].strip()
                    text = text if child.returncode == 0 else json.dumps(failed | {"error": child.returncode})
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)  # the compile workers too: they would disturb the next case
                    child.communicate()
                    text = json.dumps(failed | {"timeout_s": a.timeout})
            print(text, flush=True)


if __name__ == "__main__":
    main()
