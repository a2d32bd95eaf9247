#include "rondo/tests/op_samples.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/random_draw.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fake_device/test_device.h"

namespace rondo::test {

namespace {
// Small and not negative, so that every integer dtype holds them.
Tensor whole_numbers(const Tensor& t, DType dtype) {
  const std::vector<double> values = t.to_vector<double>();
  Tensor result = Tensor::empty(t.sizes(), {dtype, kCPU});
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = result.mutable_data<T>();
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, bool>) out[i] = values[i] > 0;
      else out[i] = static_cast<T>(std::isfinite(values[i]) ? std::floor(std::abs(values[i]) * 3) + 1 : 0);
    }
  });
  return result.to(t.device());
}
}  // namespace

Role OpSample::role(size_t i) const {
  if (!roles.empty()) return roles[i];
  return inputs[i].defined() && is_floating(inputs[i].dtype()) ? Role::kReal : Role::kFixed;
}

std::vector<Tensor> OpSample::inputs_as(DType dtype) const {
  std::vector<Tensor> result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Role part = role(i);
    if (!inputs[i].defined() || part == Role::kFixed) result.push_back(inputs[i]);
    else if (!is_floating(dtype)) result.push_back(whole_numbers(inputs[i], dtype));
    else result.push_back(dense_copy(inputs[i].to(part == Role::kReal ? dtype : compute_dtype(dtype))));
  }
  return result;
}

Tensor uniform(const Dims& sizes, double low, double high, uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 17);
  std::vector<double> values(static_cast<size_t>(sizes.numel()));
  for (double& v : values) v = low + (high - low) * (static_cast<double>(random() >> 11) * 0x1p-53);
  return Tensor::from(values, sizes).to(test_device());
}

std::vector<Tensor> apply_op(const OpDef& op, std::span<const Tensor> inputs, const Attrs& attrs, int n_outputs) {
  std::vector<TensorArg> args;
  if (op.overwrites < 0) {
    for (const Tensor& input : inputs) args.emplace_back(input);
    std::vector<Tensor> outputs(static_cast<size_t>(n_outputs));
    call(op, args, attrs, outputs);
    return outputs;
  }
  Tensor target = inputs[0].requires_grad() ? inputs[0].clone() : inputs[0];
  if (!inputs[0].requires_grad()) {
    // The same layout, so that strided writing is swept too; a broadcast one cannot be written to.
    bool broadcast = false;
    int64_t extent = 1;
    for (int d = 0; d < target.rank(); ++d) {
      broadcast = broadcast || (target.strides()[d] == 0 && target.sizes()[d] > 1);
      extent += std::max<int64_t>(target.sizes()[d] - 1, 0) * target.strides()[d];
    }
    target = broadcast ? dense_copy(target) : with_strides(target, target.strides(), 0, extent);
  }
  args.emplace_back(target);
  for (const Tensor& input : inputs.subspan(1)) args.emplace_back(input);
  call_in_place(op, args, attrs);
  return {target};
}

namespace {

uint64_t next_seed = 1;
Tensor real(const Dims& sizes, double low = -2, double high = 2) { return uniform(sizes, low, high, next_seed++); }
Tensor positive(const Dims& sizes) { return real(sizes, 0.3, 3); }
// Multiples of a half: ties happen, and every dtype holds them.
Tensor halves(const Dims& sizes, double low = -3, double high = 3) {
  std::vector<double> values = real(sizes, low, high).to_vector<double>();
  for (double& v : values) v = std::floor(v * 2) / 2;
  return Tensor::from(values, sizes);
}
Tensor indices(const Dims& sizes, int64_t below) {
  std::vector<int64_t> values;
  for (double v : real(sizes, 0, static_cast<double>(below)).to_vector<double>())
    values.push_back(static_cast<int64_t>(v));
  return Tensor::from(values, sizes);
}
Tensor coins(const Dims& sizes) {
  const std::vector<double> values = real(sizes, 0, 1).to_vector<double>();
  Tensor t = Tensor::empty(sizes, {kBool, kCPU});
  bool* out = t.mutable_data<bool>();
  for (size_t i = 0; i < values.size(); ++i) out[i] = values[i] < 0.5;
  return t.to(default_device());
}
Attrs ints(std::initializer_list<int64_t> values) { return {.ints = values}; }

using Samples = std::vector<OpSample>;
using Make = Tensor (*)(const Dims&);
Tensor plain(const Dims& sizes) { return real(sizes); }
Tensor tied(const Dims& sizes) { return halves(sizes); }
// Mostly zeros, and hardly any.
Tensor sparse(const Dims& sizes) { return halves(sizes, 0, 0.55); }
Tensor dense(const Dims& sizes) { return halves(sizes, 0.45, 3); }
// Infinities and NaN among numbers.
Tensor special(const Dims& sizes) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::vector<double> values = halves(sizes).to_vector<double>();
  for (double& v : values) {
    if (v == 2.5) v = kInf;
    else if (v == -2.5) v = -kInf;
    else if (v == 1.5) v = std::numeric_limits<double>::quiet_NaN();
  }
  return Tensor::from(values, sizes);
}

template <Make kFirst, Make kSecond> Samples binary(bool large) {
  using Pair = std::pair<Dims, Dims>;
  const std::vector<Pair> shapes = large ? std::vector<Pair>{{{257, 401}, {257, 401}},
                                                             {{257, 401}, {401}},
                                                             {{401, 1}, {257}}}
                                         : std::vector<Pair>{{{7, 5}, {7, 5}},
                                                             {{3, 1, 5}, {4, 1}},
                                                             {{0, 3}, {1, 3}},
                                                             {{}, {}},
                                                             {{1}, {1, 1}},
                                                             {{13}, {}},
                                                             {{2, 3, 4, 5}, {3, 1, 5}},
                                                             {{33}, {33}},
                                                             {{2, 1, 3, 1, 2}, {4, 1, 5, 1}}};
  Samples samples;
  for (const auto& [a, b] : shapes)
    samples.push_back({to_string(a) + " with " + to_string(b), {kFirst(a), kSecond(b)}});
  return samples;
}

std::vector<Dims> unary_shapes(bool large) {
  if (large) return {{257, 401}};
  return {{7, 5}, {0, 3}, {}, {1, 1}, {33}, {2, 3, 4, 5}, {1, 70}};
}
template <Make kMake> Samples unary(bool large) {
  Samples samples;
  for (const Dims& sizes : unary_shapes(large)) samples.push_back({to_string(sizes), {kMake(sizes)}});
  return samples;
}
template <Make kMake> Samples with_scalar(bool large) {
  Samples samples = unary<kMake>(large);
  for (OpSample& s : samples) s.attrs.floats = {3};
  if (!large) samples.push_back({"-0.75", {kMake({5, 3})}, {.floats = {-0.75}}});
  return samples;
}
// A gradient op of one elementwise input: x and grad of one shape.
Samples unary_grad(bool large) {
  Samples samples;
  for (const Dims& sizes : unary_shapes(large)) samples.push_back({to_string(sizes), {real(sizes), real(sizes)}});
  return samples;
}

// a, b, and grad of their broadcast shape.
Samples div_grad_samples(bool large) {
  Samples samples = binary<plain, positive>(large);
  for (OpSample& s : samples) {
    Dims sizes;
    broadcast_shapes(s.inputs[0].sizes(), s.inputs[1].sizes(), sizes);
    s.inputs.push_back(real(sizes));
  }
  return samples;
}

Samples where_samples(bool large) {
  if (large) return {{"large", {coins({257, 401}), real({257, 401}), real({401})}}};
  return {{"same", {coins({7, 5}), real({7, 5}), real({7, 5})}},
          {"broadcast", {coins({5}), real({3, 1, 5}), real({4, 1})}},
          {"condition wider", {coins({2, 3, 4}), real({4}), real({})}},
          {"scalars", {coins({}), real({}), real({})}},
          {"empty", {coins({0, 3}), real({1, 3}), real({3})}}};
}
Samples cast_samples(bool large) {
  Samples samples;
  for (DType to : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool})
    for (const Dims& sizes : large ? std::vector<Dims>{{257, 401}} : std::vector<Dims>{{7, 5}, {0, 3}, {}, {33}})
      samples.push_back({"to " + std::string(name_of(to)) + to_string(sizes),
                         {halves(sizes, 0, 5)},
                         ints({static_cast<int64_t>(to)})});
  return samples;
}
Samples copy_samples(bool large) {
  if (large) return {{"large", {real({257, 401}), real({401})}}};
  return {{"same", {real({7, 5}), real({7, 5})}},
          {"broadcast", {real({2, 3, 4}), real({3, 1})}},
          {"scalar", {real({}), real({})}},
          {"from a scalar", {real({6}), real({})}},
          {"empty", {real({0, 3}), real({3})}}};
}
Samples fill_samples(bool large) {
  Samples samples = unary<plain>(large);
  for (OpSample& s : samples) s.attrs.floats = {2.5};
  return samples;
}
Samples scale_samples(bool large) {
  if (large) return {{"large", {real({257, 401}), real({})}}};
  return {{"matrix", {real({7, 5}), real({})}},
          {"one", {real({7, 5}), Tensor::ones({}, kF64)}},
          {"scalar", {real({}), real({})}},
          {"empty", {real({0, 3}), real({})}}};
}

