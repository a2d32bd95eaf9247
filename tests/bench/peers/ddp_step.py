#!/usr/bin/env python3
"""A training step of gpt_step.py under PyTorch's DistributedDataParallel over Gloo: the peer of `bench_ddp`. Takes the
options of gpt_step.py. Rank 0 prints one line of JSON.

    python -m torch.distributed.run --nproc-per-node 2 ddp_step.py --n_layer 6 --n_head 6 --n_embd 384 --threads 1
"""
import json
import os
import statistics
import time

import gpt_step  # sets the number of threads, from the options, before torch is imported
import torch
import torch.distributed as dist


def main():
    a = gpt_step.ARGS
    torch.set_num_threads(a.threads)
    dist.init_process_group("gloo")
    trainer = gpt_step.Trainer(a)
    # One bucket for each 25 MB, the gradients as views of them: the faster setting.
    trainer.forward = torch.nn.parallel.DistributedDataParallel(trainer.forward, gradient_as_bucket_view=True)
    trainer.warm_up()
    dist.barrier()
    walls, cpus = [], []
    for _ in range(a.steps):
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    figures = torch.tensor([statistics.median(walls), statistics.median(cpus)], dtype=torch.float64)
    every = [torch.empty_like(figures) for _ in range(dist.get_world_size())]
    dist.all_gather(every, figures)
    if dist.get_rank() == 0:
        print(json.dumps({"peer": "pytorch", "ranks": len(every), "step_ms": 1e3 * max(e[0].item() for e in every),
                          "cpu_ms_of_all_ranks": 1e3 * sum(e[1].item() for e in every)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
