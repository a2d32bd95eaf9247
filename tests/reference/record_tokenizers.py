#!/usr/bin/env python3
"""Makes small tokenizers with the reference and records what they make of some hundred strings.

    record_tokenizers.py            (needs tokenizers 0.23.3)

Writes tests/reference/tokenizers/NAME.json (the tokenizer) and NAME.txt (the results); the same version gives the same
bytes. All texts are made here. A line of NAME.txt is one call: fields between tabs, texts as JSON strings.
    one  TEXT  IDS  OFFSETS  WORDS  DECODED          special tokens on; offsets in code points; decoded with specials
    two  TEXT  PAIR  IDS  OFFSETS  TYPES             a pair
    raw  TEXT  IDS                                   add_special_tokens=False, encode_special_tokens=True
Lists are numbers between spaces; a word of -1 is none.
"""
import json
import pathlib
import random
import unicodedata
from collections import Counter

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
OUT = pathlib.Path(__file__).resolve().parent / "tokenizers"
WORDS = (
    "the of and to in that it was for on are with as they be at one have this from by not word but what all were we when "
    "your can said there use an each which she do how their if will up other about out many then them these so some her "
    "would make like him into time has look two more write go see number no way could people my than first water been "
    "called who oil its now find long down day did get come made may part token merge tensor gradient layer weight model "
    "train running runner ran unhappiness unbelievable reading readable nation national internationalisation don't it's "
    "we'll they've I'm you're naïve café Zürich façade résumé Ångström señor über straße Привет мир Москва 你好 世界 東京 "
    "こんにちは 안녕하세요 नमस्ते שלום مرحبا ไทย 2023 3.14159 1,000,000 x+y=z foo_bar() {return;} https://example.org"
).split()
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def corpus():
    rng = random.Random(1)
    for _ in range(400):
        words = rng.choices(WORDS, k=rng.randrange(3, 16))
        words = [w.capitalize() if rng.random() < 0.1 else w for w in words]
        yield " ".join(words) + rng.choice([".", "!", "?", ";\n", "\n\n", " ...", ""])


def strings():
    """What a tokenizer meets, and what it does not expect."""
    fixed = [
        "", " ", "  ", "\n", "\r\n", "\t", "a", " a", "a ", " a b ", "Hello world", "Hello, world!", "hello  world   again",
        "It's we'll THEY'VE I'M you'Re 'tis 's", "don't\u2019t \u017f 'ſ", "UPPER lower MiXeD", "3.14159 1234567890 12 1",
        "naïve café résumé", "nai\u0308ve cafe\u0301", "\u0130stanbul \u1e9e ß ſ", "Å Å A\u030a", "ﬁ ﬂ ﬀ ½ ² ①", "が か\u3099",
        "한국어 각", "你好世界", "你好, world 世界!", "日本語テキスト", "Привет, мир!", "שלום עולם", "नमस्ते दुनिया", "ไทยภาษา",
        "😀 👍🏽 👨‍👩‍👧 🇨🇭", "a\u200db a\u200cb", "zero\u200bwidth", "a\u00a0b\u3000c\u2003d", "line\u2028sep\u2029para", "nul\0byte",
        "del\x7f bell\x07", "\ufffd replacement", "\ufeffbom", "soft\u00adhyphen", "x" * 40, "ab" * 60, "x" * 120, "!" * 33,
        " " * 20, "\n" * 7, "a\n\n\nb", "a \n b", "  \n  a", "\t\ttabs\t end ", "word\r\nnext\rlast", "foo_bar() { return x+y; }",
        "https://example.org/a?b=c&d=%20", "e\u0301\u0323\u0316x", "\u0323\u0301a", "\u0344 \u0958 \u2126 \ufb1d", "[UNK] [CLS] [SEP] [MASK]",
        "a[MASK]b [MASK] c", "<|endoftext|>", "a<|endoftext|>b", "<s>hi</s>", "<|eot|>x <|eot|>", "keepme keepmenot KEEPME keep me",
        "  <mask>  x", "x <mask>", "a<mask>b", "<0x0A> ▁ ▁▁x", "##ing running ##", "don ' t do not , . ! ?", "it 's n't", "cost$5 ^ ` ~ <a>",
        "𝐁𝐨𝐥𝐝 ﷺ", "\U0001f600" * 3, "ᾼ ͅ ΐ", "İ", "Ǆ ǅ ǆ", "a" + "\u0301" * 5, "\u1100\u1161\u11a8", "½x²", "٣٤٥", "x\u0300\u0345y",
        "\u4e00a\u4e8cb", "tail ", "\u00e9\u00e8", "e\u0301", "don\u2019t", "   leading", "trailing   ", "in  the  middle", "\u200b", "\u0301",
    ]
    rng = random.Random(2)
    assigned = [chr(p) for p in range(0x110000) if unicodedata.category(chr(p)) not in ("Cn", "Cs", "Co")]
    near = [c for c in assigned if ord(c) < 0x3100]
    for _ in range(90):
        fixed.append(" ".join(rng.choices(WORDS, k=rng.randrange(1, 9))))
    for _ in range(110):
        parts = [rng.choice(rng.choice([near, assigned, " \n\t'", "aeiosT", WORDS])) for _ in range(rng.randrange(1, 14))]
        fixed.append("".join(parts))
    return fixed


def word_pieces(specials, lower, size):
    """A WordPiece vocabulary of frequent pieces: the reference's trainer gives another one with each run."""
    normalizer = normalizers.BertNormalizer(lowercase=lower)
    counts, letters = Counter(), set()
    for line in corpus():
        for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(line)):
            letters.update(word)
            for start in range(len(word)):
                for end in range(start + 2, len(word) + 1):
                    counts["##" * (start > 0) + word[start:end]] += end - start
    vocab = specials + sorted(letters) + ["##" + c for c in sorted(letters)]
    vocab += sorted(counts, key=lambda piece: (-counts[piece], piece))[: size - len(vocab)]
    return {token: i for i, token in enumerate(vocab)}