Samples view_samples(bool large) {
  if (large) return {};
  return {{"split", {real({6, 4})}, ints({2, 3, 4})},      {"merge", {real({2, 3, 4})}, ints({6, 4})},
          {"ones", {real({2, 1, 3})}, ints({1, 2, 3, 1})}, {"scalar", {real({1, 1})}, ints({})},
          {"from scalar", {real({})}, ints({1, 1})},       {"empty", {real({0, 3})}, ints({3, 0, 5})}};
}
Samples permute_samples(bool large) {
  if (large) return {};
  return {{"matrix", {real({4, 3})}, ints({1, 0})},
          {"three", {real({2, 3, 4})}, ints({2, 0, 1})},
          {"scalar", {real({})}, ints({})},
          {"empty", {real({0, 3, 1})}, ints({1, 2, 0})}};
}
Samples expand_samples(bool large) {
  if (large) return {};
  return {{"row", {real({1, 5})}, ints({4, 5})},        {"lead", {real({5})}, ints({2, 3, 5})},
          {"scalar", {real({})}, ints({3, 2})},         {"middle", {real({2, 1, 3})}, ints({2, 4, 3})},
          {"to nothing", {real({1, 3})}, ints({0, 3})}, {"same", {real({2, 3})}, ints({2, 3})}};
}
Samples slice_samples(bool large) {
  if (large) return {};
  return {{"front", {real({6, 3})}, ints({0, 0, 4, 1})},     {"step", {real({4, 9})}, ints({1, 1, 9, 3})},
          {"all", {real({5})}, ints({0, 0, 5, 1})},          {"none", {real({5, 2})}, ints({0, 3, 3, 2})},
          {"middle", {real({2, 5, 3})}, ints({1, 2, 4, 1})}, {"step past the end", {real({5})}, ints({0, 1, 5, 7})}};
}
// {offset, sizes..., strides...}
Samples window_samples(bool large) {
  if (large) return {};
  return {{"row", {real({4, 5})}, ints({5, 5, 1})},
          {"column", {real({4, 5})}, ints({2, 4, 5})},
          {"permuted", {real({2, 6})}, ints({1, 2, 3, 2, 4})},
          {"scalar", {real({3})}, ints({2})},
          {"none", {real({3, 2})}, ints({6, 0, 2, 2, 1})}};
}
Samples window_copy_samples(bool large) {
  Samples samples;
  for (OpSample& view : window_samples(large)) {
    Attrs attrs;
    attrs.ints.append(std::span(view.attrs.ints.begin() + 1, view.attrs.ints.end()));
    attrs.floats = {static_cast<double>(view.attrs.ints[0])};
    samples.push_back({view.label, {view.inputs[0]}, attrs});
  }
  return samples;
}
Samples overwrite_samples(bool large) {
  const auto at = [](double offset, std::initializer_list<int64_t> window) {
    Attrs attrs = ints(window);
    attrs.floats = {offset};
    return attrs;
  };
  if (large) return {{"large", {real({300, 257}), real({128, 257})}, at(257 * 3, {128, 257, 257, 1})}};
  return {{"row", {real({4, 5}), real({5})}, at(5, {5, 1})},
          {"column", {real({4, 5}), real({4})}, at(2, {4, 5})},
          {"block", {real({2, 6}), real({2, 3})}, at(1, {2, 3, 6, 2})},
          {"broadcast", {real({3, 4}), real({2, 1})}, at(4, {2, 3, 4, 1})},
          {"a number",
           {real({3, 4}), Tensor()},
           [] {
             Attrs attrs = ints({2, 2, 4, 1});
             attrs.floats = {5.0, 1.5};
             return attrs;
           }()},
          {"one number", {real({3, 4}), real({})}, at(0, {3, 4, 4, 1})},
          {"none", {real({3, 2}), real({0, 2})}, at(6, {0, 2, 2, 1})}};
}
Samples revalue_samples(bool large) {
  if (large) return {{"large", {real({300, 257}), real({300, 257})}}};
  return {{"matrix", {real({4, 5}), real({4, 5})}},
          {"scalar", {real({}), real({})}},
          {"none", {real({0, 2}), real({0, 2})}}};
}
Samples slice_grad_samples(bool large) {
  if (large)
    return {{"large", {real({100, 401})}, ints({257, 401, 0, 3, 2})},
            {"many", std::vector<Tensor>(100, real({3, 401})), [] {
               Attrs attrs = ints({3, 101, 401});
               for (int64_t i = 0; i < 100; ++i) attrs.ints.append({1, i + (i > 40), 1});
               return attrs;
             }()}};
  return {{"front", {real({4, 3})}, ints({6, 3, 0, 0, 1})},
          {"step", {real({4, 3})}, ints({4, 9, 1, 1, 3})},
          {"none", {real({0, 2})}, ints({5, 2, 0, 3, 2})},
          {"middle", {real({2, 2, 3})}, ints({2, 5, 3, 1, 2, 1})},
          {"select", {real({2, 3})}, ints({2, 5, 3, 1, 4, 1})},
          {"side by side", {real({2, 3}), real({1, 3}), real({3})}, ints({5, 3, 0, 3, 1, 0, 0, 1, 0, 2, 1})},
          {"over each other", {real({2, 4}), real({3, 4}), real({3, 2})}, ints({3, 4, 0, 1, 1, 0, 0, 1, 1, 0, 3})},
          {"onto a sum", {real({3, 4}), real({2, 4}), real({4})}, ints({3, 4, 0, 0, 1, 0, 0, 2, 0, 1, 1})},
          {"to nothing", {real({0, 4}), real({0, 1})}, ints({0, 4, 0, 0, 1, 1, 2, 1})}};
}
Samples select_samples(bool large) {
  if (large) return {};
  return {{"first", {real({4, 3})}, ints({0, 2})},
          {"last", {real({4, 3})}, ints({1, 0})},
          {"to a scalar", {real({5})}, ints({0, 4})},
          {"middle", {real({2, 3, 4})}, ints({1, 1})}};
}
Samples split_samples(bool large) {
  if (large) return {};
  return {{"even", {real({6, 4})}, ints({0, 2}), 3},      {"rest", {real({3, 7})}, ints({1, 3}), 3},
          {"one", {real({3})}, ints({0, 9}), 1},          {"middle", {real({2, 5, 2})}, ints({1, 1}), 5},
          {"many", {real({2, 19, 2})}, ints({1, 2}), 10}, {"each index", {real({2, 11})}, ints({1, 0}), 11},
          {"empty rows", {real({0, 4})}, ints({1, 2}), 2}};
}
Samples triangle_samples(bool large) {
  if (large) return {{"large", {real({3, 300, 257})}, ints({-2})}};
  return {{"square", {real({4, 4})}, ints({0})},
          {"wide", {real({3, 7})}, ints({2})},
          {"tall", {real({2, 7, 3})}, ints({-3})},
          {"all or nothing", {real({3, 4})}, ints({std::numeric_limits<int64_t>::max()})},
          {"nothing or all", {real({3, 4})}, ints({std::numeric_limits<int64_t>::min()})},
          {"many", {real({2, 1, 3, 1, 4})}, ints({1})},
          {"one", {real({1, 1})}, ints({-1})},
          {"no rows", {real({2, 0, 3})}, ints({0})},
          {"no columns", {real({2, 3, 0})}, ints({1})}};
}
Samples cat_samples(bool large) {
  if (large) return {{"large", {real({100, 401}), real({157, 401})}, ints({0})}};
  return {{"rows", {real({2, 3}), real({4, 3})}, ints({0})},
          {"columns", {real({3, 2}), real({3, 1}), real({3, 5})}, ints({1})},
          {"one", {real({3})}, ints({0})},
          {"many", std::vector<Tensor>(11, real({2, 3})), ints({1})},
          {"with an empty one", {real({2, 3}), real({0, 3}), real({1, 3})}, ints({0})},
          {"middle", {real({2, 1, 3}), real({2, 4, 3})}, ints({1})},
          {"all empty", {real({0, 3}), real({0, 3})}, ints({0})}};
}

