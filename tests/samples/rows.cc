#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/interpolation.h"
#include "rondo/tests/samples/make.h"

namespace rondo::test::samples {

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
namespace {

// `groups`: how many of so many channels; none: batch_norm.
Samples channel_norms(bool large, std::vector<int64_t> (*groups)(int64_t channels)) {
  using Shapes = std::vector<Dims>;
  Samples samples;
  for (const Dims& x : large ? Shapes{{6, 8, 33, 65}, {1031, 130}}
                             : Shapes{{3, 4, 5, 6}, {2, 6, 17}, {7, 2}, {1, 2, 3, 3}, {3, 2, 1, 1}, {0, 2, 3}})
    for (int64_t g : groups(x[1])) {
      // The gradient of a single value is 0 but for rounding.
      if (g > 0 && x.numel() == x[0] * g && x.numel() > 0) continue;
      OpSample s{to_string(x), {real(x), real({x[1]}), real({x[1]})}, {.floats = {1e-2}}, 3};
      if (g > 0) s.attrs.ints = {g};
      samples.push_back(s);
      if (large) break;
    }
  if (!large) samples.push_back({"plain", {real({3, 4, 5}), {}, {}}, samples[0].attrs, 3});
  return samples;
}
Samples channel_norm_grads(Samples samples, const char* op) {
  for (OpSample& s : samples) {
    Tensor outputs[3];
    call(*find_op(op), {s.inputs[0], s.inputs[1], s.inputs[2]}, s.attrs, outputs);
    const Role weight = s.inputs[1].defined() ? Role::kReal : Role::kFixed;
    s.inputs = {real(s.inputs[0].sizes()), s.inputs[0], s.inputs[1], outputs[1], outputs[2]};
    s.roles = {Role::kReal, Role::kReal, weight, Role::kCompute, Role::kCompute};
  }
  return samples;
}

}  // namespace

Samples batch_norm_samples(bool large) {
  return channel_norms(large, [](int64_t) { return std::vector<int64_t>{0}; });
}
Samples batch_norm_grad_samples(bool large) { return channel_norm_grads(batch_norm_samples(large), "batch_norm"); }
Samples group_norm_samples(bool large) {
  return channel_norms(large, [](int64_t channels) { return std::vector<int64_t>{2, 1, channels}; });
}
Samples group_norm_grad_samples(bool large) { return channel_norm_grads(group_norm_samples(large), "group_norm"); }
Samples scale_shift_samples(bool large) {
  Samples samples;
  using Shapes = std::vector<Dims>;
  for (const Dims& x : large ? Shapes{{6, 8, 33, 65}} : Shapes{{3, 4, 5, 6}, {2, 3}, {5, 1, 3}, {0, 3, 2}}) {
    Dims channels = Dims::filled(x.rank(), 1);
    channels[1] = x[1];
    samples.push_back({to_string(x), {real(channels), real(channels), real(x)}});
    samples.back().roles = {Role::kCompute, Role::kCompute, Role::kReal};
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
Samples interpolate_samples(bool large) {
  Samples samples;
  // `brief`: leaves out what only differs in where results lie.
  const auto add = [&](const Tensor& x, ops::Extent size, bool brief = false) {
    for (const ops::Interpolation how : {ops::Interpolation{},
                                         {.taps = 2},
                                         {.taps = 2, .align_corners = true},
                                         {.taps = 2, .antialias = true},
                                         {.taps = 4},
                                         {.taps = 4, .align_corners = true},
                                         {.taps = 4, .antialias = true}}) {
      if (brief && (how.align_corners || (how.antialias && how.taps == 2))) continue;
      samples.push_back({absl::StrCat(to_string(x.sizes()), " to ", size[0], " ", size[1], " by ", how.taps,
                                      how.align_corners ? " corners" : "", how.antialias ? " antialias" : ""),
                         {x},
                         how.attrs(size)});
    }
  };
  if (large) {
    add(real({2, 19, 31, 40}), {57, 85});
    return samples;
  }
  add(real({2, 3, 4, 5}), {8, 11});
  add(real({1, 2, 9, 7}), {4, 3});
  add(real({1, 2, 3, 6}), {3, 4}, true);
  add(real({1, 1, 1, 1}), {3, 2}, true);
  add(real({2, 1, 5, 4}), {1, 1}, true);
  add(real({0, 2, 5, 4}), {3, 2}, true);
  add(real({2, 0, 5, 4}), {3, 2}, true);
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
Samples topk_samples(bool large) {
  if (large) return {{"large", {tied({300, 257})}, ints({7, 1, 1})}};
  return {{"largest", {tied({4, 9})}, ints({3, 1, 1})}, {"smallest", {tied({4, 9})}, ints({3, 1, 0})},
          {"first", {tied({5, 3})}, ints({2, 0, 1})},   {"all", {tied({7})}, ints({7, 0, 0})},
          {"none", {tied({2, 7})}, ints({0, 1, 1})},    {"scalar", {tied({})}, ints({1, 0, 1})},
          {"no lines", {tied({0, 3})}, ints({2, 1, 1})}};
}

}  // namespace rondo::test::samples
