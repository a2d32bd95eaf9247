#!/usr/bin/env python3
"""Records what transformers computes for several sequences packed in a row, told apart by their position_ids alone.

    record_packed.py       (needs torch and transformers 5.23.0, and the checkpoints of record_pretrained.py)

Writes tests/reference/packed.safetensors: `ids`, `positions`, `targets` I64 [2,24]; for each case `<case>.logits`
[2,24,61] and `<case>.loss`, the mean over the targets that are not -100, in float64.
"""
import os

import torch
import torch.nn.functional as F

from record import save
from record_pretrained import CASES, VOCAB, load

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTHS = [[7, 1, 12, 4], [10, 14]]


def main():
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, VOCAB, (2, 24), generator=generator)
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in LENGTHS])
    targets = torch.randint(5, VOCAB, (2, 24), generator=generator)
    targets[0, 3:9] = -100
    out = {"ids": ids, "positions": positions, "targets": targets}
    for name in ("gpt2", "llama2", "llama3", "llama_bias", "qwen2", "qwen3", "mistral"):
        model = load(CASES[name][0], os.path.join(HERE, "pretrained", name), torch.float64)
        with torch.no_grad():
            logits = torch.cat([model(input_ids=ids[i:i + 1], position_ids=positions[i:i + 1], use_cache=False).logits
                                for i in range(2)])
            # It is what each sequence gives alone.
            for i, row in enumerate(LENGTHS):
                begin = 0
                for n in row:
                    alone = model(input_ids=ids[i:i + 1, begin:begin + n]).logits
                    assert torch.allclose(logits[i:i + 1, begin:begin + n], alone, rtol=1e-9, atol=1e-9), name
                    begin += n
        out[name + ".logits"] = logits
        out[name + ".loss"] = F.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
    save(os.path.join(HERE, "packed.safetensors"), out)


if __name__ == "__main__":
    main()