template <Make kMake, bool kEmpty> Samples reduction(bool large) {
  Samples samples;
  auto add = [&](const Dims& sizes, int64_t mask) {
    for (int64_t keep : {0, 1})
      samples.push_back({to_string(sizes) + " mask " + std::to_string(mask) + (keep ? " kept" : ""),
                         {kMake(sizes)},
                         ints({mask, keep})});
  };
  if (large) {
    for (int64_t mask : {1, 2, 3}) add({300, 401}, mask);
    add({5000, 17}, 1);
    for (int64_t mask : {1, 2, 5, 6}) add({40, 90, 77}, mask);
    return samples;
  }
  for (int64_t mask : {0, 1, 2, 3}) add({7, 5}, mask);
  for (int64_t mask : {1, 2, 3, 4, 5, 6, 7}) add({3, 4, 5}, mask);
  add({2, 3, 4, 5}, 0b0101);
  // Several runs of reduced dimensions, and one in the middle.
  for (int64_t mask : {0b0010, 0b0110, 0b1010}) add({3, 37, 2, 18}, mask);
  add({2, 19, 2, 5}, 0b1101);
  add({2, 70}, 2);
  add({70, 2}, 1);
  add({150, 3}, 1);
  add({1, 1}, 3);
  add({9}, 1);
  add({1, 9}, 2);
  add({9, 1}, 2);
  add({}, 0);
  add({2, 0}, 1);
  if (kEmpty) {
    add({0, 3}, 1);
    add({0, 3}, 3);
  }
  return samples;
}

template <int kOutputs> Samples variance_samples(bool large) {
  Samples samples = reduction<plain, false>(large);
  for (OpSample& s : samples) {
    int64_t n = 1;
    for (int d = 0; d < s.inputs[0].rank(); ++d)
      if (s.attrs.ints[0] >> d & 1) n *= s.inputs[0].sizes()[d];
    s.attrs.floats = {n > 1 ? 1.0 : 0.0};
    s.n_outputs = kOutputs;
  }
  // One element varies from nothing, and has no standard deviation to divide by.
  std::erase_if(samples, [](const OpSample& s) { return s.attrs.floats[0] == 0; });
  if (!large) samples.push_back({"correction", {real({6, 5})}, {.ints = {2, 0}, .floats = {0.0}}, kOutputs});
  return samples;
}
// Input and target of a pointwise loss: of one shape.
template <int kScalars> Samples pairs(bool large) {
  Samples samples;
  for (const Dims& sizes : unary_shapes(large)) {
    Attrs attrs;
    if (kScalars == 1) attrs.floats = {0.75};
    samples.push_back({to_string(sizes), {real(sizes), real(sizes)}, attrs});
  }
  return samples;
}

Samples matmul_samples(bool large) {
  if (large)
    return {{"large", {real({130, 140}), real({140, 150})}}, {"large batch", {real({6, 70, 64}), real({6, 64, 65})}}};
  Samples samples;
  auto add = [&](const Dims& a, const Dims& b) {
    samples.push_back({to_string(a) + " x " + to_string(b), {real(a), real(b)}});
  };
  add({5, 7}, {7, 3});
  add({2, 5, 7}, {7, 3});
  add({2, 3, 4, 5}, {3, 5, 2});
  add({2, 1, 4, 5}, {1, 3, 5, 2});
  add({4, 5}, {3, 5, 2});
  add({1, 1}, {1, 1});
  add({0, 3}, {3, 2});
  add({3, 0}, {0, 2});
  add({17, 33}, {33, 19});
  add({1, 40}, {40, 1});
  add({0, 2, 3}, {3, 2});
  add({2, 2, 0}, {2, 0, 3});
  return samples;
}
Samples linear_samples(bool large) {
  if (large) return {{"large", {real({2, 65, 140}), real({150, 140}), real({150})}}};
  return {{"bias", {real({2, 3, 7}), real({5, 7}), real({5})}},    {"no bias", {real({6, 7}), real({5, 7}), Tensor()}},
          {"vector", {real({7}), real({5, 7}), real({5})}},        {"empty", {real({0, 7}), real({5, 7}), real({5})}},
          {"nothing in", {real({3, 0}), real({5, 0}), real({5})}}, {"ones", {real({1, 1}), real({1, 1}), real({1})}},
          {"odd", {real({17, 33}), real({19, 33}), real({19})}}};
}

const std::vector<Dims>& row_shapes() {
  static const std::vector<Dims> shapes = {{3, 7}, {2, 3, 33}, {5, 1}, {0, 4}, {1, 1}, {9}, {150, 5}, {2, 70}};
  return shapes;
}
template <int kOperands> Samples rows(bool large) {
  Samples samples;
  for (const Dims& sizes : large ? std::vector<Dims>{{300, 129}} : row_shapes()) {
    std::vector<Tensor> inputs;
    for (int i = 0; i < kOperands; ++i) inputs.push_back(real(sizes));
    samples.push_back({to_string(sizes), inputs});
  }
  return samples;
}
// Also rows without elements.
template <int kOperands> Samples softmax_rows(bool large) {
  Samples samples = rows<kOperands>(large);
  const auto along = [&](const Dims& sizes, int64_t dim) {
    std::vector<Tensor> inputs;
    for (int i = 0; i < kOperands; ++i) inputs.push_back(real(sizes));
    samples.push_back({to_string(sizes) + " along " + std::to_string(dim), inputs, ints({dim})});
  };
  if (large) return along({30, 21, 150}, 1), samples;
  samples.push_back({"no columns", std::vector<Tensor>(kOperands, real({3, 0}))});
  for (int64_t dim : {0, 1, 2}) along({3, 37, 18}, dim);
  along({70, 5}, 0);
  along({9, 1}, 0);
  along({2, 6, 1}, 1);
  along({2, 0, 3}, 1);
  return samples;
}
template <auto kSoftmax> Samples softmax_grads(bool large) {
  Samples samples = softmax_rows<2>(large);
  for (OpSample& s : samples) s.inputs[1] = kSoftmax(s.inputs[1], s.attrs.ints.empty() ? -1 : s.attrs.ints[0]);
  return samples;
}
Samples softmax_grad_samples(bool large) { return softmax_grads<&ops::softmax>(large); }
Samples log_softmax_grad_samples(bool large) { return softmax_grads<&ops::log_softmax>(large); }
Samples layer_norm_samples(bool large) {
  Samples samples = rows<1>(large);
  for (OpSample& s : samples) {
    const Dims row = {s.inputs[0].sizes().back()};
    s.inputs.push_back(real(row));
    s.inputs.push_back(real(row));
    s.attrs.floats = {1e-5};
    s.n_outputs = 3;
  }
  return samples;
}
Samples layer_norm_grad_samples(bool large) {
  Samples samples = layer_norm_samples(large);
  for (OpSample& s : samples) {
    Tensor outputs[3];
    call(*find_op("layer_norm"), {s.inputs[0], s.inputs[1], s.inputs[2]}, s.attrs, outputs);
    s.inputs = {real(s.inputs[0].sizes()), s.inputs[0], s.inputs[1], outputs[1], outputs[2]};
    s.roles = {Role::kReal, Role::kReal, Role::kReal, Role::kCompute, Role::kCompute};
    s.attrs = {};
  }
  return samples;
}

