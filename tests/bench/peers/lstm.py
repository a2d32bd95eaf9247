#!/usr/bin/env python3
"""The step of bench_lstm in PyTorch: an embedding, nn.LSTM with batch_first, a linear head, cross entropy; forward and
backward. Speaks the serve protocol of README.md."""
import argparse
import json
import statistics
import sys
import time


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--T", type=int, default=128)
    p.add_argument("--B", type=int, default=32)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--vocabulary", type=int, default=65)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    import torch

    torch.set_num_threads(a.threads)

    class LanguageModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(a.vocabulary, a.width)
            self.lstm = torch.nn.LSTM(a.width, a.width, a.layers, batch_first=True)
            self.head = torch.nn.Linear(a.width, a.vocabulary)

        def forward(self, tokens, targets):
            logits = self.head(self.lstm(self.embedding(tokens))[0])
            return torch.nn.functional.cross_entropy(logits.reshape(-1, a.vocabulary), targets.reshape(-1))

    model = LanguageModel()
    run = torch.compile(model) if a.compile else model
    tokens, targets = (torch.randint(0, a.vocabulary, (a.B, a.T)) for _ in range(2))

    def step():
        model.zero_grad(set_to_none=True)
        run(tokens, targets).backward()

    warm = False
    compile_ms = 0.0
    for line in sys.stdin:
        if not warm:
            start = time.perf_counter()
            step()
            compile_ms = 1e3 * (time.perf_counter() - start)
            step()
            warm = True
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps({"peer": "pytorch", "mode": "compiled" if a.compile else "eager", "step_ms_all": times,
                          "compile_ms": compile_ms, "step_ms_median": statistics.median(times) if times else 0.0}),
              flush=True)


if __name__ == "__main__":
    main()
