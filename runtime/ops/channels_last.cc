#include "rondo/runtime/ops/channels_last.h"

#include <algorithm>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo {

bool is_channels_last(const Dims& sizes, const Dims& strides) {
  if (sizes.rank() != 4 || strides[1] == 0) return false;
  int64_t least = 0;
  for (int d : {1, 3, 2, 0}) {
    if (sizes[d] == 0 || strides[d] < least) return false;
    // If C, H and W are 1 and have equal strides, both layouts fit. As in PyTorch, this counts as the usual layout.
    if (d == 0 && least == strides[1]) return false;
    least = strides[d] * std::max<int64_t>(sizes[d], 1);
  }
  return true;
}
Dims channels_last_strides(const Dims& s) {
  const Dims dense = contiguous_strides({s[0], s[2], s[3], s[1]});
  return {dense[0], dense[3], dense[1], dense[2]};
}

bool lies_channels_last(const Tensor& x) {
  return x.rank() == 4 && !x.is_contiguous() && is_channels_last(x.sizes(), x.strides());
}
Tensor channels_to_back(const TensorArg& x) { return ops::permute(x, {0, 2, 3, 1}); }
Tensor channels_to_front(const TensorArg& x) { return ops::permute(x, {0, 3, 1, 2}); }

Tensor result_to_front(const Tensor& result, std::source_location where) {
  const Tensor front = channels_to_front({result, where});
  return autograd::is_no_grad_view(front) ? front.detach() : front;
}

Tensor with_dense_strides(const Tensor& x, const Dims& strides) {
  if (x.strides() == strides || x.numel() == 0) return x;
  if (is_contiguous(x.sizes(), strides)) return x.contiguous();
  return channels_to_front(channels_to_back(x).contiguous());
}

namespace {

// True if the results of `op` depend on the order in which elements are numbered: random numbers, and indices into a
// table, belong to the elements in the usual order (B, C, H, W).
bool elements_have_an_order(const OpDef& op) { return op.is<trait::Pick>() || op.random_state() >= 0; }

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
  if (op.kind == OpKind::kElementwise && !elements_have_an_order(op)) {
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

bool results_are_channels_last(const OpDef& op, std::span<const TensorArg> inputs) {
  // The op of trait Convert also makes clones, which are dense in the usual layout. Tensor::to() keeps the layout
  // channels last without this function.
  if (op.is<trait::Convert>() || elements_have_an_order(op)) return false;
  const Tensor* first = nullptr;
  Dims sizes;
  for (const TensorArg& input : inputs) {
    if (!input.tensor.defined() || input.tensor.rank() > 4 ||
        !broadcast_shapes(Dims(sizes), input.tensor.sizes(), sizes))
      return false;
    if (first == nullptr || input.tensor.numel() > first->numel()) first = &input.tensor;
  }
  return first != nullptr && first->sizes() == sizes && lies_channels_last(*first);
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
