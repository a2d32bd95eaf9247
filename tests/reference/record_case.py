#!/usr/bin/env python3
"""Writes runtime/text/jinja/case_data.inc: how Python's str changes the case of Unicode 14's characters.

    python3.11 tests/reference/record_case.py

Needs a Python whose unicodedata is version 14.0 (3.11). Lower case of single characters is in unicode_data.inc.
"""
import pathlib
import sys
import unicodedata

if unicodedata.unidata_version != "14.0.0":
    sys.exit(f"this Python's unicodedata is {unicodedata.unidata_version}; Python 3.11 has 14.0.0")

OUT = pathlib.Path(__file__).resolve().parents[2] / "runtime" / "text" / "jinja" / "case_data.inc"
POINTS = [p for p in range(0x80, 0x110000) if not 0xD800 <= p < 0xE000]


def lines(items, width=118):
    out, line = [], ""
    for item in items:
        if len(line) + len(item) + 1 > width:
            out.append(line)
            line = ""
        line += item + ","
    return "\n".join(out + [line]) + "\n"


def section(name, items):
    return f"#ifdef {name}\n{lines(items)}#endif\n"


def mapping_runs(change):
    """(first, last, stride, delta) of characters that become one other character."""
    out = []
    for point in POINTS:
        changed = change(chr(point))
        if len(changed) != 1 or ord(changed) == point:
            continue
        delta = ord(changed) - point
        if out:
            first, last, stride, run_delta = out[-1]
            step = point - last
            if delta == run_delta and step in (1, 2) and (first == last or step == stride):
                out[-1] = (first, point, step, delta)
                continue
        out.append((point, point, 1, delta))
    return [f"{{{a:#x},{b:#x},{c},{d}}}" for a, b, c, d in out]


def expansions(change):
    """point, first, second and third character (0: none) of characters that become several."""
    for point in POINTS:
        changed = change(chr(point))
        if len(changed) > 1:
            parts = [ord(c) for c in changed] + [0] * (3 - len(changed))
            assert len(parts) == 3
            yield f"{{{point:#x},{parts[0]:#x},{parts[1]:#x},{parts[2]:#x}}}"


def ranges(holds):
    out = []
    for point in POINTS:
        if holds(chr(point)):
            if out and out[-1][1] == point - 1:
                out[-1][1] = point
            else:
                out.append([point, point])
    return [f"{{{a:#x},{b:#x}}}" for a, b in out]


def title(c):
    return c.title()


def cased(c):
    return (c + "A").title().endswith("a")


def ignorable(c):
    return ("A\u03a3" + c + "!").lower()[1] == "\u03c2" and ("A\u03a3" + c + "A").lower()[1] == "\u03c3"


OUT.write_text(
    "// Case of Unicode 14.0.0 as Python 3.11 has it; by tests/reference/record_case.py. Do not edit.\n"
    + section("RONDO_UPPER", mapping_runs(str.upper))
    + section("RONDO_UPPER_EXPANSIONS", expansions(str.upper))
    + section("RONDO_TITLE", mapping_runs(title))
    + section("RONDO_TITLE_EXPANSIONS", expansions(title))
    + section("RONDO_CASED", ranges(cased))
    + section("RONDO_CASE_IGNORABLE", ranges(ignorable))
    + section("RONDO_UPPERCASE", ranges(str.isupper))
    + section("RONDO_LOWERCASE", ranges(str.islower))
    + section("RONDO_DIGIT", ranges(str.isdigit))
    + section("RONDO_NUMERIC", ranges(str.isnumeric))
)
