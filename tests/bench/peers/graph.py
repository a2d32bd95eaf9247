#!/usr/bin/env python3
"""The graph network of bench_index in PyTorch, eager or compiled, with index_add or scatter_add. Speaks the serve protocol
of README.md."""
import argparse
import json
import statistics
import sys
import time


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mode", choices=["eager", "compiled"], default="eager")
    p.add_argument("--sum", choices=["index_add", "scatter_add"], default="index_add")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    import torch

    torch.set_num_threads(a.threads)
    nodes, edges, features = 100_000, 1_000_000, 64
    source, target = torch.randint(nodes, (edges,)), torch.randint(nodes, (edges,))
    weight, x, y = torch.rand(edges, 1), torch.randn(nodes, features), torch.randn(nodes, features)
    parameters = [(torch.randn(features, features) * 0.1).requires_grad_() for _ in range(4)]

    def layer(h, neighbours, own):
        messages = h[source] * weight
        zeros = torch.zeros(nodes, features)
        if a.sum == "index_add":
            sums = zeros.index_add(0, target, messages)
        else:
            sums = zeros.scatter_add(0, target[:, None].expand(-1, features), messages)
        return torch.relu(sums @ neighbours + h @ own)

    def loss_of():
        return torch.nn.functional.mse_loss(layer(layer(x, *parameters[:2]), *parameters[2:]), y)

    if a.mode == "compiled":
        loss_of = torch.compile(loss_of)

    def step():
        for q in parameters:
            q.grad = None
        loss_of().backward()
        with torch.no_grad():
            for q in parameters:
                q -= q.grad * 0.01

    warm = False
    for line in sys.stdin:
        if not warm:
            step()
            step()
            warm = True
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps({"peer": "pytorch", "mode": a.mode, "step_ms_all": times, "compile_ms": 0.0,
                          "step_ms_median": statistics.median(times) if times else 0.0}), flush=True)


if __name__ == "__main__":
    main()
