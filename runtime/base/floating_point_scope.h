// Kernels and library calls run in one floating-point state, whatever state the host program has set.
//
//   const FloatingPointScope scope;  // to the end of the block: Rondo's state
//   kernel(context);
//
// Note [The host's floating-point state]. A host may trap exceptions (feenableexcept), flush subnormal numbers to zero
//   (FTZ, DAZ) or choose a rounding mode (fesetround), at any time and on any thread. Rondo computes with the defaults
//   of IEEE 754 on every thread: nothing traps, results are rounded to nearest, subnormal numbers are kept. When a
//   public call returns or throws, it has restored the host's settings and its status flags (fetestexcept).
//   A scope surrounds Rondo's own computation, not the user code that Rondo calls: `forward`, hooks, tape nodes of the
//   program, datasets and callbacks see the host's state. Scopes are in:
//   - every op that runs eagerly (dispatch.cc), the gradient rules (op_node.cc), printing;
//   - code of ops and modules that computes numbers on the CPU: the inverse of a divisor, the bound of initial weights;
//   - compile/: code that compiles a recording or looks up its kernels (RegionTrace::run_now, Binding::backward_for),
//     and the Executor, which runs all programs, including replays and optimizer steps;
//   - optim/: steps, clip_grad_norm_ and GradScaler; the sampler of generation;
//   - threads that only compute: device streams (backend.h) and the threads of a ProcessGroup.
//   A pool thread runs a job with the settings of the thread that called parallel_for, so all pieces of a kernel use
//   the same settings, also if the host itself calls parallel_for. An OpDef or a log sink that the program provides is
//   called with Rondo's state. A schedule (optim/schedule.h) is called with the caller's state. If a host changes the
//   x87 settings but not those of SSE, Rondo does not notice; Rondo does not compute with x87.
// Note [Arithmetic in a scope]. Compilers do not know that arithmetic depends on this state. They may move it out of a
//   scope, but not past a call or past an access to memory that others see. If a function computes with its arguments,
//   or returns what it computed, here() keeps the computation inside the scope:
//     const FloatingPointScope scope;
//     return scope.here(1.0 / std::sqrt(scope.here(n)));
//
// A scope costs 2 to 5 ns: it reads one register twice, and writes it if the kernel has raised a new flag. Scopes nest.
// A scope ends on the thread that it began on.
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
  void apply() const;  // sets the state of this thread
  // Calls apply() if this thread's settings differ.
  void apply_settings() const;
  bool has_default_settings() const;
  // Returns the default settings with the flags of this state.
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
  std::fenv_t environment_;  // cannot be compared
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

  // Returns `value`. The compiler computes it before this line, and everything that uses the result after this line.
  // Note [Arithmetic in a scope].
  template <class T> static T here(T value) {
    asm volatile("" : "+m"(value) : : "memory");
    return value;
  }

 private:
  // The slow path of the constructor and of the destructor: the host's settings are not the default ones.
  [[gnu::cold]] void enter() noexcept;
  [[gnu::cold]] void leave() const noexcept;

  FloatingPointState host_;
#if defined(__x86_64__)
  uint16_t host_x87_;  // x87 control word, set by enter(): fegetround() and strtod() read the rounding mode from it
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
// Writes FPCR only if it changes: a write stalls the processor's pipeline.
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
