#!/usr/bin/env python3
"""Times `bench_gpt` and PyTorch on the same GPT-2 step, in turns. Standard library only.

Every contender is a process in --serve mode (see gpt_step.py). One at a time gets a line
`N`, runs N steps and answers; the others are blocked on stdin. A ratio is taken inside a
round, where the machine was the same for both, and the median over the rounds is reported.
The order rotates from round to round. Two columns say whether to believe a row: `idle_cpu`,
CPU time that waiting contenders used (should be 0), and `others`, the share of the machine
that processes outside this test used.

    paired_gpt.py --rondo-bin build/release/bin/bench_gpt --n_layer 6 --n_head 6 --n_embd 384
        --block_size 256 --batch_size 8 --rounds 5
"""
import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TICK_MS = 1000.0 / os.sysconf("SC_CLK_TCK")


def default_python():
    """RONDO_PEERS_VENV's interpreter, or that of setup.sh's folder, or this one."""
    named = os.environ.get("RONDO_PEERS_VENV")
    python = os.path.abspath(os.path.join(named or os.path.expanduser("~/.cache/rondo-peers"), "bin", "python"))
    if os.path.exists(python):
        return python
    if named:
        sys.exit(f"RONDO_PEERS_VENV={named}: no {python}; run tests/bench/peers/setup.sh")
    return sys.executable


def add_beside(parser):
    """--beside: another build of Rondo takes PyTorch's place, as of an older commit, or of another system:
    --beside "unshare --mount --pid --fork chroot ROOT env HOME=/root /root/rondo/build/release/bin/bench_products"
    """
    parser.add_argument("--beside", metavar="COMMAND", help="the same benchmark of another build, in place of PyTorch")


def peer_of(a, script):
    """What serves beside ours: its name, and its command without options."""
    if a.beside:
        return "beside", [*shlex.split(a.beside), "--serve"]
    return "pytorch", [a.python, os.path.join(HERE, script)]


def parse_args(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rondo-bin", help="path of bench_gpt; without it only PyTorch runs")
    add_beside(p)
    p.add_argument("--rondo-args", default="", help="more flags for bench_gpt, in one string")
    p.add_argument("--rondo-modes", default="none,regions", help="values for bench_gpt --compile: none, regions, whole")
    p.add_argument("--python", default=default_python(), help="interpreter that has torch")
    p.add_argument("--no-pytorch", action="store_true")
    p.add_argument("--no-pytorch-eager", dest="pytorch_eager", action="store_false")
    p.add_argument("--pytorch-compile", action="append", default=[], metavar="whole|block[:MODE]",
                   help="also run compiled PyTorch; may be given several times")
    p.add_argument("--pytorch-args", default="", help="more flags for gpt_step.py, in one string")
    p.add_argument("--inference", action="store_true", help="time the forward pass alone, without gradients")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=5, help="steps of one contender in one round")
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--rest-ms", type=float, default=50.0, help="pause between turns: spinning pools fall asleep")
    p.add_argument("--timeout", type=float, default=900.0, help="seconds a single turn may take")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--device", default="cpu", help="of both: cpu or cuda")
    p.add_argument("--tf32", action="store_true", help="both may round the operands of f32 products (cuda)")
    p.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
    p.add_argument("--dropout", type=float, default=0.0, help="of both")
    p.add_argument("--zipf", action="store_true", help="both train on tokens that are as frequent as in texts")
    p.add_argument("--n_layer", type=int, default=6)
    p.add_argument("--n_head", type=int, default=6)
    p.add_argument("--n_embd", type=int, default=384)
    p.add_argument("--block_size", type=int, default=256)
    p.add_argument("--batch_size", type=int, default=8)
    p.add_argument("--vocab_size", type=int, default=65)
    p.add_argument("--json", metavar="FILE", help="write all that was measured (-: stdout, no table)")
    return p.parse_args(argv)


