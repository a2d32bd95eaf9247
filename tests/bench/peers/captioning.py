#!/usr/bin/env python3
"""The rows of `image_captioning --study` in PyTorch: a ViT encoder and a GPT-2 decoder with cross-attention, each row in
the best released form of what it is about. The study calls it, once for each row, in turns with ours:

    image_captioning --study --study_peer="python3 tests/bench/peers/captioning.py"

examples/image_captioning/study.h says what it is given and what it writes. It begins with the study's weights and sees
the same batches. The clock starts when the model is there and before anything is compiled.
"""
import argparse
import json
import os
import resource
import struct
import sys
import time


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--row", required=True, choices=sorted(ROWS))
    p.add_argument("--report", required=True)
    p.add_argument("--initial", required=True, help="folder with model.safetensors, config.json and data.safetensors")
    for name in ("batch_size", "untimed_steps", "timed_steps", "image_size", "patch_size", "n_layer", "n_head", "n_embd",
                 "max_length", "vocab_size", "threads", "processes"):
        p.add_argument(f"--{name}", type=int, required=True)
    p.add_argument("--learning_rate", type=float, required=True)
    p.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    p.add_argument("--device", default="cpu")
    p.add_argument("--seed", type=int, default=0, help="not used: weights and batches are the study's")
    p.add_argument("--artifact", default="")
    p.add_argument("--fill", type=int, default=0, help="1: leave compiled code in the cache, or in --artifact, and end")
    return p.parse_args()


def row(padding, compile=None, optimizer="fused", mode=None, dynamic=None, encoder_mode=None, artifact=False):
    """padding: max, longest, multiple or eight. compile: None, whole, apart or regional. dynamic: torch.compile's, or
    "marked"."""
    return dict(padding=padding, compile=compile, optimizer=optimizer, mode=mode, dynamic=dynamic,
                encoder_mode=encoder_mode, artifact=artifact)


ROWS = {
    "eager": row("max"),
    "compiled": row("max", "whole", dynamic=False),
    "compiled_optimizer": row("max", "whole", "compiled", dynamic=False),
    "static_gradients": row("max", "whole", "static", dynamic=False),
    "foreach_map": row("max", "whole", "foreach_map", dynamic=False),
    "dynamic_padded": row("max", "whole", dynamic=True),
    "ddp": row("max", "whole", dynamic=False),
    "longest": row("longest"),
    "automatic": row("multiple", "whole"),
    "marked": row("longest", "whole", dynamic="marked"),
    "marked_autotuned": row("longest", "whole", mode="max-autotune", dynamic="marked"),
    "dynamic": row("longest", "whole", dynamic=True),
    "dynamic_autotuned": row("longest", "whole", mode="max-autotune-no-cudagraphs", dynamic=True),
    "eight_shapes": row("eight", "whole", dynamic=False),
    "eight_shapes_autotuned": row("eight", "whole", mode="max-autotune", dynamic=False),
    "apart": row("longest", "apart"),
    "apart_autotuned": row("longest", "apart", encoder_mode="max-autotune"),
    "regional": row("longest", "regional"),
    "first_cold": row("longest", "whole", dynamic="marked"),
    "first_regional": row("longest", "regional"),
    "first_cache": row("longest", "whole", dynamic="marked"),
    "first_artifact": row("longest", "whole", dynamic="marked", artifact=True),
}

ARGS = parse_args()
if ARGS.processes > 1 and "RANK" not in os.environ:
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", "--standalone",
                              f"--nproc-per-node={ARGS.processes}", *sys.argv])
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = str(ARGS.threads)

import torch  # noqa: E402  (the thread count has to be in the environment first)
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

BETAS, EPS = (0.9, 0.98), 1e-8


def heads(x, n_head):  # (B, T, C) -> (B, H, T, D)
    b, t, c = x.shape
    return x.view(b, t, n_head, c // n_head).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, c, n_head, causal):
        super().__init__()
        self.n_head, self.causal = n_head, causal
        self.qkv, self.proj = nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x):
        q, k, v = (heads(part, self.n_head) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class CrossAttention(nn.Module):
    def __init__(self, c, n_head):
        super().__init__()
        self.n_head = n_head
        self.q, self.kv, self.proj = nn.Linear(c, c), nn.Linear(c, 2 * c), nn.Linear(c, c)

    def forward(self, x, encoded):
        k, v = (heads(part, self.n_head) for part in self.kv(encoded).chunk(2, dim=-1))
        y = F.scaled_dot_product_attention(heads(self.q(x), self.n_head), k, v)
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self, c, approximate):
        super().__init__()
        self.approximate = approximate
        self.fc1, self.fc2 = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate=self.approximate))