// A convolution by its numbers.
struct ConvSample {
  const char* label;
  Dims x, weight;
  ops::Convolution how = {};
  bool bias = true;
};
std::vector<ConvSample> conv_samples(bool large) {
  using ops::Convolution;
  const Convolution same3{.before = {1, 1}, .after = {1, 1}};
  if (large)
    return {
        {"large", {2, 24, 40, 33}, {32, 24, 3, 3}, {.stride = {2, 1}, .before = {1, 1}, .after = {1, 1}}},
        {"large, few channels", {3, 3, 60, 61}, {8, 3, 7, 7}, {.stride = {2, 2}, .before = {3, 3}, .after = {3, 3}}},
        {"large, depthwise", {2, 40, 31, 30}, {40, 1, 3, 3}, {.before = {1, 1}, .after = {1, 1}, .groups = 40}},
        {"large, one by one", {4, 40, 33, 20}, {64, 40, 1, 1}},
        {"large batch", {40, 16, 9, 9}, {16, 16, 3, 3}, same3}};
  return {
      {"plain", {2, 3, 7, 6}, {4, 3, 3, 2}},
      {"same", {1, 5, 9, 8}, {7, 5, 3, 3}, same3, false},
      {"stride", {2, 4, 9, 11}, {6, 4, 3, 3}, {.stride = {2, 3}, .before = {1, 0}, .after = {1, 0}}},
      {"patches", {2, 3, 8, 8}, {5, 3, 4, 4}, {.stride = {4, 4}}},
      {"stride beyond the kernel", {1, 2, 9, 10}, {3, 2, 2, 1}, {.stride = {3, 4}}, false},
      {"one by one", {2, 6, 5, 3}, {4, 6, 1, 1}},
      {"one by one, stride", {2, 6, 5, 4}, {4, 6, 1, 1}, {.stride = {2, 2}}},
      {"dilated", {1, 3, 11, 9}, {4, 3, 3, 2}, {.dilation = {2, 3}, .before = {2, 1}, .after = {2, 1}}},
      {"even kernel, same", {1, 3, 6, 7}, {4, 3, 2, 4}, {.before = {0, 1}, .after = {1, 2}}},
      {"groups", {2, 6, 6, 5}, {9, 2, 3, 3}, {.before = {1, 1}, .after = {1, 1}, .groups = 3}},
      {"depthwise", {2, 5, 7, 7}, {5, 1, 3, 3}, {.stride = {2, 1}, .before = {1, 1}, .after = {1, 1}, .groups = 5}},
      {"depthwise, two each", {1, 16, 6, 6}, {32, 1, 3, 3}, {.before = {1, 1}, .after = {1, 1}, .groups = 16}, false},
      {"padding beyond the kernel", {1, 2, 3, 4}, {3, 2, 2, 2}, {.before = {3, 2}, .after = {3, 2}}},
      {"a row", {2, 3, 1, 13}, {4, 3, 1, 5}, {.stride = {1, 2}, .before = {0, 2}, .after = {0, 2}}},
      {"one pixel", {1, 1, 1, 1}, {1, 1, 1, 1}},
      {"all of the image", {2, 3, 4, 5}, {6, 3, 4, 5}},
      {"empty batch", {0, 3, 5, 5}, {4, 3, 3, 3}, same3},
      {"only padding", {2, 3, 0, 5}, {4, 3, 2, 3}, {.before = {1, 1}, .after = {1, 1}}},
      {"two groups", {2, 4, 5, 6}, {6, 2, 3, 2}, {.stride = {2, 1}, .groups = 2}, false},
      {"many channels", {2, 1024, 3, 7}, {8, 1024, 1, 1}, {}, false},
      {"many outputs, bands", {1, 4, 40, 18}, {512, 4, 3, 3}, same3, false},
      {"several bands", {1, 32, 36, 33}, {32, 32, 3, 3}, same3, false},
      {"several bands, stride", {1, 24, 48, 31}, {40, 24, 3, 3}, {.stride = {2, 2}, .before = {1, 1}, .after = {1, 1}}},
  };
}
enum class ConvOp { kOutput, kInput, kWeight };
template <ConvOp kOp> Samples convs(bool large) {
  Samples samples;
  for (const ConvSample& c : conv_samples(large)) {
    const Dims &x = c.x, &w = c.weight;
    const Dims y = {x[0], w[0], c.how.output_size(0, x[2], w[2]), c.how.output_size(1, x[3], w[3])};
    if (kOp == ConvOp::kOutput)
      samples.push_back({c.label, {real(x), real(w, -0.5, 0.5), c.bias ? real({w[0]}) : Tensor()}, c.how.attrs()});
    else if (kOp == ConvOp::kInput)
      samples.push_back({c.label, {real(y), real(w, -0.5, 0.5)}, c.how.attrs({x[2], x[3]})});
    else samples.push_back({c.label, {real(y), real(x)}, c.how.attrs({w[2], w[3]})});
  }
  return samples;
}

Samples max_pool2d_samples(bool large) {
  using ops::Convolution;
  const auto pool = [](const char* label, const Tensor& x, const Convolution& how, ops::Extent kernel) {
    return OpSample{label, {x}, how.attrs(kernel), 2};
  };
  const Convolution stem{.stride = {2, 2}, .before = {1, 1}, .after = {1, 1}};
  if (large) return {pool("large", real({2, 19, 61, 60}), stem, {3, 3})};
  return {pool("plain", real({2, 3, 6, 4}), {.stride = {2, 2}}, {2, 2}),
          pool("overlapping", real({2, 5, 7, 8}), stem, {3, 3}),
          pool("beyond the end", real({1, 2, 8, 6}), {.stride = {3, 2}, .before = {1, 0}, .after = {2, 1}}, {3, 3}),
          pool("dilated", real({1, 3, 9, 8}), {.dilation = {2, 3}, .before = {1, 0}, .after = {1, 0}}, {3, 2}),
          pool("one pixel", real({1, 1, 1, 1}), {}, {1, 1}),
          pool("empty batch", real({0, 2, 5, 4}), stem, {3, 2})};
}

Samples attention_samples(bool large) {
  const double inf = std::numeric_limits<double>::infinity();
  auto attrs = [](bool causal, double scale) { return Attrs{.ints = {causal}, .floats = {scale}}; };
  const Tensor state = Tensor::from<int64_t>({17, 5}, {2});
  auto dropped = [](bool causal, double scale, double p) { return Attrs{.ints = {causal, 3}, .floats = {scale, p}}; };
  if (large)
    return {{"large",
             {real({2, 4, 130, 16}), real({2, 4, 130, 16}), real({2, 4, 130, 16}), Tensor()},
             attrs(true, 0.25),
             2}};
  Tensor bias = real({2, 1, 5, 6});
  bias.flatten()[3].fill_(-inf);
  Tensor allowed = coins({1, 1, 5, 6});
  for (int i = 0; i < 5; ++i) allowed.flatten()[i * 6 + i].fill_(true);
  return {{"plain", {real({2, 4, 5, 8}), real({2, 4, 6, 8}), real({2, 4, 6, 8}), Tensor()}, attrs(false, 0.35), 2},
          {"causal", {real({2, 2, 7, 3}), real({2, 2, 7, 3}), real({2, 2, 7, 3}), Tensor()}, attrs(true, 0.5), 2},
          {"grouped", {real({1, 6, 5, 4}), real({1, 2, 5, 4}), real({1, 2, 5, 4}), Tensor()}, attrs(true, 0.5), 2},
          {"bool mask", {real({2, 3, 5, 4}), real({2, 3, 6, 4}), real({2, 3, 6, 4}), allowed}, attrs(false, 0.5), 2},
          {"bias", {real({2, 3, 5, 4}), real({2, 3, 6, 4}), real({2, 3, 6, 4}), bias}, attrs(false, 0.5), 2},
          {"first keys",
           {real({2, 4, 7, 3}), real({2, 2, 7, 3}), real({2, 2, 7, 3}),
            Tensor::from(std::vector<int64_t>{0, 0, 2, 2, 2, 5, 5, -3, 0, -1, 0, 4, 4, 4}, {2, 1, 7, 1})},
           attrs(true, 0.5),
           2},
          {"first keys, not causal",
           {real({1, 2, 3, 4}), real({1, 2, 6, 4}), real({1, 2, 6, 4}),
            Tensor::from(std::vector<int64_t>{5, 0, 2}, {1, 1, 3, 1})},
           attrs(false, 0.5),
           2},
          {"one query", {real({1, 2, 1, 8}), real({1, 2, 9, 8}), real({1, 2, 9, 8}), Tensor()}, attrs(false, 0.35), 2},
          {"one of all", {real({1, 1, 1, 1}), real({1, 1, 1, 1}), real({1, 1, 1, 1}), Tensor()}, attrs(true, 1), 2},
          {"no batch", {real({0, 2, 3, 4}), real({0, 2, 3, 4}), real({0, 2, 3, 4}), Tensor()}, attrs(true, 0.5), 2},
          {"dropout",
           {real({2, 4, 5, 8}), real({2, 4, 6, 8}), real({2, 4, 6, 8}), Tensor(), state},
           dropped(false, 0.35, 0.1),
           2},
          {"dropout, causal, grouped",
           {real({2, 4, 21, 3}), real({2, 2, 21, 3}), real({2, 2, 21, 3}), Tensor(), state},
           dropped(true, 0.5, 0.5),
           2},
          {"dropout, bool mask",
           {real({2, 3, 5, 4}), real({2, 3, 6, 4}), real({2, 3, 6, 4}), allowed, state},
           dropped(false, 0.5, 0.3),
           2},
          {"dropout, bias",
           {real({2, 3, 5, 4}), real({2, 3, 6, 4}), real({2, 3, 6, 4}), bias, state},
           dropped(false, 0.5, 0.3),
           2},
          {"dropout, first keys",
           {real({1, 2, 3, 4}), real({1, 2, 6, 4}), real({1, 2, 6, 4}),
            Tensor::from(std::vector<int64_t>{5, 0, 2}, {1, 1, 3, 1}), state},
           dropped(false, 0.5, 0.3),
           2},
          {"dropout, one query",
           {real({1, 2, 1, 8}), real({1, 2, 9, 8}), real({1, 2, 9, 8}), Tensor(), state},
           dropped(false, 0.35, 0.4),
           2},
          {"dropout of all",
           {real({1, 2, 3, 4}), real({1, 2, 3, 4}), real({1, 2, 3, 4}), Tensor(), state},
           dropped(true, 0.5, 1),
           2},
          {"dropout of none",
           {real({1, 2, 3, 4}), real({1, 2, 3, 4}), real({1, 2, 3, 4}), Tensor(), state},
           dropped(true, 0.5, 0),
           2},
          {"dropout, wide heads",
           {real({1, 1, 3, 130}), real({1, 1, 5, 130}), real({1, 1, 5, 130}), Tensor(), state},
           dropped(false, 0.1, 0.25),
           2}};
}
Samples attention_grad_samples(bool large) {
  Samples samples = attention_samples(large);
  for (OpSample& s : samples) {
    Tensor outputs[2];
    const std::vector<TensorArg> operands(s.inputs.begin(), s.inputs.end());
    call(*find_op("attention"), operands, s.attrs, outputs);
    s.inputs.insert(s.inputs.begin(), {real(outputs[0].sizes()), outputs[0], outputs[1]});
    s.roles = {Role::kReal,
               Role::kReal,
               Role::kCompute,
               Role::kReal,
               Role::kReal,
               Role::kReal,
               s.inputs[6].defined() && s.inputs[6].dtype() == kF64 ? Role::kReal : Role::kFixed,
               Role::kFixed};
    s.n_outputs = 3;
  }
  return samples;
}

