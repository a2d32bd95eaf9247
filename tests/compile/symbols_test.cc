// Kernels have names in gdb and perf.
#include "rondo/compile/jit/symbols.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/cpu/object.h"
#include "rondo/tests/compile/kernel_fixture.h"

extern "C" {
struct jit_code_entry {
  jit_code_entry *next_entry, *prev_entry;
  const char* symfile_addr;
  uint64_t symfile_size;
};
struct jit_descriptor {
  uint32_t version, action_flag;
  jit_code_entry *relevant_entry, *first_entry;
};
extern jit_descriptor __jit_debug_descriptor;
}

namespace rondo::compile {
namespace {

class Symbols : public testing::Test {
 protected:
  void SetUp() override {
    if (!jit_available()) GTEST_SKIP() << "built without LLVM";
    if (!can_place_objects()) GTEST_SKIP() << "LLVM's linker places code on this processor";
  }
  // A kernel that no other test has.
  static std::shared_ptr<Executable> make(double factor, const std::string& name) {
    const LoopKernel kernel = scale(factor, 100, name);
    return compile_kernels({&kernel, 1});
  }
  static std::string hex(const void* address) { return absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(address))); }
};

std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  pclose(pipe);
  return output;
}

TEST_F(Symbols, TheListForDebuggersHasWhatIsLoaded) {
  // Images of the list that mention this name.
  const auto listed = [](const std::string& name) {
    int count = 0;
    for (const jit_code_entry* e = __jit_debug_descriptor.first_entry; e != nullptr; e = e->next_entry)
      count += std::string_view(e->symfile_addr, e->symfile_size).find(name) != std::string_view::npos;
    return count;
  };
  EXPECT_EQ(listed("rondo::listed_once"), 0);
  {
    const auto code = make(31.25, "listed_once"), same = make(31.25, "another_name");
    EXPECT_EQ(listed("rondo::listed_once"), 1);
    EXPECT_EQ(listed("rondo::another_name"), 0);  // equal code is one
  }
  EXPECT_EQ(listed("rondo::listed_once"), 0);  // its memory is gone
}

TEST_F(Symbols, PerfReadsALineForEachKernel) {
  set_perf_map(true);
  const auto code = make(47.5, "sampled");
  const auto other = make(48.5, "sampled_too");
  set_perf_map(false);
  const auto silent = make(49.5, "not_sampled");
  std::ifstream file(perf_map_path());
  std::stringstream text;
  text << file.rdbuf();
  std::remove(perf_map_path().c_str());
  const std::string address = hex(reinterpret_cast<const void*>(code->entry(0)));
  EXPECT_NE(text.str().find(address + " "), std::string::npos) << text.str();
  EXPECT_NE(text.str().find(" rondo::sampled\n"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find(" rondo::sampled_too\n"), std::string::npos) << text.str();
  EXPECT_EQ(text.str().find("not_sampled"), std::string::npos) << text.str();
}

// The program that the next test starts under gdb: it stops itself where a kernel runs.
TEST_F(Symbols, DISABLED_RunsUnderADebugger) {
  const auto code = make(2.5, "looked_at");
  std::vector<float> x(100, 1.0f), y(100);
  void* operands[] = {x.data(), y.data()};
  code->entry(0)(operands, nullptr, nullptr, 0, 100);
  EXPECT_EQ(y[0], 2.5f);
}
TEST_F(Symbols, GdbShowsTheName) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers do not run under gdb";
#endif
  if (output_of("gdb --version").find("GNU gdb") == std::string::npos) GTEST_SKIP() << "no gdb";
  char program[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", program, sizeof(program) - 1), 0);
  const std::string output = output_of(absl::StrCat(
      "gdb -q -batch -nx -ex 'set breakpoint pending on' "
      "-ex 'break rondo::looked_at' -ex run -ex backtrace --args '",
      program, "' --gtest_also_run_disabled_tests --gtest_filter=Symbols.DISABLED_RunsUnderADebugger </dev/null"));
  if (output.find("ptrace") != std::string::npos || output.find("not permitted") != std::string::npos)
    GTEST_SKIP() << "gdb may not trace here: " << output;
  EXPECT_NE(output.find("#0"), std::string::npos) << output;
  EXPECT_NE(output.find("in rondo::looked_at ()"), std::string::npos) << output;
}

}  // namespace
}  // namespace rondo::compile