class Contender:
    """A serving process. `turn` blocks until it has answered."""

    def __init__(self, name, command, env, timeout):
        self.name, self.command, self.timeout = name, command, timeout
        self.optional = False  # the others are measured without it if it cannot begin
        self.turns = []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def turn(self, steps):
        killer = threading.Timer(self.timeout, self.process.kill)
        killer.start()
        try:
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
            while True:  # a library may chat on stdout; our lines are JSON objects
                line = self.process.stdout.readline()
                if not line:
                    raise SystemExit(f"{self.name} ended without an answer, exit status "
                                     f"{self.process.wait()}: {shlex.join(self.command)}")
                if line.startswith("{"):
                    return json.loads(line)
        except BrokenPipeError:
            raise SystemExit(f"{self.name} did not stay to serve: {shlex.join(self.command)}") from None
        finally:
            killer.cancel()

    def cpu_ms(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_MS  # utime + stime

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it ended before us
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def machine_busy_ms():
    with open("/proc/stat") as f:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, f.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * TICK_MS


def timed_turn(contender, everyone, steps, rest_ms):
    time.sleep(rest_ms / 1e3)
    before = {c.name: c.cpu_ms() for c in everyone}
    busy, started = machine_busy_ms(), time.perf_counter()
    answer = contender.turn(steps)
    wall = (time.perf_counter() - started) * 1e3
    busy = machine_busy_ms() - busy
    spent = {c.name: c.cpu_ms() - before[c.name] for c in everyone}
    answer["idle_cpu_ms"] = sum(ms for name, ms in spent.items() if name != contender.name)
    answer["others_share"] = max(0.0, busy - sum(spent.values())) / (wall * (os.cpu_count() or 1))
    return answer


def start_all(a):
    env = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RONDO_NUM_THREADS"):
        env[name] = str(a.threads)
    model = []
    for flag in ("n_layer", "n_head", "n_embd", "block_size", "batch_size", "vocab_size", "threads", "warmup"):
        model += [f"--{flag}={getattr(a, flag)}"]
    if a.device != "cpu":
        model += [f"--device={a.device}", *(["--tf32"] if a.tf32 else [])]
    model += [f"--dtype={a.dtype}", f"--dropout={a.dropout}"]
    model += [*(["--zipf"] if a.zipf else []), *(["--inference"] if a.inference else []), "--serve"]
    contenders = []

    def add(name, command):
        contenders.append(Contender(name, command, env, a.timeout))

    if a.rondo_bin:
        for mode in a.rondo_modes.split(","):
            add(f"rondo {mode}", [a.rondo_bin, f"--compile={mode}", *model, *shlex.split(a.rondo_args)])
    if a.beside:
        for mode in a.rondo_modes.split(","):
            add(f"beside {mode}", [*shlex.split(a.beside), f"--compile={mode}", *model, *shlex.split(a.rondo_args)])
    elif not a.no_pytorch:
        peer = [a.python, os.path.join(HERE, "gpt_step.py"), *model, *shlex.split(a.pytorch_args)]
        if a.pytorch_eager:
            add("pytorch eager", peer)
        for spec in a.pytorch_compile:
            what, _, mode = spec.partition(":")
            add(f"pytorch {spec}", [*peer, f"--compile={what}", f"--compile_mode={mode or 'default'}"])
            contenders[-1].optional = True
    if not contenders:
        raise SystemExit("nothing to run: give --rondo-bin or leave out --no-pytorch")
    return contenders


def median_of(contender, key):
    values = [t[key] for t in contender.turns if key in t]
    return statistics.median(values) if values else None


def summarise(a, contenders):
    rows = []
    for c in contenders:
        row = {"name": c.name, "command": [os.path.basename(c.command[0]), *map(os.path.basename, c.command[1:])]}
        for key in ("step_ms_median", "tokens_per_s", "forward_ms", "backward_ms", "optimizer_ms", "floor_ms",
                    "host_ms", "peak_device_mib"):
            row[key] = median_of(c, key)
        row["step_ms_per_round"] = [t["step_ms_median"] for t in c.turns]
        row["step_ms_min"] = min(ms for t in c.turns for ms in t["step_ms_all"])
        row["floor_share"] = row["floor_ms"] / row["step_ms_median"] if row["floor_ms"] else None
        row["compile_ms"] = c.first.get("compile_ms")
        row["peak_rss_mib"] = c.turns[-1].get("peak_rss_mib")
        row["idle_cpu_ms"] = sum(t["idle_cpu_ms"] for t in c.turns)
        row["others_share"] = statistics.median(t["others_share"] for t in c.turns)
        rows.append(row)
    ratios = []
    for ours, base in itertools.combinations(rows, 2):
        if base["name"].startswith("rondo"):  # both are ours: the later mode over the earlier one
            ours, base = base, ours
        per_round = [b / o for o, b in zip(ours["step_ms_per_round"], base["step_ms_per_round"])]
        ratios.append({"name": f"{ours['name']} over {base['name']}", "median": statistics.median(per_round),
                       "min": min(per_round), "max": max(per_round), "per_round": per_round})
    model = {k: getattr(a, k) for k in ("n_layer", "n_head", "n_embd", "block_size", "batch_size", "vocab_size",
                                        "threads", "dtype", "dropout", "zipf", "device", "tf32", "rounds", "steps")}
    return {"model": model, "contenders": rows, "speed_ratios": ratios, "turns": {c.name: c.turns for c in contenders}}


def print_table(result):
    def cell(value, spec):
        return "-" if value is None else format(value, spec)

    print(" ".join(f"{k}={v}" for k, v in result["model"].items()))
    columns = [("step ms", 9, ".2f", "step_ms_median"), ("min", 9, ".2f", "step_ms_min"), ("fwd", 8, ".1f", "forward_ms"),
               ("bwd", 8, ".1f", "backward_ms"), ("opt", 8, ".1f", "optimizer_ms"), ("host ms", 9, ".2f", "host_ms"),
               ("tokens/s", 10, ".0f", "tokens_per_s"), ("compile", 9, ".0f", "compile_ms"),
               ("RSS MiB", 9, ".0f", "peak_rss_mib"), ("GPU MiB", 9, ".0f", "peak_device_mib"),
               ("floor ms", 9, ".1f", "floor_ms"), ("share", 7, ".0%", "floor_share"), ("idle_cpu", 9, ".0f", "idle_cpu_ms"),
               ("others", 7, ".0%", "others_share")]
    columns = [c for c in columns if any(r[c[3]] is not None for r in result["contenders"])]
    print(f"{'contender':<24}" + "".join(f"{title:>{width}}" for title, width, _, _ in columns))
    for r in result["contenders"]:
        print(f"{r['name']:<24}" + "".join(f"{cell(r[key], spec):>{width}}" for _, width, spec, key in columns))
    for r in result["speed_ratios"]:
        print(f"speed of {r['name']}: {r['median']:.3f}x (rounds {r['min']:.3f} to {r['max']:.3f})")
    if any(r["idle_cpu_ms"] > 50 for r in result["contenders"]):
        print("warning: a waiting contender used the CPU; raise --rest-ms")
    if any(r["others_share"] > 0.05 for r in result["contenders"]):
        print("warning: other processes used more than 5% of the machine; trust the ratios, not the times")


def run(a):
    contenders = start_all(a)
    try:
        for c in list(contenders):  # builds the model, compiles, warms up: one after the other
            try:
                c.first = c.turn(0)
            except SystemExit as failed:
                # torch.compile may find no compiler, or not know the GPU: the others are measured without it.
                if not c.optional:
                    raise
                print(f"left out: {str(failed).partition(': ')[0]}", flush=True)  # without its command
                contenders.remove(c)
                c.close()
        for i in range(a.rounds):
            k = i % len(contenders)
            for c in contenders[k:] + contenders[:k]:
                c.turns.append(timed_turn(c, contenders, a.steps, a.rest_ms))
        return summarise(a, contenders)
    finally:
        for c in contenders:
            c.close()


def main():
    a = parse_args()
    result = run(a)
    if a.json == "-":
        print(json.dumps(result, indent=1))
        return
    print_table(result)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