Samples embedding_samples(bool large) {
  if (large) return {{"large", {real({300, 65}), indices({40, 50}, 300)}}};
  return {{"matrix", {real({10, 6}), indices({3, 4}, 10)}},
          {"scalar", {real({4, 3}), indices({}, 4)}},
          {"empty", {real({4, 3}), indices({0, 2}, 4)}},
          {"one row", {real({1, 1}), indices({5}, 1)}},
          {"no columns", {real({4, 0}), indices({3}, 4)}}};
}
Samples embedding_grad_samples(bool large) {
  if (large) return {{"large", {real({40, 50, 65}), indices({40, 50}, 300)}, ints({300})}};
  return {{"matrix", {real({3, 4, 6}), indices({3, 4}, 10)}, ints({10})},
          {"repeated", {real({9, 3}), indices({9}, 2)}, ints({4})},
          {"scalar", {real({3}), indices({}, 4)}, ints({4})},
          {"empty", {real({0, 3}), indices({0}, 4)}, ints({4})}};
}
Samples embedding_grad_onto_samples(bool large) {
  if (large) return {{"large", {real({300, 65}), real({40, 50, 65}), indices({40, 50}, 300)}}};
  return {{"matrix", {real({10, 6}), real({3, 4, 6}), indices({3, 4}, 10)}},
          {"repeated", {real({4, 3}), real({9, 3}), indices({9}, 2)}},
          {"scalar", {real({4, 3}), real({3}), indices({}, 4)}},
          {"empty", {real({4, 3}), real({0, 3}), indices({0}, 4)}}};
}
Samples cross_entropy_samples(bool large) {
  auto attrs = [](int64_t ignore, int64_t reduction, double smoothing) {
    return Attrs{.ints = {ignore, reduction}, .floats = {smoothing}};
  };
  if (large) return {{"large", {real({300, 211}), indices({300}, 211)}, attrs(-100, 0, 0.1), 2}};
  return {{"mean", {real({6, 7}), indices({6}, 7)}, attrs(-100, 0, 0), 2},
          {"sum, smooth", {real({6, 7}), indices({6}, 7)}, attrs(-100, 1, 0.2), 2},
          {"none, ignoring", {real({6, 3}), indices({6}, 3)}, attrs(1, 2, 0), 2},
          {"mean, ignoring, smooth", {real({9, 3}), indices({9}, 3)}, attrs(2, 0, 0.1), 2},
          {"one class", {real({3, 1}), indices({3}, 1)}, attrs(-100, 0, 0), 2},
          {"odd", {real({5, 70}), indices({5}, 70)}, attrs(-100, 0, 0), 2},
          {"no rows", {real({0, 4}), indices({0}, 4)}, attrs(-100, 1, 0), 2}};
}
Samples cross_entropy_grad_samples(bool large) {
  Samples samples = cross_entropy_samples(large);
  for (OpSample& s : samples) {
    Tensor outputs[2];
    call(*find_op("cross_entropy"), {s.inputs[0], s.inputs[1]}, s.attrs, outputs);
    s.inputs = {real(outputs[0].sizes()), s.inputs[0], s.inputs[1], outputs[1]};
    s.roles = {Role::kReal, Role::kReal, Role::kFixed, Role::kCompute};
    s.n_outputs = 1;
  }
  return samples;
}
Samples linear_cross_entropy_samples(bool large) {
  const auto head = [](const char* label, const Dims& sizes, bool bias, Dims options,
                       double smoothing = 0) {  // N, C, V
    return OpSample{label,
                    {real({sizes[0], sizes[1]}), real({sizes[2], sizes[1]}), bias ? real({sizes[2]}) : Tensor(),
                     indices({sizes[0]}, sizes[2])},
                    {.ints = {options[0], options[1], options[2], -1, options[3]}, .floats = {smoothing}},
                    4};
  };
  if (large) return {head("large", {300, 65, 211}, true, {-100, 0, 77, 7}, 0.1)};
  return {head("mean", {6, 4, 7}, true, {-100, 0, 0, 7}),
          head("chunks that do not divide N", {7, 4, 5}, false, {-100, 0, 3, 3}),
          head("rows alone, ignoring, smooth", {9, 3, 4}, true, {2, 0, 1, 7}, 0.1),
          head("sum", {5, 6, 70}, true, {-100, 1, 2, 7}, 0.2),
          head("none", {5, 3, 4}, true, {1, 2, 2, 0}),
          head("computed in the backward", {6, 4, 7}, true, {-100, 0, 4, 0}),
          head("one class", {3, 2, 1}, false, {-100, 0, 2, 3}),
          head("nothing in", {3, 0, 4}, true, {-100, 0, 2, 7}),
          head("no rows", {0, 3, 4}, true, {-100, 1, 0, 7})};
}
Samples linear_cross_entropy_grad_samples(bool large) {
  Samples samples = linear_cross_entropy_samples(large);
  for (OpSample& s : samples) {
    s.inputs.insert(s.inputs.begin(), real(s.attrs.ints[1] == 2 ? s.inputs[3].sizes() : Dims()));
    s.attrs.ints[4] = s.inputs[3].defined() ? 7 : 3;
    s.n_outputs = 3;
  }
  return samples;
}
Samples dropout_samples(bool large) {
  Samples samples = unary<plain>(large);
  for (OpSample& s : samples) {
    s.inputs.push_back(Tensor::from<int64_t>({42, 7}, {2}));
    s.attrs = ops::dropout_attrs(0.4, 3);
  }
  if (!large)
    samples.push_back({"p = 0", {real({5, 3}), Tensor::from<int64_t>({1, 0}, {2})}, ops::dropout_attrs(0.0, 0)});
  return samples;
}
// The dtype of the numbers is an integer, so the sweep's dtypes change nothing.
Samples draw_samples(bool large) {
  const Tensor state = Tensor::from<int64_t>({42, 7}, {2});
  Samples samples;
  for (const ops::Distribution distribution : {ops::Distribution::kUniform, ops::Distribution::kNormal})
    for (const DType dtype : {kF32, kBF16, kF64})
      for (const Dims& sizes :
           large ? std::vector<Dims>{{300, 1000}} : std::vector<Dims>{{3, 5}, {16}, {}, {0, 2}, {7, 1}}) {
        Attrs attrs{.ints = {static_cast<int64_t>(distribution), 3, static_cast<int64_t>(dtype)}};
        attrs.ints.append(std::span(sizes.begin(), sizes.end()));
        samples.push_back({to_string(sizes), {state}, attrs});
      }
  return samples;
}
Samples draw_integers_samples(bool large) {
  const Tensor state = Tensor::from<int64_t>({42, 7}, {2});
  Samples samples;
  for (const DType dtype : {kI64, kI32, kU8})
    samples.push_back({"integers", {state}, {.ints = {3, static_cast<int64_t>(dtype), 5, 100, 7, large ? 30000 : 9}}});
  return samples;
}

