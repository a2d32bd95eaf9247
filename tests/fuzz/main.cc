// fuzz_compile --from 0 --count 20000: compiled against eager, program by program. tests/fuzz/run.sh runs it on all
// cores.
//   --seed N        one program: prints it, and what differs
//   --steps N       at most N steps a program (14)
//   --large P       a share P of programs has large tensors (0.05)
//   --isolate       each comparison in a process of its own: a crash is a failure like others, and is shrunk
//   --no-default    exact mode only
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/options.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/tests/fuzz/fuzz.h"

namespace {

using namespace rondo;

volatile uint64_t current_seed = 0;

// Says which program it was; nothing else is safe here.
void on_crash(int signal) {
  char text[] = "fuzz_compile: crashed at seed                     \n";
  uint64_t seed = current_seed;
  size_t at = sizeof(text) - 3;
  do text[at--] = static_cast<char>('0' + seed % 10);
  while (seed /= 10);
  if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) _exit(3);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// In a child process.
std::string isolated(const fuzz::Program& program, const fuzz::Check& check) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    for (int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, SIG_DFL);
    std::string what;
    try {
      what = fuzz::difference(program, check);
    } catch (const std::exception&) {
    }
    if (write(ends[1], what.data(), what.size()) < 0) _exit(2);
    _exit(0);
  }
  close(ends[1]);
  std::string what;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) what.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return absl::StrCat("crashes with signal ", WTERMSIG(status));
  return what;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t from = 0, count = 300;
  bool one = false;
  fuzz::FuzzOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const bool has_value = i + 1 < argc;
    if (arg == "--from" && has_value) from = std::strtoull(argv[++i], nullptr, 10);
    else if (arg == "--count" && has_value) count = std::strtoull(argv[++i], nullptr, 10);
    else if (arg == "--steps" && has_value) options.generate.max_steps = std::atoi(argv[++i]);
    else if (arg == "--large" && has_value) options.generate.large = std::atof(argv[++i]);
    else if (arg == "--seed" && has_value) from = std::strtoull(argv[++i], nullptr, 10), count = 1, one = true;
    else if (arg == "--no-default") options.check.default_mode = false;
    else if (arg == "--isolate")
      options.compare = [&](const fuzz::Program& program) { return isolated(program, options.check); };
    else {
      std::fprintf(
          stderr,
          "usage: fuzz_compile [--from N] [--count N] [--seed N] [--steps N] [--large P] [--isolate] [--no-default]\n");
      return 2;
    }
  }
  if (!compile::jit_available()) {
    std::fprintf(stderr, "fuzz_compile: built without LLVM\n");
    return 2;
  }
  for (int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, &on_crash);
  allocator::set_poison_on_free(true);
  compile::set_check_floats(true);
  setenv("RONDO_CACHE", "off", 0);  // thousands of kernels that nobody meets again
  const auto compiled_runs = [] { return compile::outcome_counts()[static_cast<size_t>(compile::Outcome::kCompiled)]; };
  uint64_t failures = 0, compiled = 0;
  for (uint64_t seed = from; seed < from + count; ++seed) {
    current_seed = seed;
    if (seed % 64 == 0) allocator::empty_cache();  // blocks of sizes that nobody asks for again
    if (one) std::printf("%s", to_string(fuzz::generate(seed, options.generate)).c_str());
    std::fflush(stdout);
    const int64_t before = compiled_runs();
    const std::string what = fuzz::try_seed(seed, options);
    if (compiled_runs() > before) ++compiled;
    else if (one) std::printf("nothing of it ran compiled\n");
    if (what.empty()) continue;
    ++failures;
    std::printf("%s\n", what.c_str());
    std::fflush(stdout);
  }
  // The others record nothing, as one that returns its input.
  std::printf("%llu programs from seed %llu, %llu ran compiled, %llu failures\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(from),
              static_cast<unsigned long long>(compiled), static_cast<unsigned long long>(failures));
  return failures == 0 ? 0 : 1;
}
