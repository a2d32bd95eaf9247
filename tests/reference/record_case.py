#!/usr/bin/env python3
"""Writes runtime/chat/jinja/case_data.inc: how Python's str changes the case of Unicode 14's characters.

    python3.11 tests/reference/record_case.py

Needs a Python whose unicodedata is version 14.0 (3.11). Lower case of single characters is in unicode_data.inc.
"""
import pathlib

from unicode_tables import mapping_runs, ranges, section

OUT = pathlib.Path(__file__).resolve().parents[2] / "runtime" / "chat" / "jinja" / "case_data.inc"
POINTS = [p for p in range(0x80, 0x110000) if not 0xD800 <= p < 0xE000]


def expansions(change):
    """point, first, second and third character (0: none) of characters that become several."""
    for point in POINTS:
        changed = change(chr(point))
        if len(changed) > 1:
            parts = [ord(c) for c in changed] + [0] * (3 - len(changed))
            assert len(parts) == 3
            yield f"{{{point:#x},{parts[0]:#x},{parts[1]:#x},{parts[2]:#x}}}"


def title(c):
    return c.title()


def cased(c):
    return (c + "A").title().endswith("a")


def ignorable(c):
    return ("A\u03a3" + c + "!").lower()[1] == "\u03c2" and ("A\u03a3" + c + "A").lower()[1] == "\u03c3"


OUT.write_text(
    "// Case of Unicode 14.0.0 as Python 3.11 has it; by tests/reference/record_case.py. Do not edit.\n"
    + section("RONDO_UPPER", mapping_runs(POINTS, str.upper))
    + section("RONDO_UPPER_EXPANSIONS", expansions(str.upper))
    + section("RONDO_TITLE", mapping_runs(POINTS, title))
    + section("RONDO_TITLE_EXPANSIONS", expansions(title))
    + section("RONDO_CASED", ranges(POINTS, cased))
    + section("RONDO_CASE_IGNORABLE", ranges(POINTS, ignorable))
    + section("RONDO_UPPERCASE", ranges(POINTS, str.isupper))
    + section("RONDO_LOWERCASE", ranges(POINTS, str.islower))
    + section("RONDO_DIGIT", ranges(POINTS, str.isdigit))
    + section("RONDO_NUMERIC", ranges(POINTS, str.isnumeric))
)
