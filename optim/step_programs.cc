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
    const auto finite = scalar::lt(norm, scalar::constant(sum, scalar::kInf));  // it is not negative; false for NaN
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
Body count_step() { return program_body<Count>("count_step"); }

const RowProgram& no_step() {
  static const RowProgram program = step_program<NoStep>("no_step", {});
  return program;
}
Body bias_corrections() { return program_body<StepProgram<BiasCorrections>>("bias_corrections"); }

}  // namespace rondo::optim
