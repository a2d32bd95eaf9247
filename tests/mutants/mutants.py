"""Mutants of Rondo's sources: reads the lists, and makes a copy of the tree in which each is behind a switch.

  mutants.py make FOLDER [FILE...]   copies the repository's files to FOLDER and rewrites those that have mutants
  mutants.py list [FILE...]          prints name, rule, file and line of each
  mutants.py propose SOURCE [--count N] [--seed S]   prints mutants of a source file, made by rules

FILE is a list; without any, all of tests/mutants/list/. README.md says how a mutant is written.
"""
import itertools
import os
import pathlib
import random
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests/mutants/list"
RULES = ("barrier", "wait", "bound", "stride", "key", "offset", "condition")


class ListError(Exception):
    pass


class Mutant:
    def __init__(self, name, rule, which, source, where):
        self.name, self.rule, self.which, self.source, self.where = name, rule, which, source, where
        self.before, self.after = [], []
        self.tests, self.filters = [], []  # those that may kill it; filters: what run.py has restricted them to
        self.line, self.in_text = 0, False  # where it stands; inside of a literal


def read_list(path):
    """The mutants of a list. Tests of a mutant: its own, then those of its file."""
    mutants, source, tests, current = [], None, [], None
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        where = f"{path.name}:{number}"
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("file "):
            source, tests, current = line[5:].strip(), [], None
        elif line.startswith("test "):
            (tests if current is None else current.tests).append(line[5:].strip())
        elif found := re.fullmatch(r"\[([a-z0-9-]+)\] (\w+)(?: (\d+))?(?:\s+#.*)?", line):
            if source is None:
                raise ListError(f"{where}: a mutant before the first `file`")
            if found[2] not in RULES:
                raise ListError(f"{where}: rule {found[2]}: none of {', '.join(RULES)}")
            current = Mutant(found[1], found[2], int(found[3] or 0), source, where)
            current.shared_tests = tests
            mutants.append(current)
        elif current is not None and (line == "-" or line.startswith("- ")):
            current.before.append(line[2:])
        elif current is not None and (line == "+" or line.startswith("+ ")):
            current.after.append(line[2:])
        else:
            raise ListError(f"{where}: what is this? {line}")
    for m in mutants:
        m.tests += m.shared_tests
        if not m.before or not m.after or m.before == m.after:
            raise ListError(f"{m.where}: [{m.name}] wants a line with - and another one with +")
        if not m.tests:
            raise ListError(f"{m.where}: [{m.name}] has no test")
    return mutants


def read_lists(paths):
    mutants = [m for path in paths for m in read_list(path)]
    names = {}
    for m in mutants:
        if m.name in names:
            raise ListError(f"{m.where}: [{m.name}] is also in {names[m.name]}")
        names[m.name] = m.where
    return mutants


# ---- C++, as far as it is needed: comments, literals, and groups of literals side by side

LEXEME = re.compile(r'//[^\n]*|/\*.*?\*/|(?:u8|[uUL])?R"([^()\\\s]*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"'
                    r"|'(?:[^'\\\n]|\\.)+'", re.S)


def spans(text):
    """(comments, groups of string literals), each as (begin, end)."""
    comments, groups = [], []
    for found in LEXEME.finditer(text):
        if found[0].startswith("/"):
            comments.append(found.span())
        elif '"' in found[0] and not found[0].startswith("'"):
            if groups and not text[groups[-1][1]:found.start()].strip():
                groups[-1] = (groups[-1][0], found.end())
            else:
                groups.append(found.span())
    return comments, groups


def find(text, m):
    """Where the mutant's `before` stands. Runs of white space equal each other."""
    words = re.split(r"\s+", "\n".join(m.before).strip())
    hits = [h.span() for h in re.finditer(r"\s+".join(map(re.escape, words)), text)]
    comments, _ = spans(text)
    hits = [h for h in hits if not any(a <= h[0] < b for a, b in comments)]
    if not hits:
        raise ListError(f"{m.where}: [{m.name}]: {m.source} has no such text any more: {' '.join(m.before)}")
    if m.which == 0 and len(hits) > 1:
        raise ListError(f"{m.where}: [{m.name}]: {m.source} has it {len(hits)} times; say which: [{m.name}] {m.rule} 1")
    if m.which > len(hits):
        raise ListError(f"{m.where}: [{m.name}]: {m.source} has it {len(hits)} times only")
    return hits[max(m.which, 1) - 1]


class Site:
    """A piece of the source, and the mutants of it: (name, the piece as it is then)."""
    def __init__(self, begin, end):
        self.begin, self.end, self.variants, self.inner = begin, end, [], []


