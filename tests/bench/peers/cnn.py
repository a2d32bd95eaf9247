#!/usr/bin/env python3
"""A training step of bench_cnn's networks (forward, loss, backward, optimizer) in PyTorch, eager or compiled. Speaks the
serve protocol of README.md.

    cnn.py --model resnet50 --mode compiled --layout last --batch 4 --height 224 --width 224
"""
import argparse
import json
import resource
import statistics
import sys
import time

MODELS = ("pp_liteseg", "regseg", "segformer", "stdc", "ddrnet", "resnet50")


class Trainer:
    def __init__(self, a):
        import torch

        import cnn_models

        if a.model == "resnet50":
            import torchvision  # noqa: F401: counts as a library, not as the model
        if a.model == "segformer":
            from transformers import SegformerForSemanticSegmentation  # noqa: F401

        with open("/proc/self/statm") as f:
            self.base_mib = int(f.read().split()[1]) * 4096 / 2**20
        self.torch = torch
        torch.set_num_threads(a.threads)
        torch.manual_seed(1)
        layout = torch.channels_last if a.layout == "last" else torch.contiguous_format
        self.device = torch.device(a.device)
        model = cnn_models.MODELS[a.model]().to(self.device, memory_format=layout).train()
        self.parameters = sum(p.numel() for p in model.parameters())
        self.images = torch.randn(a.batch, 3, a.height, a.width).to(self.device, memory_format=layout)
        if a.model == "resnet50":
            self.targets = torch.randint(0, 1000, (a.batch,)).to(self.device)
        else:
            self.targets = torch.randint(0, cnn_models.CLASSES, (a.batch, a.height, a.width)).to(self.device)
        if a.model == "segformer":
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5, weight_decay=0.01, fused=True)
        else:
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True)
        self.average = None
        if a.ema:
            from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

            self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
            self.model = model
        self.loss = torch.compile(model.loss) if a.mode == "compiled" else model.loss
        self.lower = a.dtype == "bf16"
        start = time.perf_counter()
        self.step()
        self.first_ms = 1e3 * (time.perf_counter() - start)
        for _ in range(a.warmup):
            self.step()

    def step(self):
        times = [time.perf_counter()]
        with self.torch.autocast(self.device.type, self.torch.bfloat16, enabled=self.lower):
            loss = self.loss(self.images, self.targets)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.optimizer.zero_grad()
        times.append(time.perf_counter())
        self.last = loss.detach()
        return [1e3 * (b - a) for a, b in zip(times, times[1:])]

    def wait(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def run(self, steps):
        self.wait()
        start = time.perf_counter()
        phases = [self.step() for _ in range(steps)]
        all_ms = [sum(p) for p in phases]
        self.wait()
        if self.device.type == "cuda" and steps:
            all_ms = [1e3 * (time.perf_counter() - start) / steps]
        middle = [statistics.median(p[i] for p in phases) if phases else 0 for i in range(3)]
        answer = {"peer": "pytorch", "step_ms_all": all_ms, "step_ms_median": statistics.median(all_ms) if all_ms else 0,
                  "forward_ms": middle[0], "backward_ms": middle[1], "optimizer_ms": middle[2],
                  "first_ms": self.first_ms, "parameters": self.parameters, "loss": self.last.item(),
                  "base_rss_mib": self.base_mib, "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        if self.device.type == "cuda":
            answer["peak_device_mib"] = self.torch.cuda.max_memory_allocated() / 2**20
        return answer


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=MODELS, required=True)
    p.add_argument("--mode", choices=["eager", "compiled"], default="eager")
    p.add_argument("--layout", choices=["usual", "last"], default="usual")
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    p.add_argument("--device", default="cpu")
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--height", type=int, required=True)
    p.add_argument("--width", type=int, required=True)
    p.add_argument("--ema", action="store_true")
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--serve", action="store_true", help="the usual form; without it 5 steps")
    return p.parse_args()


def main():
    a = parse_args()
    trainer = None
    for line in sys.stdin if a.serve else ["5"]:
        if trainer is None:
            trainer = Trainer(a)
        print(json.dumps(trainer.run(int(line))), flush=True)


if __name__ == "__main__":
    main()
