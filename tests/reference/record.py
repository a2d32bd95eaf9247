#!/usr/bin/env python3
"""Records what PyTorch computes for tiny models, optimizers, schedules and ops.

    record.py [folder]      writes gpt2, bert, vit, llama, optim, ops .safetensors (default: beside this file)

Everything is computed in float64 with fixed seeds on one thread and stored as F64 (ids and indices I64,
masks BOOL), so that the same torch gives the same bytes. README.md has every name and formula.
"""
import importlib
import inspect
import json
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}


def save(path, tensors):
    """safetensors: u64 header length, JSON header padded to 8 bytes, then the data without holes."""
    tensors = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # keeps all of it aligned
    version = torch.__version__.split("+")[0]
    header, blobs, offset = {"__metadata__": {"made_by": "tests/reference/record.py", "torch": version}}, [], 0
    for name, t in tensors:
        blob = np.ascontiguousarray(t.detach().numpy()).tobytes()
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(blobs))
    size = os.path.getsize(path)
    assert size < 600_000, f"{path}: {size} bytes"
    print(f"{os.path.basename(path):<20} {len(tensors):>4} tensors {size:>8} bytes")


class Source:
    """Random tensors from one seed."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape, std=1.0, mean=0.0):
        return mean + std * torch.randn(shape, dtype=torch.float64, generator=self.generator)

    def ids(self, high, *shape):
        return torch.randint(high, shape, generator=self.generator)

    def distinct(self, *shape):
        """Shuffled values with gaps, so that no order depends on rounding."""
        n = int(np.prod(shape))
        return (torch.randperm(n, generator=self.generator).double() * 0.25 - n / 8).reshape(shape)


# ---- models: functions of a dict of parameters ----------------------------------------------------------------------


def linear(p, name, x):
    return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))


def layer_norm(p, name, x, eps):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], eps)


def split_heads(x, n):  # (B, T, n*D) -> (B, n, T, D)
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def merge_heads(x):
    return x.transpose(1, 2).flatten(2)


def attention(q, k, v, allowed=None):
    """softmax(q k^T / sqrt(D)) v; `allowed` is boolean, True where a query may look. Written out: it is the oracle."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return scores.softmax(-1) @ v


def causal(t_q, t_k=None):
    return torch.ones(t_q, t_k or t_q, dtype=torch.bool).tril()


class Shapes(dict):
    """name -> shape, in the order the model lists its parameters."""

    def linear(self, name, n_out, n_in, bias=True):
        self[name + ".weight"] = (n_out, n_in)
        if bias:
            self[name + ".bias"] = (n_out,)

    def norm(self, name, n, bias=True):
        self[name + ".weight"] = (n,)
        if bias:
            self[name + ".bias"] = (n,)


class Gpt2:
    name, layers, heads, c, t, vocab, b = "gpt2", 2, 2, 32, 16, 65, 2

    def shapes(self):
        s, c = Shapes(), self.c
        s["wte.weight"], s["wpe.weight"] = (self.vocab, c), (self.t, c)
        for i in range(self.layers):
            s.norm(f"h.{i}.ln_1", c)
            s.linear(f"h.{i}.attn.c_attn", 3 * c, c)
            s.linear(f"h.{i}.attn.c_proj", c, c)
            s.norm(f"h.{i}.ln_2", c)
            s.linear(f"h.{i}.mlp.c_fc", 4 * c, c)
            s.linear(f"h.{i}.mlp.c_proj", c, 4 * c)
        s.norm("ln_f", c)
        return s

    def inputs(self, r):
        return {"ids": r.ids(self.vocab, self.b, self.t), "targets": r.ids(self.vocab, self.b, self.t)}

    def run(self, p, inp):
        x = p["wte.weight"][inp["ids"]] + p["wpe.weight"][: self.t]
        for i in range(self.layers):
            qkv = linear(p, f"h.{i}.attn.c_attn", layer_norm(p, f"h.{i}.ln_1", x, 1e-5))
            q, k, v = (split_heads(part, self.heads) for part in qkv.split(self.c, dim=-1))
            x = x + linear(p, f"h.{i}.attn.c_proj", merge_heads(attention(q, k, v, causal(self.t))))
            hidden = linear(p, f"h.{i}.mlp.c_fc", layer_norm(p, f"h.{i}.ln_2", x, 1e-5))
            x = x + linear(p, f"h.{i}.mlp.c_proj", F.gelu(hidden, approximate="tanh"))
        logits = F.linear(layer_norm(p, "ln_f", x, 1e-5), p["wte.weight"])
        return logits, F.cross_entropy(logits.flatten(0, 1), inp["targets"].flatten())