def rewrite(source, text, mutants, stale=None):
    """The text of a source file with its mutants behind the switch. Those whose text is not there go to `stale`."""
    _, groups = spans(text)
    sites = {}
    for m in mutants:
        try:
            begin, end = find(text, m)
        except ListError as error:
            if stale is None:
                raise
            stale.append((m, error))
            continue
        m.line = text.count("\n", 0, begin) + 1
        after = "\n".join(m.after)
        outer = next(((a, b) for a, b in groups if a < begin and end < b), None)
        m.in_text = outer is not None
        if outer is not None:  # the whole literal, twice
            after = text[outer[0]:begin] + after + text[end:outer[1]]
            begin, end = outer
        elif any(a < begin < b or a < end < b for a, b in groups):
            raise ListError(f"{m.where}: [{m.name}]: begins or ends inside of a literal")
        sites.setdefault((begin, end), Site(begin, end)).variants.append((m, after))
    bare = list(text)  # without comments and literals, each of them as long as it was
    for begin, end in spans(text)[0] + groups:
        bare[begin:end] = " " * (end - begin)
    bare = "".join(bare)
    # Outer sites first; each takes those inside.
    roots, stack = [], []
    for site in sorted(sites.values(), key=lambda s: (s.begin, -s.end)):
        while stack and stack[-1].end <= site.begin:
            stack.pop()
        if stack and site.end > stack[-1].end:
            raise ListError(f"{source}: two mutants overlap at line {text.count(chr(10), 0, site.begin) + 1}")
        (stack[-1].inner if stack else roots).append(site)
        stack.append(site)

    def with_inner(begin, end, inner):
        out, at = "", begin
        for site in inner:
            out += between(at, site.begin, site) + switched(site)
            at = site.end
        return out + text[at:end]

    def between(begin, end, site):
        """The text before a site. A constant with a mutant in its value is no constexpr, nor is a function."""
        piece = text[begin:end]
        statement = max(bare.rfind(c, begin, end) for c in ";}") + 1
        found = re.search(r"(?<!\bif )\bconstexpr (const char\*)?", bare[max(statement, begin):end])
        if not found or text[site.begin:site.end].startswith("constexpr"):
            return piece
        at = max(statement, begin) - begin + found.start()
        is_function = re.search(r"\)[^;]*\{", bare[begin + at:end])
        as_value = "const char* const" if found[1] else "const "
        return piece[:at] + ((found[1] or "") if is_function else as_value) + piece[at + len(found[0]):]

    def switched(site):
        original = with_inner(site.begin, site.end, site.inner)
        plain = text[site.begin:site.end].rstrip()
        declaration = re.fullmatch(r"(.*\bconstexpr\s.*?=)\s*([^;]*)", plain, re.S)
        if plain.endswith((";", "}")):
            chain = "".join(f'if (RONDO_MUTANT("{m.name}")) {{ {after} }} else ' for m, after in site.variants)
            return f"{{ {chain}{{ {original} }} }}"
        if declaration:
            chain = "".join(f'RONDO_MUTANT("{m.name}") ? ({after.split("=", 1)[1]}) : ' for m, after in site.variants)
            return f"{declaration[1].replace('constexpr', 'const', 1)} {chain}({declaration[2]})"
        chain = "".join(f'RONDO_MUTANT("{m.name}") ? ({after}) : ' for m, after in site.variants)
        return f"({chain}({original}))"

    out = with_inner(0, len(text), roots)
    name = pathlib.Path(source).name
    return f'#include "rondo/tests/mutants/switch.h"\n#line 1 "{name}"\n{out}'


def write_if_new(path, data):
    if path.exists() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return True


def make(folder, mutants):
    """A copy of the tree. Files that stay as they are keep their times, so that a build goes on where it was. Returns the
    mutants whose text is not in the sources any more."""
    folder = pathlib.Path(folder)
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
                            check=True, capture_output=True, text=True).stdout.split("\0")
    files = sorted({f for f in listed if f and (ROOT / f).is_file()})
    by_source = {}
    for m in mutants:
        by_source.setdefault(m.source, []).append(m)
    for source in by_source:
        if source not in files:
            raise ListError(f"{by_source[source][0].where}: no file {source}")
    changed, stale = 0, []
    for f in files:
        data = (ROOT / f).read_bytes()
        if f in by_source:
            data = rewrite(f, data.decode(), by_source[f], stale).encode()
        if write_if_new(folder / f, data):
            changed += 1
            os.chmod(folder / f, (ROOT / f).stat().st_mode & 0o777)
    for old in folder.rglob("*"):
        relative = old.relative_to(folder)
        if old.is_file() and relative.parts[0] != "build" and str(relative) not in files:
            old.unlink()
    for _, error in stale:
        print(f"stale: {error}")
    print(f"{len(mutants) - len(stale)} mutants of {len(by_source)} files, {changed} files written to {folder}")
    return [m for m, _ in stale]


# ---- Proposals

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}


