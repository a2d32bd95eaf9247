#!/usr/bin/env python3
"""Writes runtime/text/unicode_data.inc and unicode_decompositions.inc: Python's own tables of Unicode 14, and where the
reference's differ.

    python3.11 tests/reference/record_unicode.py

Needs a Python whose unicodedata is version 14.0 (3.11), and the package tokenizers 0.23.3. The same versions give the same
bytes. The reference's normal forms, its StripAccents and its BERT steps come with older tables (Unicode 9 and 8): this
script asks it about every code point that is assigned in Unicode 14.
"""
import pathlib
import unicodedata

from tokenizers import normalizers, pre_tokenizers

from unicode_tables import mapping_runs, ranges, section

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "runtime" / "text"
NOTE = "// Unicode 14.0.0, and where the reference differs; by tests/reference/record_unicode.py. Do not edit.\n"
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co".split()
POINTS = range(0x110000)
HANGUL = range(0xAC00, 0xD7A4)
ASSIGNED = [p for p in POINTS if unicodedata.category(chr(p)) not in ("Cn", "Cs")]

# ---- What the reference does not know yet.
_nfd, _nfkd = normalizers.NFD(), normalizers.NFKD()
NOT_DECOMPOSED = {
    p
    for p in ASSIGNED
    if _nfkd.normalize_str(chr(p)) != unicodedata.normalize("NFKD", chr(p))
    or _nfd.normalize_str(chr(p)) != unicodedata.normalize("NFD", chr(p))
}
# A mark of any class moves, or lets the marks beside it move.
NOT_COMBINING = {
    p
    for p in ASSIGNED
    if unicodedata.combining(chr(p))
    and _nfd.normalize_str(f"a\u0301{chr(p)}\u0323") != unicodedata.normalize("NFD", f"a\u0301{chr(p)}\u0323")
}


def differing(reference, ours):
    """Ranges of assigned points about which the reference and Unicode 14 disagree."""
    return ranges(ASSIGNED, lambda c: reference(c) != ours(unicodedata.category(c)))


def removes(normalizer, before="a", after="b"):
    return lambda c: normalizer.normalize_str(before + c + after) == before + after


def bert(**steps):
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**{**off, **steps})


_bert_words = pre_tokenizers.BertPreTokenizer()


def runs(value):
    last = None
    for point in POINTS:
        now = value(point)
        if now != last:
            yield f"{{{point:#x},{now}}}"
            last = now


def composites():
    for point in POINTS:
        parts = unicodedata.decomposition(chr(point)).split()
        if point in NOT_DECOMPOSED:
            continue
        if len(parts) == 2 and not parts[0].startswith("<") and point not in HANGUL:
            if unicodedata.normalize("NFC", chr(point)) == chr(point):  # not excluded from composition
                yield f"{{0x{parts[0].lower()},0x{parts[1].lower()},{point:#x}}}"


def decompositions(form, unless):
    for point in POINTS:
        if point in HANGUL or point in NOT_DECOMPOSED or 0xD800 <= point < 0xE000:
            continue
        parts = unicodedata.normalize(form, chr(point))
        if parts != chr(point) and (unless is None or parts != unicodedata.normalize(unless, chr(point))):
            yield ",".join([f"{point:#x}", str(len(parts))] + [f"{ord(c):#x}" for c in parts])


(FOLDER / "unicode_data.inc").write_text(
    NOTE
    + section("RONDO_CATEGORIES", runs(lambda p: CATEGORIES.index(unicodedata.category(chr(p)))))
    + section("RONDO_COMBINING_CLASSES", runs(lambda p: 0 if p in NOT_COMBINING else unicodedata.combining(chr(p))))
    # Beyond ASCII, which the code knows, as it knows U+0130, which becomes two characters.
    + section("RONDO_LOWER", mapping_runs(POINTS[0x80:], str.lower))
    + section("RONDO_COMPOSITES", composites())
    + section("RONDO_STRIPPED_DIFFERS", differing(removes(normalizers.StripAccents()), lambda c: c[0] == "M"))
    # White space becomes a space; U+0000 and U+FFFD go whatever their category.
    + section(
        "RONDO_BERT_CONTROL_DIFFERS",
        differing(
            lambda c: c not in "\0\t\n\r\ufffd" and removes(bert(clean_text=True))(c) or c in "\0\t\n\r",
            lambda c: c in ("Cc", "Cf", "Co"),
        ),
    )
    # A point that decomposes is judged by its parts.
    + section(
        "RONDO_BERT_ACCENT_DIFFERS",
        differing(
            lambda c: removes(bert(strip_accents=True))(c)
            if unicodedata.normalize("NFD", c) == c
            else unicodedata.category(c) == "Mn",
            lambda c: c == "Mn",
        ),
    )
    # Beyond ASCII, which the code knows.
    + section(
        "RONDO_BERT_PUNCTUATION_DIFFERS",
        differing(
            lambda c: len(_bert_words.pre_tokenize_str("a" + c + "b")) == 3 if c > "\x7f" else unicodedata.category(c)[0] == "P",
            lambda c: c[0] == "P",
        ),
    )
)
(FOLDER / "unicode_decompositions.inc").write_text(
    NOTE
    + section("RONDO_CANONICAL", decompositions("NFD", None))
    + section("RONDO_COMPATIBILITY", decompositions("NFKD", "NFD"))
)
