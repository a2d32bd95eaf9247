#!/usr/bin/env python3
"""Writes multihead_attention.safetensors, as modules/multihead_attention_test.cc reads it.

    record_attention.py [FOLDER]

Each case is a torch.nn.MultiheadAttention(8, 2), in float64: <case>.param.<name>; <case>.in.<query, key, value> and the
masks' .in.<key_padding_mask, attn_mask>; <case>.grad_out; <case>.out; <case>.grad.<input or parameter>. Where key or
value is missing, it is the query or the key.
"""
import os
import sys

import torch

from record import Source, save

B, H, L, S, E = 3, 2, 5, 7, 8


def record_case(out, source, case, options, widths, masks=None, causal=False):
    layer = torch.nn.MultiheadAttention(E, H, **options).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(source.normal(*p.shape, std=0.5))
    batch_first = options.get("batch_first", False)
    inputs = {}
    for name, width in widths.items():
        length = L if name == "query" else S
        inputs[name] = source.normal(*((B, length) if batch_first else (length, B)), width).requires_grad_()
    key = inputs.get("key", inputs["query"])
    masks = masks or {}
    given = dict(masks)
    if causal:  # PyTorch wants the mask beside its hint
        given = {"attn_mask": torch.ones(L, L, dtype=torch.bool).triu(1), "is_causal": True}
    y, _ = layer(inputs["query"], key, inputs.get("value", key), need_weights=False, **given)
    grad = source.normal(*y.shape)
    y.backward(grad)
    out |= {f"{case}.in.{name}": t for name, t in (inputs | masks).items()}
    out |= {f"{case}.param.{name}": p for name, p in layer.named_parameters()}
    out |= {f"{case}.out": y, f"{case}.grad_out": grad}
    leaves = [(name, t) for name, t in (inputs | masks).items() if t.requires_grad] + list(layer.named_parameters())
    out |= {f"{case}.grad.{name}": t.grad for name, t in leaves}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    out, source = {}, Source(11)
    padding = torch.arange(S)[None, :] >= torch.tensor([S, S - 3, 1])[:, None]  # true = padding
    pairs = source.ids(3, L, S) == 0
    pairs[:, 0] = False  # each query sees a key
    record_case(out, source, "self", {}, {"query": E})
    record_case(out, source, "causal", {"batch_first": True}, {"query": E}, causal=True)
    record_case(out, source, "padded", {"batch_first": True}, {"query": E, "key": E}, {"key_padding_mask": padding})
    record_case(out, source, "pairs", {"bias": False}, {"query": E, "key": E, "value": E}, {"attn_mask": pairs})
    record_case(out, source, "widths", {"kdim": 6, "vdim": 3, "batch_first": True}, {"query": E, "key": 6, "value": 3},
                {"key_padding_mask": padding, "attn_mask": pairs})
    record_case(out, source, "heads", {"kdim": 6}, {"query": E, "key": 6, "value": E},
                {"attn_mask": source.normal(B * H, L, S).requires_grad_()})
    record_case(out, source, "added", {}, {"query": E, "key": E},
                {"key_padding_mask": source.normal(B, S), "attn_mask": source.normal(L, S).requires_grad_()})
    save(os.path.join(folder, "multihead_attention.safetensors"), out)


if __name__ == "__main__":
    main()
