#include "rondo/optim/step_programs.h"

#include "rondo/optim/formula_code.h"
#include "rondo/optim/scalar_program.h"

namespace rondo::optim {
namespace {

struct Measured {
  static constexpr size_t kIn = 3, kNumbers = 2, kOut = 5;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& numbers) {
    const auto& [sum, device_scale, skipped_before] = in;
    const auto& [grad_scale, max_norm] = numbers;
    const T one = scalar::constant(sum, 1.0);
    const T scale = grad_scale * device_scale, norm = scalar::sqrt(sum) / scale;
    const auto finite = scalar::lt(norm, scalar::constant(sum, scalar::kInf));  // false for NaN; norm is never below 0
    const T clip = max_norm / (norm + scalar::constant(sum, 1e-6));
    const T factor = one / scale * scalar::select(scalar::lt(clip, one), clip, one);
    const T updates = scalar::select(finite, one, scalar::constant(sum, 0.0)), skipped = one - updates;
    return {norm, factor, updates, skipped, skipped_before + skipped};
  }
};

struct Unmeasured {
  static constexpr size_t kIn = 0, kNumbers = 1, kOut = 4;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& /*in*/, const std::array<T, kNumbers>& numbers) {
    const T one = scalar::constant(numbers[0], 1.0);
    return {numbers[0], one, one, scalar::constant(numbers[0], 0.0)};
  }
};

struct Count {
  static constexpr size_t kIn = 2, kNumbers = 0, kOut = 1;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& /*numbers*/) {
    return {in[0] + in[1]};
  }
};

struct WarmAverage {
  static constexpr size_t kIn = 2, kNumbers = 0, kOut = 1;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& /*numbers*/) {
    const auto& [step, weight] = in;
    // The weight of the warm-up is 1 - decay = 1 - (1 + t) / (10 + t) = 9 / (10 + t).
    return {scalar::maximum(weight, scalar::constant(step, 9.0) / (scalar::constant(step, 10.0) + step))};
  }
};

struct AverageOfBuffer {
  template <class T> [[gnu::always_inline]] static T moved(T average, T buffer, T weight) {
    return scalar::fma(weight, buffer - average, average);
  }
  template <class C> static void run(const void* /*context*/, C* const* values, const C* scalars, int64_t n) {
    C* __restrict average = values[0];
    const C* __restrict buffer = values[1];
    const C weight = scalars[kAverageWeight];
    for (int64_t i = 0; i < n; ++i) average[i] = moved(average[i], buffer[i], weight);
  }
  static void build(const void* /*context*/, LoopValue* values, const LoopValue* scalars) {
    values[0] = moved(values[0], values[1], scalars[kAverageWeight]);
  }
};

struct NoStep {
  static constexpr size_t kNumbers = 0, kOut = 0;
  template <class T> static std::array<T, kOut> run(T /*step*/, const std::array<T, kNumbers>& /*numbers*/) {
    return {};
  }
};

struct BiasCorrections {
  static constexpr size_t kNumbers = 3, kOut = 2;
  template <class T> static std::array<T, kOut> run(T step, const std::array<T, kNumbers>& numbers) {
    const auto& [lr, beta1, beta2] = numbers;
    const T one = scalar::constant(step, 1.0);
    return {lr / (one - scalar::pow(beta1, step)), scalar::rsqrt(one - scalar::pow(beta2, step))};
  }
};

}  // namespace

Body decide_measured() { return program_body<Measured>("decide"); }
Body decide_unmeasured() { return program_body<Unmeasured>("decide_unmeasured"); }
Body warm_average() { return program_body<WarmAverage>("warm_average"); }
Body average_of_buffer() {
  return {.name = "average_of_buffer",
          .n_values = 2,
          .n_scalars = kFirstScalar,
          .f32 = &AverageOfBuffer::run<float>,
          .f64 = &AverageOfBuffer::run<double>,
          .build = &AverageOfBuffer::build,
          .keeps = 1u << 1};
}
Body count_step() { return program_body<Count>("count_step"); }

const RowProgram& no_step() {
  static const RowProgram& program = *new RowProgram(step_program<NoStep>("no_step", {}));
  return program;
}
Body bias_corrections() { return program_body<StepProgram<BiasCorrections>>("bias_corrections"); }

}  // namespace rondo::optim
