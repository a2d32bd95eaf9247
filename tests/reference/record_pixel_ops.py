#!/usr/bin/env python3
"""Writes convolutions.safetensors and pixel_ops.safetensors in the form of ops.safetensors (record.py).

    record_pixel_ops.py [FOLDER]
"""
import os
import sys

import torch
import torch.nn.functional as F

from record import Ops, save


def record_convolutions(folder, seed):
    ops = Ops(seed)
    r = ops.r

    def add(case, function, x, weight, bias=True, **options):
        inputs = {"x": r.normal(*x), "weight": r.normal(*weight)}
        if bias:
            transposed = function is F.conv_transpose2d
            inputs["bias"] = r.normal(weight[1] * options.get("groups", 1) if transposed else weight[0])
        ops.add(case, inputs, lambda x, weight, bias=None: function(x, weight, bias, **options))

    add("conv1d", F.conv1d, (2, 3, 11), (4, 3, 3), stride=2, padding=1)
    add("conv1d_same", F.conv1d, (2, 4, 9), (6, 2, 4), padding="same", dilation=2, groups=2)
    add("conv2d", F.conv2d, (2, 3, 7, 6), (4, 3, 3, 2))
    add("conv2d_stride", F.conv2d, (2, 3, 9, 11), (4, 3, 3, 3), bias=False, stride=(2, 3), padding=(1, 0))
    add("conv2d_same", F.conv2d, (1, 3, 6, 7), (5, 3, 2, 4), padding="same", dilation=(1, 2))
    add("conv2d_groups", F.conv2d, (2, 6, 6, 5), (9, 2, 3, 3), padding=1, dilation=(2, 1), groups=3)
    add("conv2d_depthwise", F.conv2d, (2, 5, 7, 7), (5, 1, 3, 3), stride=2, padding=1, groups=5)
    add("conv_transpose2d", F.conv_transpose2d, (2, 3, 4, 5), (3, 4, 3, 2))
    add("conv_transpose2d_stride", F.conv_transpose2d, (1, 4, 4, 3), (4, 3, 3, 3), bias=False, stride=2, padding=1,
        output_padding=1)
    add("conv_transpose2d_groups", F.conv_transpose2d, (2, 4, 3, 4), (4, 3, 2, 3), stride=(3, 2), padding=(0, 1),
        output_padding=(2, 0), groups=2, dilation=(1, 2))
    save(os.path.join(folder, "convolutions.safetensors"), ops.out)


def record_pixel_ops(folder, seed):
    ops = Ops(seed)
    x = ops.r.normal(2, 4, 6, 7)

    def add(case, function, *args, **options):
        ops.add(case, {"x": x}, lambda x: function(x, *args, **options))

    add("max_pool2d", F.max_pool2d, 3, stride=2, padding=1)
    add("max_pool2d_ceil", F.max_pool2d, (3, 2), stride=(2, 3), padding=(1, 0), ceil_mode=True)
    add("max_pool2d_dilated", F.max_pool2d, 2, stride=1, dilation=(2, 3))
    add("avg_pool2d", F.avg_pool2d, 2)
    add("avg_pool2d_ceil", F.avg_pool2d, 3, stride=2, padding=1, ceil_mode=True)
    add("avg_pool2d_inside", F.avg_pool2d, (3, 2), stride=2, padding=1, ceil_mode=True, count_include_pad=False)
    for tag, size in (("one", 1), ("whole", (3, 7)), ("odd", (4, 3)), ("more", (8, 9))):
        add(f"adaptive_avg_pool2d_{tag}", F.adaptive_avg_pool2d, size)
    for tag, size in (("up", (12, 17)), ("down", (4, 3))):
        add(f"interpolate_nearest_{tag}", F.interpolate, size=size)
        add(f"interpolate_bilinear_{tag}", F.interpolate, size=size, mode="bilinear", align_corners=False)
        add(f"interpolate_corners_{tag}", F.interpolate, size=size, mode="bilinear", align_corners=True)
        add(f"interpolate_bicubic_{tag}", F.interpolate, size=size, mode="bicubic", align_corners=False)
        add(f"interpolate_bicubic_corners_{tag}", F.interpolate, size=size, mode="bicubic", align_corners=True)
        for mode in ("bilinear", "bicubic"):
            for corners in (False, True):
                name = f"interpolate_{mode}_antialias{'_corners' if corners else ''}_{tag}"
                add(name, F.interpolate, size=size, mode=mode, align_corners=corners, antialias=True)
    add("pad_constant", F.pad, (1, 2, -1, 3), value=0.5)
    add("pad_reflect", F.pad, (2, 1, 0, 5), mode="reflect")
    add("pad_replicate", F.pad, (2, 9, 1, 0), mode="replicate")
    add("pixel_shuffle", F.pixel_shuffle, 2)
    edges = torch.tensor([0.0, 3.0, -3.0, 6.0, 7.0, -8.0], dtype=torch.float64)
    ops.add("relu6", {"x": edges}, lambda x: F.relu6(x))
    ops.add("hardswish", {"x": edges}, lambda x: F.hardswish(x))
    save(os.path.join(folder, "pixel_ops.safetensors"), ops.out)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    record_convolutions(folder, 7)
    record_pixel_ops(folder, 8)


if __name__ == "__main__":
    main()
