#!/usr/bin/env python3
"""Rondo's tokenizers beside `tokenizers` and `tiktoken`: prints the number of texts whose result differs, then speed.

    compare_tokenizers.py --rondo-bin build/release/bin/bench_tokenizer --data DATA [--speed] [--fuzz 10000]

DATA holds tinyshakespeare.txt, gpt2-encoder.json, gpt2-vocab.bpe and noto-emoji-32.tar; what is missing is said and left
out. Ids, offsets, word numbers and decoded texts are compared. Fuzzed strings are over the code points that are assigned
in Unicode 14; a second run over all others lists those that differ.
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import unicodedata

import tokenizers

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
RECORDED = REPOSITORY / "tests" / "reference" / "tokenizers"


def frames(texts):
    return b"".join(struct.pack("<I", len(t)) + t for t in (text.encode() for text in texts))


def rondo(binary, tokenizer, texts, *flags):
    """A list of (rows of (id, begin, end, word), decoded text), or None for an error."""
    done = subprocess.run([binary, str(tokenizer), *flags], input=frames(texts), stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"bench_tokenizer {tokenizer} failed")
    out, at = [], 0
    while at < len(done.stdout):
        (n,) = struct.unpack_from("<i", done.stdout, at)
        rows = list(struct.iter_unpack("<4i", done.stdout[at + 4 : at + 4 + 16 * n]))
        at += 4 + 16 * n
        (length,) = struct.unpack_from("<i", done.stdout, at)
        out.append((rows, done.stdout[at + 4 : at + 4 + length].decode()))
        at += 4 + length
    return out


def expected(reference, encoding):
    rows = [
        (i, *o, -1 if w is None else w) for i, o, w in zip(encoding.ids, encoding.offsets, encoding.word_ids, strict=True)
    ]
    return rows, reference.decode(encoding.ids, skip_special_tokens=False)


def compare(name, binary, path, reference, corpora):
    total = 0
    for corpus, texts in corpora.items():
        ours = rondo(binary, path, texts)
        wanted = [expected(reference, reference.encode(text)) for text in texts]
        wrong = [i for i, (a, b) in enumerate(zip(ours, wanted, strict=True)) if a != b]
        total += len(wrong)
        print(f"{name:24} {corpus:20} {len(texts):6} texts {sum(map(len, texts)):9} characters: {len(wrong)} differ", flush=True)
        for i in wrong[:3]:
            print("   text     ", ascii(texts[i])[:400])
            for part, a, b in zip(("tokens", "decoded"), ours[i], wanted[i]):
                if a != b:
                    at = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                    lo = max(at - 2, 0)
                    print(f"   {part} at {at}: rondo {ascii(a[lo:at+6])}, reference {ascii(b[lo:at+6])}")
    return total


def fuzz(count, points, seed):
    """Strings that mix points from everywhere, from one block, marks, spaces and what patterns look for."""
    rng = random.Random(seed)
    marks = [c for c in points if unicodedata.category(c)[0] == "M"] or points
    hot = list(" \t\n\r'!.,#") + ["'s", "'LL", "n't", "  ", "\r\n", "\u00a0", "\u3000", "\u2028", "\u200d", "\u017f", "\u0130", "\u1e9e"]
    out = []
    for _ in range(count):
        block = rng.randrange(len(points))
        text = ""
        for _ in range(rng.randrange(1, 40)):
            kind = rng.random()
            if kind < 0.25:
                text += rng.choice(points)
            elif kind < 0.45:
                text += points[(block + rng.randrange(64)) % len(points)]
            elif kind < 0.55:
                text += rng.choice(marks)
            elif kind < 0.75:
                text += rng.choice(hot)
            else:
                text += chr(rng.randrange(0x20, 0x7F))
        out.append(text)
    return out


def later_points(binary, path, reference, points):
    """Unassigned points whose result differs, each in a text of its own."""
    texts = [f"a{p} {p}b{p}" for p in points]
    ours = rondo(binary, path, texts)
    return [p for p, text, mine in zip(points, texts, ours) if mine != expected(reference, reference.encode(text))]


def ranges(points):
    out = []
    for p in map(ord, points):
        if out and out[-1][1] == p - 1:
            out[-1][1] = p
        else:
            out.append([p, p])
    return " ".join(f"{a:X}" if a == b else f"{a:X}-{b:X}" for a, b in out)


def gpt2(data):
    """GPT-2's real vocabulary in the reference."""
    vocab, merges = data / "gpt2-encoder.json", data / "gpt2-vocab.bpe"
    t = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab), str(merges)))
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    t.add_special_tokens([tokenizers.AddedToken("<|endoftext|>", special=True, normalized=False)])
    return f"{vocab},{merges}", t


