"""Runs the tests of each mutant.

Makes build/mutants/ (a copy of the tree with every mutant behind a switch), builds the programs that the lists name,
checks that a test passes without a mutant before it judges one, and runs each mutant's tests until one fails. Results
are kept in build/mutants/results.tsv: a mutant that has not changed since is not run again. Prints those that survive,
and ends with 1 if one has no entry in SURVIVORS.md, if less than 90% were killed, or if the sources have lost the text
of one.

With --tier short it asks what of all this the short tier (tests/TIERS.md) sees: first a mutant's tests that are in the tier;
where they kill none, all its tests; what these kill meets the rest of their programs in the tier. Results are in
results_short.tsv, results.tsv and results_short_rest.tsv. It prints how many of the mutants that all tests kill the short
tier kills, and ends with 1 if that is below 85%:

  run.sh --sample 100 --tier short
"""
import argparse
import concurrent.futures
import fcntl
import fnmatch
import functools
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import mutants

BUILD = mutants.ROOT / "build/mutants"
TREE = BUILD / "tree"
RELEASE = TREE / "build/release"
SURVIVORS = mutants.ROOT / "tests/mutants/SURVIVORS.md"


class Test:
    """`[NAME=value]... program filter [again]`. {build} in a value is the build folder. With a tier: what is in it alone."""
    def __init__(self, text, tier=None, most=1200):
        self.text = text
        self.tier = tier
        self.most = most    # seconds that it may take without a mutant
        words = text.split()
        self.settings = {}
        while "=" in words[0]:
            name, value = words.pop(0).split("=", 1)
            self.settings[name] = value.replace("{build}", str(RELEASE))
        if len(words) != 2:
            raise mutants.ListError(f"test {text}: wants a program and a filter")
        self.program, self.filter = words
        self.seconds = 0.0  # without a mutant; 0: not known yet
        self.wrong = ""     # why it tells nothing of mutants
        self.lock = threading.Lock()

    def restrict(self):
        """Leaves the filter the tests of the tier, and returns whether there are any."""
        path, filters = self.tier.get((self.program, frozenset(self.settings.items())), (None, []))
        names = tests_of(path) if path else []
        chosen = [n for n in names if matches(n, self.filter) and any(matches(n, f) for f in filters)]
        self.program, self.filter, self.tier = path and path.name, ":".join(chosen), None
        return bool(chosen)

    def run(self, mutant, limit):
        """(exit code or None after the limit, output)"""
        environment = dict(os.environ, RONDO_CACHE="off", **self.settings)
        environment.pop("RONDO_MUTANT", None)
        if mutant:
            environment["RONDO_MUTANT"] = mutant
        command = [str(RELEASE / "bin" / self.program), f"--gtest_filter={self.filter}", "--gtest_color=no"]
        if mutant:
            command.append("--gtest_fail_fast")
        process = subprocess.Popen(command, cwd=RELEASE, env=environment, text=True, errors="replace",
                                   start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            output, _ = process.communicate()
            return None, output


def matches(name, gtest_filter):
    positive, _, negative = gtest_filter.partition("-")
    like = lambda patterns: any(fnmatch.fnmatchcase(name, p) for p in patterns.split(":") if p)
    return (like(positive) or not positive) and not like(negative)


@functools.cache
def tests_of(path):
    lines = subprocess.run([path, "--gtest_list_tests"], check=True, text=True, stdout=subprocess.PIPE).stdout
    names, suite = [], ""
    for line in lines.splitlines():
        word = line.split("  #")[0].strip()
        if line.startswith("  "):
            names.append(suite + word)
        else:
            suite = word
    return names


def tests_in_tier(label):
    """{(program, settings): (path of the program, filters)}, as CTest runs them."""
    command = ["ctest", "--test-dir", str(RELEASE), "-L", f"^{label}$", "--show-only=json-v1"]
    listed = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    tier = {}
    for test in listed["tests"]:
        path, *arguments = test.get("command", [""])
        filters = [a.removeprefix("--gtest_filter=") for a in arguments if a.startswith("--gtest_filter=")]
        if not filters:
            continue
        lines = [p["value"] for p in test["properties"] if p["name"] == "ENVIRONMENT"]
        settings = dict(line.split("=", 1) for line in (lines[0] if lines else []))
        for of_every_test in ("RONDO_CACHE_DIR", "RONDO_TEST_SKIPPED"):
            settings.pop(of_every_test, None)
        path = pathlib.Path(path)
        key = path.name.removesuffix("_short"), frozenset(settings.items())
        tier.setdefault(key, (path, []))[1].extend(filters)
    return tier


def only_in_tier(m, tier):
    """The tests of a mutant are those of the tier. Returns its other tests there, which its list does not name."""
    named = {Test(text).program for text in m.tests}
    rest = [" ".join([*(f"{n}={v}" for n, v in sorted(settings)), program, "*"])
            for program, settings in sorted(tier, key=lambda key: (len(key[1]), sorted(key[1]))) if program in named]
    m.tests = [text for text in m.tests if (Test(text).program, frozenset(Test(text).settings.items())) in tier]
    m.filters = [f for (program, _), (_, filters) in tier.items() if program in named for f in filters]
    return rest


def baseline(test):
    """Without a mutant the tests pass, and there are some: else what is wrong. Asked for when a test is first needed."""
    with test.lock:
        if test.seconds == 0.0:
            measure(test)
        return test.wrong


def measure(test):
    """Tests that fail on this machine as it is (it may lack an instruction, or a library) say nothing of mutants."""
    if test.tier is not None and not test.restrict():
        test.wrong = "none of them is in the tier"
        return
    left_out = []
    while True:
        begin = time.monotonic()
        code, output = test.run(None, test.most)
        test.seconds = time.monotonic() - begin
        if code is None:
            test.wrong = f"without a mutant, `{test.text}` takes more than {test.most:.0f} s"
            print(f"         {test.wrong}", flush=True)
            return
        passed = re.search(r"\[  PASSED  \] (\d+) test", output)
        if code == 0 and passed and passed[1] != "0":
            break
        failed = failing(output)
        # When most fail, the build is at fault.
        many = len(left_out + failed) > 5 + len(re.findall(r"^\[       OK \]", output, re.M))
        if not failed or many or set(failed) & set(left_out):
            test.wrong = f"without a mutant, `{test.text}` must pass (exit {code})"
            print(f"{test.wrong}:\n{output[-300:]}", flush=True)
            return
        left_out += failed
        test.filter += (":" if "-" in test.filter else "-") + ":".join(failed)
    print(f"         without a mutant: {test.text}  ({test.seconds:.1f} s)", flush=True)
    if left_out:
        print(f"         LEFT OUT, they fail without a mutant: {' '.join(left_out)}", flush=True)


def failing(output):
    """The tests that failed, or in which the program ended."""
    names = re.findall(r"^\[  FAILED  \] ([\w/-]+\.[\w./-]+)", output, re.M)
    if not names and "[  PASSED  ]" not in output:
        names = re.findall(r"^\[ RUN      \] ([\w./-]+)", output, re.M)[-1:]
    return list(dict.fromkeys(names))


def fate(m, tests):
    """(killed, survived, broken or open; by which test). Open: some tests could not be run, the others do not kill it."""
    judged = True
    for text in m.tests:
        test = tests[text]
        if wrong := baseline(test):
            judged &= wrong == "none of them is in the tier"
            continue
        code, output = test.run(m.name, 60 + 10 * test.seconds)
        if "compiler refuses" in output and m.in_text:  # nobody would get so far
            return "broken", "the kernel does not compile: " + output[output.index("compiler refuses"):][:600]
        if code is None:
            return "killed", f"{test.program}: takes too long"
        if code != 0:
            return "killed", f"{test.program}: {(failing(output) or [f'exit {code}'])[0]}"
    return "survived" if judged else "open", ""


def signature(m):
    parts = [m.source, str(m.which), *m.before, "+", *m.after, "+", *m.tests, *m.filters]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read_results(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: rest for name, *rest in (line.split("\t") for line in lines)}


def write_result(path, name, result):
    """Other runs may write theirs meanwhile."""
    with open(BUILD / "results.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = dict(read_results(path), **{name: result})
        path.write_text("".join("\t".join([key, *known[key]]) + "\n" for key in sorted(known)))


def judge(wanted, path, tier, options):
    """Runs the tests of each that has changed since, and writes and returns what is known of them."""
    known = read_results(path)
    todo = [m for m in wanted if options.again or known.get(m.name, [""])[0] != signature(m)
            or (known[m.name][1] != "killed" and options.survivors)]
    tests = {text: Test(text, tier, options.seconds) for m in todo for text in m.tests}

    def run(m):
        begin = time.monotonic()
        how, by = fate(m, tests)
        return m, how, by, time.monotonic() - begin
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, m) for m in todo]):
            m, how, by, seconds = done.result()
            result = (signature(m), how, " ".join(by.split()), f"{seconds:.1f}")
            if how != "open":
                known[m.name] = result
                write_result(path, m.name, result)
            print(f"{how:8} {m.name:32} {m.rule:9} {m.source}:{m.line}  {result[2][:160]}  ({seconds:.1f} s)", flush=True)
    return known


