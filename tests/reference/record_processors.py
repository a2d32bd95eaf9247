#!/usr/bin/env python3
"""Writes processors/: 200 random preprocessor_config.json, and what transformers makes of pictures with them.

    record_processors.py            # needs transformers 5.24.0 without torchvision, Pillow 13.0.0 and numpy
    record_processors.py --check FOLDER   # FOLDER/N/preprocessor_config.json is setting N as Rondo saved it

settings.jsonl has a line for each setting: "file", the text of preprocessor_config.json; "model_type", that of a
config.json beside it, or null; "picture", height, width and channels; "shape", that of the result; "step". Picture N is
pixel_bytes(N, ...). values.safetensors: N, every step-th element of the result, f32; N.mask, the same of a Segformer's
mask, i64, whose classes are pixel_bytes(N + 1000, height, width, 1).
"""
import json
import os
import random
import sys
import tempfile

import numpy as np
import torch
import transformers
from transformers import AutoImageProcessor

from record import save

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "processors")
SETTINGS, MOST_VALUES = 200, 240
CLASSES = {"ViT": "vit", "DeiT": "deit", "Segformer": "segformer", "ConvNext": "convnext", "Bit": "bit", "CLIP": "clip"}


def pixel_bytes(seed, height, width, channels):
    """Knuth's and Lewis's generator of 32 bits; its highest 8 are a byte. Every third picture has few values."""
    state, out = seed, []
    for _ in range(height * width * channels):
        state = (1664525 * state + 1013904223) % 2**32
        byte = state >> 24
        out.append(byte // 128 * 255 if seed % 3 == 0 else byte)
    return np.array(out, dtype=np.uint8).reshape(height, width, channels)


def random_size(r, kind):
    edge = lambda: r.choice([r.randint(1, 12), r.randint(8, 48)])
    if kind == "ConvNext":
        short = r.choice([edge(), edge(), 384, 400])
        return r.choice([short, {"shortest_edge": short}])
    form = r.randrange(5)
    if form == 0:
        return edge()
    if form == 1:
        return [edge(), edge()]
    if form == 2:
        return {"shortest_edge": edge()}
    if form == 3:
        return {"shortest_edge": edge(), "longest_edge": edge()}
    return {"height": edge(), "width": edge()}


def random_setting(r):
    kind = r.choice(list(CLASSES))
    c, model_type = {}, None
    form = r.randrange(6)
    if form == 0:
        model_type = CLASSES[kind]
    elif form == 1:
        c["feature_extractor_type"] = kind + "FeatureExtractor"
    else:
        c["image_processor_type"] = kind + r.choice(["ImageProcessor", "ImageProcessor", "ImageProcessorFast"])
    maybe = lambda name, value: c.update({name: value}) if r.random() < 0.6 else None
    c["size"] = random_size(r, kind)
    maybe("do_resize", r.random() < 0.9)
    maybe("resample", r.choice([0, 2, 3, 3]))
    if r.random() < 0.4 or kind in ("DeiT", "Bit", "CLIP"):
        c["do_center_crop"] = r.random() < 0.8
        edge = lambda: r.randint(1, 40)
        c["crop_size"] = r.choice([edge(), [edge(), edge()], {"height": edge(), "width": edge()}])
    maybe("crop_pct", r.choice([0.875, 0.5, 1.0, 0.95]))
    maybe("do_rescale", r.random() < 0.85)
    maybe("rescale_factor", r.choice([1 / 255, 0.00392156862745098, 1 / 127.5, 0.01]))
    maybe("do_normalize", r.random() < 0.85)
    maybe("image_mean", r.choice([[0.485, 0.456, 0.406], [0, 0.25, 1], 0.5]))
    maybe("image_std", r.choice([[0.229, 0.224, 0.225], [1, 2, 0.3], 0.25]))
    maybe("do_convert_rgb", r.random() < 0.7)
    if kind == "Segformer":
        maybe("do_reduce_labels", r.random() < 0.5)
    return kind, c, model_type


def load(folder, text, model_type):
    with open(os.path.join(folder, "preprocessor_config.json"), "w") as f:
        f.write(text)
    if model_type:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({"model_type": model_type}, f)
    return AutoImageProcessor.from_pretrained(folder, backend="pil")


def run(processor, n, picture):
    """The result (1, 3, h, w) f32 and the mask, or None."""
    height, width, _ = picture
    pixels = pixel_bytes(n, *picture)
    args = {}
    if type(processor).__name__.startswith("Segformer"):
        args["segmentation_maps"] = [pixel_bytes(n + 1000, height, width, 1)[:, :, 0]]
    out = processor([pixels], input_data_format="channels_last", return_tensors="np", **args)
    return out["pixel_values"].astype(np.float32), out["labels"] if args else None


def record():
    r = random.Random(5)
    lines, values = [], {}
    while len(lines) < SETTINGS:
        kind, c, model_type = random_setting(r)
        rgb = c.get("do_convert_rgb", kind in ("Bit", "CLIP"))
        picture = [r.choice([r.randint(1, 8), r.randint(6, 60)]) for _ in range(2)] + [r.choice([3, 3, 1, 4]) if rgb else 3]
        n, text = len(lines), json.dumps(c)
        with tempfile.TemporaryDirectory() as folder:
            try:
                processor = load(folder, text, model_type)
                assert type(processor).__name__ == kind + "ImageProcessorPil", type(processor)
                out, mask = run(processor, n, picture)
            except ValueError as error:  # such as an edge of 0 pixels
                print(f"not recorded: {error}; {text}")
                continue
        step = out.size // MOST_VALUES + 1
        lines.append(json.dumps({"file": text, "model_type": model_type, "picture": picture, "shape": out.shape, "step": step}))
        values[str(n)] = torch.from_numpy(out.reshape(-1)[::step].copy())
        if mask is not None:
            values[f"{n}.mask"] = torch.from_numpy(mask.reshape(-1)[:: mask.size // MOST_VALUES + 1].copy())
    with open(os.path.join(FOLDER, "settings.jsonl"), "w") as f:
        f.write("\n".join(lines) + "\n")
    save(os.path.join(FOLDER, "values.safetensors"), values)


def check(folder):
    """Both readers make the same of what Rondo saved as of the original."""
    with open(os.path.join(FOLDER, "settings.jsonl")) as f:
        lines = [json.loads(line) for line in f]
    for n, line in enumerate(lines):
        with tempfile.TemporaryDirectory() as scratch:
            first = load(scratch, line["file"], line["model_type"])
        second = AutoImageProcessor.from_pretrained(os.path.join(folder, str(n)), backend="pil")
        assert type(first) is type(second), n
        for a, b in zip(run(first, n, line["picture"]), run(second, n, line["picture"])):
            assert (a is None and b is None) or np.array_equal(a, b), (n, line)
    print(f"{len(lines)} settings: transformers reads what was saved as it reads the original")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    os.makedirs(FOLDER, exist_ok=True)
    if sys.argv[1:2] == ["--check"]:
        check(sys.argv[2])
    else:
        record()
