// Hostile chat templates: shapes that cost much for their size, each in several sizes. Who renders all of them needs
// memory and work that a budget bounds, and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::test {

// An expression over what `before` sets. $N is a size.
struct BombShape {
  const char* name;
  const char* before;
  const char* expression;
  // What one evaluation costs grows with N. False: it is refused, or reads only a part.
  bool grows = true;
};

// clang-format off
inline constexpr BombShape kBombShapes[] = {
    // ---- Text: what looks for a part of it. A prefix of w is everywhere in t.
    {"in", "{% set t = 'a' * $N %}{% set w = 'a' * ($N // 2) ~ 'b' %}", "w in t"},
    {"not in", "{% set t = 'ab' * $N %}{% set w = 'ab' * ($N // 2) ~ 'c' %}", "w not in t"},
    {"find", "{% set t = 'a' * $N %}{% set w = 'a' * ($N // 2) ~ 'b' %}", "t.find(w)"},
    {"rfind", "{% set t = 'a' * $N %}{% set w = 'b' ~ 'a' * ($N // 2) %}", "t.rfind(w)"},
    {"count", "{% set t = 'a' * $N %}{% set w = 'a' * ($N // 2) ~ 'b' %}", "t.count(w)"},
    {"count of one", "{% set t = 'a' * $N %}", "t.count('a')"},
    {"count in a window", "{% set t = 'é' * $N %}", "t.count('x', $N - 5, $N)"},
    {"replace", "{% set t = 'a' * $N %}{% set w = 'a' * ($N // 2) ~ 'b' %}", "t.replace(w, 'c')"},
    {"replace of one", "{% set t = 'a' * $N %}", "t.replace('a', 'b')"},
    {"replace of nothing", "{% set t = 'a' * $N %}", "t.replace('', '-')"},
    {"replace filter", "{% set t = 'a' * $N %}", "t|replace('a', 'bcd')"},
    {"split", "{% set t = 'a' * $N %}{% set w = 'a' * ($N // 2) ~ 'b' %}", "t.split(w)"},
    {"split everywhere", "{% set t = 'a' * $N %}", "t.split('a')"},
    {"split at spaces", "{% set t = ' a' * $N %}", "t.split()"},
    {"split once", "{% set t = ' ' * $N %}", "t.split(none, 1)"},
    {"rsplit", "{% set t = 'a' * $N %}{% set w = 'b' ~ 'a' * ($N // 2) %}", "t.rsplit(w)"},
    {"rsplit at spaces", "{% set t = 'a ' * $N %}", "t.rsplit()"},
    {"splitlines", "{% set t = '\\n' * $N %}", "t.splitlines()"},
    {"partition", "{% set t = 'a' * $N %}{% set w = 'a' * ($N // 2) ~ 'b' %}", "t.partition(w)"},
    {"rpartition", "{% set t = 'a' * $N %}{% set w = 'b' ~ 'a' * ($N // 2) %}", "t.rpartition(w)"},
    // ---- Text: ends, comparisons, classes
    {"strip", "{% set t = 'a' * $N %}{% set c = 'b' * $N ~ 'a' %}", "t.strip(c)"},
    {"lstrip", "{% set t = ' ' * $N %}", "t.lstrip()"},
    {"trim", "{% set t = 'é' * $N %}", "t|trim('xyé')"},
    {"startswith", "{% set t = 'a' * $N %}{% set w = 'a' * $N %}", "t.startswith(w)"},
    {"endswith one of many", "{% set c = (('a',) * $N) %}", "'b'.endswith(c)"},
    {"removeprefix", "{% set t = 'a' * $N %}", "t.removeprefix(t[1:])"},
    {"equal texts", "{% set t = 'a' * $N %}{% set u = 'a' * $N %}", "t == u"},
    {"texts in order", "{% set t = 'a' * $N %}{% set u = 'a' * $N %}", "t < u"},
    {"long keys", "{% set t = 'a' * $N %}{% set d = {t: 1} %}{% set u = 'a' * $N %}", "d[u]"},
    {"a text in a list", "{% set t = 'a' * $N %}{% set l = ['a' * $N, 'b' * $N] %}", "('b' * $N) in l"},
    {"isalpha", "{% set t = 'é' * $N %}", "t.isalpha()"},
    {"istitle", "{% set t = 'Aa' * $N %}", "t.istitle()"},
    {"is upper", "{% set t = 'A' * $N %}", "t is upper"},
    // ---- Text that is made
    {"upper", "{% set t = 'ß' * $N %}", "t.upper()"},
    {"lower", "{% set t = 'Σ.' * $N %}", "t|lower"},
    {"title", "{% set t = 'a-' * $N %}", "t|title"},
    {"capitalize", "{% set t = 'İ' * $N %}", "t|capitalize"},
    {"escape", "{% set t = '<' * $N %}", "t|escape"},
    {"safe", "{% set t = '<' * $N %}", "t|safe"},
    {"indent", "{% set t = 'a\\n' * $N %}", "t|indent(4)"},
    {"indent far", "{% set t = 'a\\n' * $N %}", "t|indent($N)", false},
    {"truncate", "{% set t = 'a ' * $N %}", "t|truncate($N)"},
    {"truncate far", "{% set t = 'a ' * $N %}", "t|truncate(9223372036854775807, leeway=9223372036854775807)"},
    {"center", "", "'x'.center($N)"},
    {"center of all memory", "", "'x'.center(2 ** 62 - $N, 'é😀'[1])", false},
    {"ljust of all memory", "", "'x'.ljust(2 ** 61 + $N, '😀')", false},
    {"zfill", "", "'-7'.zfill($N)"},
    {"times", "", "'ab' * $N"},
    {"times of all memory", "{% set t = 'ab' * $N %}", "t * 2 ** 62", false},
    {"plus", "{% set t = 'a' * $N %}", "t + t"},
    {"tilde", "{% set t = 'a' * $N %}", "t ~ t ~ 1"},
    {"percent", "{% set t = 'a' * $N %}", "'%s%s%s' % (t, t, t)"},
    {"percent of many digits", "{% set f = '%.999f' * $N %}", "f % ((1e308,) * $N)", false},
    {"format", "{% set f = '{0}' * $N %}", "f.format('abc')"},
    {"format by name", "{% set f = '{b}' * $N %}", "f.format(a=1, b='abc')"},
    {"a slice of text", "{% set t = 'é' * $N %}", "t[1:]"},
    {"every second point", "{% set t = 'é' * $N %}", "t[::2]"},
    {"backwards", "{% set t = 'é' * $N %}", "t[::-1]"},
    {"a far step", "{% set t = 'é' * $N %}", "t[::-9223372036854775807 - 1]"},
    {"a point", "{% set t = 'é' * $N %}", "t[$N - 1]"},
    {"reverse of text", "{% set t = 'é' * $N %}", "t|reverse"},
    {"length", "{% set t = 'é' * $N %}", "t|length"},
    {"list of text", "{% set t = 'é' * $N %}", "t|list"},
    {"int", "{% set t = '1' * $N %}", "t|int(1)", false},
    {"float", "{% set t = '0' * $N %}", "t|float"},
    {"dates", "", "strftime_now('%c' * ([$N, 450]|min))", false},
    {"round", "", "1e300|round([$N, 300]|min)", false},
    {"an attribute of a long name", "{% set t = 'a' * $N %}", "{}|attr(t)", false},
    {"an item of a long name", "{% set t = 'a' * $N %}", "{'b': 1}[t]", false},
    {"a long path", "{% set t = 'a.' * $N %}", "[{}]|map(attribute=t)|list", false},
    // ---- Sequences
    {"times of a list", "", "[0, 'a'] * $N"},
    {"times of a list of all memory", "{% set l = [0] * $N %}", "l * 2 ** 62", false},
    {"plus of lists", "{% set l = [0] * $N %}", "l + l"},
    {"a slice of a list", "{% set l = [0] * $N %}", "l[1:]"},
    {"list", "{% set l = [0] * $N %}", "l|list"},
    {"last", "{% set l = [0] * $N %}", "l|last"},
    {"reverse", "{% set l = ['a'] * $N %}", "l|reverse|list"},
    {"sort", "{% set l = ['b', 'A'] * $N %}", "l|sort"},
    {"sort by an attribute", "{% set l = [{'a': 'B'}, {'a': 'a'}] * $N %}", "l|sort(attribute='a')"},
    {"sort by several", "{% set l = [{'a': 'a'}] * $N %}", "l|sort(attribute='a,a,a,a,a,a,a,a')"},
    {"sort of long texts", "{% set l = ['a' * $N] * 8 %}", "l|sort"},
    {"unique", "{% set l = ['b', 'A'] * $N %}", "l|unique|list"},
    {"unique of numbers", "{% set l = range([$N, 99999]|min)|list %}", "l|unique|list", false},
    {"max", "{% set l = ['b', 'A'] * $N %}", "l|max"},
    {"sum", "{% set l = [1] * $N %}", "l|sum"},
    {"join", "{% set l = ['a', 'b'] * $N %}", "l|join(', ')"},
    {"join method", "{% set l = ['a', 'b'] * $N %}", "'-'.join(l)"},
    {"map", "{% set l = ['a', 'b'] * $N %}", "l|map('upper')|list"},
    {"map of maps", "{% set l = ['a'] * $N %}", "l|map('upper')|map('lower')|map('trim')|map('string')|list"},
    {"select", "{% set l = ['a', 'b'] * $N %}", "l|select('equalto', 'a')|list"},
    {"selectattr", "{% set l = [{'a': 1}] * $N %}", "l|selectattr('a', 'ne', 1)|list"},
    {"batch", "{% set l = [0] * $N %}", "l|batch(3, 'x')|list"},
    {"batch that fills", "", "[1]|batch([$N, 100000]|min, 'x')|list", false},
    {"slice", "{% set l = [0] * $N %}", "l|slice(3)|list"},
    {"equal lists", "{% set l = [0] * $N %}{% set m = [0] * $N %}", "l == m"},
    {"the same lists", "{% set l = ['a'] * $N %}{% set m = l + [] %}", "l == m"},
    {"lists in order", "{% set l = [0] * $N %}{% set m = [0] * $N %}", "l < m"},
    {"in a list", "{% set l = [0] * $N %}", "1 in l"},
    {"count in a list", "{% set l = ['a'] * $N %}", "l.count('a')"},
    {"index in a list", "{% set l = ['a'] * $N + ['b'] %}", "l.index('b')"},
    {"print", "{% set l = [0, 'a'] * $N %}", "l|string"},
    {"json", "{% set l = [0, 'a'] * $N %}", "l|tojson"},
    {"json of long text", "{% set t = '\\u0001' * $N %}", "t|tojson"},
    {"json with indents", "{% set l = [[[[0]]]] * $N %}", "l|tojson(indent=1000)", false},
    {"a tuple as a key", "{% set k = (0,) * $N %}", "{k: 1}"},
    // ---- Mappings
    {"items", "{% set d = dict(range([$N, 99999]|min // 2 * 2)|batch(2)) %}", "d.items()|list", false},
    {"a mapping of pairs", "{% set l = [(1, 2), (3, 4)] * $N %}", "dict(l)"},
    {"numbers as keys", "{% set l = range([$N, 99999]|min)|batch(2)|list %}", "dict(l)", false},
    {"values", "{% set d = dict(range([$N, 99999]|min // 2 * 2)|batch(2)) %}", "d.values()", false},
    {"equal mappings", "{% set d = dict(range([$N, 99999]|min // 2 * 2)|batch(2)) %}{% set e = dict(d) %}", "d == e", false},
    {"dictsort", "{% set d = dict(range([$N, 99999]|min // 2 * 2)|batch(2)) %}", "d|dictsort", false},
    {"json with sorted keys", "{% set d = dict(range([$N, 99999]|min // 2 * 2)|batch(2)) %}", "d|tojson(sort_keys=true)", false},
};

