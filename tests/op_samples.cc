#include "rondo/tests/op_samples.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fake_device/test_device.h"
#include "rondo/tests/samples/make.h"

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

using namespace samples;

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
    {.name = "equal_scalar", .make = &with_number<tied>, .takes_integers = true, .takes_bool = true},
    {.name = "not_equal_scalar", .make = &with_number<tied>, .takes_integers = true, .takes_bool = true},
    {.name = "less_scalar", .make = &with_number<tied>, .takes_integers = true, .takes_bool = true},
    {.name = "less_equal_scalar", .make = &with_number<tied>, .takes_integers = true, .takes_bool = true},
    {.name = "greater_scalar", .make = &with_number<tied>, .takes_integers = true, .takes_bool = true},
    {.name = "greater_equal_scalar", .make = &with_number<tied>, .takes_integers = true, .takes_bool = true},
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
    {.name = "where_scalar", .make = &number_where_samples, .takes_integers = true, .takes_bool = true},
    {.name = "masked_fill", .make = &number_where_samples, .takes_integers = true, .takes_bool = true},
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
    {.name = "maximum_scalar", .make = &with_number<plain>, .takes_integers = true},
    {.name = "minimum_scalar", .make = &with_number<plain>, .takes_integers = true},
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
    {.name = "batch_norm", .make = &batch_norm_samples, .tolerance = 32, .decomposes_exactly = true},
    {.name = "batch_norm_grad",
     .make = &batch_norm_grad_samples,
     .tolerance = 32,
     .differentiable_outputs = 7,
     .decomposes_exactly = true},
    {.name = "group_norm", .make = &group_norm_samples, .tolerance = 32, .decomposes_exactly = true},
    {.name = "group_norm_grad",
     .make = &group_norm_grad_samples,
     .tolerance = 32,
     .differentiable_outputs = 7,
     .decomposes_exactly = true},
    {.name = "scale_shift", .make = &scale_shift_samples, .tolerance = 16},
    {.name = "conv2d", .make = &convs<ConvOp::kOutput>, .tolerance = 16},
    {.name = "conv2d_grad_input", .make = &convs<ConvOp::kInput>, .tolerance = 16},
    {.name = "conv2d_grad_weight", .make = &convs<ConvOp::kWeight>, .tolerance = 16},
    {.name = "max_pool2d", .make = &max_pool2d_samples, .decomposes_exactly = true},
    {.name = "interpolate", .make = &interpolate_samples},
    {.name = "interpolate_grad", .make = &interpolate_samples},
    {.name = "attention", .make = &attention_samples, .tolerance = 16},
    {.name = "attention_grad", .make = &attention_grad_samples, .tolerance = 32, .differentiable_outputs = 7},
    {.name = "attention_scores_grad",
     .make = &attention_scores_grad_samples,
     .tolerance = 32,
     .differentiable_outputs = 15},
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
    {.name = "pixel_cross_entropy", .make = &pixel_cross_entropy_samples, .tolerance = 16},
    {.name = "pixel_cross_entropy_grad", .make = &pixel_cross_entropy_grad_samples, .tolerance = 16},
    {.name = "linear_cross_entropy",
     .make = &linear_cross_entropy_samples,
     .tolerance = 16,
     .differentiable_outputs = 15},
    {.name = "linear_cross_entropy_grad",
     .make = &linear_cross_entropy_grad_samples,
     .tolerance = 16,
     .differentiable_outputs = 7},
    {.name = "gather", .make = &gather_samples, .takes_integers = true, .takes_bool = true},
    {.name = "write_rows",
     .make = &write_rows_samples,
     .takes_integers = true,
     .takes_bool = true,
     .decomposes_exactly = true},
    {.name = "pick", .make = &gather_samples, .takes_integers = true, .takes_bool = true},
    {.name = "check_indices", .make = &check_indices_samples, .takes_integers = true, .takes_bool = true},
    {.name = "all_reduce_sum", .make = &all_reduce_samples},
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
  uint64_t seed = 1;
  for (const char* c = spec.name; *c != 0; ++c) seed = seed * 31 + static_cast<unsigned char>(*c);
  samples::start_from(seed);
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
