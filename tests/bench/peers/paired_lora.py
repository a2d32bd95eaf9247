#!/usr/bin/env python3
"""LoRA on GPT-2 124M beside full fine-tuning and beside PEFT, in turns: step time, peak memory, trainable share.

Contenders: bench_lora with LoRA and with all parameters, and PEFT on transformers' GPT2LMHeadModel with PyTorch, eager
and compiled. Same sizes, random weights, AdamW, no dropout, no recomputation. They take turns (paired_gpt.py); ratios are
taken inside a round, and the median is reported. Needs torch, transformers and peft in --python.

    paired_lora.py --rondo-bin build/release/bin/bench_lora --rounds 5 --steps 3 --json lora.json
    paired_lora.py --serve --rank 8       # the peer itself
"""
import argparse
import json
import os
import resource
import statistics
import sys
import time

GOALS = {"memory of full fine-tuning": 0.45, "times faster than full": 1.25, "memory of PEFT": 0.70,
         "times faster than PEFT": 1.25}
SIZES = {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257, "block_size": 512, "batch_size": 1, "threads": 2,
         "warmup": 3}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", help="path of bench_lora")
    p.add_argument("--python", help="interpreter that has torch, transformers and peft")
    p.add_argument("--rank", type=int, default=8)
    p.add_argument("--targets", default="c_attn")
    for name, value in SIZES.items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--no-peft-compile", dest="peft_compile", action="store_false")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=3, help="steps of one contender in one round")
    p.add_argument("--rest-ms", type=float, default=50.0)
    p.add_argument("--timeout", type=float, default=900.0, help="seconds a single turn may take")
    p.add_argument("--json", metavar="FILE")
    p.add_argument("--serve", action="store_true")
    p.add_argument("--compile", action="store_true", help="with --serve: torch.compile")
    return p.parse_args()


class Peer:
    """PEFT and PyTorch."""

    def __init__(self, a):
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import GPT2Config, GPT2LMHeadModel
        torch.set_num_threads(a.threads)
        torch.manual_seed(1337)
        config = GPT2Config(vocab_size=a.vocab_size, n_positions=a.block_size, n_embd=a.n_embd, n_layer=a.n_layer,
                            n_head=a.n_head, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
                            attn_implementation="sdpa")
        base = GPT2LMHeadModel(config)
        model = get_peft_model(base, LoraConfig(r=a.rank, lora_alpha=2 * a.rank, target_modules=a.targets.split(","),
                                                fan_in_fan_out=True, task_type="CAUSAL_LM")) if a.rank > 0 else base
        model.train()
        trained = [p for p in model.parameters() if p.requires_grad]
        self.trainable, self.total = sum(p.numel() for p in trained), sum(p.numel() for p in model.parameters())
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
        tokens = torch.randint(a.vocab_size, (a.batch_size, a.block_size + 1))
        self.x, self.y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

        def loss_of(x, y):
            return torch.nn.functional.cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())

        self.loss_of = torch.compile(loss_of) if a.compile else loss_of
        self.loss = 0.0
        for _ in range(a.warmup):
            self.step()

    def step(self):
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.loss_of(self.x, self.y)
        loss.backward()
        self.optimizer.step()
        self.loss = float(loss.detach())
        return (time.perf_counter() - start) * 1e3

    def run(self, steps):
        times = [self.step() for _ in range(steps)]
        return {"peer": "peft", "step_ms_median": statistics.median(times) if times else 0, "step_ms_all": times,
                "loss": self.loss, "trainable": self.trainable, "parameters": self.total,
                "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def serve(a):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(a.threads)
    peer = None
    for line in sys.stdin:
        peer = peer or Peer(a)
        print(json.dumps(peer.run(int(line))), flush=True)


def compare(a):
    import paired_gpt
    python = a.python or paired_gpt.default_python()
    env = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RONDO_NUM_THREADS"):
        env[name] = str(a.threads)
    model = [f"--{name}={getattr(a, name)}" for name in SIZES] + ["--serve"]
    here = os.path.abspath(__file__)
    commands = {
        "rondo lora": [a.rondo_bin, f"--rank={a.rank}", f"--targets={a.targets}", *model],
        "rondo full": [a.rondo_bin, "--rank=0", *model],
        "peft eager": [python, here, f"--rank={a.rank}", f"--targets={a.targets}", *model],
    }
    if a.peft_compile:
        commands["peft compiled"] = [*commands["peft eager"], "--compile"]
    contenders = [paired_gpt.Contender(name, command, env, a.timeout) for name, command in commands.items()]
    try:
        for c in contenders:
            c.turn(0)  # builds, compiles, warms up
        for r in range(a.rounds):
            for c in contenders[r % len(contenders):] + contenders[:r % len(contenders)]:
                c.turns.append(paired_gpt.timed_turn(c, contenders, a.steps, a.rest_ms))
    finally:
        for c in contenders:
            c.close()
    rows = {}
    for c in contenders:
        rows[c.name] = {"step_ms_median": statistics.median(t["step_ms_median"] for t in c.turns),
                        "step_ms_min": min(min(t["step_ms_all"]) for t in c.turns),
                        "peak_rss_mib": max(t["peak_rss_mib"] for t in c.turns),
                        "trainable": c.turns[-1]["trainable"], "parameters": c.turns[-1]["parameters"],
                        "loss": c.turns[-1]["loss"], "others_share": max(t["others_share"] for t in c.turns)}

    def ratio(a, b):
        turns = {c.name: c.turns for c in contenders}
        return statistics.median(x["step_ms_median"] / y["step_ms_median"] for x, y in zip(turns[a], turns[b]))

    peers = [name for name in rows if name.startswith("peft")]
    best = min(peers, key=lambda name: rows[name]["step_ms_median"])
    leanest = min(rows[name]["peak_rss_mib"] for name in peers)
    figures = {
        "memory of full fine-tuning": rows["rondo lora"]["peak_rss_mib"] / rows["rondo full"]["peak_rss_mib"],
        "times faster than full": ratio("rondo full", "rondo lora"),
        "memory of PEFT": rows["rondo lora"]["peak_rss_mib"] / leanest,
        "times faster than PEFT": ratio(best, "rondo lora"),
    }
    for name, row in rows.items():
        print(f"{name:<14} {row['step_ms_median']:8.1f} ms (best {row['step_ms_min']:.1f})  {row['peak_rss_mib']:7.0f} MiB  "
              f"trains {row['trainable'] / row['parameters']:.3%} of {row['parameters']}  others {row['others_share']:.0%}")
    for name, value in figures.items():
        goal = GOALS[name]
        met = value <= goal if name.startswith("memory") else value >= goal
        print(f"{name}: {value:.2f} (goal {goal}): {'met' if met else 'MISSED'}" +
              (f"; the peer's best is {best}" if name == "times faster than PEFT" else ""))
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"rows": rows, "figures": figures}, f, indent=1)


if __name__ == "__main__":
    args = parse_args()
    if args.serve:
        serve(args)
    elif args.rondo_bin:
        compare(args)
    else:
        raise SystemExit("give --rondo-bin")