def compare(name, tier, ran, survivors, options):
    """Of the survivors of their tests in the tier, those that its rest kills, too. survivors: [(mutant, its tests, the rest in the
    tier)]. Whether the tier kills enough of what all tests kill."""
    def killed(those, path, where):
        known = judge(those, BUILD / path, where, options)
        return [m for m in those if known.get(m.name, ["", ""])[1] == "killed"]
    print(f"\nAll tests of the {len(survivors)} that survive theirs in the {name} tier")
    rest, filters = {m.name: rest for m, _, rest in survivors}, {m.name: m.filters for m, *_ in survivors}
    for m, whole, _ in survivors:
        m.tests, m.filters = whole, []
    of_all = killed([m for m, *_ in survivors], "results.tsv", None)
    print(f"\nThe rest of the {name} tier, for the {len(of_all)} that all tests kill")
    for m in of_all:
        m.tests, m.filters = rest[m.name], filters[m.name]
    late = killed(of_all, f"results_{name}_rest.tsv", tier)
    for m in of_all:
        if m not in late:
            print(f"  only in other tiers: {m.name}")
    total, seen = len(ran) - len(survivors) + len(of_all), len(ran) - len(survivors) + len(late)
    print(f"The {name} tier kills {seen} of the {total} that all tests kill")
    return total > 0 and seen * 100 >= 85 * total