class Bert:
    name, heads, c, ff, t, vocab, b, classes = "bert", 4, 32, 64, 12, 50, 3, 3

    def shapes(self):
        s, c, layer = Shapes(), self.c, "encoder.layer.0."
        s["embeddings.word_embeddings.weight"] = (self.vocab, c)
        s["embeddings.position_embeddings.weight"] = (16, c)
        s["embeddings.token_type_embeddings.weight"] = (2, c)
        s.norm("embeddings.LayerNorm", c)
        for part in ("query", "key", "value"):
            s.linear(layer + "attention.self." + part, c, c)
        s.linear(layer + "attention.output.dense", c, c)
        s.norm(layer + "attention.output.LayerNorm", c)
        s.linear(layer + "intermediate.dense", self.ff, c)
        s.linear(layer + "output.dense", c, self.ff)
        s.norm(layer + "output.LayerNorm", c)
        s.linear("pooler.dense", c, c)
        s.linear("classifier", self.classes, c)
        return s

    def inputs(self, r):
        lengths = torch.tensor([[12], [7], [4]])
        position = torch.arange(self.t)[None]
        return {"ids": r.ids(self.vocab, self.b, self.t), "segments": (position >= lengths // 2).long(),
                "mask": position < lengths, "targets": r.ids(self.classes, self.b)}

    def run(self, p, inp):
        layer = "encoder.layer.0."
        x = p["embeddings.word_embeddings.weight"][inp["ids"]]
        x = x + p["embeddings.position_embeddings.weight"][: self.t]
        x = x + p["embeddings.token_type_embeddings.weight"][inp["segments"]]
        x = layer_norm(p, "embeddings.LayerNorm", x, 1e-12)
        projected = (linear(p, layer + "attention.self." + part, x) for part in ("query", "key", "value"))
        q, k, v = (split_heads(z, self.heads) for z in projected)
        y = merge_heads(attention(q, k, v, inp["mask"][:, None, None, :]))
        y = linear(p, layer + "attention.output.dense", y)
        x = layer_norm(p, layer + "attention.output.LayerNorm", x + y, 1e-12)
        y = linear(p, layer + "output.dense", F.gelu(linear(p, layer + "intermediate.dense", x)))
        x = layer_norm(p, layer + "output.LayerNorm", x + y, 1e-12)
        logits = linear(p, "classifier", torch.tanh(linear(p, "pooler.dense", x[:, 0])))
        return logits, F.cross_entropy(logits, inp["targets"])


class Vit:
    name, layers, heads, c, image, patch, b, classes = "vit", 2, 4, 32, 16, 4, 2, 10

    def shapes(self):
        s, c = Shapes(), self.c
        s["cls_token"], s["pos_embed"] = (1, 1, c), (1, (self.image // self.patch) ** 2 + 1, c)
        s["patch_embed.proj.weight"], s["patch_embed.proj.bias"] = (c, 3, self.patch, self.patch), (c,)
        for i in range(self.layers):
            s.norm(f"blocks.{i}.norm1", c)
            s.linear(f"blocks.{i}.attn.qkv", 3 * c, c)
            s.linear(f"blocks.{i}.attn.proj", c, c)
            s.norm(f"blocks.{i}.norm2", c)
            s.linear(f"blocks.{i}.mlp.fc1", 4 * c, c)
            s.linear(f"blocks.{i}.mlp.fc2", c, 4 * c)
        s.norm("norm", c)
        s.linear("head", self.classes, c)
        return s

    def inputs(self, r):
        return {"images": r.normal(self.b, 3, self.image, self.image), "targets": r.ids(self.classes, self.b)}

    def run(self, p, inp):
        x = F.conv2d(inp["images"], p["patch_embed.proj.weight"], p["patch_embed.proj.bias"], stride=self.patch)
        x = x.flatten(2).transpose(1, 2)  # (B, patches, C), patches row by row
        x = torch.cat([p["cls_token"].expand(self.b, 1, self.c), x], dim=1) + p["pos_embed"]
        for i in range(self.layers):
            qkv = linear(p, f"blocks.{i}.attn.qkv", layer_norm(p, f"blocks.{i}.norm1", x, 1e-6))
            q, k, v = (split_heads(part, self.heads) for part in qkv.split(self.c, dim=-1))
            x = x + linear(p, f"blocks.{i}.attn.proj", merge_heads(attention(q, k, v)))
            hidden = linear(p, f"blocks.{i}.mlp.fc1", layer_norm(p, f"blocks.{i}.norm2", x, 1e-6))
            x = x + linear(p, f"blocks.{i}.mlp.fc2", F.gelu(hidden))
        logits = linear(p, "head", layer_norm(p, "norm", x, 1e-6)[:, 0])
        return logits, F.cross_entropy(logits, inp["targets"])


def rotary(x, base=10000.0, start=0):
    """x (..., T, D), half-split: dim i turns with dim i + D/2 by the angle (start + t) * base^(-2i/D)."""
    t, d = x.shape[-2:]
    rate = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = (torch.arange(start, start + t, dtype=torch.float64)[:, None] * rate).to(x.dtype)  # (T, D/2)
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Llama:
    name, layers, heads, kv_heads, c, ff, t, vocab, b = "llama", 2, 4, 2, 32, 48, 12, 50, 2

    def shapes(self):
        s, c, kv = Shapes(), self.c, self.c // self.heads * self.kv_heads
        s["model.embed_tokens.weight"] = (self.vocab, c)
        for i in range(self.layers):
            layer = f"model.layers.{i}."
            s.linear(layer + "self_attn.q_proj", c, c, bias=False)
            s.linear(layer + "self_attn.k_proj", kv, c, bias=False)
            s.linear(layer + "self_attn.v_proj", kv, c, bias=False)
            s.linear(layer + "self_attn.o_proj", c, c, bias=False)
            s.linear(layer + "mlp.gate_proj", self.ff, c, bias=False)
            s.linear(layer + "mlp.up_proj", self.ff, c, bias=False)
            s.linear(layer + "mlp.down_proj", c, self.ff, bias=False)
            s.norm(layer + "input_layernorm", c, bias=False)
            s.norm(layer + "post_attention_layernorm", c, bias=False)
        s.norm("model.norm", c, bias=False)
        s.linear("lm_head", self.vocab, c, bias=False)
        return s

    def inputs(self, r):
        targets = r.ids(self.vocab, self.b, self.t)
        targets[1, 8:] = -100  # ignored
        return {"ids": r.ids(self.vocab, self.b, self.t), "targets": targets}

    def run(self, p, inp):
        def norm(name, x):
            return F.rms_norm(x, x.shape[-1:], p[name + ".weight"], 1e-5)

        x = p["model.embed_tokens.weight"][inp["ids"]]
        for i in range(self.layers):
            layer = f"model.layers.{i}."
            y = norm(layer + "input_layernorm", x)
            q = rotary(split_heads(linear(p, layer + "self_attn.q_proj", y), self.heads))
            k = rotary(split_heads(linear(p, layer + "self_attn.k_proj", y), self.kv_heads))
            v = split_heads(linear(p, layer + "self_attn.v_proj", y), self.kv_heads)
            k, v = (z.repeat_interleave(self.heads // self.kv_heads, dim=1) for z in (k, v))
            x = x + linear(p, layer + "self_attn.o_proj", merge_heads(attention(q, k, v, causal(self.t))))
            y = norm(layer + "post_attention_layernorm", x)
            gated = F.silu(linear(p, layer + "mlp.gate_proj", y)) * linear(p, layer + "mlp.up_proj", y)
            x = x + linear(p, layer + "mlp.down_proj", gated)
        logits = linear(p, "lm_head", norm("model.norm", x))
        return logits, F.cross_entropy(logits.flatten(0, 1), inp["targets"].flatten(), ignore_index=-100)


def initial_parameters(shapes, r):
    """Nothing is 0 or 1 exactly: a forgotten bias or gain changes every number."""
    p = {}
    for name, shape in shapes.items():
        gain = len(shape) == 1 and name.endswith("weight")
        p[name] = r.normal(*shape, std=0.2 if len(shape) > 1 else 0.1, mean=1.0 if gain else 0.0)
    return p


def train(model, start, inputs, dtype):
    """First logits, loss and gradients, then the losses of ten AdamW steps on the same batch."""
    p = {name: value.to(dtype, copy=True).requires_grad_() for name, value in start.items()}
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [v for v in p.values() if v.dim() >= 2], "weight_decay": 0.1},
         {"params": [v for v in p.values() if v.dim() < 2], "weight_decay": 0.0}],
        lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    losses, first = [], None
    for _ in range(10):
        optimizer.zero_grad()
        logits, loss = model.run(p, inputs)
        loss.backward()
        first = first or (logits.detach(), loss.detach(), {n: v.grad.clone() for n, v in p.items()})
        losses.append(loss.detach())
        optimizer.step()
    return *first, torch.stack(losses)


def record_model(folder, model, seed):
    r = Source(seed)
    start = initial_parameters(model.shapes(), r)
    inputs = model.inputs(r)
    logits, loss, grads, losses = train(model, start, inputs, torch.float64)
    out = {f"param.{n}": v for n, v in start.items()} | {f"input.{n}": v for n, v in inputs.items()}
    out |= {"logits": logits, "loss": loss, "losses": losses} | {f"grad.{n}": v for n, v in grads.items()}
    logits32, _, grads32, losses32 = train(model, start, inputs, torch.float32)
    out["losses_f32"] = losses32
    largest = max(g.abs().max() for g in grads.values())
    worst = max((grads32[n] - g).abs().max() for n, g in grads.items()) / largest
    save(os.path.join(folder, model.name + ".safetensors"), out)
    print(f"  loss {losses[0]:.6f} -> {losses[-1]:.6f}; torch's own f32 is off by: logits "
          f"{(logits32 - logits).abs().max():.1e}, gradients (relative to the largest) {worst:.1e}, "
          f"losses {(losses32 - losses).abs().max():.1e}")


# ---- optimizers and schedules ---------------------------------------------------------------------------------------


def optimizer_cases():
    sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
    rmsprop, adagrad, adafactor = torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adafactor
    muon = torch.optim.Muon
    betas = {"betas": (0.9, 0.95)}
    return {
        "sgd": (sgd, {"lr": 0.1}),
        "sgd_momentum": (sgd, {"lr": 0.1, "momentum": 0.9}),
        "sgd_dampening": (sgd, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
        "sgd_nesterov": (sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        "sgd_decay": (sgd, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
        "sgd_maximize": (sgd, {"lr": 0.1, "maximize": True}),
        "sgd_all": (sgd, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True}),
        "adam": (adam, {"lr": 0.01}),
        "adam_decay": (adam, {"lr": 0.01, "weight_decay": 0.1}),
        "adam_amsgrad": (adam, {"lr": 0.01, "amsgrad": True}),
        "adam_maximize": (adam, {"lr": 0.01, "maximize": True}),
        "adam_all": (adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True, "maximize": True} | betas),
        "adamw": (adamw, {"lr": 0.01, "weight_decay": 0.1} | betas),
        "adamw_amsgrad": (adamw, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True} | betas),
        "adamw_maximize": (adamw, {"lr": 0.01, "weight_decay": 0.1, "maximize": True} | betas),
        "adamw_all": (adamw, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True, "maximize": True} | betas),
        "rmsprop": (rmsprop, {"lr": 0.01}),
        "rmsprop_centered": (rmsprop, {"lr": 0.01, "centered": True, "weight_decay": 0.1}),
        "rmsprop_momentum": (rmsprop, {"lr": 0.01, "alpha": 0.9, "momentum": 0.9, "maximize": True}),
        "rmsprop_both": (rmsprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
        "rmsprop_all": (rmsprop, {"lr": 0.01, "momentum": 0.9, "centered": True, "weight_decay": 0.1, "maximize": True}),
        "adagrad": (adagrad, {"lr": 0.1}),
        "adagrad_maximize": (adagrad, {"lr": 0.1, "maximize": True}),
        "adagrad_decay": (adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
        "adafactor": (adafactor, {"lr": 0.1}),
        "adafactor_decay": (adafactor, {"lr": 0.1, "weight_decay": 0.1, "d": 1.5, "eps": (1e-4, 1e-2),
                                        "maximize": True}),
        "muon": (muon, {"lr": 0.02}),
        "muon_plain": (muon, {"lr": 0.02, "weight_decay": 0.0, "momentum": 0.9, "ns_steps": 3}),
        "muon_adjusted": (muon, {"lr": 0.02, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
    }


def schedule_cases(optimizer):
    lr = torch.optim.lr_scheduler
    warmup, decay_until, lowest = 5, 18, 0.1  # nanogpt: a factor on the base lr of 1e-3

    def nanogpt(step):
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if step > decay_until:
            return lowest
        share = (step - warmup) / (decay_until - warmup)
        return lowest + 0.5 * (1 + np.cos(np.pi * share)) * (1 - lowest)

    return {
        "constant": lambda: lr.ConstantLR(optimizer, factor=1.0),
        "linear_warmup": lambda: lr.LinearLR(optimizer, start_factor=0.1, total_iters=5),
        "cosine": lambda: lr.CosineAnnealingLR(optimizer, T_max=19, eta_min=1e-4),
        "cosine_warmup": lambda: lr.LambdaLR(optimizer, nanogpt),
        "onecycle": lambda: lr.OneCycleLR(optimizer, max_lr=1e-2, total_steps=20),
        "onecycle_linear": lambda: lr.OneCycleLR(optimizer, max_lr=1e-2, total_steps=20, anneal_strategy="linear"),
        "onecycle_three_phase": lambda: lr.OneCycleLR(optimizer, max_lr=1e-2, total_steps=20, pct_start=0.25,
                                                      div_factor=10.0, final_div_factor=100.0, three_phase=True),
    }


def run_muon(p, grads, options):
    """Muon on the matrix and its transpose, its iterations in f64: bf16, as PyTorch casts them to, gives no reference."""
    module = importlib.import_module("torch.optim._muon")
    source = inspect.getsource(module._zeropower_via_newtonschulz)
    assert "torch.bfloat16" in source
    scope = dict(vars(module))
    exec(source.replace("torch.bfloat16", "torch.float64"), scope)
    original, module._zeropower_via_newtonschulz = module._zeropower_via_newtonschulz, scope["_zeropower_via_newtonschulz"]
    p = {"w": p["w"], "tall": p["w"].detach().t().contiguous().requires_grad_()}
    optimizer = torch.optim.Muon(p.values(), **options)
    for i in range(10):
        p["w"].grad, p["tall"].grad = grads["w"][i].clone(), grads["w"][i].t().contiguous() * (i + 1)
        optimizer.step()
    module._zeropower_via_newtonschulz = original
    return p


def record_optim(folder, seed):
    r = Source(seed)
    start = {"w": r.normal(3, 4), "b": r.normal(5)}
    grads = {"w": r.normal(10, 3, 4), "b": r.normal(10, 5)}
    grads["b"][:, 4] = 0.0  # an entry whose gradient is always 0
    out = {f"param.{n}": v for n, v in start.items()} | {f"grads.{n}": v for n, v in grads.items()}
    for case, (kind, options) in optimizer_cases().items():
        p = {n: v.clone().requires_grad_() for n, v in start.items()}
        if kind is torch.optim.Muon:
            out |= {f"{case}.{n}": v for n, v in run_muon(p, grads, options).items()}
            continue
        # Adafactor's default epsilon is that of the dtype: recorded for f32, which is what trains.
        if kind is torch.optim.Adafactor and "eps" not in options:
            options = options | {"eps": (torch.finfo(torch.float32).eps, 1e-3)}
        optimizer = kind(p.values(), foreach=False, **options)
        for i in range(10):
            for n, v in p.items():
                v.grad = grads[n][i].clone()
            optimizer.step()
        out |= {f"{case}.{n}": v for n, v in p.items()}
    p = {n: v.clone().requires_grad_() for n, v in start.items()}
    for n, v in p.items():
        v.grad = grads[n][0].clone()
    out["clip.norm"] = torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
    out |= {f"clip.grad.{n}": v.grad for n, v in p.items()}
    names = list(schedule_cases(None))
    for name in names:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
        schedule = schedule_cases(optimizer)[name]()
        values = []
        for i in range(20):
            values.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if i < 19:
                schedule.step()
        out[f"lr.{name}"] = torch.tensor(values, dtype=torch.float64)
    save(os.path.join(folder, "optim.safetensors"), out)


# ---- ops ------------------------------------------------------------------------------------------------------------


class Ops:
    """Collects `<case>.in.*`, `<case>.out*`, `<case>.grad_out`, `<case>.grad.*`."""

    def __init__(self, seed):
        self.r, self.out = Source(seed), {}

    def add(self, case, inputs, forward):
        """Float inputs get gradients. When `forward` returns a tuple, the first is differentiated, the others
        are stored as out.1, out.2."""
        inputs = {n: v.clone().requires_grad_() if v.is_floating_point() else v for n, v in inputs.items()}
        result = forward(**inputs)
        outs = result if isinstance(result, tuple) else (result,)
        grad_out = self.r.normal(*outs[0].shape)
        outs[0].backward(grad_out)
        self.out |= {f"{case}.in.{n}": v for n, v in inputs.items()}
        self.out[f"{case}.out"], self.out[f"{case}.grad_out"] = outs[0], grad_out
        self.out |= {f"{case}.out.{i}": v for i, v in enumerate(outs[1:], 1)}
        self.out |= {f"{case}.grad.{n}": v.grad for n, v in inputs.items() if v.is_floating_point()}


def record_ops(folder, seed):
    ops = Ops(seed)
    r = ops.r
    edges = torch.tensor([0.0, -0.0, 10.0, -10.0, 40.0, -40.0], dtype=torch.float64)
    wide = torch.cat([r.normal(18), edges]).reshape(4, 6)
    ops.add("gelu_erf", {"x": wide}, lambda x: F.gelu(x))
    ops.add("gelu_tanh", {"x": wide}, lambda x: F.gelu(x, approximate="tanh"))
    ops.add("silu", {"x": wide}, lambda x: F.silu(x))

    x, w, b = r.normal(4, 6, std=2.0, mean=3.0), r.normal(6), r.normal(6)
    ops.add("layer_norm", {"x": x, "weight": w, "bias": b}, lambda x, weight, bias: F.layer_norm(x, (6,), weight, bias))
    ops.add("layer_norm_plain", {"x": x}, lambda x: F.layer_norm(x, (6,)))
    ops.add("layer_norm_2d", {"x": r.normal(2, 3, 4), "weight": r.normal(3, 4), "bias": r.normal(3, 4)},
            lambda x, weight, bias: F.layer_norm(x, (3, 4), weight, bias))
    ops.add("layer_norm_far", {"x": r.normal(3, 8, mean=1000.0), "weight": r.normal(8), "bias": r.normal(8)},
            lambda x, weight, bias: F.layer_norm(x, (8,), weight, bias))
    ops.add("rms_norm", {"x": x, "weight": w}, lambda x, weight: F.rms_norm(x, (6,), weight, 1e-6))
    ops.add("rms_norm_plain", {"x": x}, lambda x: F.rms_norm(x, (6,), None, 1e-6))

    cube = r.normal(2, 3, 5, std=3.0)
    cube[0, 0] += 1000.0  # overflows without the running maximum
    for dim, tag in ((-1, "last"), (0, "first"), (1, "middle")):
        ops.add(f"softmax_{tag}", {"x": cube}, lambda x, dim=dim: x.softmax(dim))
        ops.add(f"log_softmax_{tag}", {"x": cube}, lambda x, dim=dim: x.log_softmax(dim))

    logits, targets = r.normal(6, 5, std=2.0), torch.tensor([1, 4, 0, 2, 2, 3])
    holes = torch.tensor([1, -100, 0, 2, -100, 3])
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.1):
            for tag, t in (("all", targets), ("ignore", holes)):
                case = f"cross_entropy_{reduction}_{'smooth' if smoothing else 'hard'}_{tag}"
                ops.add(case, {"x": logits, "targets": t}, lambda x, targets, reduction=reduction, smoothing=smoothing:
                        F.cross_entropy(x, targets, ignore_index=-100, reduction=reduction, label_smoothing=smoothing))

    def qkv(t_q=5, t_k=5, heads=2, kv_heads=2):
        return {"q": r.normal(2, heads, t_q, 4), "k": r.normal(2, kv_heads, t_k, 4), "v": r.normal(2, kv_heads, t_k, 4)}

    padding = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None, None, :]
    ops.add("sdpa", qkv(), lambda q, k, v: attention(q, k, v))
    ops.add("sdpa_causal", qkv(), lambda q, k, v: attention(q, k, v, causal(5)))
    ops.add("sdpa_causal_rect", qkv(3, 5), lambda q, k, v: attention(q, k, v, causal(3, 5)))
    ops.add("sdpa_cross", qkv(3, 5), lambda q, k, v: attention(q, k, v))
    ops.add("sdpa_padding", qkv() | {"mask": padding}, lambda q, k, v, mask: attention(q, k, v, mask))
    ops.add("sdpa_causal_padding", qkv() | {"mask": padding},
            lambda q, k, v, mask: attention(q, k, v, mask & causal(5)))
    ops.add("sdpa_grouped", qkv(heads=4), lambda q, k, v: attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), causal(5)))
    ops.add("sdpa_scaled", qkv(), lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3))
    check_attention(ops.out)

    ops.add("rotary", {"x": r.normal(2, 2, 5, 6)}, lambda x: rotary(x))
    ops.add("rotary_start7", {"x": r.normal(2, 2, 5, 6)}, lambda x: rotary(x, start=7))
    ops.add("conv2d_patch", {"x": r.normal(2, 3, 8, 8), "weight": r.normal(5, 3, 4, 4), "bias": r.normal(5)},
            lambda x, weight, bias: F.conv2d(x, weight, bias, stride=4))

    table = r.distinct(4, 9)
    ops.add("topk_last", {"x": table}, lambda x: tuple(x.topk(3)))
    ops.add("topk_smallest", {"x": table}, lambda x: tuple(x.topk(3, largest=False)))
    ops.add("topk_first", {"x": table}, lambda x: tuple(x.topk(2, dim=0)))
    ops.add("sort", {"x": table}, lambda x: tuple(x.sort(dim=-1)))
    ops.add("sort_descending_first", {"x": table}, lambda x: tuple(x.sort(dim=0, descending=True)))
    ties = r.ids(3, 4, 8).double()
    ops.add("sort_stable", {"x": ties}, lambda x: tuple(x.sort(dim=-1, stable=True)))
    ops.add("sort_stable_descending", {"x": ties}, lambda x: tuple(x.sort(dim=-1, stable=True, descending=True)))

    x = r.normal(4, 5)
    index = r.ids(5, 3, 6)
    ops.add("gather_last", {"x": x, "index": index}, lambda x, index: x.gather(1, index))
    ops.add("gather_first", {"x": x, "index": r.ids(4, 6, 3)}, lambda x, index: x.gather(0, index))
    unique = torch.tensor([[0, 4, 2], [3, 1, 0], [2, 4, 1]])
    ops.add("scatter", {"x": x, "index": unique, "src": r.normal(3, 3)}, lambda x, index, src: x.scatter(1, index, src))
    ops.add("scatter_add", {"x": x, "index": index, "src": r.normal(3, 6)},
            lambda x, index, src: x.scatter_add(1, index, src))
    ops.add("index_select_first", {"x": x, "index": torch.tensor([3, 0, 3, 3, 1])},
            lambda x, index: x.index_select(0, index))
    ops.add("index_select_last", {"x": x, "index": torch.tensor([4, 4, 0])},
            lambda x, index: x.index_select(1, index))
    save(os.path.join(folder, "ops.safetensors"), ops.out)


def check_attention(out):
    """`attention` above against torch's own, where torch has the same case."""
    for case, options in {"sdpa": {}, "sdpa_causal": {"is_causal": True}, "sdpa_causal_rect": {"is_causal": True},
                          "sdpa_padding": {"mask": True}, "sdpa_cross": {},
                          "sdpa_grouped": {"is_causal": True, "enable_gqa": True}}.items():
        q, k, v = (out[f"{case}.in.{n}"] for n in "qkv")
        if options.pop("mask", False):
            options["attn_mask"] = out[f"{case}.in.mask"]
        torch.testing.assert_close(out[f"{case}.out"], F.scaled_dot_product_attention(q, k, v, **options))


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    for seed, model in enumerate((Gpt2(), Bert(), Vit(), Llama()), 1):
        record_model(folder, model, seed)
    record_optim(folder, 5)
    record_ops(folder, 6)


if __name__ == "__main__":
    main()
