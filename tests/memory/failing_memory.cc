#include "rondo/tests/memory/failing_memory.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <typeinfo>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"

namespace {

std::atomic<bool> counting = false, onward = false;
std::atomic<int64_t> allocations = 0, failing = 0;
thread_local int pauses = 0;

// The calls that led to the first allocation that failed, and to a crash.
struct Stack {
  void* calls[60];
  int depth = 0;
  void note() { depth = ::backtrace(calls, std::size(calls)); }
};
struct Stacks {
  Stack allocation, crash;
};
Stacks* noted = nullptr;  // in memory that parent and child share

bool fails() {
  if (!counting.load(std::memory_order_relaxed) || pauses > 0) return false;
  const int64_t n = allocations.fetch_add(1) + 1;
  const int64_t wanted = failing.load();
  if (n == wanted && noted != nullptr) noted->allocation.note();
  return wanted > 0 && (onward.load() ? n >= wanted : n == wanted);
}
void* allocate(size_t bytes, size_t alignment) noexcept {
  if (fails()) return nullptr;
  bytes = std::max<size_t>(bytes, 1);
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
void* allocate_or_throw(size_t bytes, size_t alignment) {
  void* const data = allocate(bytes, alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

// The forms for arrays call these. So would those without exceptions, which std::stable_sort uses, but not under
// AddressSanitizer, which has its own.
void* operator new(size_t bytes) { return allocate_or_throw(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }

namespace rondo::test {

FailingMemory::FailingMemory(int64_t n, Which which) {
  failing = n;
  onward = which == Which::kOnward;
  allocations = 0;
  counting = true;
}
int64_t FailingMemory::end() {
  counting = false;
  return allocations;
}

FailingMemory::Pause::Pause() { ++pauses; }
FailingMemory::Pause::~Pause() { --pauses; }

namespace {

using Which = FailingMemory::Which;

struct Try {
  int64_t n = 1;
  Which which = Which::kOne;
  bool fresh = false;  // in a process that has not done the work before: caches and statics are made, too
};

// What a child tells.
struct Told {
  int64_t tried = 0;        // tries that began
  int64_t allocations = 0;  // of one run, the second
  int64_t first_allocations = 0;
  double seconds = 0;   // of one run, the second
  uint64_t digest = 0;  // of what comes of it
  int64_t errors = 0;   // tries that ended with an error
  Stacks stacks;
  char fault[4000] = {};
  void set_fault(const std::string& text) { std::snprintf(fault, sizeof fault, "%s", text.c_str()); }
};

std::string describe(const Try& t) {
  return std::string("allocation ") + std::to_string(t.n) + (t.which == Which::kOnward ? " and all later ones" : "") +
         (t.fresh ? " of the first call" : "");
}

uint64_t digest_of(const Work& work) { return std::hash<std::string>()(work()); }

// A command that names the program's own functions in it; the release build has no lines.
std::string text_of(const Stack& stack) {
  std::string program, offsets;
  for (int i = 0; i < stack.depth; ++i) {
    Dl_info info;
    if (::dladdr(stack.calls[i], &info) == 0) continue;
    if (program.empty()) program = info.dli_fname;  // this file's
    if (program != info.dli_fname) continue;
    const auto offset = static_cast<const char*>(stack.calls[i]) - static_cast<const char*>(info.dli_fbase);
    absl::StrAppend(&offsets, " ", absl::Hex(offset - 1));
  }
  return offsets.empty() ? "" : absl::StrCat("\n  addr2line -Cfpe ", program, offsets);
}

// "" if all is as it should be.
std::string fault_of(const Try& t, const Work& work, Told& told) {
  std::string error;
  try {
    const FailingMemory memory(t.n, t.which);
    const std::string result = work();
    FailingMemory::end();
    if (std::hash<std::string>()(result) != told.digest) error = "gives another result";
  } catch (const OutOfMemoryError& e) {
    FailingMemory::end();
    ++told.errors;
    if (std::strlen(e.what()) == 0) error = "throws an error without a text";
  } catch (const FileError&) {
    FailingMemory::end();
    ++told.errors;
  } catch (const std::exception& e) {
    FailingMemory::end();
    error = std::string("throws ") + typeid(e).name() + ": " + e.what();
  }
  if (!error.empty()) return describe(t) + ": the call " + error;
  try {
    if (digest_of(work) != told.digest) return describe(t) + ": the next call gives another result";
  } catch (const std::exception& e) {
    return describe(t) + ": the next call throws " + typeid(e).name() + ": " + e.what();
  }
  return "";
}

// Runs `body` in a child process. Returns what ended it; "" if it came to its end.
template <class F> std::string in_child(F body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGALRM})
      std::signal(signal, [](int number) {
        counting = false;
        noted->crash.note();
        std::signal(number, SIG_DFL);
        std::raise(number);
      });
    try {
      body();
    } catch (const std::exception& e) {  // it must not go on with the tests
      std::fprintf(stderr, "with all memory: %s\n", e.what());
      std::_Exit(1);
    }
    std::_Exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return "no child process";
  if (WIFSIGNALED(status)) return std::string("signal ") + strsignal(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "exit code " + std::to_string(WEXITSTATUS(status));
}

constexpr unsigned kHangs = 120;  // seconds of one try

// The tries of one program. Those of fresh processes come last.
std::vector<Try> plan_tries(const Told& told) {
  const char* const asked = std::getenv("RONDO_TEST_ALLOCATIONS");
  std::vector<Try> tries;
  const auto sample = [&](int64_t n_allocations, int64_t most, bool fresh) {
    if (asked != nullptr) most = std::max<int64_t>(std::atoll(asked), 1);
    for (int64_t i = 0, count = std::min(n_allocations, most); i < count; ++i) {
      const int64_t n = 1 + i * n_allocations / count;
      if (asked != nullptr || i % 2 == 0) tries.push_back({n, Which::kOne, fresh});
      if (asked != nullptr || i % 2 == 1) tries.push_back({n, Which::kOnward, fresh});
    }
  };
  // A fifth of a second a program.
  const auto affordable = static_cast<int64_t>(0.1 / std::max(told.seconds, 1e-6));
  sample(told.allocations, std::clamp<int64_t>(affordable, 12, 100), false);
  sample(told.first_allocations, std::clamp<int64_t>(affordable, 6, 12), true);
  return tries;
}

}  // namespace

void expect_typed_errors(const std::function<Work()>& prepare) {
  void* const pages = ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  Told& told = *new (pages) Told;
  noted = &told.stacks;
  const std::string measured = in_child([&] {
    const Work work = prepare();
    {
      const FailingMemory memory(0, Which::kOne);
      told.digest = digest_of(work);
      told.first_allocations = FailingMemory::end();
    }
    const auto start = std::chrono::steady_clock::now();
    const FailingMemory memory(0, Which::kOne);
    const uint64_t second = digest_of(work);
    told.allocations = FailingMemory::end();
    told.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (second != told.digest) told.set_fault("two calls give two results: this is no work to try");
  });
  ASSERT_EQ(measured, "") << "with all memory";
  ASSERT_STREQ(told.fault, "");
  ASSERT_GT(told.allocations, 0);

  std::vector<Try> tries, fresh;
  for (const Try& t : plan_tries(told)) (t.fresh ? fresh : tries).push_back(t);
  std::vector<std::string> faults;
  constexpr size_t kMostFaults = 12;
  const auto note = [&](const std::string& ended, const std::string& where) {
    if (told.fault[0] != 0) faults.push_back(told.fault + text_of(told.stacks.allocation));
    else if (!ended.empty())
      faults.push_back(where + ": " + ended + text_of(told.stacks.allocation) + text_of(told.stacks.crash));
    told.fault[0] = 0;
    told.stacks = {};
  };
  // A crash ends the child, and the next one goes on behind it.
  for (size_t begin = 0; begin < tries.size() && faults.size() < kMostFaults;) {
    told.tried = 0;
    const std::string ended = in_child([&] {
      const Work work = prepare();
      static_cast<void>(work());
      for (size_t i = begin; i < tries.size() && told.fault[0] == 0; ++i) {
        ::alarm(kHangs);
        ++told.tried;
        told.set_fault(fault_of(tries[i], work, told));
      }
    });
    begin += static_cast<size_t>(told.tried);
    note(ended, told.tried > 0 ? describe(tries[begin - 1]) : "the first call");
    if (told.tried == 0) break;
  }
  for (size_t i = 0; i < fresh.size() && faults.size() < kMostFaults; ++i)
    note(in_child([&] {
           const Work work = prepare();
           ::alarm(kHangs);
           told.set_fault(fault_of(fresh[i], work, told));
         }),
         describe(fresh[i]));
  noted = nullptr;
  for (const std::string& fault : faults) ADD_FAILURE() << fault;
  EXPECT_TRUE(!faults.empty() || told.errors > 0) << "no try has failed: the memory of this program cannot run short";
  ::munmap(pages, sizeof(Told));
}

}  // namespace rondo::test
