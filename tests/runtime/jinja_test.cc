// Jinja as chat templates use it: the same text as jinja2, errors that name line and construct, and bounds.
#include "rondo/runtime/chat/jinja/template.h"

#include "absl/strings/str_cat.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::text::jinja {
namespace {

using Variables = std::vector<std::pair<std::string, Value>>;

Variables variables_of(const Value& object) {
  Variables out;
  for (const auto& [name, value] : object.dict().items) out.emplace_back(name.text(), value);
  return out;
}

std::string render(std::string_view source, const Variables& variables = {}, const RenderOptions& options = {}) {
  return Template::parse(source, "chat.jinja", options.limits).render(variables, options).text;
}
std::string error_of(std::string_view source, const Variables& variables = {}, const RenderOptions& options = {}) {
  try {
    return "rendered: " + render(source, variables, options);
  } catch (const TemplateError& error) {
    return error.what();
  }
}

TEST(Jinja, AsJinja2) {
  const std::string path = std::string(tests::kReferenceDir) + "/jinja/snippets.jsonl", file = read_bytes(path);
  std::tm now{};
  now.tm_year = 124, now.tm_mon = 6, now.tm_mday = 26, now.tm_wday = 5, now.tm_yday = 207;
  Variables variables;
  int rendered = 0, refused = 0;
  for (size_t at = 0; at < file.size();) {
    const size_t end = file.find('\n', at);
    const Value line = Value::from_json(path, std::string_view(file).substr(at, end - at));
    at = end + 1;
    if (const Value* first = line.dict().find("variables")) {
      variables = variables_of(*first);
      continue;
    }
    const std::string source(line.dict().find("template")->text());
    SCOPED_TRACE(source);
    const Value* const text = line.dict().find("text");
    try {
      const Rendered made =
          Template::parse(source, "chat.jinja").render(variables, {.track_generation = true, .now = now});
      ASSERT_NE(text, nullptr) << "rendered, but jinja2 says " << line.dict().find("error")->text() << "\n"
                               << made.text;
      EXPECT_EQ(made.text, text->text());
      std::string spans, wanted;
      for (const auto& [begin, stop] : made.generation) absl::StrAppend(&spans, begin, "-", stop, " ");
      for (const Value& span : line.dict().find("generation")->items())
        absl::StrAppend(&wanted, span.items()[0].integral(), "-", span.items()[1].integral(), " ");
      EXPECT_EQ(spans, wanted);
      ++rendered;
    } catch (const TemplateError& error) {
      EXPECT_EQ(text, nullptr) << error.what();
      EXPECT_GE(error.line(), 1);
      ++refused;
    }
  }
  EXPECT_GT(rendered, 200);
  EXPECT_GT(refused, 70);
}

// What this subset lacks is an error with the line and the name of the construct.
TEST(Jinja, NamesWhatItLacks) {
  const std::pair<const char*, const char*> kLacking[] = {
      {"\n{% include 'x' %}", "line 2: the statement \"include\""},
      {"{% extends 'x' %}", "the statement \"extends\""},
      {"{% import 'a' as b %}", "the statement \"import\""},
      {"{% block a %}x{% endblock %}", "the statement \"block\""},
      {"{% call f() %}x{% endcall %}", "the statement \"call\""},
      {"{% autoescape true %}{% endautoescape %}", "the statement \"autoescape\""},
      {"{% for i in [1] recursive %}{% endfor %}", "recursive"},
      {"{% macro f(a) %}{{ varargs }}{% endmacro %}", "\"varargs\" in a macro"},
      {"{% macro f(a) %}{{ caller() }}{% endmacro %}", "\"caller\" in a macro"},
      {"{% for i in [1] %}{% macro a() %}{% endmacro %}{% endfor %}", "a macro inside a loop"},
      {"\n\n{{ 'a'|urlize }}", "line 3: the filter \"urlize\""},
      {"{{ [{'a': 1}]|groupby('a') }}", "the filter \"groupby\""},
      {"{{ [1]|random }}", "the filter \"random\""},
      {"{{ 'a'|wordcount }}", "the filter \"wordcount\""},
      {"{{ '7'|int(0, 16) }}", "another base than 10"},
      {"{{ lipsum() }}", "the global \"lipsum\""},
      {"{{ cycler('a') }}", "the global \"cycler\""},
      {"{{ self }}", "the variable \"self\""},
      {"{{ dict(**{}) }}", "\"**\" in the arguments"},
      {"{{ 2 ** 100 }}", "beyond 64 bits"},
      {"{{ 99999999999999999999 }}", "beyond 64 bits"},
      {"{{ '%5d' % 3 }}", "conversion in a format"},
      {"{{ '{:>5}'.format(1) }}", "str.format() with"},
      {"{{ 'a'.encode() }}", "the method \"encode\" of str"},
      {"{{ (1).bit_length() }}", "the attribute \"bit_length\" of int"},
      {"{{ [1]|map('string') }}", "put |list behind it"},
      {"{{ namespace(a=1) }}", "type Namespace"},
      {"{{ 'a'.upper }}", "is an address"},
      {"{{ ('<b>'|safe) + 'x' }}", "marked safe"},
      {"{{ ('%s'|safe)|format('<') }}", "format of Markup"},
      {"{{ ('a b'|safe)|truncate(1, leeway=0, end='') }}", "truncate of Markup"},
      {"{{ ('<b>'|safe)[:2] + '<' }}", "marked safe"},
      {"{{ 1[:2] }}", "'int' object cannot be sliced"},
      {"{{ [1, 'abc'['a':]] }}", "slice bounds must be integers"},
      {"{% set n = 2 %}{{ -2 ** n }}", "to the power of a variable"},
      {"{% set n = 2 %}{{ (1 - 3) ** n }}", "to the power of a variable"},
      {"{{ 1 is sameas 1 }}", "\"sameas\""},
      {"{{ é }}", "unexpected character"},
      {"{{ \"\\N{BULLET}\" }}", "\\N{...}"},
      {"{% set n = namespace(a=1) %}{% for i in [1] %}{% set n.l = loop %}{% endfor %}", "the loop object"},
      {"{% trans %}", "the statement \"trans\""},
      {"{{ strftime_now('%f') }}", "format of a date"}};
  for (const auto& [source, wanted] : kLacking) {
    const std::string error = error_of(source);
    EXPECT_NE(error.find(wanted), std::string::npos) << source << "\n" << error;
    EXPECT_TRUE(error.starts_with("chat.jinja, line ")) << error;
  }
}

TEST(Jinja, ErrorsNameTheLine) {
  EXPECT_NE(error_of("a\nb\n{{ x.y }}").find("line 3: 'x' is undefined"), std::string::npos);
  EXPECT_NE(error_of("a\n{% if x %}\n").find("{% endif %} is missing"), std::string::npos);
  EXPECT_NE(error_of("{% for m in [1] %}\n\n{{ raise_exception('no ' ~ m) }}{% endfor %}")
                .find("line 3: the template refuses this conversation: no 1"),
            std::string::npos);
  EXPECT_NE(error_of("{{ [].append(1) }}").find("unsafe"), std::string::npos);
  EXPECT_NE(error_of("{{ ''.__class__.__mro__ }}").find("unsafe"), std::string::npos);
  EXPECT_NE(error_of("{{ 'a\xff' }}").find("UTF-8"), std::string::npos);
  EXPECT_NE(error_of("{% set d = {'a': 1} %}\n{{ d[1:] }}").find("line 2: 'dict' object cannot be sliced"),
            std::string::npos);
  EXPECT_NE(error_of("{% set n = 3 %}{{ n[1:] }}").find("'int' object cannot be sliced"), std::string::npos);
  EXPECT_NE(error_of("{% set t = 'abc' %}{{ t['x':] }}").find("slice bounds must be integers"), std::string::npos);
}

// A template is a stranger's program: time, memory and recursion have bounds.
TEST(Jinja, Bounds) {
  // Smaller than the usual ones, to be reached sooner.
  const RenderOptions small{.limits = {.steps = 2'000'000, .bytes = size_t{16} << 20}};
  for (const char* source : {
           "{{ 'a' * 10 ** 10 }}",
           "{{ ('a' * 60000000) ~ ('b' * 60000000) }}",
           "{{ range(100001)|list }}",
           "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
           "{% set n = namespace(s='ab') %}{% for i in range(9999) %}{% set n.s = n.s.replace('a', 'aaaaaaaaaa') %}{% "
           "endfor %}",
           "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}{% endfor %}",
           "{% set n = namespace(l=[1]) %}{% for i in range(999) %}{% set n.l = [n.l] %}{% endfor %}",
           "{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
           "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}"
           "{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
           "{% set n = namespace(l=[1]) %}{% for i in range(999) %}{% set n.l = n.l|map('string') %}{% endfor %}",
           "{% set n = namespace(l=[1]) %}{% for i in range(999) %}{% set n.l = [1]|map('default', n.l) %}{% endfor %}",
           "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(1) }}",
           "{{ [0] * 9999999999 }}",
           "{{ 'x'.center(9999999999) }}",
           "{{ [1, [2]]|tojson(indent=1000) ~ 'a' * 70000000 }}",
           "{{ 2 ** 9999999999 }}",
           "{{ range(-9223372036854775807, 9223372036854775807) }}",
       }) {
    const std::string error = error_of(source, {}, small);
    EXPECT_TRUE(error.starts_with("chat.jinja, line ")) << source << "\n" << error.substr(0, 200);
  }
  EXPECT_NE(error_of("{{ 'a' * 10 ** 10 }}").find("more memory than the limit"), std::string::npos);
  // With a stack for the frames of any build: the limit of nesting comes first.
  const RenderOptions tall{.limits = {.stack = size_t{4} << 20}};
  std::string deep;
  for (int i = 0; i < 10000; ++i) deep += "(";
  EXPECT_NE(error_of("{{ " + deep, {}, tall).find("nested"), std::string::npos);
  std::string sum = "1";
  for (int i = 0; i < 10000; ++i) sum += "+1";
  EXPECT_NE(error_of("{{ " + sum + " }}", {}, tall).find("nested"), std::string::npos);
  std::string ifs;
  for (int i = 0; i < 10000; ++i) ifs += "{% if 1 %}";
  EXPECT_NE(error_of(ifs, {}, tall).find("nested"), std::string::npos);
  EXPECT_NE(error_of(std::string(size_t{2} << 20, 'a')).find("the limit is"), std::string::npos);
  // A namespace that holds itself is no leak, and a value that many others share is not copied.
  EXPECT_EQ(render("{% set a = namespace() %}{% set a.a = a %}{% set b = namespace(c=[a]) %}{% set a.b = b %}ok"),
            "ok");
}

TEST(Jinja, GenerationBlocks) {
  const RenderOptions tracked{.track_generation = true};
  const Template chat = Template::parse("é{% generation %}ab{% endgeneration %}{% generation %}{% endgeneration %}",
                                        "t");
  EXPECT_TRUE(chat.has_generation());
  const Rendered made = chat.render({}, tracked);
  EXPECT_EQ(made.text, "éab");
  EXPECT_EQ(made.generation, (std::vector<std::pair<size_t, size_t>>{{2, 4}, {4, 4}}));
  const char* in_macro = "{% macro f() %}{% generation %}a{% endgeneration %}{% endmacro %}x{{ f() }}";
  EXPECT_EQ(render(in_macro), "xa");
  EXPECT_NE(error_of(in_macro, {}, tracked).find("no place in the text that is known"), std::string::npos);
}

}  // namespace
}  // namespace rondo::text::jinja
