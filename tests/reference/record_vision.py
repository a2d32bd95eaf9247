#!/usr/bin/env python3
"""Records what torchvision's ResNets and transformers' SegFormer compute.

    record_vision.py [folder]      writes vision.safetensors and resnets/ (default: beside this file)

Needs torch, torchvision (0.29.2 here), transformers and safetensors.

vision.safetensors: the published models at their full size. Their weights are too many to keep, so they are a formula,
`value` below: tests/modules/vision_test.cc has it, too. For each model, in float64 (and in float32: names that end in
_f32): `<model>.logits` in evaluation mode, `<model>.losses`, those before each of ten (ResNet-50: three) SGD steps in
training mode (momentum 0.9, lr in RATES) on one batch, and `<model>.stats.<name>`, running statistics after these.

resnets/: two small networks that torchvision's own code builds, saved by safetensors, and their output.
"""
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torchvision as tv  # noqa: E402
import transformers as tr  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from record import save  # noqa: E402

torch.set_num_threads(1)
B, SIZE = 2, 64


def uniform(name, n):
    """n numbers in [-1, 1): FNV-1a of the name starts a SplitMix64, of which the upper 24 bits count."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0


def value(name, shape):
    """A parameter or buffer of a model, as float32 numbers."""
    u = uniform(name, int(np.prod(shape)))
    if len(shape) >= 2:
        v = u * np.sqrt(3.0 / np.prod(shape[1:]))
    elif name.endswith("running_var") or name.endswith("weight"):
        v = 1.0 + 0.25 * u  # the product is exact: fused or not, the sum is the same
    else:
        v = 0.125 * u
    return torch.from_numpy(v.astype(np.float32).reshape(shape))


def fill(model, rename=lambda name: name):
    state = {}
    for name, tensor in model.state_dict().items():
        state[name] = value(rename(name), tuple(tensor.shape)) if tensor.is_floating_point() else tensor
    model.load_state_dict(state)


def images():
    return torch.from_numpy(uniform("images", B * 3 * SIZE * SIZE).reshape(B, 3, SIZE, SIZE))


def masks(n):
    """Classes of squares of 8 pixels; those of the last square do not count."""
    squares = torch.from_numpy((uniform("masks", B * 64) * 0.5 + 0.5) * n).long().reshape(B, 8, 8)
    squares[-1, -1, -1] = 255
    return squares.repeat_interleave(8, 1).repeat_interleave(8, 2)


def published(name):
    """transformers' name in memory -> the name in published files."""
    for stage in range(4):
        name = name.replace(f"stages.{stage}.patch_embeddings.", f"encoder.patch_embeddings.{stage}.")
        name = name.replace(f"stages.{stage}.blocks.", f"encoder.block.{stage}.")
        name = name.replace(f"stages.{stage}.layer_norm.", f"encoder.layer_norm.{stage}.")
    for new, old in (("layernorm_before.", "layer_norm_1."), ("layernorm_after.", "layer_norm_2."),
                     ("attention.q_proj.", "attention.self.query."), ("attention.k_proj.", "attention.self.key."),
                     ("attention.v_proj.", "attention.self.value."), ("attention.o_proj.", "attention.output.dense."),
                     ("attention.sequence_reduction.sequence_reduction.", "attention.self.sr."),
                     ("attention.sequence_reduction.layer_norm.", "attention.self.layer_norm."),
                     ("mlp.fc1.", "mlp.dense1."), ("mlp.fc2.", "mlp.dense2."),
                     ("linear_projections.", "linear_c.")):
        name = name.replace(new, old)
    return name


def segformer():
    config = tr.SegformerConfig(num_labels=19, drop_path_rate=0.0, classifier_dropout_prob=0.0)
    return tr.SegformerForSemanticSegmentation._from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def resnet_loss(model, x):
    return torch.nn.functional.cross_entropy(model(x), torch.tensor([3, 7])[:B])


# So small that float32 follows float64 here: two images give a deep network's last norms 8 values each. On some processors
# ResNet-18 does not, so the test compares it at the same parameters (tests/modules/vision_test.cc). The float32 gradients
# of ResNet-50 do not at any rate (torch's own losses differ by 1% after ten steps): only its first loss is recorded.
RATES = {"resnet18": 1e-4, "resnet50": 1e-5, "segformer_b0": 1e-3}
STEPS = {"resnet50": 3, "resnet50_f32": 1}  # all others: 10
MODELS = {
    "resnet18": (tv.models.resnet18, lambda m, x: m(x), resnet_loss,
                 ("bn1", "layer2.0.downsample.1", "layer4.1.bn2")),
    "resnet50": (tv.models.resnet50, lambda m, x: m(x), resnet_loss,
                 ("bn1", "layer2.0.downsample.1", "layer4.2.bn3")),
    "segformer_b0": (segformer, lambda m, x: m(pixel_values=x).logits,
                     lambda m, x: m(pixel_values=x, labels=masks(19)).loss, ("decode_head.batch_norm",)),
}


def record(name):
    make, logits_of, loss_of, stats = MODELS[name]
    out = {}
    for dtype, end in ((torch.float64, ""), (torch.float32, "_f32")):
        model = make()
        fill(model, published)
        model = model.to(dtype)
        x = images().to(dtype)
        with torch.no_grad():
            out[f"{name}.logits{end}"] = logits_of(model.eval(), x)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATES[name], momentum=0.9)
        losses = []
        for _ in range(STEPS.get(name + end, 10)):
            loss = loss_of(model, x)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        out[f"{name}.losses{end}"] = torch.tensor(losses, dtype=torch.float64)
        if dtype == torch.float64:
            for part in stats:
                for kind in ("running_mean", "running_var"):
                    out[f"{name}.stats.{part}.{kind}"] = model.state_dict()[f"{part}.{kind}"]
        print(name, end, losses[0], losses[-1])
    return out


def small_resnet(block, width, layers, classes, **more):
    """torchvision's ResNet with narrower stages, made by its own _make_layer."""
    m = tv.models.ResNet(block, [1, 1, 1, 1], num_classes=classes, **more)
    m.inplanes = width
    m.conv1 = torch.nn.Conv2d(3, width, 7, 2, 3, bias=False)
    m.bn1 = torch.nn.BatchNorm2d(width)
    for i in range(4):
        layer = m._make_layer(block, width << i, layers[i], stride=1 if i == 0 else 2)
        setattr(m, f"layer{i + 1}", layer)
    m.fc = torch.nn.Linear((width << 3) * block.expansion, classes)
    return m


def record_small(folder):
    os.makedirs(folder, exist_ok=True)
    basic, bottleneck = tv.models.resnet.BasicBlock, tv.models.resnet.Bottleneck
    for name, model in (("basic", small_resnet(basic, 4, [2, 1, 1, 1], 5)),
                        ("grouped", small_resnet(bottleneck, 4, [1, 2, 1, 1], 3, groups=2, width_per_group=32))):
        fill(model)
        model.eval()
        path = os.path.join(folder, name + ".safetensors")
        save_file(model.state_dict(), path)
        os.chmod(path, 0o644)
        x = images()
        with torch.no_grad():
            save(os.path.join(folder, name + "_expected.safetensors"),
                 {"output": model.double()(x), "output_f32": model.float()(x.float())})


if __name__ == "__main__":
    here = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    values = {}
    for model_name in MODELS:
        values.update(record(model_name))
    save(os.path.join(here, "vision.safetensors"), values)
    record_small(os.path.join(here, "resnets"))
