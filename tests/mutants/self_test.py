"""Checks the mechanism on a small program: self_test.py COMPILER. Every kind of mutant compiles and does what its list says,
errors of lists are found, and run.py tells killed from survived."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import mutants
import run

SOURCE = '''#include <cstdio>
#include <cstring>
#include <string>
constexpr int kRow = 3;
constexpr int row() { return kRow + 0; }
constexpr const char* kText = R"cuda(for (i < n) { barrier(); } for (i < m) { barrier(); })cuda";
int calls = 0;
int wait(int n) { if constexpr (sizeof(n) == 4) calls += n; return n; }
int value(int a, int b) {
  if (a < b && a > 0) wait(1);  // a < b
  else wait(2);
  return a + b * 2;
}
int main(int argc, char** argv) {
  const std::string text = "c >= cols";
  const int first = value(1, 2);
  std::printf("%d %d %d %s %s\\n", row(), first, calls, text.c_str(), kText);
  // What a test program says.
  const std::string filter = argc > 1 ? argv[1] : "";
  const bool right = filter.find("Blind") != filter.npos || value(1, 2) == 5;
  if (std::strstr(kText, "syntax") != nullptr) std::puts("the host's compiler refuses the kernels: syntax");
  std::printf("[ RUN      ] Small.Value\\n%s", right ? "[  PASSED  ] 1 test.\\n" : "[  FAILED  ] Small.Value (0 ms)\\n");
  return right ? 0 : 1;
}
'''
LIST = '''# A comment.
file runtime/small.cc
test small Small.*

[expression] stride
- a + b * 2
+ a + b

[inner] offset
- b * 2
+ b * 3

[condition] condition
- a < b && a > 0
+ a < b

[other-condition] bound   # the same text, changed otherwise
- a < b
- && a > 0
+ a <= b && a > 0

[statement] wait
- wait(1);
+

[in-if-constexpr] offset
- calls += n;
+ calls += 2 * n;

[constant] bound
- constexpr int kRow = 3
+ constexpr int kRow = 4

[constexpr-function] offset
- kRow + 0
+ kRow + 1

[literal] bound
- c >= cols
+ c > cols

[kernel] barrier 2
- barrier();
+
  test small Small.Blind

[broken] bound 1
- i < n
+ syntax
'''


class Mechanism(unittest.TestCase):
    """One program for all."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def mutants_of(self, text):
        (self.path / "small.txt").write_text(text)
        return mutants.read_lists([self.path / "small.txt"])

    def build(self):
        made = self.mutants_of(LIST)
        (self.path / "rondo").symlink_to(mutants.ROOT)
        (self.path / "small.cc").write_text(mutants.rewrite("runtime/small.cc", SOURCE, made))
        (self.path / "bin").mkdir()
        subprocess.run([sys.argv[1], "-std=c++20", "-Wextra", "-Werror", "-I", self.path, self.path / "small.cc", "-o",
                        self.path / "bin/small"], check=True)
        return made

    def test_every_kind(self):
        made = self.build()
        self.assertEqual({m.name: m.line for m in made}["statement"], 10)
        kernel = "for (i < n) { barrier(); } for (i < m) { barrier(); }"
        expected = {"": f"3 5 1 c >= cols {kernel}", "expression": f"3 3 1 c >= cols {kernel}",
                    "inner": f"3 7 1 c >= cols {kernel}", "statement": f"3 5 0 c >= cols {kernel}",
                    "in-if-constexpr": f"3 5 2 c >= cols {kernel}", "constant": f"4 5 1 c >= cols {kernel}",
                    "constexpr-function": f"4 5 1 c >= cols {kernel}", "literal": f"3 5 1 c > cols {kernel}",
                    "kernel": "3 5 1 c >= cols for (i < n) { barrier(); } for (i < m) {  }",
                    "unknown": f"3 5 1 c >= cols {kernel}"}
        for name, line in expected.items():
            out = subprocess.run([self.path / "bin/small"], env={"RONDO_MUTANT": name}, capture_output=True,
                                 text=True).stdout
            self.assertEqual(out.splitlines()[0], line, name)

    def test_fates(self):
        made = {m.name: m for m in self.build()}
        run.RELEASE = self.path
        tests = {text: run.Test(text) for m in made.values() for text in m.tests}
        self.assertEqual(run.fate(made["expression"], tests), ("killed", "small: Small.Value"))
        self.assertEqual(run.fate(made["constant"], tests)[0], "survived")
        self.assertEqual(run.fate(made["broken"], tests)[0], "broken")
        self.assertEqual(made["kernel"].tests, ["small Small.Blind", "small Small.*"])

    def test_tiers(self):
        """Of a mutant's tests, those in the tier; the others of their program come after. None of them: it survives."""
        made = {m.name: m for m in self.build()}
        run.RELEASE = self.path
        path = self.path / "bin/small"
        run.tests_of = lambda program: ["Small.Value", "Small.Blind", "Small.Other"]
        tier = {("small", frozenset()): (path, ["Small.Blind", "Small.Other"])}
        m = made["kernel"]
        rest = run.only_in_tier(m, tier)
        self.assertEqual((m.tests, rest), (["small Small.Blind", "small Small.*"], ["small *"]))
        filters = []
        for text in m.tests + rest:
            test = run.Test(text, tier)
            self.assertTrue(test.restrict())
            filters.append(test.filter)
        self.assertEqual(filters, ["Small.Blind", "Small.Blind:Small.Other", "Small.Blind:Small.Other"])
        for filters, expected in ((["Small.Blind"], "survived"), (["Small.Value"], "killed")):
            tier = {("small", frozenset()): (path, filters)}
            m = {m.name: m for m in self.mutants_of(LIST)}["expression"]
            before = run.signature(m)
            run.only_in_tier(m, tier)
            self.assertNotEqual(run.signature(m), before)
            self.assertEqual(run.fate(m, {text: run.Test(text, tier) for text in m.tests})[0], expected)
        run.only_in_tier(m, {("other", frozenset()): (path, ["Small.*"])})
        self.assertEqual(run.fate(m, {}), ("survived", ""))

    def test_a_tier_beside_all_tests(self):
        """One is killed by its tests in the tier, one by the rest of the tier, one by other tiers, one by nothing."""
        made = {m.name: m for m in self.build()}
        options = type("Options", (), {"jobs": 1, "tests": None, "again": False, "survivors": False})
        chosen = [made[name] for name in ("expression", "inner", "other-condition", "constant")]
        fates = {"short": {"expression": "killed"}, "all": {"expression": "killed", "inner": "killed", "other-condition": "killed"},
                 "rest": {"inner": "killed"}}
        asked = []

        def judge(wanted, path, tier, _):
            part = "all" if tier is None else "rest" if path.name.endswith("_rest.tsv") else "short"
            asked.append((part, [m.name for m in wanted]))
            return {m.name: (run.signature(m), fates[part].get(m.name, "survived")) for m in wanted}
        keep, run.judge = run.judge, judge
        self.addCleanup(setattr, run, "judge", keep)
        survivors = [(m, m.tests, ["small *"]) for m in chosen[1:]]
        self.assertFalse(run.compare("short", {}, chosen, survivors, options))  # 2 of 3
        self.assertEqual(asked, [("all", ["inner", "other-condition", "constant"]), ("rest", ["inner", "other-condition"])])
        fates["rest"]["other-condition"] = "killed"
        self.assertTrue(run.compare("short", {}, chosen, survivors, options))

    def test_errors(self):
        def error(mutant, lead="file runtime/small.cc\ntest small Small.*\n"):
            with self.assertRaises(mutants.ListError) as caught:
                mutants.rewrite("runtime/small.cc", SOURCE, self.mutants_of(lead + mutant))
            return str(caught.exception)
        self.assertIn("no such text any more", error("[a] bound\n- a < c\n+ a\n"))
        self.assertIn("no such text any more", error("[a] bound\n- // a < b\n+ a\n"))
        self.assertIn("has it 4 times; say which", error("[a] wait\n- return\n+ throw\n"))
        self.assertIn("times only", error("[a] wait 9\n- return\n+ throw\n"))
        self.assertIn("rule nonsense", error("[a] nonsense\n- a\n+ b\n"))
        self.assertIn("wants a line with -", error("[a] bound\n- a\n"))
        self.assertIn("has no test", error("[a] bound\n- a\n+ b\n", lead="file runtime/small.cc\n"))
        self.assertIn("overlap", error("[a] bound\n- a < b && a\n+ a\n[b] bound\n- a > 0\n+ a\n"))
        self.assertIn("is also in", error("[a] bound\n- a\n+ b\n[a] bound\n- a\n+ b\n"))
        self.assertIn("inside of a literal", error('[a] bound\n- cols";\n+ x\n'))

    def test_proposals_are_mutants(self):
        made = mutants.proposals("runtime/cuda/product.cc", 10, 1)
        self.assertEqual(len(made.split("[product-")), 11)
        self.assertEqual(made, mutants.proposals("runtime/cuda/product.cc", 10, 1))
        for m in self.mutants_of(made.replace("\n", "\ntest small Small.*\n", 1)):
            mutants.rewrite(m.source, (mutants.ROOT / m.source).read_text(), [m])

    def test_the_lists_are_lists(self):
        self.assertGreaterEqual(len(mutants.read_lists(sorted(mutants.LISTS.glob("*.txt")))), 120)

    def test_what_the_source_has_lost(self):
        made = self.mutants_of(LIST.replace("- c >= cols", "- c == cols"))
        stale = []
        mutants.rewrite("runtime/small.cc", SOURCE, made, stale)
        self.assertEqual([m.name for m, _ in stale], ["literal"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