def gpt2_tiktoken(data):
    import tiktoken

    base = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    spelling = {chr(b): b for b in printable}
    spelling |= {chr(0x100 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)}
    assert set(base) == set(spelling)
    ranks = {
        bytes(spelling[c] for c in token): rank
        for token, rank in json.loads((data / "gpt2-encoder.json").read_text()).items()
        if token != "<|endoftext|>"
    }
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


def corpora(data, fuzzed, seed):
    out = {}
    shakespeare = data / "tinyshakespeare.txt"
    if shakespeare.is_file():
        text = shakespeare.read_text()
        out["tiny Shakespeare"] = [text] + text.split("\n\n")
    else:
        print(f"no {shakespeare}")
    emoji = data / "noto-emoji-32.tar"
    if emoji.is_file():
        with tarfile.open(emoji) as tar:
            names = [n for n in tar.getnames() if n.endswith("captions.tsv")]
            out["emoji captions"] = tar.extractfile(names[0]).read().decode().splitlines()
    else:
        print(f"no {emoji}")
    listed = subprocess.run(["git", "ls-files", "*.cc", "*.h", "*.py", "*.md", "*.sh"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    out["source code"] = [(REPOSITORY / f).read_text() for f in listed.stdout.split()]
    assigned = [chr(p) for p in range(0x110000) if unicodedata.category(chr(p)) not in ("Cn", "Cs", "Co")]
    out["fuzzed"] = fuzz(fuzzed, assigned, seed)
    return out


def speed(binary, cases, text, rounds):
    """Tiny Shakespeare as one text, and as its paragraphs; in turns, the best of the rounds."""
    for name, path, reference, encoders in cases:
        for shape, texts in (("one text", [text]), ("paragraphs", text.split("\n\n"))):
            size = sum(len(t.encode()) for t in texts) / 1e6
            best = {}
            payload = frames(texts)
            for _ in range(rounds):
                run = subprocess.run([binary, str(path), "--time", "3"], input=payload, stdout=subprocess.PIPE, text=False, check=True)
                times = {"rondo": min(float(line.split()[0]) for line in run.stdout.decode().splitlines())}
                for label, encode in encoders.items():
                    taken = []
                    for _ in range(3):
                        start = time.perf_counter()
                        for t in texts:
                            encode(t)
                        taken.append(time.perf_counter() - start)
                    times[label] = min(taken)
                for label, seconds in times.items():
                    best[label] = min(best.get(label, 1e9), seconds)
            figures = ", ".join(f"{label} {size / s:.1f} MB/s" for label, s in best.items())
            print(f"{name:12} {shape:11} {figures}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rondo-bin", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--fuzz", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"tokenizers {tokenizers.__version__}, Unicode {unicodedata.unidata_version}")
    cases = [(path.stem, path, tokenizers.Tokenizer.from_file(str(path))) for path in sorted(RECORDED.glob("*.json"))]
    has_gpt2 = (options.data / "gpt2-encoder.json").is_file()
    if has_gpt2:
        cases.append(("GPT-2", *gpt2(options.data)))
    if options.speed:
        text = (options.data / "tinyshakespeare.txt").read_text()
        timed = []
        for name, path, reference in cases:
            encoders = {"tokenizers": reference.encode, "tokenizers fast": lambda t, r=reference: r.encode_batch_fast([t])}
            if name == "GPT-2":
                encoders["tiktoken"] = gpt2_tiktoken(options.data).encode_ordinary
            timed.append((name, path, reference, encoders))
        return speed(options.rondo_bin, timed, text, options.rounds)
    texts = corpora(options.data, options.fuzz, options.seed)
    total = sum(compare(name, options.rondo_bin, path, reference, texts) for name, path, reference in cases)
    if has_gpt2:
        tik = gpt2_tiktoken(options.data)
        path, _ = gpt2(options.data)
        for corpus, some in texts.items():
            ours = rondo(options.rondo_bin, path, some, "--split_special")
            wrong = [t for t, (rows, _) in zip(some, ours, strict=True) if [r[0] for r in rows] != tik.encode_ordinary(t)]
            total += len(wrong)
            print(f"{'GPT-2 beside tiktoken':24} {corpus:20} {len(some):6} texts: {len(wrong)} differ", *map(ascii, wrong[:3]))
    print(f"{total} texts differ")
    later = [chr(p) for p in range(0x110000) if unicodedata.category(chr(p)) == "Cn"]
    for name, path, reference in cases:
        found = later_points(options.rondo_bin, path, reference, later)
        print(f"{name}: {len(found)} code points not assigned in Unicode 14 differ: {ranges(found)[:300]}")
    sys.exit(total > 0)


if __name__ == "__main__":
    main()