// Statements, with $N and $R: "{% for r in range(99999) %}{% for s in range(99999) %}".
inline constexpr std::pair<const char*, const char*> kBombTemplates[] = {
    {"loops", "{% for r in range($N) %}{% for s in range($N) %}{% for t in range($N) %}{% endfor %}{% endfor %}{% endfor %}"},
    {"output", "{% set t = 'a' * $N %}$R{{ t }}"},
    {"output of little", "$R{{ r }}-$N"},
    {"doubled text", "{% set n = namespace(t='a' * $N) %}$R{% set n.t = n.t ~ n.t %}"},
    {"doubled list", "{% set n = namespace(t=['a'] * $N) %}$R{% set n.t = n.t + n.t %}"},
    {"grown text", "{% set n = namespace(t='') %}{% set a = 'a' * $N %}$R{% set n.t = n.t ~ a %}"},
    {"grown list", "{% set n = namespace(t=[]) %}{% set a = [1] * $N %}$R{% set n.t = n.t + a %}"},
    {"grown mapping", "{% set n = namespace(t=[]) %}$R{% set n.t = [{'a': n.t[-$N:]}] %}"},
    {"nested list", "{% set n = namespace(t=[1] * $N) %}$R{% set n.t = [n.t] %}"},
    {"printed twins", "{% set n = namespace(t=[1] * $N) %}{% for i in range(60) %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.t }}"},
    {"twins as JSON", "{% set n = namespace(t=[1] * $N) %}{% for i in range(60) %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.t|tojson }}"},
    {"compared twins", "{% set n = namespace(t=[1] * $N, u=[1] * $N) %}{% for i in range(60) %}{% set n.t = [n.t, n.t] %}"
                       "{% set n.u = [n.u, n.u] %}{% endfor %}{{ n.t == n.u }}"},
    {"twins as keys", "{% set n = namespace(t=(1,) * $N) %}{% for i in range(60) %}{% set n.t = (n.t, n.t) %}{% endfor %}{{ {n.t: 1} }}"},
    {"namespaces", "$R{% set n = namespace(t='a' * $N) %}"},
    {"iterators", "{% set n = namespace(t=[]) %}$R{% set n.t = n.t + [[1]|map('default', 'a' * $N)] %}"},
    {"iterators of iterators", "{% set n = namespace(t=[1] * $N) %}$R{% set n.t = n.t|map('string') %}"},
    {"undefined values", "{% set n = namespace(t=[]) %}{% set k = 'a' * $N %}$R{% set n.t = n.t + [{}[k]] %}"},
    {"blocks", "$R{% set x %}{{ 'a' * $N }}{% endset %}"},
    {"filter blocks", "$R{% filter upper %}{{ 'a' * $N }}{% endfilter %}"},
    {"generation blocks", "{% set t = 'a' * ($N // 100) %}$R{% generation %}{{ t }}{% endgeneration %}"},
    {"a loop's length", "{% set l = ['a'] * $N %}$R{% for x in l|map('upper') %}{% set y = loop.length %}{% break %}{% endfor %}"},
    {"a loop that skips", "{% set l = ['a'] * $N %}$R{% for x in l if x == 'b' %}{% endfor %}"},
    {"a loop over text", "{% set t = 'é' * $N %}$R{% for x in t %}{% endfor %}"},
    {"a self-calling macro", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f('a' * $N) }}"},
    {"a macro's default", "{% macro f(n, t='a' * $N) %}{{ f(n + 1) ~ t }}{% endmacro %}$R{{ f(1) }}"},
    {"two macros", "{% macro f(n) %}{% if n %}{{ g(n) }}{% endif %}{% endmacro %}{% macro g(n) %}{{ f(n)|upper }}{% endmacro %}{{ f($N) }}"},
    {"a macro that calls itself twice", "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}$R{{ f(25) }}$N"},
    {"a macro in a loop", "{% macro f(n) %}{% for x in [n] %}{% with y = x %}{% if y %}{{ f([y]) }}{% endif %}{% endwith %}{% endfor %}{% endmacro %}"
                          "{{ f('a' * $N) }}"},
    {"a macro through a filter", "{% macro f(n) %}{% filter upper %}{% set x %}{{ f(n) }}{% endset %}{{ x }}{% endfilter %}{% endmacro %}{{ f($N) }}"},
    {"an error of a long text", "{{ raise_exception('a' * $N) }}"},
};

