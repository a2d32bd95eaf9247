// Fibers: a stack each, and a switch between two of them in 19 ns. Sanitizers are told.
#pragma once

#include <cstddef>

// RONDO_FIBER_UCONTEXT: the slow way, where there is no assembly.
#if !defined(__x86_64__) && !defined(RONDO_FIBER_UCONTEXT)
#define RONDO_FIBER_UCONTEXT
#endif
#ifdef RONDO_FIBER_UCONTEXT
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#define RONDO_FIBER_ASAN 1
#else
#define RONDO_FIBER_ASAN 0
#endif
// machine.cc and fiber.cc are not instrumented, so the build says that the rest is.
#ifndef RONDO_FIBER_TSAN
#define RONDO_FIBER_TSAN 0
#endif

namespace rondo::cuda_on_host {

class Fiber {
 public:
  Fiber() = default;  // of the caller's own stack
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Gives this fiber a stack, on which `body` will run at the first switch; `body` may not return. Once more: what ran
  // here is abandoned.
  void start(void (*body)());
  // REQUIRES: `from` runs.
  static void switch_to(Fiber& from, Fiber& to);
  // From now on this is the stack of another thread of the host. REQUIRES: no stack of its own.
  void is_of_caller() { tsan_ = nullptr; }
  // A body calls this first.
  static void arrived();

 private:
  static constexpr size_t kStackBytes = size_t{128} << 10;
#ifdef RONDO_FIBER_UCONTEXT
  ucontext_t context_;
#else
  void* stack_pointer_ = nullptr;
#endif
  char* stack_ = nullptr;  // lowest address
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;  // of ASan
  void* tsan_ = nullptr;
};

// To TSan, what came before a release of an address comes before what follows an acquire of it.
void release(void* address);
void acquire(void* address);

}  // namespace rondo::cuda_on_host
