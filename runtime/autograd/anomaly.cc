#include "rondo/runtime/autograd/anomaly.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/anomaly_check.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo {

constinit thread_local bool anomaly::in_scope = false;
constinit thread_local bool anomaly::detecting = false;

namespace autograd {
DetectAnomaly::DetectAnomaly(bool on)
    : in_scope_(std::exchange(anomaly::in_scope, on)), detecting_(std::exchange(anomaly::detecting, on)) {}
DetectAnomaly::~DetectAnomaly() {
  anomaly::in_scope = in_scope_;
  anomaly::detecting = detecting_;
}
bool detecting_anomaly() { return anomaly::in_scope; }
}  // namespace autograd

namespace anomaly {
namespace {

Worst kind_of(double value) {
  return std::isnan(value) ? Worst::kNaN : std::isinf(value) ? Worst::kInfinity : Worst::kFinite;
}

const char* describe(Worst worst) { return worst == Worst::kNaN ? "a NaN" : "an infinity"; }

// Returns the tensor contiguous and in host memory, with detection, tape and recording off.
Tensor readable(const Tensor& tensor) {
  const autograd::DetectAnomaly off(false);
  static_cast<void>(tensor.storage());  // runs what is only recorded
  const NoGrad no_grad;
  const RecorderScope eager(nullptr);
  return tensor.contiguous().to(kCPU);
}

// Returns the index of the first value of kind `kind` (NaN or infinity), as text such as "[3]".
std::string first_of(const Tensor& tensor, Worst kind) {
  const Tensor dense = readable(tensor);
  int64_t at = 0;
  visit_floating(dense.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* values = dense.data<T>();
    while (at + 1 < dense.numel() && kind_of(static_cast<double>(values[at])) != kind) ++at;
  });
  Dims index = dense.sizes();
  for (int d = dense.rank() - 1; d >= 0; --d) index[d] = at % dense.sizes()[d], at /= dense.sizes()[d];
  return to_string(index);
}

std::string type_of(const Tensor& tensor) {
  return absl::StrCat(std::string(name_of(tensor.dtype())), to_string(tensor.sizes()));
}

}  // namespace

Worst worst_of(const Tensor& tensor) {
  if (!tensor.defined() || !is_floating(tensor.dtype())) return Worst::kFinite;
  const Tensor dense = readable(tensor);
  std::atomic<Worst> worst{Worst::kFinite};
  visit_floating(dense.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* values = dense.data<T>();
    parallel_for(dense.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
      Worst mine = Worst::kFinite;
      for (int64_t i = begin; i < end && mine != Worst::kNaN; ++i)
        mine = std::max(mine, kind_of(static_cast<double>(values[i])));
      Worst seen = worst.load(std::memory_order_relaxed);
      while (seen < mine && !worst.compare_exchange_weak(seen, mine, std::memory_order_relaxed)) {
      }
    });
  });
  return worst.load();
}

void Check::operand(std::string_view name, const Tensor& tensor) {
  const Worst worst = worst_of(tensor);
  if (worst == Worst::kFinite) return;
  worst_ = std::max(worst_, worst);
  absl::StrAppend(&operands_, operands_.empty() ? "" : ", ", std::string(name), ", ", type_of(tensor), ", had ",
                  describe(worst));
}

void Check::operand(std::string_view name, double value) {
  if (kind_of(value) == Worst::kFinite) return;
  worst_ = std::max(worst_, kind_of(value));
  absl::StrAppend(&operands_, operands_.empty() ? "" : ", ", std::string(name), " was ", value);
}

void Check::result(std::string_view who, std::string_view what, const Tensor& result,
                   absl::FunctionRef<std::string()> location, bool statistic) const {
  const Worst worst = worst_of(result);
  if (worst == Worst::kFinite || (worst == Worst::kInfinity && (statistic || worst_ != Worst::kFinite))) return;
  throw Error(absl::StrCat(std::string(who), ": ", std::string(what), ", ", type_of(result), ", has ", describe(worst),
                           ", first at ", first_of(result, worst), "; ",
                           operands_.empty() ? "every operand was finite" : operands_, location()));
}

void checked_call(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                  std::span<const Tensor> outputs, absl::FunctionRef<void()> run) {
  if (op.kind == OpKind::kView) return run();
  Check check;
  for (size_t i = 0; i < inputs.size(); ++i) check.operand(absl::StrCat("operand ", i), inputs[i].tensor);
  for (SymFloat number : attrs.floats) check.operand("a number", number.value());
  run();
  for (size_t i = 0; i < outputs.size(); ++i)
    check.result(
        op.name, outputs.size() == 1 ? "the result" : absl::StrCat("result ", i), outputs[i],
        [&] { return describe_location(inputs.empty() ? std::source_location() : inputs[0].where); },
        /*statistic=*/i > 0 && op.n_outputs > 1);
}

}  // namespace anomaly
}  // namespace rondo
