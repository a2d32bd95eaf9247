#!/usr/bin/env python3
"""Greedy decoding of GPT-2's architecture in PyTorch, with keys and values in buffers made beforehand.

Serves the protocol of README.md: each line N on stdin answers with the best of N runs. `--compile` compiles the step of
one token (torch.compile, whole graph), whose position is a tensor, so that one compilation serves every token.
"""
import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
    p.add_argument("--prompt", type=int, default=64)
    p.add_argument("--new_tokens", type=int, default=64)
    p.add_argument("--n_layer", type=int, default=12)
    p.add_argument("--n_head", type=int, default=12)
    p.add_argument("--n_embd", type=int, default=768)
    p.add_argument("--vocab_size", type=int, default=50257)
    p.add_argument("--threads", type=int, default=2)
    # static: attention over the whole buffer with a mask, as a compiled step needs; sliced: over the tokens so far.
    p.add_argument("--cache", default="sliced", choices=["sliced", "static"])
    p.add_argument("--compile", action="store_true")
    p.add_argument("--serve", action="store_true")
    return p.parse_args()


class Decoder:
    def __init__(self, a):
        self.a = a
        dtype = torch.bfloat16 if a.dtype == "bf16" else torch.float32
        C, V, self.length = a.n_embd, a.vocab_size, a.prompt + a.new_tokens + 1
        torch.manual_seed(1)

        def weight(*sizes):
            return (torch.randn(*sizes) * 0.02).to(dtype)

        self.wte, self.wpe = weight(V, C), weight(1024, C)
        self.layers = [{"ln_1": (torch.ones(C, dtype=dtype), torch.zeros(C, dtype=dtype)),
                        "c_attn": (weight(3 * C, C), torch.zeros(3 * C, dtype=dtype)),
                        "c_proj": (weight(C, C), torch.zeros(C, dtype=dtype)),
                        "ln_2": (torch.ones(C, dtype=dtype), torch.zeros(C, dtype=dtype)),
                        "c_fc": (weight(4 * C, C), torch.zeros(4 * C, dtype=dtype)),
                        "m_proj": (weight(C, 4 * C), torch.zeros(C, dtype=dtype))} for _ in range(a.n_layer)]
        self.ln_f = (torch.ones(C, dtype=dtype), torch.zeros(C, dtype=dtype))
        shape = (1, a.n_head, self.length, C // a.n_head)
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(a.n_layer)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(a.n_layer)]
        self.slots = torch.arange(self.length)
        self.one = torch.compile(self.static_step, fullgraph=True) if a.compile else (
            self.static_step if a.cache == "static" else self.sliced_step)

    def forward(self, idx, at, attend):
        """idx (1, T) at positions `at` (T) -> logits of the last token (1, V)."""
        C, H, T = self.a.n_embd, self.a.n_head, idx.shape[1]
        x = F.embedding(idx, self.wte) + F.embedding(at, self.wpe)
        for i, w in enumerate(self.layers):
            q, k, v = F.linear(F.layer_norm(x, (C,), *w["ln_1"]), *w["c_attn"]).split(C, -1)
            q, k, v = (t.view(1, T, H, C // H).transpose(1, 2) for t in (q, k, v))
            y = attend(i, q, k, v).transpose(1, 2).reshape(1, T, C)
            x = x + F.linear(y, *w["c_proj"])
            h = F.gelu(F.linear(F.layer_norm(x, (C,), *w["ln_2"]), *w["c_fc"]), approximate="tanh")
            x = x + F.linear(h, *w["m_proj"])
        return F.linear(F.layer_norm(x[:, -1], (C,), *self.ln_f), self.wte)

    def prompt(self, idx):
        T = idx.shape[1]

        def attend(i, q, k, v):
            self.keys[i][:, :, :T] = k
            self.values[i][:, :, :T] = v
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        return self.forward(idx, self.slots[:T], attend)

    def sliced_step(self, idx, at):
        t = int(at)

        def attend(i, q, k, v):
            self.keys[i][:, :, t:t + 1] = k
            self.values[i][:, :, t:t + 1] = v
            return F.scaled_dot_product_attention(q, self.keys[i][:, :, :t + 1], self.values[i][:, :, :t + 1])

        return self.forward(idx, at, attend)

    def static_step(self, idx, at):
        mask = (self.slots <= at).view(1, 1, 1, -1)

        def attend(i, q, k, v):
            self.keys[i].index_copy_(2, at, k)
            self.values[i].index_copy_(2, at, v)
            return F.scaled_dot_product_attention(q, self.keys[i], self.values[i], attn_mask=mask)

        return self.forward(idx, at, attend)

    @torch.inference_mode()
    def run(self):
        a = self.a
        idx = torch.tensor([[i * 7919 % 50000 % a.vocab_size for i in range(a.prompt)]])
        start = time.perf_counter()
        token = self.prompt(idx).argmax(-1, keepdim=True)
        first = time.perf_counter()
        for t in range(a.new_tokens):
            token = self.one(token, self.slots[a.prompt + t:a.prompt + t + 1]).argmax(-1, keepdim=True)
            token.item()  # a caller streams
        return first - start, (time.perf_counter() - first) / a.new_tokens


def main():
    a = parse_args()
    torch.set_num_threads(a.threads)
    decoder = None
    mode = "compiled" if a.compile else a.cache
    for line in sys.stdin if a.serve else ["3"]:
        if decoder is None:
            decoder = Decoder(a)
            decoder.run()  # warms up, and compiles
        times = [decoder.run() for _ in range(max(1, int(line)))]
        token = min(t for _, t in times)
        print(json.dumps({"peer": "pytorch", "mode": mode, "dtype": a.dtype, "tokens_per_s": 1 / token,
                          "ms_per_token": token * 1e3, "prompt_ms": min(p for p, _ in times) * 1e3}), flush=True)


if __name__ == "__main__":
    main()
