// Scalar programs: a few lines of arithmetic on f64 values in a device's memory, such as the decision of a step or a
// bias correction. A program is written once, on scalars, like a formula (formula.h), and runs like one: as generated
// code where a device's kernels are generated, otherwise as host code in stream order.
//
//   struct Count {
//     static constexpr size_t kIn = 2, kNumbers = 0, kOut = 1;
//     template <class T>
//     static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& numbers) {
//       return {in[0] + in[1]};
//     }
//   };
//   const std::shared_ptr<Foreach> pass = scalar_pass(device, program_body<Count>("count"));
//   add_call(table, *pass, {before, updates, after}, nullptr);   // the addresses of inputs, then of outputs
//   launch(device, pass, table);
//
// One launch makes any number of calls, in any order: no call may write what another call reads. An output may also be
// an input of the same call. Numbers are f64 in the device's memory, too; several calls may share them.
// Sources that call program_body are kernel code, and include formula_code.h.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rondo/optim/foreach.h"
#include "rondo/optim/formula.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/storage.h"

namespace rondo::optim {

// Returns the pass that runs a program. There is one for each program and device.
inline std::shared_ptr<Foreach> scalar_pass(Device device, const Body& program) {
  return shared_pass(device, program, std::vector<ArraySpec>(static_cast<size_t>(program.n_values), {.dtype = kF64}));
}

// Adds one call of a program to a table. All addresses are the device's.
inline std::span<void*> add_call(ForeachTable& table, const Foreach& pass, const double* numbers) {
  return table.add(pass.item(1, 1, numbers), pass.n_operands());
}
inline void add_call(ForeachTable& table, const Foreach& pass, std::initializer_list<const double*> values,
                     const double* numbers) {
  const std::span<void*> operands = add_call(table, pass, numbers);
  size_t k = 0;
  for (const double* value : values) operands[k++] = const_cast<double*>(value);
}
// Launches a program for a single call.
inline void call_program(Device device, const Body& program, std::initializer_list<const double*> values,
                         const double* numbers, const compile::Condition& when = {}) {
  const std::shared_ptr<Foreach> pass = scalar_pass(device, program);
  ForeachTable table;
  add_call(table, *pass, values, numbers);
  launch(device, pass, table, when);
}

// Copies numbers of the host to a device, in stream order.
inline Storage numbers_on(Device device, std::span<const double> numbers) {
  Storage there = Storage::allocate(numbers.size_bytes(), device);
  copy_bytes(device, there.data(), kCPU, numbers.data(), numbers.size_bytes());
  return there;
}
inline Storage numbers_on(Device device, std::initializer_list<double> numbers) {
  return numbers_on(device, std::span(numbers.begin(), numbers.size()));
}
inline const double* f64_of(const Storage& storage) { return reinterpret_cast<const double*>(storage.data()); }

}  // namespace rondo::optim