def print_table(ran, known, entries):
    """As in README.md: what was killed of each list, and what lives on for a reason."""
    print("| list | mutants | killed | survive, with a reason |\n|---|---|---|---|")
    lists = sorted({m.where.split(":")[0] for m in ran})
    for title, names in [(name, [name]) for name in lists] + [("all", lists)]:
        of_list = [m for m in ran if m.where.split(":")[0] in names]
        alive = [m for m in of_list if known[m.name][1] != "killed"]
        reasons = sum(m.name in entries for m in alive)
        print(f"| {title.removesuffix('.txt')} | {len(of_list)} | {len(of_list) - len(alive)} | {reasons} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="append", type=pathlib.Path, help="only mutants of this list")
    parser.add_argument("--only", default="*", help="only mutants with such a name, as in product-*")
    parser.add_argument("--again", action="store_true", help="also those that have not changed")
    parser.add_argument("--survivors", action="store_true", help="also those that survived the last time")
    parser.add_argument("--no-build", action="store_true", help="the programs are built already")
    parser.add_argument("--seconds", type=float, default=1200,
                        help="only tests that take no longer without a mutant; what they do not kill is not decided")
    parser.add_argument("--sample", type=int, help="only this many of them: a random choice, which stays nearly the same as lists change")
    parser.add_argument("--tier", choices=["short"], help="only tests of this tier, and compare with what all kill")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at once")
    options = parser.parse_args()
    everything = mutants.read_lists(sorted(mutants.LISTS.glob("*.txt")))
    stale = mutants.make(TREE, everything)
    chosen = {m.name for m in mutants.read_lists(options.list)} if options.list else {m.name for m in everything}
    wanted = [m for m in everything if m not in stale and m.name in chosen and fnmatch.fnmatch(m.name, options.only)]
    if options.sample:
        wanted = sorted(wanted, key=lambda m: hashlib.sha256(m.name.encode()).digest())[:options.sample]
    programs = sorted({Test(text).program for m in wanted for text in m.tests})
    if not options.no_build and programs:
        if not (RELEASE / "build.ninja").exists():
            subprocess.run(["cmake", "--preset", "release"], cwd=TREE, check=True)
        targets = [*programs, *(["short_tests"] if options.tier else [])]
        # -k 0: all mutants that no compiler takes are named at once.
        subprocess.run(["cmake", "--build", str(RELEASE), "--target", *targets, "--", "-k", "0"], check=True)
    results, tier = BUILD / "results.tsv", None
    if options.tier:
        results, tier = BUILD / f"results_{options.tier}.tsv", tests_in_tier(options.tier)
        parts = {m.name: (m.tests, only_in_tier(m, tier)) for m in wanted}
    known = judge(wanted, results, tier, options)

    entries = set(re.findall(r"^\| `([a-z0-9-]+)`", SURVIVORS.read_text(), re.M)) if SURVIVORS.exists() else set()
    ran = [m for m in wanted if known.get(m.name, [""])[0] == signature(m)]
    alive = [m for m in ran if known[m.name][1] != "killed"]
    if options.tier:
        sys.exit(0 if compare(options.tier, tier, ran, [(m, *parts[m.name]) for m in alive], options) else 1)
    print(f"\n{len(ran)} mutants, {len(ran) - len(alive)} killed, {len(wanted) - len(ran)} more are not decided")
    for rule in mutants.RULES:
        of_rule = [m for m in ran if m.rule == rule]
        print(f"  {rule:9} {sum(known[m.name][1] == 'killed' for m in of_rule)} of {len(of_rule)}")
    unexplained = [m for m in alive if m.name not in entries]
    for m in alive:
        reason = "" if m.name in entries else "NO REASON in SURVIVORS.md"
        print(f"  {known[m.name][1]:8} {m.name:32} {m.source}:{m.line}  {reason}")
    print(f"  {len(stale)} mutants of text that is not in the sources any more" if stale else "")
    print_table(ran, known, entries)
    sys.exit(1 if stale or unexplained or len(ran) < len(wanted) or len(alive) * 10 > len(ran) else 0)


if __name__ == "__main__":
    try:
        main()
    except mutants.ListError as error:
        sys.exit(f"run.py: {error}")
