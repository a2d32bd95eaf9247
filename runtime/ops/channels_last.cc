#include "rondo/runtime/ops/channels_last.h"

#include <algorithm>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo {

Tensor channels_to_back(const TensorArg& x) { return ops::permute(x, {0, 2, 3, 1}); }
Tensor channels_to_front(const TensorArg& x) { return ops::permute(x, {0, 3, 1, 2}); }

Tensor result_to_front(const Tensor& result, std::source_location where) {
  const Tensor front = channels_to_front({result, where});
  return autograd::is_no_grad_view(front) ? front.detach() : front;
}

namespace {

// Reduces (B, H, W, C), and lays out the results as those of (B, C, H, W).
bool reduce_channels_last(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                          std::span<Tensor> outputs) {
  constexpr int kRank = 4;
  const int64_t mask = attrs.ints[0];
  const bool keepdim = attrs.ints[1] != 0;
  Attrs moved = attrs;
  moved.ints[0] = 0;
  for (int d = 0; d < kRank; ++d)
    if (mask >> d & 1) moved.ints[0] |= int64_t{1} << dim_at_back(d);
  call(op, {{channels_to_back(inputs[0]), inputs[0].where}}, moved, outputs);
  for (Tensor& output : outputs) {
    if (!is_floating(output.dtype())) return false;  // results are indices, which depend on the layout
    if (keepdim) {
      output = channels_to_front(output).contiguous();
      continue;
    }
    // Puts the dimensions that are left into the order that they have in (B, C, H, W).
    Dims order;
    for (int d = 0; d < kRank; ++d) {
      if (mask >> d & 1) continue;
      int64_t at = 0;
      for (int e = 0; e < kRank; ++e) at += (mask >> e & 1) == 0 && dim_at_back(e) < dim_at_back(d);
      order.push_back(at);
    }
    if (order.rank() > 1) output = ops::permute(output, order).contiguous();
  }
  return true;
}

}  // namespace

void call_as_usual(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs, std::span<Tensor> outputs) {
  call(op, inputs, attrs, outputs);
}

bool keep_channels_last(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                        std::span<Tensor> outputs) {
  if (op.channels_last != nullptr) return op.channels_last(op, inputs, attrs, outputs), true;
  if (op.kind == OpKind::kElementwise && !op.numbers_elements()) {
    // An operand with more than 4 dimensions gives a result that is not an image.
    const bool images = std::all_of(inputs.begin(), inputs.end(), [](const TensorArg& input) {
      return input.tensor.defined() && input.tensor.rank() <= 4;
    });
    if (images) call_channels_last(op, inputs, attrs, outputs);
    return images;
  }
  return op.kind == OpKind::kReduction && inputs[0].tensor.rank() == 4 &&
         reduce_channels_last(op, inputs, attrs, outputs);
}

void call_channels_last(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                        std::span<Tensor> outputs) {
  std::vector<Tensor> views;  // `operands` refers to these tensors
  views.reserve(inputs.size());
  std::vector<TensorArg> operands;
  for (const TensorArg& input : inputs) {
    Dims sizes = input.tensor.sizes();
    if (sizes.empty()) {
      views.push_back(input.tensor);
    } else {
      while (sizes.rank() < 4) sizes.insert(0, 1);
      const Tensor image = sizes == input.tensor.sizes() ? input.tensor : ops::reshape(input, sizes);
      views.push_back(channels_to_back({image, input.where}));
    }
    operands.emplace_back(views.back(), input.where);
    operands.back().given = input.given;
  }
  std::vector<Tensor> results(outputs.size());
  call(op, operands, attrs, results);
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = result_to_front(results[i], inputs[0].where);
}

}  // namespace rondo
