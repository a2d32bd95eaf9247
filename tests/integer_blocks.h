// Blocks of integers, masks and orders between elementwise ops, and how many kernels each takes on any device: no
// library call, no break.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rondo/modules/module.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"

namespace rondo::test {

struct IntegerBlock {
  std::string name;
  Tensor x;
  std::function<Tensor(const Tensor&)> fn;
  int kernels = 1;
};

// A module whose forward is the block's.
struct FnModule : nn::Module<FnModule> {
  std::function<Tensor(const Tensor&)> fn;
  explicit FnModule(std::function<Tensor(const Tensor&)> fn) : fn(std::move(fn)) {}
  Tensor forward(const Tensor& x) { return fn(x); }
};

// On the host. Ties, infinities and NaN among the floats; all bits among the integers.
inline Tensor mixed_reals(const Dims& sizes, DType dtype = kF32) {
  Tensor x = ops::sign(Tensor::randn(sizes)) * Tensor::randint(0, 5, sizes).to(kF32) * 0.5;
  const Tensor which = Tensor::randint(0, 200, sizes);
  x = ops::where(which == 0, INFINITY, x);
  x = ops::where(which == 1, -INFINITY, x);
  return ops::where(which == 2, NAN, x).to(dtype);
}
inline Tensor mixed_integers(const Dims& sizes, DType dtype = kI64) {
  return (Tensor::randint(-(int64_t{1} << 62), int64_t{1} << 62, sizes) * 2).to(dtype);
}

// `rows` at most 1,024 columns wide where reductions over the first dimension are to run as such.
inline std::vector<IntegerBlock> integer_blocks() {
  manual_seed(11);
  std::vector<IntegerBlock> blocks;
  const auto add = [&](std::string name, const Tensor& x, std::function<Tensor(const Tensor&)> fn, int kernels = 1) {
    blocks.push_back({std::move(name), x, std::move(fn), kernels});
  };
  const auto before = [](const Tensor& t) { return t * 2 + 1; };
  const auto after = [](const Tensor& t) { return t.to(kF32) * 0.5 + 1.0; };
  for (const int64_t dim : {0, 1, 2}) {
    for (const DType dtype : {kF32, kBF16, kI64, kI32, kU8, kBool}) {
      const Dims sizes{21, 37, 18};
      const Tensor x = is_floating(dtype) ? mixed_reals(sizes, dtype) : mixed_integers(sizes, dtype);
      const std::string of = std::string(" ") + std::string(name_of(dtype)) + " over " + std::to_string(dim);
      const bool is_bool = dtype == kBool;
      const auto first = [=](const Tensor& t) { return is_bool ? t != true : before(t); };
      // Over the first dimension, what reads the results runs when all rows are done.
      const int n = dim == 0 ? 2 : 1;
      add(
          "any" + of, x, [=](const Tensor& t) { return ops::where(ops::any(first(t), dim), 1.0, 2.0) * 3.0; }, n);
      add(
          "all" + of, x, [=](const Tensor& t) { return ops::where(ops::all(first(t), dim), 1.0, 2.0) * 3.0; }, n);
      add(
          "max" + of, x, [=](const Tensor& t) { return after(ops::max(first(t), dim)); }, n);
      add(
          "min" + of, x, [=](const Tensor& t) { return after(ops::min(first(t), dim, true)); }, n);
      if (!is_floating(dtype))
        add(
            "sum" + of, x, [=](const Tensor& t) { return after(ops::sum(first(t), dim) * 3); }, n);
      add("cumsum" + of, x, [=](const Tensor& t) { return after(ops::cumsum(first(t), dim)); });
      if (is_bool) continue;
      add("argmax" + of, x, [=](const Tensor& t) { return after(ops::argmax(first(t), dim)); });
      add("argmin" + of, x, [=](const Tensor& t) { return after(ops::argmin(first(t), dim, true)); });
    }
  }
  const Tensor integers = mixed_integers({33, 70});
  for (const DType dtype : {kI64, kI32, kU8})
    add("bits " + std::string(name_of(dtype)), integers.to(dtype), [=](const Tensor& t) {
      const Tensor low = ops::bitwise_and(ops::shift_right(t, 3), 127), shifts = ops::bitwise_and(t, 15) - 4;
      const Tensor mixed = ops::bitwise_xor(ops::shift_left(low, shifts),
                                            ops::bitwise_not(ops::shift_right(t, shifts)));
      const Tensor odd = ops::bitwise_or(mixed < t, ops::bitwise_not(ops::bitwise_and(mixed > 0, t != low)));
      return ops::where(ops::bitwise_xor(odd, t > 5), mixed, ops::bitwise_or(low, 64)).to(kF32) * 0.5;
    });
  for (const DType from : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool})
    for (const DType to : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool}) {
      if (from == to) continue;
      Tensor x = is_floating(from) ? (mixed_reals({9, 40}, kF64) * Tensor::randn({9, 40}).to(kF64)).to(from)
                                   : mixed_integers({9, 40}, from);
      if (from == kF64 || from == kF32) x = ops::where(Tensor::randint(0, 4, {9, 40}) == 0, x * 1e18, x);
      if (is_floating(from)) x = ops::where(Tensor::randint(0, 9, {9, 40}) == 0, -0.0, x);
      add("cast " + std::string(name_of(from)) + " to " + std::string(name_of(to)), x, [=](const Tensor& t) {
        const Tensor made = (from == kBool ? t != true : ops::abs(t) * -1).to(to);
        return to == kBool ? ops::where(made, 1.5, 0.5) : made + 1;
      });
    }
  // A list of positions is a kernel of its own, as any vector that a matrix reads.
  const Tensor x = Tensor::randn({33, 70});
  add(
      "arange", x,
      [](const Tensor& t) {
        return (t * 2.0 + 1.0) * (Tensor::arange(70, {kI64, t.device()}) * 2 + 1).to(kF32);
      },
      2);
  add("arange of floats", x.select(0, 0), [](const Tensor& t) {
    return t * 2.0 + Tensor::arange(-3.0, 32.0, 0.5, {kBF16, t.device()}).to(kF32);
  });
  // A causal mask: rows against columns.
  add(
      "mask of positions", x,
      [](const Tensor& t) {
        const Tensor rows = ops::unsqueeze(Tensor::arange(33, {kI64, t.device()}), 1);
        return ops::where(Tensor::arange(70, {kI64, t.device()}) <= rows + 20, t, -INFINITY) * 0.5;
      },
      2);
  // Routing: the best of a few experts, and the place of a token in its queue.
  add(
      "places in queues", Tensor::randn({130, 8}),
      [](const Tensor& t) {
        const Tensor best = ops::argmax(t * 2.0, 1, true);
        const Tensor hit = (best == Tensor::arange(8, {kI64, t.device()})).to(kI64);
        return ops::cumsum(hit, 0) * hit - 1;
      },
      2);
  return blocks;
}

}  // namespace rondo::test