Samples two_scalars(bool large) {
  Samples samples = unary<plain>(large);
  for (OpSample& s : samples) s.attrs.floats = {-0.7, 1.1};
  return samples;
}
template <Make kX, int kScalars> Samples unary_grad_with(bool large) {
  Samples samples;
  for (const Dims& sizes : unary_shapes(large)) {
    Attrs attrs{.floats = {kScalars == 1 ? 2.5 : -0.7}};
    if (kScalars == 2) attrs.floats.push_back(1.1);
    samples.push_back({to_string(sizes), {kX(sizes), real(sizes)}, attrs});
  }
  return samples;
}
// x and grad for ops that are piecewise on a range of some units.
Tensor wide(const Dims& sizes) { return real(sizes, -7, 7); }
Samples wide_grad(bool large) {
  Samples samples;
  for (const Dims& sizes : unary_shapes(large)) samples.push_back({to_string(sizes), {wide(sizes), real(sizes)}});
  return samples;
}
Samples rms_norm_samples(bool large) {
  Samples samples = rows<1>(large);
  for (OpSample& s : samples) {
    s.inputs.push_back(real({s.inputs[0].sizes().back()}));
    s.attrs.floats = {1e-5};
    s.n_outputs = 2;
  }
  return samples;
}
Samples rms_norm_grad_samples(bool large) {
  Samples samples = rms_norm_samples(large);
  for (OpSample& s : samples) {
    Tensor outputs[2];
    call(*find_op("rms_norm"), {s.inputs[0], s.inputs[1]}, s.attrs, outputs);
    s.inputs = {real(s.inputs[0].sizes()), s.inputs[0], s.inputs[1], outputs[1]};
    s.roles = {Role::kReal, Role::kReal, Role::kReal, Role::kCompute};
    s.attrs = {};
  }
  return samples;
}
Samples rotary_samples(bool large) {
  Samples samples;
  for (const Dims& x : large ? std::vector<Dims>{{3, 4, 65, 32}}
                             : std::vector<Dims>{{2, 3, 5, 8}, {1, 2}, {4, 6}, {0, 3, 4}, {2, 0, 4}, {2, 1, 3, 34}})
    for (int64_t inverse : {0, 1}) {
      const ops::RotaryTables tables = ops::rotary_tables(x[x.rank() - 2], x.back(), 100.0, 3, kF64);
      samples.push_back({to_string(x), {real(x), tables.cos, tables.sin}, ints({inverse})});
      samples.back().roles = {Role::kReal, Role::kCompute, Role::kCompute};
    }
  return samples;
}