// Source that repeats a part N times, N at most what the limit on source takes.
struct BombSource {
  const char* name;
  const char *before, *part, *after;
};
inline constexpr BombSource kBombSources[] = {
    {"many texts", "", "{{ 'a' }}b", ""},
    {"a list", "{{ [", "1,", "] }}"},
    {"a mapping", "{{ {", "1:1,", "} }}"},
    {"a tuple of targets", "{% set (", "a,", "b) = 1 %}"},
    {"brackets", "{{ ", "(", "1 }}"},
    {"lists in lists", "{{ ", "[", "1 }}"},
    {"signs", "{{ ", "-", "1 }}"},
    {"nots", "{{ ", "not ", "1 }}"},
    {"a sum", "{{ 1", "+1", " }}"},
    {"a concatenation", "{{ 1", "~1", " }}"},
    {"a comparison", "{{ 1", "<2", " }}"},
    {"filters", "{{ 1", "|string", " }}"},
    {"attributes", "{{ a", ".b", " }}"},
    {"calls", "{{ a", "()", " }}"},
    {"ifs", "", "{% if 1 %}", ""},
    {"elifs", "{% if 0 %}", "{% elif 0 %}", "{% endif %}"},
    {"fors", "", "{% for a in [1] %}", ""},
    {"sets", "", "{% set a = 1 %}", "{{ a }}"},
    {"comments", "", "{# a #}", ""},
    {"comments that do not end", "", "{#", ""},
    {"raws", "", "{% raw %}", ""},
    {"opened outputs", "", "{{", ""},
    {"spaces", "{{ ", " ", "}}"},
    {"lines", "", "\n{{ 1 }}", ""},
    {"a quoted text", "{{ '", "\\u00e9", "' }}"},
    {"many arguments", "{{ dict(", "a1,", "b=1) }}"},
};
// clang-format on

