#include "rondo/tests/cuda_on_host/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#if RONDO_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if RONDO_FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#ifndef RONDO_FIBER_UCONTEXT
// Saves what a function must preserve on the stack, leaves its address in *rdi, and goes on where rsi points to.
asm(R"(
.text
.align 16
.globl rondo_switch_stack
.hidden rondo_switch_stack
.type rondo_switch_stack, @function
rondo_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size rondo_switch_stack, .-rondo_switch_stack
)");
extern "C" void rondo_switch_stack(void** from, void* to);
#endif

namespace rondo::cuda_on_host {
namespace {

Fiber* leaving = nullptr;  // during a switch

}  // namespace

Fiber::~Fiber() {
#if RONDO_FIBER_TSAN
  if (tsan_ != nullptr && stack_ != nullptr) __tsan_destroy_fiber(tsan_);
#endif
  if (stack_ != nullptr) munmap(stack_, kStackBytes);
}

void Fiber::start(void (*body)()) {
  if (stack_ == nullptr) {
    void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                        0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    stack_ = static_cast<char*>(memory);
    bottom_ = stack_;
    bytes_ = kStackBytes;
  }
#if RONDO_FIBER_ASAN
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
#endif
#if RONDO_FIBER_TSAN
  if (tsan_ != nullptr) __tsan_destroy_fiber(tsan_);
  tsan_ = __tsan_create_fiber(0);
#endif
#ifndef RONDO_FIBER_UCONTEXT
  // As if the switch had been called: six registers, where to go on, and no caller. Functions start 8 bytes off 16.
  auto** top = reinterpret_cast<void**>(stack_ + kStackBytes) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(body);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, body, 0);
#endif
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
  leaving = &from;
#if RONDO_FIBER_ASAN
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.bytes_);
#endif
#if RONDO_FIBER_TSAN
  if (from.tsan_ == nullptr) from.tsan_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.tsan_, __tsan_switch_to_fiber_no_sync);
#endif
#ifndef RONDO_FIBER_UCONTEXT
  rondo_switch_stack(&from.stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
#if RONDO_FIBER_ASAN
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(from.fake_stack_, &bottom, &bytes);
#endif
}

void Fiber::arrived() {
#if RONDO_FIBER_ASAN
  // The stack that was left is that of the first fiber, whose bounds nobody told us.
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (leaving->stack_ == nullptr) {
    leaving->bottom_ = bottom;
    leaving->bytes_ = bytes;
  }
#endif
}

void release([[maybe_unused]] void* address) {
#if RONDO_FIBER_TSAN
  __tsan_release(address);
#endif
}
void acquire([[maybe_unused]] void* address) {
#if RONDO_FIBER_TSAN
  __tsan_acquire(address);
#endif
}

}  // namespace rondo::cuda_on_host
