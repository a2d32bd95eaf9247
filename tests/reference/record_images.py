"""Writes images/: small PNG and JPEG files of every kind, and images.safetensors: what a reader must make of them.

    python3 record_images.py        # needs Pillow 13.0 and numpy

PNG files are written here, from numbers that are known; what Pillow reads is compared with them. What a JPEG file holds
is what Pillow (libjpeg-turbo) reads. Keys: FILE.stored (C, H, W), FILE.gray, FILE.rgb, FILE.rgba, all U8; FILE.mask (H, W),
I32, for files that a mask can be. Colours become gray and CMYK becomes RGB as in Pillow's convert().
"""
import io
import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 7, 13
FOLDER = pathlib.Path(__file__).parent / "images"
GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
# Adam7: first column, first row, steps.
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def png(values, color_type, bits, interlaced=False, palette=None, transparent=None):
    """values: (H, W, C) integers of `bits` bits."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    def rows(part):
        out = b""
        for row in part:
            flat = row.reshape(-1)
            if bits == 16:
                packed = flat.astype(">u2").tobytes()
            elif bits == 8:
                packed = flat.astype(np.uint8).tobytes()
            else:
                digits = np.unpackbits(flat.astype(np.uint8)[:, None], axis=1)[:, 8 - bits :]
                packed = np.packbits(digits.reshape(-1)).tobytes()
            out += b"\0" + packed
        return out

    height, width = values.shape[:2]
    if interlaced:
        parts = [values[y::dy, x::dx] for x, y, dx, dy in PASSES]
        data = b"".join(rows(part) for part in parts if part.size)
    else:
        data = rows(values)
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, interlaced))
    if palette is not None:
        out += chunk(b"PLTE", palette.astype(np.uint8).tobytes())
    if transparent is not None:
        out += chunk(b"tRNS", transparent)
    return out + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def conversions(stored):
    """stored: (H, W, C) u8 of 1 to 4 channels."""
    mode = ["L", "LA", "RGB", "RGBA"][stored.shape[2] - 1]
    image = Image.fromarray(stored[:, :, 0] if mode == "L" else stored, mode)
    if mode == "LA":  # Pillow's "L" of it is the gray channel
        image = Image.fromarray(stored)
    return {name: np.asarray(image.convert(to)).reshape(HEIGHT, WIDTH, -1) for name, to in (("gray", "L"), ("rgb", "RGB"), ("rgba", "RGBA"))}


def main():
    random = np.random.default_rng(7)
    tensors = {}
    FOLDER.mkdir(exist_ok=True)

    def draw(channels, bits):
        return random.integers(0, 1 << bits, (HEIGHT, WIDTH, channels))

    def add(name, data, stored, mask=None):
        (FOLDER / name).write_bytes(data)
        stored = stored.astype(np.uint8)
        tensors[name + ".stored"] = stored.transpose(2, 0, 1)
        for form, pixels in conversions(stored).items():
            tensors[f"{name}.{form}"] = pixels.transpose(2, 0, 1)
        if mask is not None:
            tensors[name + ".mask"] = mask[:, :, 0].astype(np.int32)

    for bits in (1, 2, 4, 8):
        gray = draw(1, bits)
        add(f"gray{bits}.png", png(gray, GRAY, bits), gray * 255 // ((1 << bits) - 1), gray)
    gray = draw(1, 16)
    add("gray16.png", png(gray, GRAY, 16), np.rint(gray / 257), gray)
    rgb = draw(3, 16)
    add("rgb16.png", png(rgb, RGB, 16, interlaced=True), np.rint(rgb / 257))
    for name, kind, channels in (("gray_alpha", GRAY_ALPHA, 2), ("rgb", RGB, 3), ("rgba", RGBA, 4)):
        pixels = draw(channels, 8)
        add(f"{name}.png", png(pixels, kind, 8), pixels)
        pixels = draw(channels, 8)
        add(f"{name}_interlaced.png", png(pixels, kind, 8, interlaced=True), pixels)
    for bits in (1, 4, 8):
        colors = random.integers(0, 256, (1 << bits, 3))
        index = draw(1, bits)
        add(f"palette{bits}.png", png(index, PALETTE, bits, interlaced=bits == 4, palette=colors), colors[index[:, :, 0]], index)
    opacity = random.integers(0, 256, (5,))
    full = np.concatenate([opacity, np.full(251, 255)])
    index = random.integers(0, 9, (HEIGHT, WIDTH, 1))
    add("palette_transparent.png", png(index, PALETTE, 8, palette=colors, transparent=opacity.astype(np.uint8).tobytes()),
        np.concatenate([colors, full[:, None]], axis=1)[index[:, :, 0]], index)
    gray = random.integers(0, 4, (HEIGHT, WIDTH, 1))
    key = np.where(gray == 2, 0, 255)
    add("gray_transparent.png", png(gray, GRAY, 8, transparent=struct.pack(">H", 2)), np.concatenate([gray, key], axis=2))

    # Smooth, so that JPEG has something to keep.
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    smooth = np.stack([x * 18, y * 35, 255 - x * 9 - y * 12, (x + y) * 12], axis=2).astype(np.uint8)

    def jpeg(name, image, **options):
        out = io.BytesIO()
        image.save(out, "JPEG", quality=90, **options)
        read = Image.open(io.BytesIO(out.getvalue()))
        add(name, out.getvalue(), np.asarray(read if read.mode == "L" else read.convert("RGB")).reshape(HEIGHT, WIDTH, -1))

    jpeg("gray.jpg", Image.fromarray(smooth[:, :, 0]))
    jpeg("rgb420.jpg", Image.fromarray(smooth[:, :, :3]))
    jpeg("rgb444_progressive.jpg", Image.fromarray(smooth[:, :, :3]), subsampling=0, progressive=True)
    jpeg("cmyk.jpg", Image.fromarray(smooth, "CMYK"))

    for name in {key.rsplit(".", 1)[0] for key in tensors if ".png" in key}:  # Pillow reads what was meant
        if "16" not in name:
            read = Image.open(FOLDER / name).convert("RGBA")
            if name != "gray_transparent.png":
                assert (np.asarray(read).transpose(2, 0, 1) == tensors[name + ".rgba"]).all(), name

    header, data = {}, b""
    for name, value in sorted(tensors.items(), key=lambda item: (item[1].dtype != np.int32, item[0])):  # aligned
        value = np.ascontiguousarray(value)
        header[name] = {"dtype": "I32" if value.dtype == np.int32 else "U8", "shape": list(value.shape),
                        "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (FOLDER / "images.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


main()
