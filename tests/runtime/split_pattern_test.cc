// The regular expressions of tokenizer files.
#include "rondo/runtime/text/split_pattern.h"

#include <gtest/gtest.h>

#include "rondo/runtime/base/error.h"

namespace rondo::text {
namespace {

// The matches, in < >, and what lies between them.
std::string matches(std::string_view pattern, std::string_view text) {
  const SplitPattern compiled(pattern);
  std::string out;
  for_each_match(compiled, text, [&](size_t begin, size_t end, bool match) {
    const std::string part(text.substr(begin, end - begin));
    out += match ? "<" + part + ">" : part;
  });
  return out;
}

TEST(SplitPattern, Matches) {
  EXPECT_EQ(matches("ab|a", "abaab"), "<ab><a><ab>");
  EXPECT_EQ(matches("a|ab", "ab"), "<a>b") << "the first alternative wins, not the longest";
  EXPECT_EQ(matches("a+b", "aaab aac"), "<aaab> aac");
  EXPECT_EQ(matches("a*ab", "aaab"), "<aaab>") << "a loop gives back";
  EXPECT_EQ(matches("a*+ab", "aaab"), "aaab") << "a possessive one does not";
  EXPECT_EQ(matches("a?b", "abb"), "<ab><b>");
  EXPECT_EQ(matches("a{2,3}", "aaaaaa a"), "<aaa><aaa> a");
  EXPECT_EQ(matches("a{2}", "aaa"), "<aa>a");
  EXPECT_EQ(matches("a{,2}b", "aaab"), "a<aab>");
  EXPECT_EQ(matches("(?:ab){2,}c", "ababababc abc"), "<ababababc> abc");
  EXPECT_EQ(matches("(ab|a)(c|bcd)", "abcd"), "<abc>d");
  EXPECT_EQ(matches("(?:a|ab)*c", "abaabc"), "<abaabc>");
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+)", "a   b  "), "a<  >< >b<  >");
  EXPECT_EQ(matches("a(?=b)", "abac"), "<a>bac");
  EXPECT_EQ(matches("(?i:'s|k)x", "'Sx 'sx '\u017fx \u212ax Kx"), "<'Sx> <'sx> <'\u017fx> <\u212ax> <Kx>");
  EXPECT_EQ(matches("[^a-c\\]x-]+", "abc]dx-e"), "abc]<d>x-<e>");
  EXPECT_EQ(matches(R"([\p{Lu}\p{M}]+)", "aBC\u0301d\u00c9"), "a<BC\u0301>d<\u00c9>");
  EXPECT_EQ(matches(R"(\P{L}+)", "a1\u4f60!"), "a<1>\u4f60<!>");
  EXPECT_EQ(matches(R"([^\s\p{L}\p{N}]+)", "a\u3000\u2014\u2014b"), "a\u3000<\u2014\u2014>b");
  EXPECT_EQ(matches(R"(\d\D)", "1a\u0663b22"), "<1a><\u0663b>22");
  EXPECT_EQ(matches(R"(\w+)", "a_\u00b2 \u24b6"), "<a_\u00b2> <\u24b6>");
  EXPECT_EQ(matches(R"([\w]+)", "a_\u00b2 \u24b6"), "<a_>\u00b2 <\u24b6>") << "as the reference";
  EXPECT_EQ(matches(R"(\W+)", "a\u00b2 \u00b7!b"), "a\u00b2< \u00b7!>b");
  EXPECT_EQ(matches(R"([\W]+)", "a\u00b2 \u00b7!b"), "a<\u00b2 \u00b7!>b");
  EXPECT_EQ(matches(R"(\x{4f60}|\u597D|\x41)", "\u4f60\u597dA"), "<\u4f60><\u597d><A>");
  EXPECT_EQ(matches(".", "a\n\u4f60"), "<a>\n<\u4f60>");
  EXPECT_EQ(matches(R"(\\|\.|\{|\/)", R"(\.{/)"), R"(<\><.><{></>)");
}

TEST(SplitPattern, LiteralsAreQuoted) {
  for (const std::string text : {"a.b", "(", "[x]", "{1}", "\\", "|", "^$", "\u2581", "a-b"}) {
    const SplitPattern pattern = SplitPattern::literal(text);
    EXPECT_EQ(pattern.match("z" + text, 1), text.size() + 1) << text;
    EXPECT_EQ(pattern.match("zaxb", 1), SplitPattern::npos) << text;
  }
}

TEST(SplitPattern, NamesWhatItCannotDo) {
  const auto refused = [](std::string_view pattern, std::string_view reason) {
    try {
      SplitPattern compiled(pattern);
      ADD_FAILURE() << pattern << " is accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find(reason), std::string_view::npos) << error.what();
    }
  };
  refused("a+?", "lazy");
  refused("a{1,2}?", "lazy");
  refused("a{1,2}+", "engines read differently");
  refused("(ab)++", "possessive group");
  refused("^a", "anchor ^");
  refused("a$", "anchor $");
  refused("(?<=a)b", "group (?");
  refused("(?<n>b)", "group (?");
  refused("(?s:b)", "group (?");
  refused("(a", "without its ')'");
  refused("a)", "a ')' too many");
  refused("[a", "without its ']'");
  refused("[]", "empty class");
  refused("[[:alpha:]]", "class in a class");
  refused("[a&&b]", "&&");
  refused("[b-a]", "ends before it starts");
  refused("[a-\\d]", "ends before it starts");
  refused("*a", "nothing before it");
  refused("a**", "two quantifiers");
  refused("a{2,1}", "repeats nothing");
  refused("a{0}", "repeats nothing");
  refused("a{x}", "'{'");
  refused("a{99999}", "count above 1000");
  refused("(?:a*)*", "can be empty");
  refused("(?:(?:a{500}b){500}c){500}", "too large");
  refused("\\", "ends in a backslash");
  refused("\\b", "escape \\b");
  refused("\\1", "escape \\1");
  refused("\\p{Greek}", "property \"Greek\"");
  refused("\\pL", "without {..}");
  refused("\\x{110000}", "no code point");
  refused("\\xE9", "is a byte");
  refused("(?i:\u00e9)", "beyond ASCII");
  refused("(?i:ss)", "ss, st");
  refused("(?i:a(?:s)t)", "ss, st");
  refused("\xff", "UTF-8");
  refused(std::string(100, '(') + "a" + std::string(100, ')'), "nests too deeply");
}

// Quadratic and exponential patterns end, in an error or in time.
TEST(SplitPattern, Ends) {
  const std::string spaces(200'000, ' ');
  EXPECT_EQ(SplitPattern(R"(\s*[\r\n]+|\s+(?!\S)|\s+)").match(spaces + "x", 0), spaces.size() - 1);
  const std::string as(300, 'a');
  EXPECT_THROW(SplitPattern("(?:a|a)+b").match(as, 0), Error);
}

}  // namespace
}  // namespace rondo::text