Samples gather_samples(bool large) {
  if (large) return {{"large", {real({300, 257}), indices({300, 200}, 257)}, ints({1})}};
  return {{"last", {real({4, 5}), indices({3, 6}, 5)}, ints({1})},
          {"first", {real({4, 5}), indices({6, 3}, 4)}, ints({0})},
          {"middle", {real({2, 3, 4}), indices({2, 5, 4}, 3)}, ints({1})},
          {"vector", {real({7}), indices({9}, 7)}, ints({0})},
          {"scalar", {real({}), indices({}, 1)}, ints({0})},
          {"nothing", {real({4, 5}), indices({0, 6}, 5)}, ints({1})},
          {"no rows", {real({0, 5}), indices({0, 2}, 5)}, ints({1})}};
}
Samples check_indices_samples(bool large) {
  if (large) return {{"large", {indices({300, 200}, 257)}, ints({257, 0})}};
  return {{"some", {indices({3, 6}, 5)}, ints({5, 0})}, {"none", {indices({0, 6}, 5)}, ints({0, 2})}};
}
Samples sort_segments_samples(bool large) {
  if (large) return {{"large", {indices({90'000}, 257)}, ints({257, 3}), 2}};
  return {{"some", {indices({40}, 5)}, ints({9, 3}), 2}, {"none", {indices({0}, 5)}, ints({3, 4}), 2}};
}
Samples sum_segments_samples(bool large) {
  const auto starts = [](const std::vector<int64_t>& at) {
    return Tensor::from(at, {static_cast<int64_t>(at.size())});
  };
  if (large) return {{"large", {real({3000, 40}), starts({0, 7, 7, 1000, 2999, 3000})}}};
  return {{"rows", {real({9, 5}), starts({0, 2, 2, 9})}}, {"cubes", {real({4, 2, 3}), starts({0, 1, 2, 3, 4})}},
          {"numbers", {real({6}), starts({0, 0, 6})}},    {"nothing", {real({0, 3}), starts({0, 0})}},
          {"no segments", {real({0, 3}), starts({0})}},   {"onto", {real({9, 5}), starts({0, 2, 2, 9}), real({3, 5})}}};
}
Samples scatter_samples(bool large) {
  if (large) return {{"large", {real({300, 257}), indices({300, 200}, 257), real({300, 200})}, ints({1})}};
  return {{"last", {real({4, 5}), indices({3, 6}, 5), real({3, 6})}, ints({1})},
          {"first", {real({4, 5}), indices({6, 3}, 4), real({6, 3})}, ints({0})},
          {"from a scalar", {real({2, 3, 4}), indices({2, 2, 4}, 3), real({})}, ints({1})},
          {"vector", {real({7}), indices({9}, 7), real({9})}, ints({0})},
          {"scalar", {real({}), indices({}, 1), real({})}, ints({0})},
          {"nothing", {real({4, 5}), indices({0, 6}, 5), real({0, 6})}, ints({1})}};
}
Samples scatter_sum_samples(bool large) {
  if (large) return {{"large", {real({300, 200}), indices({300, 200}, 257)}, ints({1, 300, 257})}};
  return {{"last", {real({3, 6}), indices({3, 6}, 5)}, ints({1, 4, 5})},
          {"first", {real({6, 3}), indices({6, 3}, 4)}, ints({0, 4, 5})},
          {"vector", {real({9}), indices({9}, 7)}, ints({0, 7})},
          {"scalar", {real({}), indices({}, 1)}, ints({0})},
          {"nothing", {real({0, 6}), indices({0, 6}, 5)}, ints({1, 4, 5})},
          {"onto", {real({6, 3}), indices({6, 3}, 4), real({4, 3})}, ints({0, 4, 3})},
          {"onto a vector", {real({9}), indices({9}, 7), real({7})}, ints({0, 7})}};
}
// Ops along one dimension with one more integer.
template <Make kMake, bool kEmpty> Samples lines(bool large) {
  Samples samples;
  for (int64_t flag : {0, 1}) {
    if (large) {
      samples.push_back({"large", {kMake({300, 257})}, ints({1, flag})});
      continue;
    }
    for (int64_t dim : {0, 1, 2}) samples.push_back({"cube", {kMake({3, 4, 5})}, ints({dim, flag})});
    samples.push_back({"vector", {kMake({33})}, ints({0, flag})});
    samples.push_back({"scalar", {kMake({})}, ints({0, flag})});
    samples.push_back({"no lines", {kMake({0, 3})}, ints({1, flag})});
    if (kEmpty) samples.push_back({"no elements", {kMake({0, 3})}, ints({0, flag})});
  }
  return samples;
}
// ints: those of a reduction over one dimension, and which extremum.
Samples argmax_samples(bool large) {
  Samples samples;
  for (int64_t smallest : {0, 1}) {
    if (large) {
      samples.push_back({"large", {tied({300, 257})}, ints({2, 0, smallest})});
      continue;
    }
    for (int64_t mask : {1, 2, 4})
      for (int64_t keepdim : {0, 1}) samples.push_back({"cube", {tied({3, 4, 5})}, ints({mask, keepdim, smallest})});
    samples.push_back({"special", {special({9, 40})}, ints({2, 0, smallest})});
    samples.push_back({"vector", {tied({33})}, ints({1, 0, smallest})});
    samples.push_back({"scalar", {tied({})}, ints({0, 0, smallest})});
    samples.push_back({"no lines", {tied({0, 3})}, ints({2, 0, smallest})});
  }
  return samples;
}

// Any bits, of each integer dtype and (`kBools`) of truths. `kNumbers`: how far the second operand goes to either side;
// 0: any bits, too.
Tensor any_bits(const Dims& sizes, DType dtype, double numbers = 0) {
  const double limit = numbers > 0 ? numbers : dtype == kI64 ? 9e18 : 2e9;
  const std::vector<double> values =
      real(sizes, dtype == kU8 ? 0 : -limit, dtype == kU8 ? 256 : limit).to_vector<double>();
  return Tensor::from(values, sizes).to(dtype == kBool ? kI64 : dtype).to(dtype);
}
template <bool kBools, int kNumbers = 0> Samples bits_of_two(bool large) {
  Samples samples;
  for (const DType dtype : {kI64, kI32, kU8, kBool}) {
    if (dtype == kBool && !kBools) continue;
    const auto make = [&](const Dims& a, const Dims& b) {
      samples.push_back({std::string(name_of(dtype)) + to_string(a) + to_string(b),
                         {any_bits(a, dtype), any_bits(b, dtype, kNumbers)}});
    };
    if (large) make({257, 401}, {401});
    else make({7, 33}, {7, 33}), make({3, 1, 5}, {4, 1}), make({}, {}), make({0, 3}, {1, 3});
  }
  return samples;
}
template <bool kBools> Samples bits_and_number(bool large) {
  Samples samples = bits_of_two<kBools>(large);
  for (OpSample& s : samples) s.inputs.pop_back();
  const size_t n = samples.size();
  for (const double number : {0, 3, 31, 64, -1})
    for (size_t i = 0; i < n; ++i) {
      if (number < 0 && samples[i].inputs[0].dtype() == kU8) continue;
      samples.push_back(samples[i]);
      samples.back().attrs.floats = {number};
    }
  samples.erase(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(n));
  return samples;
}
Samples bits_of_one(bool large) {
  Samples samples = bits_of_two<true>(large);
  for (OpSample& s : samples) s.inputs.pop_back();
  return samples;
}

Samples arange_samples(bool large) {
  Samples samples;
  for (const DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool})
    for (const bool whole : {false, true})
      for (const int64_t n : large ? std::vector<int64_t>{70'000} : std::vector<int64_t>{33, 0, 1, 300}) {
        Attrs attrs{.ints = {-static_cast<int64_t>(dtype), n, whole}, .floats = {whole ? -7.0 : 0.3, whole ? 3 : -0.7}};
        samples.push_back(
            {std::string(name_of(dtype)) + " " + std::to_string(n), {real({})}, attrs, 1, {Role::kFixed}});
      }
  return samples;
}

template <bool kOfValue> Samples filled_samples(bool large) {
  Samples samples;
  for (const DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool})
    for (const double value : kOfValue ? std::vector<double>{-3, 0.3} : std::vector<double>{0})
      for (const Dims& sizes :
           large ? std::vector<Dims>{{70, 1001}} : std::vector<Dims>{{33}, {0, 3}, {}, {4, 1, 21}}) {
        Attrs attrs{.ints = {-static_cast<int64_t>(dtype)}};
        if (kOfValue) attrs.floats = {value};
        for (int64_t size : sizes) attrs.ints.push_back(size);
        samples.push_back({std::string(name_of(dtype)) + to_string(sizes), {real({})}, attrs, 1, {Role::kFixed}});
      }
  return samples;
}

Samples topk_samples(bool large) {
  if (large) return {{"large", {tied({300, 257})}, ints({7, 1, 1})}};
  return {{"largest", {tied({4, 9})}, ints({3, 1, 1})}, {"smallest", {tied({4, 9})}, ints({3, 1, 0})},
          {"first", {tied({5, 3})}, ints({2, 0, 1})},   {"all", {tied({7})}, ints({7, 0, 0})},
          {"none", {tied({2, 7})}, ints({0, 1, 1})},    {"scalar", {tied({})}, ints({1, 0, 1})},
          {"no lines", {tied({0, 3})}, ints({2, 1, 1})}};
}

constexpr OpSpec kSpecs[] = {
    {.name = "add", .make = &binary<plain, plain>, .takes_integers = true},
    {.name = "sub", .make = &binary<plain, plain>, .takes_integers = true},
    {.name = "mul", .make = &binary<plain, plain>, .takes_integers = true},
    {.name = "div", .make = &binary<plain, positive>},
    {.name = "add_scalar", .make = &with_scalar<plain>, .takes_integers = true},
    {.name = "mul_scalar", .make = &with_scalar<plain>, .takes_integers = true},
    {.name = "rsub_scalar", .make = &with_scalar<plain>, .takes_integers = true},
    {.name = "rdiv_scalar", .make = &with_scalar<positive>},
    {.name = "div_grad", .make = &div_grad_samples, .tolerance = 8},
    {.name = "rdiv_scalar_grad", .make = &unary_grad_with<positive, 1>},
    {.name = "neg", .make = &unary<plain>, .takes_integers = true},
    {.name = "exp", .make = &unary<plain>},
    {.name = "log", .make = &unary<positive>},
    {.name = "sqrt", .make = &unary<positive>},
    {.name = "rsqrt", .make = &unary<positive>},
    {.name = "equal", .make = &binary<tied, tied>, .takes_integers = true, .takes_bool = true},
    {.name = "not_equal", .make = &binary<tied, tied>, .takes_integers = true, .takes_bool = true},
    {.name = "less", .make = &binary<tied, tied>, .takes_integers = true, .takes_bool = true},
    {.name = "less_equal", .make = &binary<tied, tied>, .takes_integers = true, .takes_bool = true},
    {.name = "bitwise_and", .make = &bits_of_two<true>, .takes_integers = true, .takes_bool = true},
    {.name = "bitwise_or", .make = &bits_of_two<true>, .takes_integers = true, .takes_bool = true},
    {.name = "bitwise_xor", .make = &bits_of_two<true>, .takes_integers = true, .takes_bool = true},
    {.name = "bitwise_not", .make = &bits_of_one, .takes_integers = true, .takes_bool = true},
    {.name = "shift_left", .make = &bits_of_two<false, 70>, .takes_integers = true, .takes_bool = true},
    {.name = "shift_right", .make = &bits_of_two<false, 70>, .takes_integers = true, .takes_bool = true},
    {.name = "bitwise_and_scalar", .make = &bits_and_number<false>, .takes_integers = true, .takes_bool = true},
    {.name = "bitwise_or_scalar", .make = &bits_and_number<false>, .takes_integers = true, .takes_bool = true},
    {.name = "bitwise_xor_scalar", .make = &bits_and_number<false>, .takes_integers = true, .takes_bool = true},
    {.name = "shift_left_scalar", .make = &bits_and_number<false>, .takes_integers = true, .takes_bool = true},
    {.name = "shift_right_scalar", .make = &bits_and_number<false>, .takes_integers = true, .takes_bool = true},
    {.name = "where", .make = &where_samples, .takes_integers = true, .takes_bool = true},
    {.name = "tanh", .make = &unary<plain>},
    {.name = "tanh_grad", .make = &unary_grad},
    {.name = "rsqrt_grad", .make = &unary_grad},
    {.name = "softplus_grad", .make = &unary_grad},
    {.name = "erf", .make = &unary<plain>},
    {.name = "sigmoid", .make = &unary<plain>},
    {.name = "relu", .make = &unary<plain>},
    {.name = "relu_grad", .make = &unary_grad},
    {.name = "gelu_tanh", .make = &unary<plain>},
    {.name = "gelu_tanh_grad", .make = &unary_grad},
    {.name = "gelu_erf", .make = &unary<plain>},
    {.name = "gelu_erf_grad", .make = &unary_grad},
    {.name = "maximum", .make = &binary<plain, plain>, .takes_integers = true},
    {.name = "minimum", .make = &binary<plain, plain>, .takes_integers = true},
    {.name = "abs", .make = &unary<plain>, .takes_integers = true},
    {.name = "sign", .make = &unary<plain>, .takes_integers = true},
    {.name = "sin", .make = &unary<plain>},
    {.name = "cos", .make = &unary<plain>},
    {.name = "log1p", .make = &unary<positive>},
    {.name = "expm1", .make = &unary<plain>},
    {.name = "pow_scalar", .make = &with_scalar<positive>},
    {.name = "pow_scalar_grad", .make = &unary_grad_with<positive, 1>},
    {.name = "silu", .make = &unary<plain>},
    {.name = "silu_grad", .make = &unary_grad},
    {.name = "relu6", .make = &unary<wide>},
    {.name = "relu6_grad", .make = &wide_grad},
    {.name = "hardswish", .make = &unary<wide>},
    {.name = "hardswish_grad", .make = &wide_grad},
    {.name = "softplus", .make = &unary<plain>},
    {.name = "leaky_relu", .make = &with_scalar<plain>},
    {.name = "leaky_relu_grad", .make = &unary_grad_with<plain, 1>},
    {.name = "clamp", .make = &two_scalars},
    {.name = "clamp_grad", .make = &unary_grad_with<plain, 2>},
    {.name = "isfinite", .make = &unary<special>, .takes_integers = true, .takes_bool = true},
    {.name = "isinf", .make = &unary<special>, .takes_integers = true, .takes_bool = true},
    {.name = "isnan", .make = &unary<special>, .takes_integers = true, .takes_bool = true},
    {.name = "cast", .make = &cast_samples, .takes_integers = true, .takes_bool = true},
    {.name = "copy", .make = &copy_samples, .takes_integers = true, .takes_bool = true},
    {.name = "fill", .make = &fill_samples, .takes_integers = true, .takes_bool = true},
    {.name = "scale", .make = &scale_samples},
    {.name = "view", .make = &view_samples, .takes_integers = true, .takes_bool = true},
    {.name = "permute", .make = &permute_samples, .takes_integers = true, .takes_bool = true},
    {.name = "expand", .make = &expand_samples, .takes_integers = true, .takes_bool = true},
    {.name = "slice", .make = &slice_samples, .takes_integers = true, .takes_bool = true},
    {.name = "slice_grad", .make = &slice_grad_samples},
    {.name = "strided_view", .make = &window_samples, .takes_integers = true, .takes_bool = true},
    {.name = "window_copy", .make = &window_copy_samples, .takes_integers = true, .takes_bool = true},
    {.name = "revalue", .make = &revalue_samples, .takes_integers = true, .takes_bool = true, .constant_inputs = 3},
    {.name = "overwrite", .make = &overwrite_samples, .takes_integers = true, .takes_bool = true},
    {.name = "select", .make = &select_samples, .takes_integers = true, .takes_bool = true},
    {.name = "split",
     .make = &split_samples,
     .takes_integers = true,
     .takes_bool = true,
     .differentiable_outputs = ~0u},
    {.name = "cat", .make = &cat_samples, .takes_integers = true, .takes_bool = true},
    {.name = "tril", .make = &triangle_samples, .takes_integers = true, .takes_bool = true, .decomposes_exactly = true},
    {.name = "triu", .make = &triangle_samples, .takes_integers = true, .takes_bool = true, .decomposes_exactly = true},
    {.name = "sum",
     .make = &reduction<plain, true>,
     .tolerance = 32,
     .takes_integers = true,
     .takes_bool = true,
     .decomposes_exactly = true},
    {.name = "max",
     .make = &reduction<plain, false>,
     .takes_integers = true,
     .takes_bool = true,
     .decomposes_exactly = true},
    {.name = "min",
     .make = &reduction<plain, false>,
     .takes_integers = true,
     .takes_bool = true,
     .decomposes_exactly = true},
    {.name = "any", .make = &reduction<sparse, true>, .takes_integers = true, .takes_bool = true},
    {.name = "all", .make = &reduction<dense, true>, .takes_integers = true, .takes_bool = true},
    {.name = "var_mean", .make = &variance_samples<2>, .tolerance = 32, .differentiable_outputs = 3},
    {.name = "std", .make = &variance_samples<1>, .tolerance = 32},
    {.name = "matmul", .make = &matmul_samples, .tolerance = 16},
    {.name = "linear", .make = &linear_samples, .tolerance = 16},
    {.name = "layer_norm", .make = &layer_norm_samples, .tolerance = 16, .decomposes_exactly = true},
    {.name = "layer_norm_grad",
     .make = &layer_norm_grad_samples,
     .tolerance = 16,
     .differentiable_outputs = 7,
     .decomposes_exactly = true},
    {.name = "rms_norm", .make = &rms_norm_samples, .tolerance = 16, .decomposes_exactly = true},
    {.name = "rms_norm_grad",
     .make = &rms_norm_grad_samples,
     .tolerance = 16,
     .differentiable_outputs = 3,
     .decomposes_exactly = true},
    {.name = "softmax", .make = &softmax_rows<1>, .decomposes_exactly = true},
    {.name = "softmax_grad", .make = &softmax_grad_samples, .tolerance = 8, .decomposes_exactly = true},
    {.name = "log_softmax", .make = &softmax_rows<1>, .decomposes_exactly = true},
    {.name = "log_softmax_grad", .make = &log_softmax_grad_samples, .tolerance = 8, .decomposes_exactly = true},
    {.name = "conv2d", .make = &convs<ConvOp::kOutput>, .tolerance = 16},
    {.name = "conv2d_grad_input", .make = &convs<ConvOp::kInput>, .tolerance = 16},
    {.name = "conv2d_grad_weight", .make = &convs<ConvOp::kWeight>, .tolerance = 16},
    {.name = "max_pool2d", .make = &max_pool2d_samples, .decomposes_exactly = true},
    {.name = "attention", .make = &attention_samples, .tolerance = 16, .constant_inputs = 8},
    {.name = "attention_grad", .make = &attention_grad_samples, .tolerance = 32, .differentiable_outputs = 7},
    {.name = "embedding", .make = &embedding_samples},
    {.name = "embedding_grad", .make = &embedding_grad_samples},
    {.name = "embedding_grad_onto", .make = &embedding_grad_onto_samples},
    {.name = "index_select", .make = &embedding_samples, .takes_integers = true, .takes_bool = true},
    {.name = "mse_loss", .make = &pairs<0>},
    {.name = "l1_loss", .make = &pairs<0>},
    {.name = "huber_loss", .make = &pairs<1>},
    {.name = "bce_with_logits", .make = &pairs<0>},
    {.name = "cross_entropy", .make = &cross_entropy_samples, .tolerance = 8},
    {.name = "cross_entropy_grad", .make = &cross_entropy_grad_samples, .tolerance = 8, .decomposes_exactly = true},
    {.name = "linear_cross_entropy",
     .make = &linear_cross_entropy_samples,
     .tolerance = 16,
     .differentiable_outputs = 15},
    {.name = "linear_cross_entropy_grad",
     .make = &linear_cross_entropy_grad_samples,
     .tolerance = 16,
     .differentiable_outputs = 7},
    {.name = "gather", .make = &gather_samples, .takes_integers = true, .takes_bool = true},
    {.name = "pick", .make = &gather_samples, .takes_integers = true, .takes_bool = true},
    {.name = "check_indices", .make = &check_indices_samples, .takes_integers = true, .takes_bool = true},
    {.name = "sort_segments", .make = &sort_segments_samples, .takes_integers = true, .takes_bool = true},
    {.name = "sum_segments",
     .make = &sum_segments_samples,
     .tolerance = 8,
     .takes_integers = true,
     .differentiable_outputs = 0},
    {.name = "scatter", .make = &scatter_samples, .takes_integers = true, .takes_bool = true},
    {.name = "scatter_add", .make = &scatter_sum_samples, .tolerance = 8, .takes_integers = true, .takes_bool = true},
    {.name = "cumsum", .make = &lines<plain, true>, .tolerance = 32, .takes_integers = true, .takes_bool = true},
    {.name = "arange",
     .make = &arange_samples,
     .takes_integers = true,
     .takes_bool = true,
     .differentiable_outputs = 0,
     .constant_inputs = 1},
    {.name = "zeros",
     .make = &filled_samples<false>,
     .takes_integers = true,
     .takes_bool = true,
     .differentiable_outputs = 0,
     .constant_inputs = 1},
    {.name = "full",
     .make = &filled_samples<true>,
     .takes_integers = true,
     .takes_bool = true,
     .differentiable_outputs = 0,
     .constant_inputs = 1},
    {.name = "argmax", .make = &argmax_samples, .takes_integers = true},
    {.name = "argsort", .make = &lines<tied, true>, .takes_integers = true},
    {.name = "topk", .make = &topk_samples, .takes_integers = true},
    {.name = "rotary", .make = &rotary_samples, .constant_inputs = 6, .decomposes_exactly = true},
    {.name = "dropout", .make = &dropout_samples},
    {.name = "draw", .make = &draw_samples, .takes_integers = true, .takes_bool = true, .differentiable_outputs = 0},
    {.name = "draw_integers",
     .make = &draw_integers_samples,
     .takes_integers = true,
     .takes_bool = true,
     .differentiable_outputs = 0},
};

}  // namespace

std::span<const OpSpec> op_specs() { return kSpecs; }

std::vector<OpSample> samples_of(const OpSpec& spec, bool large) {
  next_seed = 1;
  for (const char* c = spec.name; *c != 0; ++c) next_seed = next_seed * 31 + static_cast<unsigned char>(*c);
  return spec.make(large);
}

const OpSpec* find_spec(std::string_view op) {
  for (const OpSpec& spec : kSpecs)
    if (op == spec.name) return &spec;
  return nullptr;
}

bool is_swept(const OpDef& op) {
  const char* only = std::getenv("RONDO_TEST_OP");
  return only == nullptr || std::string_view(op.name) == only;
}

}  // namespace rondo::test
