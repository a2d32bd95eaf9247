// Templates of strangers end within their budget of work, memory and stack, and when they are asked to stop.
#include "rondo/tests/runtime/template_bombs.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "rondo/runtime/chat/jinja/template.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::text::jinja {
namespace {

using Variables = std::vector<std::pair<std::string, Value>>;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Lets this process have `bytes` more memory than it has, as the kernel counts it, and not as a budget does.
class MemoryLimit {
 public:
  explicit MemoryLimit(size_t bytes) {
    if (kSanitized || getrlimit(RLIMIT_DATA, &before_) != 0) return;
    const std::string status = read_bytes("/proc/self/status");
    const size_t at = status.find("VmData:");
    if (at == std::string::npos) return;
    rlimit limit = before_;
    limit.rlim_cur = (std::stoul(status.substr(at + 7)) << 10) + bytes;
    limited_ = setrlimit(RLIMIT_DATA, &limit) == 0;
  }
  ~MemoryLimit() {
    if (limited_) setrlimit(RLIMIT_DATA, &before_);
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
  bool limited_ = false;
};

constexpr Limits kSmall{.steps = 60'000, .bytes = size_t{16} << 20, .stack = size_t{96} << 10};

void expect_ends(const test::TemplateBomb& bomb, const Limits& limits) {
  SCOPED_TRACE(bomb.name);
  Used used;
  bool rendered = false;
  try {
    Template::parse(bomb.source, "bomb", limits)
        .render({}, {.track_generation = true, .limits = limits, .used = &used});
    rendered = true;
  } catch (const TemplateError& error) {
    EXPECT_GE(error.line(), 1);
    EXPECT_LT(error.reason().size(), 3000u);
  } catch (const std::bad_alloc&) {
    ADD_FAILURE() << "takes memory that no budget knows of";
  }
  EXPECT_FALSE(rendered && bomb.endless);
  EXPECT_LE(used.steps, limits.steps);
  EXPECT_LE(used.bytes, limits.bytes);
  EXPECT_LE(used.stack, limits.stack);
}

TEST(TemplateBombs, OneOfEachShapeEnds) {
  const MemoryLimit memory(size_t{40} << 20);
  std::set<std::string> seen;
  for (const test::TemplateBomb& bomb : test::template_bombs()) {
    // Names end with the size: of the middle ones, the first of each shape.
    const std::string size = bomb.name.substr(bomb.name.rfind(' ') + 1);
    if (size == "60000" || size == "20000" || size == "300")
      if (seen.insert(bomb.name.substr(0, bomb.name.rfind(' '))).second) expect_ends(bomb, kSmall);
  }
  EXPECT_GE(seen.size(), 150u);
}

TEST(TemplateBombs, AllEnd) {
  const MemoryLimit memory(size_t{40} << 20);
  const std::vector<test::TemplateBomb> bombs = test::template_bombs();
  EXPECT_GE(bombs.size(), 500u);
  for (const test::TemplateBomb& bomb : bombs) expect_ends(bomb, kSmall);
}

// Steps of one evaluation of the shape's expression.
int64_t cost(const test::BombShape& shape, int64_t size) {
  const auto steps = [&](bool evaluated) {
    Used used;
    Template::parse(shape_once(shape, size, evaluated), "shape").render({}, {.used = &used});
    return static_cast<int64_t>(used.steps);
  };
  return steps(true) - steps(false);
}

// No filter, method or operator works for free, and none takes more than time in proportion (n log n, if it sorts).
TEST(TemplateBombs, WorkIsChargedInProportion) {
  constexpr int64_t kSize = 20'000;
  int shapes = 0;
  for (const test::BombShape& shape : test::kBombShapes) {
    if (!shape.grows) continue;
    SCOPED_TRACE(shape.name);
    ++shapes;
    try {
      const int64_t one = cost(shape, kSize), two = cost(shape, 2 * kSize);
      EXPECT_GE(two - one, kSize / 128);
      EXPECT_LE(two, 5 * one / 2 + 1000);
    } catch (const TemplateError& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_GE(shapes, 80);
}

TEST(TemplateBombs, NamesAreFoundWithoutALookAtAllOthers) {
  // Twice the names, and the same loop.
  const auto steps = [](int64_t names) {
    std::vector<int64_t> out;
    for (const test::TemplateBomb& bomb : test::bombs_of_names(names)) {
      if (bomb.name.starts_with("parameters") || bomb.name.starts_with("named")) continue;  // these hand them all over
      std::string source = bomb.source;
      source = test::replaced(test::replaced(source, "range(99999)", "range(often)"), "{% for s in range(often) %}",
                              "{% for s in range(20) %}");
      const auto used_by = [&](int64_t often) {
        Used used;
        Template::parse(source, "names").render({{"often", Value::integer(often)}}, {.used = &used});
        return static_cast<int64_t>(used.steps);
      };
      out.push_back(used_by(20) - used_by(10));
    }
    return out;
  };
  const std::vector<int64_t> few = steps(100), many = steps(6'000);
  ASSERT_EQ(few.size(), 2u);
  for (size_t i = 0; i < few.size(); ++i) EXPECT_LE(many[i], 2 * few[i]);
}

// ---- The budget itself

TEST(TemplateBudget, GivesMemoryBack) {
  Used used;
  Template::parse("{% for i in range(1000) %}{% set t = 'a' * 100000 %}{% endfor %}", "t").render({}, {.used = &used});
  EXPECT_GT(used.bytes, 100'000u);
  EXPECT_LT(used.bytes, 400'000u);
  EXPECT_GT(used.steps, 1000u * 100'000 / 64);
  // A template counts, and after an error, too.
  Used refused;
  const std::string text(100'000, 'x');
  EXPECT_THROW(Template::parse(text + "{{ 1 // 0 }}", "t").render({}, {.used = &refused}), TemplateError);
  EXPECT_GT(refused.bytes, text.size());
  // Of a caller's values nothing is charged.
  const Value big = Value::string(std::string(1 << 20, 'b'));
  Template::parse("{% set x = big %}{{ x|length }}", "t").render({{"big", big}}, {.used = &used});
  EXPECT_LT(used.bytes, 10'000u);
}

TEST(TemplateBudget, EveryLimitIsAnError) {
  const Template chat = Template::parse("{% for i in range(1000) %}{{ 'a' * 1000 }}{% endfor %}", "t");
  const auto error_of = [&](const Limits& limits) {
    try {
      chat.render({}, {.limits = limits});
    } catch (const TemplateError& error) {
      return error.reason();
    }
    return std::string();
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_NE(error_of({.steps = 1000}).find("too many steps"), std::string::npos);
  EXPECT_NE(error_of({.steps = 0}).find("too many steps"), std::string::npos);
  EXPECT_NE(error_of({.bytes = 500'000}).find("more memory than the limit of 500000"), std::string::npos);
  EXPECT_NE(error_of({.bytes = 0}).find("more memory"), std::string::npos);
  EXPECT_NE(error_of({.stack = 0}).find("stack"), std::string::npos);
  EXPECT_THROW(Template::parse("{{ 1 }}", "t", {.steps = 3}), TemplateError);
  EXPECT_THROW(Template::parse("{{ [" + std::string(10'000, '1') + "] }}", "t", {.bytes = 5'000}), TemplateError);
}

// ---- Cancelling

TEST(TemplateBudget, ARenderIsCancelled) {
  const Limits endless{.steps = UINT64_MAX};
  const Template bomb = Template::parse(
      "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{{ [1]|map('upper')|join }}"
      "{% endfor %}{% set x %}{% endset %}{% endfor %}{% endfor %}",
      "chat.jinja");
  std::stop_source stop;
  std::thread other([&] { stop.request_stop(); });
  try {
    bomb.render({}, {.limits = endless, .stop = stop.get_token()});
    ADD_FAILURE() << "it ended";
  } catch (const TemplateCancelled& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("chat.jinja, line 1: ")) << error.what();
  }
  other.join();
  // Asked for before it begins; and a token that nobody uses.
  EXPECT_THROW(Template::parse("x", "t").render({}, {.stop = stop.get_token()}), TemplateCancelled);
  EXPECT_EQ(Template::parse("x", "t").render({}, {.stop = std::stop_source().get_token()}).text, "x");
}

// ---- The stack

// Runs on a thread with a stack of `bytes`, and returns how many of them were never touched.
size_t untouched_stack(size_t bytes, const std::function<void()>& run) {
  void* const stack = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) throw Error("no memory for a stack");
  std::memset(stack, 0xA5, bytes);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack, bytes);
  pthread_t thread{};
  const auto begin = [](void* work) -> void* {
    (*static_cast<const std::function<void()>*>(work))();
    return nullptr;
  };
  const int failed = pthread_create(&thread, &attributes, begin, const_cast<std::function<void()>*>(&run));
  pthread_attr_destroy(&attributes);
  if (failed == 0) pthread_join(thread, nullptr);
  const auto* const first = static_cast<const unsigned char*>(stack);
  const auto untouched = static_cast<size_t>(
      std::find_if(first, first + bytes, [](unsigned char c) { return c != 0xA5; }) - first);
  munmap(stack, bytes);
  if (failed != 0) throw Error("no thread");
  return untouched;
}

// What recurses, and what the deepest call then does with much stack.
std::vector<std::string> deep_templates() {
  std::vector<std::string> out;
  for (const char* leaf :
       {"", "{% set x = '%.999f' % 1e308 %}", "{% set x = strftime_now('%c%x%Z'[:4]) %}", "{% set x = nest == nest2 %}",
        "{% set x = nest|tojson(indent=2) %}", "{% set x = {nest|string: 1} %}",
        "{% set x = [3, 1, 2]|sort|unique|list %}",
        "{% set y = namespace(t=[1]) %}{% for i in range(97) %}{% set y.t = [y.t] %}{% endfor %}{% set y.t = 0 %}",
        "{% set y = namespace(t=[1]) %}{% for i in range(21) %}{% set y.t = y.t|map('default', 1) %}{% endfor %}"
        "{% set x = y.t|list %}",
        "{% set x = 'a-b'|title|upper|replace('A', 'x')|trim|escape %}", "{% set x = 1.5e300|round(300) %}"})
    for (const char* call : {"{{ f(n) }}", "{% for i in [n] %}{{ f(i)|upper }}{% endfor %}",
                             "{% set x %}{% filter trim %}{{ [[[f(n)]]][0][0][0] }}{% endfilter %}{% endset %}"})
      out.push_back(
          "{% set m = namespace(t=[1]) %}{% for i in range(97) %}{% set m.t = [m.t] %}{% endfor %}"
          "{% set nest = m.t %}{% set m.t = [1] %}{% for i in range(97) %}{% set m.t = [m.t] %}{% endfor %}"
          "{% set nest2 = m.t %}{% macro f(n) %}" +
          std::string(leaf) + call + "{% endmacro %}{{ f(1) }}");
  return out;
}

TEST(TemplateStack, EndsBeforeTheThreadsDoes) {
  if (kSanitized) GTEST_SKIP() << "sanitizers use the stack for themselves";
  size_t least = SIZE_MAX;
  for (const size_t kilobytes : {80, 128, 192, 1024})
    for (const std::string& source : deep_templates()) {
      bool refused = false;
      const size_t untouched = untouched_stack(kilobytes << 10, [&] {
        try {
          Template::parse(source, "deep").render({});
        } catch (const TemplateError& error) {
          refused = std::string_view(error.what()).find("stack") != std::string_view::npos;
        }
      });
      EXPECT_TRUE(refused) << kilobytes << " " << source;
      least = std::min(least, untouched);
    }
  // Budget::kReserve is 48 KiB; a quarter of them at least is never used.
  RecordProperty("untouched", static_cast<int>(least));
  EXPECT_GE(least, size_t{12} << 10);
}

// Deep source, too.
TEST(TemplateStack, ParsesOnSmallStacks) {
  if (kSanitized) GTEST_SKIP() << "sanitizers use the stack for themselves";
  for (const char* part : {"(", "[", "{1:", "-", "not ", "a(", "a[", "1 if ", "{% if 1 %}", "{% for a in b %}", "1|f("})
    for (const size_t kilobytes : {80, 192}) {
      std::string source = part[0] == '{' && part[1] == '%' ? "" : "{{ ";
      for (int i = 0; i < 5000; ++i) source += part;
      EXPECT_GE(untouched_stack(kilobytes << 10, [&] { EXPECT_THROW(Template::parse(source, "deep"), TemplateError); }),
                size_t{12} << 10)
          << part;
    }
}

// ---- Room for everything that is meant

// The reference's templates with a conversation of 1 MB: the same text on a thread of 192 KiB, and limits are far away.
TEST(TemplateBudget, LongConversationsAreFarFromTheLimits) {
  for (const bool many : {false, true}) {
    Values messages;
    const int count = many ? 10'000 : 100;
    for (int i = 0; i < count; ++i) {
      std::string content(static_cast<size_t>((1 << 20) / count), 'a');
      for (size_t at = 0; at < content.size(); at += 6) content[at] = at % 9 == 0 ? '\n' : ' ';
      messages.push_back(Value::dict({{Value::string("role"), Value::string(i % 2 == 0 ? "user" : "assistant")},
                                      {Value::string("content"), Value::string(content)}}));
    }
    const Value parameters = Value::from_json(
        "tools", R"([{"type": "function", "function": {"name": "f", "description": "does\nit", "parameters":
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}])");
    const Variables variables = {{"messages", Value::list(messages)},
                                 {"tools", parameters},
                                 {"add_generation_prompt", Value::boolean(true)},
                                 {"bos_token", Value::string("<s>")},
                                 {"eos_token", Value::string("</s>")}};
    for (const char* name : {"chatml", "chatml_generation", "command_r", "deepseek", "granite", "llama3_tools", "olmo",
                             "phi3", "qwen25_tools", "qwen3_thinking", "gemma", "llama2", "mistral_tools", "zephyr"}) {
      SCOPED_TRACE(name);
      const std::string source = read_bytes(std::string(tests::kReferenceDir) + "/chat_templates/" + name + ".jinja");
      Used used;
      const auto text_of = [&] { return Template::parse(source, name).render(variables, {.used = &used}).text; };
      try {
        const std::string text = text_of();
        EXPECT_GT(text.size(), 1'000'000u);
        EXPECT_LT(used.steps, Limits().steps / 4);
        EXPECT_LT(used.bytes, Limits().bytes / 4);
        if (kSanitized || many) continue;
        EXPECT_LT(used.stack, size_t{64} << 10);
        std::string again;
        untouched_stack(size_t{192} << 10, [&] { again = text_of(); });
        EXPECT_EQ(again, text);
      } catch (const TemplateError& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace rondo::text::jinja
