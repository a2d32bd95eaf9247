"""What the scripts that write tables of Unicode 14 share: the check of Python's own version, and the forms of a table."""
import sys
import unicodedata

if unicodedata.unidata_version != "14.0.0":
    sys.exit(f"this Python's unicodedata is {unicodedata.unidata_version}; Python 3.11 has 14.0.0")


def lines(items, width=118):
    """Items, each followed by a comma, on lines of at most `width` characters."""
    out, line = [], ""
    for item in items:
        if len(line) + len(item) + 1 > width:
            out.append(line)
            line = ""
        line += item + ","
    return "\n".join(out + [line]) + "\n"


def section(name, items):
    return f"#ifdef {name}\n{lines(items)}#endif\n"


def ranges(points, holds):
    """{first,last} of the points whose characters `holds` is true for."""
    out = []
    for point in points:
        if holds(chr(point)):
            if out and out[-1][1] == point - 1:
                out[-1][1] = point
            else:
                out.append([point, point])
    return [f"{{{first:#x},{last:#x}}}" for first, last in out]


def mapping_runs(points, change):
    """{first,last,stride,delta} of the points that become one other character, with stride 1 or 2, greedily. Points that
    become several characters are left out."""
    out = []
    for point in points:
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
    return [f"{{{first:#x},{last:#x},{stride},{delta}}}" for first, last, stride, delta in out]