class EncoderBlock(nn.Module):
    def __init__(self, c, n_head):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(c, eps=1e-6), Attention(c, n_head, causal=False)
        self.ln_2, self.mlp = nn.LayerNorm(c, eps=1e-6), Mlp(c, "none")

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        c = a.n_embd
        self.cls, self.pos = (nn.Parameter(torch.zeros(1, n, c)) for n in (1, (a.image_size // a.patch_size) ** 2 + 1))
        self.patches = nn.Conv2d(3, c, a.patch_size, stride=a.patch_size)
        self.blocks = nn.ModuleList(EncoderBlock(c, a.n_head) for _ in range(a.n_layer))
        self.ln = nn.LayerNorm(c, eps=1e-6)

    def forward(self, pixels):  # (B, 3, H, W) -> (B, patches + 1, C)
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.ln(x)


class DecoderBlock(nn.Module):
    def __init__(self, c, n_head):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(c), Attention(c, n_head, causal=True)
        self.ln_cross, self.cross = nn.LayerNorm(c), CrossAttention(c, n_head)
        self.ln_2, self.mlp = nn.LayerNorm(c), Mlp(c, "tanh")

    def forward(self, x, encoded):
        x = x + self.attn(self.ln_1(x))
        x = x + self.cross(self.ln_cross(x), encoded)
        return x + self.mlp(self.ln_2(x))


class Decoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        c = a.n_embd
        self.wte, self.wpe = nn.Embedding(a.vocab_size, c), nn.Embedding(a.max_length, c)
        self.blocks = nn.ModuleList(DecoderBlock(c, a.n_head) for _ in range(a.n_layer))
        self.ln = nn.LayerNorm(c)

    def forward(self, ids, encoded):  # (B, T), (B, S, C) -> (B, T, V); the output layer is wte's
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, encoded)
        return F.linear(self.ln(x), self.wte.weight)


class Captioner(nn.Module):
    def __init__(self, a):
        super().__init__()
        with open(os.path.join(a.initial, "config.json")) as f:
            config = json.load(f)
        self.start_token, self.pad_token = config["decoder_start_token_id"], config["pad_token_id"]
        self.device_type = torch.device(a.device).type
        self.lower = a.dtype == "bfloat16"
        self.encoder, self.decoder = Encoder(a), Decoder(a)
        self.loss = lambda logits, labels: F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(),
                                                           ignore_index=-100)

    def forward(self, pixels, labels):
        with torch.autocast(self.device_type, torch.bfloat16, enabled=self.lower):
            ids = F.pad(labels[:, :-1], (1, 0), value=self.start_token)
            ids = ids.masked_fill(ids == -100, self.pad_token)
            return self.loss(self.decoder(ids, self.encoder(pixels)), labels)


def load_safetensors(path):
    dtypes = {"F32": torch.float32, "I64": torch.int64}
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = bytearray(f.read())
    return {name: torch.frombuffer(data, dtype=dtypes[t["dtype"]], offset=t["data_offsets"][0],
                                   count=max(1, torch.Size(t["shape"]).numel())).view(t["shape"]).clone()
            for name, t in header.items() if name != "__metadata__"}


def load_weights(model, path):
    """transformers' names; query, key and value become one layer, and the weights of its Conv1D are transposed."""
    saved = load_safetensors(path)
    state = {"encoder.cls": saved["encoder.embeddings.cls_token"],
             "encoder.pos": saved["encoder.embeddings.position_embeddings"],
             "decoder.wte.weight": saved["decoder.transformer.wte.weight"],
             "decoder.wpe.weight": saved["decoder.transformer.wpe.weight"]}
    for leaf in ("weight", "bias"):
        state[f"encoder.patches.{leaf}"] = saved[f"encoder.embeddings.patch_embeddings.projection.{leaf}"]
        state[f"encoder.ln.{leaf}"] = saved[f"encoder.layernorm.{leaf}"]
        state[f"decoder.ln.{leaf}"] = saved[f"decoder.transformer.ln_f.{leaf}"]
        for i in range(len(model.encoder.blocks)):
            theirs, ours = f"encoder.encoder.layer.{i}.", f"encoder.blocks.{i}."
            state[f"{ours}attn.qkv.{leaf}"] = torch.cat([saved[f"{theirs}attention.attention.{part}.{leaf}"]
                                                         for part in ("query", "key", "value")])
            for name, their_name in (("attn.proj", "attention.output.dense"), ("mlp.fc1", "intermediate.dense"),
                                     ("mlp.fc2", "output.dense"), ("ln_1", "layernorm_before"), ("ln_2", "layernorm_after")):
                state[f"{ours}{name}.{leaf}"] = saved[f"{theirs}{their_name}.{leaf}"]
            theirs, ours = f"decoder.transformer.h.{i}.", f"decoder.blocks.{i}."
            for name, their_name in (("attn.qkv", "attn.c_attn"), ("attn.proj", "attn.c_proj"), ("cross.q", "crossattention.q_attn"),
                                     ("cross.kv", "crossattention.c_attn"), ("cross.proj", "crossattention.c_proj"),
                                     ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"), ("ln_1", "ln_1"), ("ln_2", "ln_2"),
                                     ("ln_cross", "ln_cross_attn")):
                value = saved[f"{theirs}{their_name}.{leaf}"]
                state[f"{ours}{name}.{leaf}"] = value.t().contiguous() if value.dim() == 2 else value
    model.load_state_dict(state)


class Batches:
    """Batch i of this process: pixels (B, 3, H, W), and labels (B, T) padded as the row says."""

    def __init__(self, a, padding, rank, world):
        data = load_safetensors(os.path.join(a.initial, "data.safetensors"))
        self.a, self.rank, self.world = a, rank, world
        self.labels, self.starts, self.field = data["labels"], data["starts"].tolist(), data["field"]
        self.lengths = (self.labels != -100).sum(1)
        step = a.max_length // 8
        self.size = {"max": lambda n: a.max_length, "longest": lambda n: n,
                     "multiple": lambda n: min(a.max_length, -(-n // 8) * 8), "eight": lambda n: -(-n // step) * step}[padding]
        self.epoch = a.untimed_steps + a.timed_steps

    def __getitem__(self, i):
        begin = (i % self.epoch * self.world + self.rank) * self.a.batch_size
        rows = slice(begin, begin + self.a.batch_size)
        n = 3 * self.a.image_size ** 2
        pixels = torch.stack([self.field[s : s + n] for s in self.starts[rows]])
        labels = self.labels[rows, : self.size(int(self.lengths[rows].max()))].contiguous()
        pixels = pixels.view(-1, 3, self.a.image_size, self.a.image_size)
        if self.a.device == "cpu":
            return pixels, labels
        return tuple(t.pin_memory().to(self.a.device, non_blocking=True) for t in (pixels, labels))


def compiled(model, how):
    """What computes the loss."""
    dynamic = None if how["dynamic"] == "marked" else how["dynamic"]
    if how["compile"] == "whole":
        return torch.compile(model, dynamic=dynamic, mode=how["mode"])
    if how["compile"] == "apart":
        model.encoder.compile(mode=how["encoder_mode"])
        model.decoder.compile(dynamic=True)
        model.loss = torch.compile(model.loss, dynamic=True)
    if how["compile"] == "regional":
        for block in model.encoder.blocks:
            block.compile()
        for block in model.decoder.blocks:
            block.compile(dynamic=True)
    return model


def foreach_map_adam(parameters, lr):
    """Adam as one kernel of all parameters (PyTorch's recipe for horizontal fusion)."""
    from torch._higher_order_ops.foreach_map import foreach_map

    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    count = torch.zeros((), device=parameters[0].device)

    def update_first(m, g):
        return torch.lerp(m, g, 1 - BETAS[0])

    def update_second(v, g):
        return v * BETAS[1] + g * g * (1 - BETAS[1])

    def update(p, m, v, size, root):
        return p - size * m / (v.sqrt() / root + EPS)

    @torch.compile
    def step(grads):
        count.add_(1)
        size, root = lr / (1 - BETAS[0] ** count), (1 - BETAS[1] ** count).sqrt()
        torch._foreach_copy_(first, foreach_map(update_first, first, grads))
        torch._foreach_copy_(second, foreach_map(update_second, second, grads))
        torch._foreach_copy_(parameters, foreach_map(update, parameters, first, second, size, root))

    @torch.no_grad()
    def run():
        step([p.grad for p in parameters])

    return run


def optimizer_of(model, kind, lr):
    """A function that makes a step and clears the gradients."""
    parameters = list(model.parameters())
    if kind == "foreach_map":
        update = foreach_map_adam(parameters, lr)
    elif kind == "fused":
        update = torch.optim.Adam(parameters, lr=lr, betas=BETAS, eps=EPS, fused=True).step
    else:
        is_cuda = parameters[0].is_cuda  # without capturable, foreach takes no tensor
        adam = torch.optim.Adam(parameters, lr=torch.tensor(lr, device=parameters[0].device) if is_cuda else lr,
                                betas=BETAS, eps=EPS, foreach=True, capturable=is_cuda)
        update = torch.compile(lambda: adam.step())
    if kind == "static":
        for p in parameters:
            p.grad = torch.zeros_like(p)
            torch._dynamo.mark_static_address(p.grad)

    def step():
        update()
        for p in parameters:
            if kind == "static":
                p.grad.zero_()
            else:
                p.grad = None

    return step


def resident_mib():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2**20


def compiler_facts():
    from torch._dynamo.utils import counters, get_compilation_metrics

    counts, reasons = {}, []
    for m in get_compilation_metrics():
        if m.co_name is None or m.fail_type is not None:
            continue
        counts[m.co_name] = counts.get(m.co_name, 0) + 1
        if m.recompile_reason:
            reasons.append(f"{m.co_name}: {m.recompile_reason.splitlines()[0]}")
    breaks = [why.splitlines()[0] for why in sorted(counters["graph_break"])]
    return {"compiled": counts, "recompilations": reasons, "breaks": breaks}


def main():
    a, how = ARGS, ROWS[ARGS.row]
    torch.set_num_threads(a.threads)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device(a.device if a.device == "cpu" else f"cuda:{os.environ.get('LOCAL_RANK', 0)}")
    base = resident_mib()
    model = Captioner(a)
    load_weights(model, os.path.join(a.initial, "model.safetensors"))
    model.to(device)
    a.device = str(device)
    batches = Batches(a, how["padding"], rank, world)

    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    if how["compile"]:
        torch._dynamo.config.recompile_limit = 64
    if how["artifact"] and not a.fill:
        with open(a.artifact, "rb") as f:
            torch.compiler.load_cache_artifacts(f.read())
    if world > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group("gloo" if device.type == "cpu" else "nccl")
        forward = compiled(nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), how)
    else:
        forward = compiled(model, how)
    optimizer_step = optimizer_of(model, how["optimizer"], a.learning_rate)

    marks, losses = {0: 0.0}, []
    end = a.untimed_steps + a.timed_steps
    last = a.untimed_steps if a.fill else end + a.untimed_steps
    for i in range(last):
        pixels, labels = batches[i]
        if how["dynamic"] == "marked":
            torch._dynamo.mark_dynamic(labels, 1, min=3, max=a.max_length)
        loss = forward(pixels, labels)
        loss.backward()
        optimizer_step()
        losses.append(loss.detach())
        if i + 1 in (a.untimed_steps, end, last):
            wait()
            marks[i + 1] = time.perf_counter() - began
    if a.fill:
        if how["artifact"]:
            with open(a.artifact, "wb") as f:
                f.write(torch.compiler.save_cache_artifacts()[0])
        return
    first, again = marks[a.untimed_steps], marks[last] - marks[end]
    speed = a.timed_steps / (marks[end] - first) if a.timed_steps else a.untimed_steps / again
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    facts = {"steps_per_s": speed, "first_s": first, "again_s": again, "base_mib": base, "peak_mib": peak,
             "loss": torch.stack(losses[-a.untimed_steps:]).mean().item(),
             "device_peak_mib": torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None,
             **compiler_facts()}
    if rank == 0:
        with open(a.report, "w") as f:
            json.dump(facts, f)
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
