// The cost of a hostile tokenizer.json: nothing much, whatever it asks for.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/text/tokenizer.h"
#include "rondo/tests/errors.h"

namespace rondo::text {
namespace {

using test::error_of;

PreTrainedTokenizer tokenizer_with(const std::string& normalizer, const std::string& pre_tokenizer = "null",
                                   const std::string& decoder = "null") {
  return PreTrainedTokenizer::from_json(
      absl::StrCat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":)", normalizer,
                   R"(,"pre_tokenizer":)", pre_tokenizer, R"(,"post_processor":null,"decoder":)", decoder,
                   R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
                   R"("end_of_word_suffix":null,"fuse_unk":false,"vocab":{"a":0,"b":1},"merges":[]}})"),
      "tokenizer.json");
}

// `n` times a step, as a Sequence.
std::string steps(const char* list, const std::string& step, int n) {
  std::string text = absl::StrCat(R"({"type":"Sequence",")", list, "\":[");
  for (int i = 0; i < n; ++i) absl::StrAppend(&text, i > 0 ? "," : "", step);
  return text + "]}";
}
std::string replace(const std::string& from, const std::string& to) {
  return absl::StrCat(R"({"type":"Replace","pattern":{"String":")", from, R"("},"content":")", to, "\"}");
}

TEST(TokenizerLimits, NormalizersMayNotGrowATextWithoutEnd) {
  // 2^40 bytes of one.
  const PreTrainedTokenizer doubles = tokenizer_with(steps("normalizers", replace("a", "aa"), 40));
  const std::string sentence = "encode: the tokenizer's normalizers make a text longer than 65600 bytes";
  EXPECT_EQ(error_of([&] { doubles.encode("a"); }), sentence);
  EXPECT_EQ(error_of([&] { doubles("a"); }), sentence);
  EXPECT_NE(error_of([&] { tokenizer_with(replace("b", std::string(200'000, 'a'))).encode("ab"); }), "");
  // What files that are meant do is far below: here 64 bytes of one.
  EXPECT_EQ(tokenizer_with(steps("normalizers", replace("a", "aa"), 6)).encode("a").size(), 64u);
  EXPECT_EQ(tokenizer_with(replace("b", std::string(64, 'a'))).encode(std::string(10'000, 'b')).size(), 640'000u);
}

TEST(TokenizerLimits, DecodersMayNotEither) {
  const PreTrainedTokenizer doubles = tokenizer_with("null", "null", steps("decoders", replace("a", "aa"), 40));
  EXPECT_NE(error_of([&] {
              doubles.decode(std::vector<int32_t>{0, 1});
            }).find("decode: the tokenizer's decoders make"),
            std::string::npos);
  EXPECT_EQ(tokenizer_with("null", "null", steps("decoders", replace("a", "aa"), 3)).decode(std::vector<int32_t>{0}),
            "aaaaaaaa");
}

TEST(TokenizerLimits, ListsOfStepsEnd) {
  const auto error = [](const std::string& a, const std::string& b, const std::string& c) {
    return error_of<FileError>([&] { tokenizer_with(a, b, c); });
  };
  const std::string space = R"({"type":"Metaspace","replacement":"_","prepend_scheme":"always","split":true})";
  for (const int n : {65, 20'000}) {
    EXPECT_NE(error(steps("normalizers", replace("a", "b"), n), "null", "null").find("more than 64 steps"),
              std::string::npos);
    EXPECT_NE(error("null", steps("pretokenizers", space, n), "null").find("more than 64 steps"), std::string::npos);
    EXPECT_NE(error("null", "null", steps("decoders", space, n)).find("more than 64 steps"), std::string::npos);
  }
  EXPECT_EQ(error(steps("normalizers", replace("a", "b"), 64), "null", "null"), "");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// In a process that may have little more memory than it has: std::bad_alloc becomes an error of ours.
TEST(TokenizerLimits, MemoryThatIsNotThereIsSaid) {
  const PreTrainedTokenizer tokenizer = tokenizer_with("null");
  const std::string text(100 << 20, 'a');
  const std::vector<int32_t> ids(50 << 20, 0);
  const pid_t child = ::fork();
  if (child == 0) {
    long pages = 0;
    std::FILE* statm = std::fopen("/proc/self/statm", "r");
    if (statm == nullptr || std::fscanf(statm, "%ld", &pages) != 1) std::_Exit(9);
    const rlimit limit = {static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE)) + (32 << 20), RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &limit);
    int right = 0;
    try {
      tokenizer.encode(text);
    } catch (const OutOfMemoryError&) {
      ++right;
    }
    try {
      tokenizer.decode(ids);
    } catch (const OutOfMemoryError&) {
      ++right;
    }
    std::_Exit(right);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 2);
}
#endif

}  // namespace
}  // namespace rondo::text
