// A host's signal handlers run on the host's stack, also while oneDNN computes: Note [Signals wait] in
// runtime/onednn/onednn.h.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/time.h>
#include <ucontext.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <tuple>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

#if defined(__x86_64__)
namespace rondo {
namespace {

struct Stack {
  uintptr_t begin = 0, end = 0;
};
Stack stack_of_this_thread() {
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  void* begin = nullptr;
  size_t bytes = 0;
  pthread_attr_getstack(&attributes, &begin, &bytes);
  pthread_attr_destroy(&attributes);
  const auto at = reinterpret_cast<uintptr_t>(begin);
  return {at, at + bytes};
}

thread_local Stack known;  // of the threads that the handler asks about
std::atomic<int> seen, elsewhere;

void note_stack_pointer(int, siginfo_t*, void* context) {
  if (known.end == 0) return;
  const auto at = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
  ++seen;
  if (at < known.begin || at > known.end) ++elsewhere;
}

// The handler has a stack of its own here, so that a test that fails damages nothing.
class SignalsWait : public testing::Test {
 protected:
  void SetUp() override {
    known = stack_of_this_thread();
    stack_t stack = {};
    stack.ss_sp = stack_.data();
    stack.ss_size = stack_.size();
    sigaltstack(&stack, &stack_before_);
    struct sigaction action = {};
    action.sa_sigaction = &note_stack_pointer;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGPROF, &action, &before_);
    const itimerval often{{0, 200}, {0, 200}};
    setitimer(ITIMER_PROF, &often, nullptr);
  }
  void TearDown() override {
    const itimerval never{};
    setitimer(ITIMER_PROF, &never, nullptr);
    sigaction(SIGPROF, &before_, nullptr);
    sigaltstack(&stack_before_, nullptr);
    known = {};
  }
  // Until twenty signals have come.
  template <class F> void repeat(const char* what, F&& run) {
    seen = elsewhere = 0;
    const auto begin = std::chrono::steady_clock::now();
    while (seen < 20 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) run();
    EXPECT_GE(seen, 20) << what;
    EXPECT_EQ(elsewhere, 0) << what << ": signals of " << seen << " that came with the stack pointer elsewhere";
  }

 private:
  std::vector<std::byte> stack_ = std::vector<std::byte>(1 << 16);
  stack_t stack_before_ = {};
  struct sigaction before_ = {};
};

TEST_F(SignalsWait, InProductsOfEveryLayout) {
  const NoGrad off;
  const TensorOptions on = {kF32, default_device()};
  const Tensor a = Tensor::randn({256, 256}, on), b = Tensor::randn({256, 256}, on);
  repeat("nn", [&] { ops::matmul(a, b); });
  repeat("tn", [&] { ops::matmul(a.t(), b); });
  repeat("nt", [&] { ops::matmul(a, b.t()); });
  repeat("tt", [&] { ops::matmul(a.t(), b.t()); });
}

TEST_F(SignalsWait, InConvolutionsAndTheirGradients) {
  const TensorOptions on = {kF32, default_device()};
  for (const auto& [channels, kernel, stride] : {std::tuple(3, 16, 16), std::tuple(5, 3, 2), std::tuple(32, 9, 1)}) {
    Tensor x = Tensor::randn({2, channels, 33, 35}, on), w = Tensor::randn({7, channels, kernel, kernel}, on);
    x.requires_grad_();
    w.requires_grad_();
    repeat("a convolution", [&] {
      ops::conv2d(x, w, {}, {.stride = stride}).sum().backward();
      x.zero_grad();
      w.zero_grad();
    });
  }
}

}  // namespace
}  // namespace rondo
#endif
