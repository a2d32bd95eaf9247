// Kernels and library calls run in one floating-point state, whatever state the host program has set.
//
//   const FloatingPointScope scope;  // to the end of the block: Rondo's state
//   kernel(context);
//
// Note [The host's floating-point state]. A host may trap exceptions (feenableexcept), flush subnormal numbers to zero
//   (FTZ, DAZ) or choose a rounding (fesetround), at any time and on any thread. Rondo computes as IEEE 754 has it by
//   default, on every thread: nothing traps, results are rounded to nearest, subnormal numbers are kept. When a public
//   call returns or throws, the host's settings and its status flags (fetestexcept) are those of before.
//   Scopes are where Rondo computes, not around what it calls back: `forward`, hooks, tape nodes of the program,
//   datasets and callbacks see the host's state. They are in:
//   - every op that runs eagerly (dispatch.cc), the rules of gradients (op_node.cc), printing;
//   - the numbers that ops and modules compute on the way: the inverse of a divisor, the bound of first weights;
//   - compile/: what compiles a recording or looks for its code (RegionTrace::run_now, Binding::backward_for), and the
//     Executor, which runs programs, those of replays and of optimizers among them;
//   - optim/: steps, clip_grad_norm_ and GradScaler; the sampler of generation;
//   - threads that only compute: streams of devices (backend.h), and those of a ProcessGroup.
//   A thread of the pool runs a job with the settings of the thread that called parallel_for, so all pieces of a kernel
//   agree, and so do those of a host's own job. An OpDef or a sink of the log that the program provides is called with
//   Rondo's state; a schedule (optim/schedule.h) in the caller's. A host that changes the settings of x87 and not those
//   of SSE is not noticed: nothing here computes with x87.
// Note [Arithmetic in a scope]. Compilers do not know that arithmetic depends on the state: they may move it out of a
//   scope, but not past a call or an access to memory that others see. Where a function computes with its arguments, or
//   returns what it computed, here() holds the value in place:
//     const FloatingPointScope scope;
//     return scope.here(1.0 / std::sqrt(scope.here(n)));
//
// A scope costs 2 to 5 ns: it reads one register twice, and writes it if the kernel has raised a flag that was not
// raised before. Scopes nest. A scope ends on the thread that it began on.
#pragma once

#include <cstdint>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif

namespace rondo {

// The settings of a thread, and the flags that it has raised.
class FloatingPointState {
 public:
  static FloatingPointState of_this_thread();
  void apply() const;  // to this thread
  // apply(), if the settings of this thread are others.
  void apply_settings() const;
  bool has_default_settings() const;
  // The default settings, with these flags.
  FloatingPointState with_default_settings() const;
  bool operator==(const FloatingPointState& other) const;

 private:
#if defined(__x86_64__)
  static constexpr uint32_t kFlags = 0x3F, kDefault = 0x1F80;
  uint32_t word_;  // MXCSR
#elif defined(__aarch64__)
  static constexpr uint64_t kFlags = 0xFFFFFFFF, kDefault = 0;
  uint64_t word_;  // FPCR << 32 | FPSR
#else
  std::fenv_t environment_;  // which cannot be compared
#endif
};

class FloatingPointScope {
 public:
  FloatingPointScope() : host_(FloatingPointState::of_this_thread()) {
    if (!host_.has_default_settings()) [[unlikely]]
      enter();
    asm volatile("" : : : "memory");
  }
  ~FloatingPointScope() {
    asm volatile("" : : : "memory");
    if (FloatingPointState::of_this_thread() == host_) return;
    host_.apply();
    if (!host_.has_default_settings()) [[unlikely]]
      leave();
  }
  FloatingPointScope(const FloatingPointScope&) = delete;
  FloatingPointScope& operator=(const FloatingPointScope&) = delete;

  // The value: what it is made of is computed before this line, and what is made of it, after. Note [Arithmetic in a
  // scope].
  template <class T> static T here(T value) {
    asm volatile("" : "+m"(value) : : "memory");
    return value;
  }

 private:
  // From settings that are not the default ones, and back to them.
  [[gnu::cold]] void enter() noexcept;
  [[gnu::cold]] void leave() const noexcept;

  FloatingPointState host_;
#if defined(__x86_64__)
  uint16_t host_x87_;  // the control word, after enter(): fegetround() and the C library's text ask it for the rounding
#endif
};

#if defined(__x86_64__)

inline FloatingPointState FloatingPointState::of_this_thread() {
  FloatingPointState state;
  state.word_ = __builtin_ia32_stmxcsr();
  return state;
}
inline void FloatingPointState::apply() const { __builtin_ia32_ldmxcsr(word_); }

#elif defined(__aarch64__)

inline FloatingPointState FloatingPointState::of_this_thread() {
  uint64_t control, flags;
  asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(flags) : : "memory");
  FloatingPointState state;
  state.word_ = control << 32 | flags;
  return state;
}
// To write FPCR stops the processor's pipeline.
inline void FloatingPointState::apply() const {
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  if (control != word_ >> 32) asm volatile("msr fpcr, %0" : : "r"(word_ >> 32) : "memory");
  asm volatile("msr fpsr, %0" : : "r"(word_ & kFlags) : "memory");
}

#endif

#if defined(__x86_64__) || defined(__aarch64__)

inline bool FloatingPointState::has_default_settings() const { return (word_ & ~kFlags) == kDefault; }
inline FloatingPointState FloatingPointState::with_default_settings() const {
  FloatingPointState state;
  state.word_ = kDefault | (word_ & kFlags);
  return state;
}
inline bool FloatingPointState::operator==(const FloatingPointState& other) const { return word_ == other.word_; }
inline void FloatingPointState::apply_settings() const {
  if (((of_this_thread().word_ ^ word_) & ~kFlags) != 0) apply();
}

#else

inline FloatingPointState FloatingPointState::of_this_thread() {
  FloatingPointState state;
  std::fegetenv(&state.environment_);
  return state;
}
inline void FloatingPointState::apply() const { std::fesetenv(&environment_); }
inline bool FloatingPointState::has_default_settings() const { return false; }
inline FloatingPointState FloatingPointState::with_default_settings() const { return *this; }  // unused
inline bool FloatingPointState::operator==(const FloatingPointState&) const { return false; }
inline void FloatingPointState::apply_settings() const { apply(); }

#endif

}  // namespace rondo