def proposals_of(piece):
    """(rule, the piece changed) for a piece of code."""
    def at(found, new):
        return piece[:found.start()] + new + piece[found.end():]
    for found in re.finditer(r"(?<= )(<=?|>=?|==|!=)(?= )", piece):
        if ".size()" in piece[found.end():found.end() + 40]:
            continue  # beyond a container: any test sees that
        rule = "bound" if found[0][0] in "<>" else "condition"
        yield rule, at(found, COMPARISONS[found[0]])
    for found in re.finditer(r"\b(?:std::)?(min|max)(?=[<(])", piece):
        yield "bound", at(found, found[0].replace(found[1], {"min": "max", "max": "min"}[found[1]]))
    for found in re.finditer(r"strides?\w*\[(\d)\]", piece):
        yield "stride", at(found, found[0][:-2] + ("0" if found[1] != "0" else "1") + "]")
    for found in re.finditer(r" \* (?:[\w.]*stride\w*(?:\[\w+\])?|at_\w+\.\w+|[\w.]*_row|ld)\b(?!\()", piece):
        yield "stride", at(found, "")
    for found in re.finditer(r" [+-] (?:\d+|\w+)(?![\w.(\[<]| [*/%])", piece):
        yield "offset", at(found, "")
    for found in re.finditer(r" (&&|\|\|) ", piece):
        yield "condition", at(found, " || " if found[1] == "&&" else " && ")
    for found in re.finditer(r"(?<![\w)])!(?=[\w(])", piece):
        yield "condition", at(found, "")
    for found in re.finditer(r" \| (\w+\([^()]*\))", piece):
        yield "key", at(found, "")


# Pieces of code that can stand in a conditional expression, and statements that can be left out.
PIECES = (re.compile(r"\b(?:if|while) \((?P<x>[^;{}]*?)\)(?= \{|\n| [a-z+*-])"),
          re.compile(r"(?<![=<>!]) = (?P<x>[^={};][^{};]*);"),
          re.compile(r"\breturn (?P<x>[^{};]+);"),
          re.compile(r"\bfor \([^;{}]*; (?P<x>[^;{}]+);"))
STATEMENTS = (("barrier", re.compile(r'line\("__sync(?:threads|warp)\(\);"\);|__sync(?:threads|warp)\(\);')),
              ("wait", re.compile(r"(?<=\n)(?P<lead> *(?:else )?)[\w:<>.()-]*"
                                  r"(?:wait\w*|join|\w*synchronize|\w*record|drop_finished)\([^;{}]*\);")))


def stands_alone(text):
    """True for one whole expression: brackets match, and no comma lies outside of them."""
    depth = 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if depth < 0 or (c == "," and depth == 0):
            return False
    return depth == 0


def proposals(source, count, seed):
    text = (ROOT / source).read_text()
    comments, _ = spans(text)
    found = []
    for rule, pattern in STATEMENTS:
        for hit in pattern.finditer(text):
            lead = len(hit.groupdict().get("lead", ""))
            found.append((hit.start() + lead, hit[0][lead:], rule, ""))
    for pattern in PIECES:
        for hit in pattern.finditer(text):
            piece = hit["x"]
            if stands_alone(piece) and '"' not in piece:
                found += [(hit.start("x"), piece, rule, after) for rule, after in proposals_of(piece)]
    found = sorted({f for f in found if not any(a <= f[0] < b for a, b in comments)})
    if count and count < len(found):
        # As many of each rule as there are.
        draw = random.Random(seed)
        of_rules = ([f for f in found if f[2] == rule] for rule in RULES)
        by_rule = [draw.sample(some, len(some)) for some in of_rules]
        turns = [f for turn in itertools.zip_longest(*by_rule) for f in turn if f is not None]
        found = sorted(turns[:count])
    stem = pathlib.Path(source).stem.replace("_", "-")
    out = f"file {source}\n"
    for number, (at, before, rule, after) in enumerate(found):
        words = r"\s+".join(map(re.escape, before.split()))
        hits = [h.start() for h in re.finditer(words, text) if not any(a <= h.start() < b for a, b in comments)]
        which = f" {hits.index(at) + 1}" if len(hits) > 1 and at in hits else ""
        out += f"\n[{stem}-{number + 1}] {rule}{which}  # line {text.count(chr(10), 0, at) + 1}\n"
        out += f"- {' '.join(before.split())}\n+ {' '.join(after.split())}".rstrip() + "\n"
    return out


def main(arguments):
    if not arguments:
        sys.exit(__doc__)
    command, rest = arguments[0], arguments[1:]
    if command == "propose":
        numbers = {rest[i]: int(rest[i + 1]) for i in range(1, len(rest) - 1, 2)}
        return print(proposals(rest[0], numbers.get("--count", 0), numbers.get("--seed", 1)), end="")
    folder = rest.pop(0) if command == "make" else None
    mutants = read_lists([pathlib.Path(p) for p in rest] or sorted(LISTS.glob("*.txt")))
    if command == "make":
        make(folder, mutants)
    elif command == "list":
        for m in mutants:
            rewrite(m.source, (ROOT / m.source).read_text(), [m])
            print(f"{m.name}\t{m.rule}\t{m.source}:{m.line}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ListError as error:
        sys.exit(f"mutants.py: {error}")