inline std::string replaced(std::string text, std::string_view from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// One evaluation of a shape's expression, or none.
inline std::string shape_once(const BombShape& shape, int64_t size, bool evaluated = true) {
  const std::string set = evaluated ? std::string("{% set x = ") + shape.expression + " %}" : "";
  return replaced(shape.before + set, "$N", std::to_string(size));
}

struct TemplateBomb {
  std::string name, source;
  bool endless = false;  // only a limit can end it
};

// Names of its own, so that each is another one: {% set NAME = 1 %}, parameters and arguments, fields of a namespace.
inline std::vector<TemplateBomb> bombs_of_names(int64_t size) {
  std::string sets, parameters, arguments, fields, uses, loop;
  for (int64_t i = 0; i < size; ++i) {
    const std::string name = "v" + std::to_string(i);
    sets += "{% set " + name + " = 1 %}";
    parameters += name + ",";
    arguments += name + "=1,";
    fields += "{% set n." + name + " = 1 %}";
  }
  const std::string n = std::to_string(size), last = "v" + std::to_string(size - 1);
  const std::string endless = "{% for r in range(99999) %}{% for s in range(99999) %}",
                    end = "{% endfor %}{% endfor %}";
  return {{"names " + n, sets + endless + "{% set x = " + last + " %}{% set y = missing %}" + end, true},
          {"parameters " + n,
           "{% macro f(" + parameters + ") %}{% endmacro %}" + endless + "{{ f(" + arguments + ") }}" + end, true},
          {"fields " + n,
           "{% set n = namespace() %}" + fields + endless + "{% set x = n." + last + " %}{% set n." + last + " = 1 %}" +
               end,
           true},
          {"named arguments " + n, endless + "{% set x = dict(" + arguments + ") %}" + end, true}};
}

inline std::vector<TemplateBomb> template_bombs() {
  std::vector<TemplateBomb> bombs;
  const std::string begin = "{% for r in range(99999) %}{% for s in range(99999) %}", end = "{% endfor %}{% endfor %}";
  for (const int64_t size : {7, 1'000, 60'000, 5'000'000}) {
    const std::string n = std::to_string(size);
    for (const BombShape& shape : kBombShapes)
      bombs.push_back(
          {std::string(shape.name) + " " + n,
           replaced(std::string(shape.before) + begin + "{% set x = " + shape.expression + " %}" + end, "$N", n),
           true});
    for (const auto& [name, source] : kBombTemplates) {
      const bool loops = std::string_view(source).find("$R") != std::string_view::npos;
      bombs.push_back(
          {std::string(name) + " " + n, replaced(replaced(source, "$R", begin), "$N", n) + (loops ? end : ""), loops});
    }
  }
  for (const size_t bytes : {200, 20'000, 250'000})
    for (const BombSource& shape : kBombSources) {
      TemplateBomb bomb{.name = std::string(shape.name) + " " + std::to_string(bytes), .source = shape.before};
      while (bomb.source.size() < bytes) bomb.source += shape.part;
      bomb.source += shape.after;
      bombs.push_back(std::move(bomb));
    }
  for (const int64_t size : {5, 300, 5'000})
    for (TemplateBomb& bomb : bombs_of_names(size)) bombs.push_back(std::move(bomb));
  return bombs;
}

}  // namespace rondo::test
