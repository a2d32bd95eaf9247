// The kernel of an op on a device, called as dispatch calls it, and its results beside the CPU's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/op.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::test {

inline constexpr uint64_t kOrders[] = {0, 1, 3};  // of threads and blocks: forward, reverse, warps that drift apart

// A copy on a device with the same strides, its memory `shift` elements further on.
inline Tensor moved(const Tensor& t, Device device, int64_t shift) {
  if (!t.defined()) return {};
  const auto gap = static_cast<size_t>(shift) * size_of(t.dtype());
  const std::string bytes = bytes_of(t.storage());
  const Storage storage = Storage::allocate(bytes.size() + gap, device);
  copy_bytes(device, storage.data() + gap, kCPU, bytes.data(), bytes.size());
  return Tensor::from_storage(storage, t.storage_offset() + shift, t.sizes(), t.strides(), t.dtype());
}

// Memory with a pattern behind what is asked for, which nobody may change: tiny numbers, which any sum changes.
class Guarded {
 public:
  static constexpr size_t kGuard = 256;
  Guarded(size_t bytes, Device device) : bytes_(bytes), storage_(Storage::allocate(bytes + kGuard, device)) {
    const std::string pattern(bytes + kGuard, '\x01');
    copy_bytes(device, storage_.data(), kCPU, pattern.data(), pattern.size());
  }
  const Storage& storage() const { return storage_; }
  bool is_intact() const { return bytes_of(storage_).substr(bytes_, kGuard) == std::string(kGuard, '\x01'); }

 private:
  size_t bytes_;
  Storage storage_;
};

// The kernel of a device, called as dispatch calls it. The results, on the host. What it writes behind them fails.
inline std::vector<Tensor> run(const OpDef& op, const Attrs& attrs, int n_outputs, std::span<const Tensor> inputs,
                               Device device, int64_t shift = 0) {
  const NoGrad off;
  std::vector<Tensor> operands, outputs(static_cast<size_t>(n_outputs));
  std::vector<const Tensor*> pointers;
  for (const Tensor& input : inputs) operands.push_back(moved(input, device, shift));
  for (const Tensor& operand : operands) pointers.push_back(&operand);
  const DeviceScope here(device);
  InferContext infer(op, pointers, attrs, {});
  op.infer(infer);
  std::vector<Guarded> guards;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorMeta& meta = infer.outputs()[i];
    if (i == 0 && op.overwrites >= 0) {
      outputs[i] = operands[static_cast<size_t>(op.overwrites)];
      continue;
    }
    guards.emplace_back(static_cast<size_t>(meta.sizes.numel() + shift) * size_of(meta.dtype), device);
    outputs[i] = Tensor::from_storage(guards.back().storage(), shift, meta.sizes, meta.strides, meta.dtype);
  }
  entry_of(op, device).kernel({op, pointers, outputs, attrs, std::source_location::current()});
  std::vector<Tensor> results;
  for (const Tensor& output : outputs) results.push_back(moved(output, kCPU, 0));
  for (const Guarded& guard : guards) EXPECT_TRUE(guard.is_intact()) << op.name << " writes behind its result";
  return results;
}

inline ::testing::AssertionResult same(const OpDef& op, const Tensor& got, const Tensor& expected) {
  if (bytes_of(got) == bytes_of(expected)) return ::testing::AssertionSuccess();
  const bool other_order = std::string_view(op.name).starts_with("cross_entropy");
  const std::vector<double> a = got.to_vector<double>(), b = expected.to_vector<double>();
  const double unit = got.dtype() == kF64   ? 0x1p-52
                      : got.dtype() == kF32 ? 0x1p-23
                      : got.dtype() == kF16 ? 0x1p-10
                                            : 0x1p-7;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (other_order ? std::abs(a[i] - b[i]) <= 8 * unit * std::max(1.0, std::abs(b[i])) : a[i] == b[i]) continue;
    return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << ", not " << b[i];
  }
  return ::testing::AssertionSuccess();
}

}  // namespace rondo::test