def suffix_bpe(normalizer, pre_tokenizer, merges_wanted):
    """Vocabulary and merges with </w>, for the same reason."""
    words = Counter()
    for line in corpus():
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(line)):
            words[(*word[:-1], word[-1] + "</w>")] += 1
    symbols = sorted({c for word in words for s in word for c in (s.removesuffix("</w>"), s.removesuffix("</w>") + "</w>")})
    merges = []
    for _ in range(merges_wanted):
        pairs = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged = Counter()
        for word, count in words.items():
            out = []
            for s in word:
                if out and (out[-1], s) == best:
                    out[-1] += s
                else:
                    out.append(s)
            merged[tuple(out)] += count
        words = merged
    tokens = dict.fromkeys(["<unk>"] + symbols + [a + b for a, b in merges])
    return {token: i for i, token in enumerate(tokens)}, merges


def build():
    byte_level = pre_tokenizers.ByteLevel
    alphabet = byte_level.alphabet()

    def bpe(special, size=700, **more):
        return trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=special, **more)

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = byte_level(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    t.train_from_iterator(corpus(), bpe(["<|endoftext|>"], initial_alphabet=alphabet))
    yield "gpt2", t

    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_level(add_prefix_space=False, use_regex=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), bpe([], initial_alphabet=alphabet))
    t.add_special_tokens(["<s>", "<|eot|>"])
    t.add_tokens([AddedToken("keepme", single_word=True), AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    bos = t.token_to_id("<s>")
    t.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", bos)]),
        ]
    )
    yield "llama3", t

    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2), "isolated"), byte_level(add_prefix_space=False, use_regex=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False)
    t.train_from_iterator(corpus(), bpe([], initial_alphabet=alphabet))
    t.add_special_tokens(["<|endoftext|>"])
    yield "qwen2", t

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = byte_level(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), bpe(["<s>", "</s>"], initial_alphabet=alphabet))
    t.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    t.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True, add_prefix_space=True)
    yield "roberta", t

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for name, lower in (("bert_uncased", True), ("bert_cased", False)):
        t = Tokenizer(models.WordPiece(word_pieces(specials, lower, 600), unk_token="[UNK]"))
        t.normalizer = normalizers.BertNormalizer(lowercase=lower)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.WordPiece(prefix="##", cleanup=True)
        t.add_special_tokens(specials)
        t.post_processor = (
            processors.TemplateProcessing(
                single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
            )
            if lower
            else processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        )
        yield name, t

    # As Llama 2 and Mistral write it: no pre-tokenizer, bytes for what is unknown.
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # for training only
    t.train_from_iterator(corpus(), bpe(["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)], size=800))
    t.pre_tokenizer = None
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    yield "llama2", strip_byte_specials(t)

    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(r"\s{2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    t.train_from_iterator(corpus(), bpe(["<unk>", "<s>"], size=600))
    t.add_tokens([AddedToken("keepme", normalized=True)])
    yield "metaspace", t

    normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("merged_with_next")]
    )
    vocab, merges = suffix_bpe(normalizer, pre_tokenizer, 300)
    t = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", end_of_word_suffix="</w>"))
    t.normalizer, t.pre_tokenizer = normalizer, pre_tokenizer
    t.decoder = decoders.BPEDecoder(suffix="</w>")
    t.add_special_tokens(["<unk>"])
    yield "suffix", t

    t = Tokenizer(models.WordPiece(word_pieces(specials, False, 600), unk_token="[UNK]", max_input_chars_per_word=20))
    t.normalizer = normalizers.NFKD()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split("_", "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"[\p{Lu}\p{M}]+|(?:ab){2,3}c?|[^\w\s]"), "contiguous", invert=True),
            pre_tokenizers.Digits(),
        ]
    )
    t.decoder = decoders.WordPiece(cleanup=False)
    t.add_special_tokens(specials)
    yield "split", t


def strip_byte_specials(t):
    """The byte tokens are ordinary tokens of the vocabulary: only training made them special."""
    data = json.loads(t.to_str())
    data["added_tokens"] = [a for a in data["added_tokens"] if not a["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(data))


def numbers(values):
    return " ".join("-1" if v is None else str(v) for v in values)


def text(value):
    return json.dumps(value)


def offsets(encoding):
    return numbers(v for pair in encoding.offsets for v in pair)


def record(name, t):
    lines = []
    all_strings = strings()
    for s in all_strings:
        e = t.encode(s)
        decoded = t.decode(e.ids, skip_special_tokens=False)
        lines.append("\t".join(["one", text(s), numbers(e.ids), offsets(e), numbers(e.word_ids), text(decoded)]))
    for a, b in zip(all_strings[::9], all_strings[4::9]):
        e = t.encode(a, b)
        lines.append("\t".join(["two", text(a), text(b), numbers(e.ids), offsets(e), numbers(e.type_ids)]))
    t.encode_special_tokens = True
    for s in all_strings[::5] + [s for s in all_strings if "<" in s or "[" in s]:
        lines.append("\t".join(["raw", text(s), numbers(t.encode(s, add_special_tokens=False).ids)]))
    t.encode_special_tokens = False
    (OUT / f"{name}.txt").write_text("\n".join(lines) + "\n")
    # One line: shorter than the reference's pretty form.
    (OUT / f"{name}.json").write_text(t.to_str(pretty=False) + "\n")


OUT.mkdir(exist_ok=True)
for name, tokenizer in build():
    record(name, tokenizer)
