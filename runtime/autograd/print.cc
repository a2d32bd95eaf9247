// Tensors as text, in PyTorch's layout: four digits after the point, columns aligned, three rows and columns at each
// edge of a tensor of more than 1000 elements.
#include <cmath>
#include <ostream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo {
namespace {

constexpr int64_t kThreshold = 1000, kEdge = 3;
constexpr size_t kLineWidth = 80;
constexpr std::string_view kPrefix = "tensor(";

class Printer {
 public:
  // `t` is dense and in host memory.
  explicit Printer(const Tensor& t)
      : dtype_(t.dtype()), sizes_(t.sizes()), strides_(t.strides()), summarize_(t.numel() > kThreshold) {
    if (t.numel() > 0) data_ = static_cast<const std::byte*>(t.raw_data());
  }

  std::string values() {
    if (sizes_.numel() == 0) return "[]";
    choose_format(0, 0);
    finish_format();
    return sizes_.empty() ? element(0) : list(0, 0, kPrefix.size());
  }

 private:
  // Returns the indices of a dimension that are shown; -1 stands for the indices that are left out.
  std::vector<int64_t> shown(int dim) const {
    std::vector<int64_t> indices;
    const int64_t n = sizes_[dim];
    for (int64_t i = 0; i < n; ++i) {
      if (summarize_ && n > 2 * kEdge && i == kEdge) {
        indices.push_back(-1);
        i = n - kEdge;
      }
      indices.push_back(i);
    }
    return indices;
  }

  template <class F> auto visit(int64_t offset, F&& f) const {
    return visit_dtype(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T value = reinterpret_cast<const T*>(data_)[offset];
      if constexpr (std::is_integral_v<T>) return f(value);
      else return f(static_cast<double>(value));
    });
  }

  // Looks at every element that will be shown, to find a format for all of them.
  void choose_format(int dim, int64_t offset) {
    if (dim == sizes_.rank()) return visit(offset, [&](auto value) { note(value); });
    for (int64_t i : shown(dim))
      if (i >= 0) choose_format(dim + 1, offset + i * strides_[dim]);
  }
  template <class T> void note(T value) {
    if constexpr (std::is_same_v<T, double>) {
      if (!std::isfinite(value) || value == 0) return;
      numbers_.push_back(value);
      whole_ = whole_ && value == std::ceil(value);
      smallest_ = std::min(smallest_, std::abs(value));
      largest_ = std::max(largest_, std::abs(value));
    } else {
      width_ = std::max(width_, text_of(value).size());
    }
  }
  void finish_format() {
    scientific_ = !numbers_.empty() && (largest_ / smallest_ > 1000.0 || largest_ > 1e8 || smallest_ < 1e-4);
    for (double value : numbers_) width_ = std::max(width_, text_of(value).size());
  }

  std::string text_of(bool value) const { return value ? "True" : "False"; }
  template <std::integral T> std::string text_of(T value) const { return absl::StrCat(value); }
  std::string text_of(double value) const {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    if (scientific_) return formatted("%.4e", value);
    return whole_ ? formatted("%.0f.", value) : formatted("%.4f", value);
  }
  std::string element(int64_t offset) const {
    const std::string text = visit(offset, [&](auto value) { return text_of(value); });
    return std::string(width_ - std::min(width_, text.size()), ' ') + text;
  }

  // Returns the text "[...]" of dimension `dim` and of the dimensions inside of it. `indent`: the column of its opening
  // bracket.
  std::string list(int dim, int64_t offset, size_t indent) const {
    const bool innermost = dim == sizes_.rank() - 1;
    const size_t per_line = std::max<size_t>(1, (kLineWidth - std::min(indent, kLineWidth)) / (width_ + 2));
    const std::string new_line = innermost ? "" : std::string(static_cast<size_t>(sizes_.rank() - dim - 1), '\n');
    const std::string margin(indent + 1, ' ');
    std::string text = "[";
    size_t n = 0;
    for (int64_t i : shown(dim)) {
      if (n > 0) absl::StrAppend(&text, ",");
      if (n > 0 && !innermost) absl::StrAppend(&text, new_line, margin);
      else if (n > 0 && n % per_line == 0) absl::StrAppend(&text, "\n", margin);
      else if (n > 0) absl::StrAppend(&text, " ");
      const int64_t at = offset + i * strides_[dim];
      if (i < 0) absl::StrAppend(&text, innermost ? " ..." : "...");
      else absl::StrAppend(&text, innermost ? element(at) : list(dim + 1, at, indent + 1));
      ++n;
    }
    return text + "]";
  }

  DType dtype_;
  Dims sizes_, strides_;
  bool summarize_;
  const std::byte* data_ = nullptr;
  // The format: floats are whole numbers, or have four digits, or are scientific.
  std::vector<double> numbers_;
  bool whole_ = true, scientific_ = false;
  double smallest_ = std::numeric_limits<double>::infinity(), largest_ = 0;
  size_t width_ = 1;
};

}  // namespace

std::string Tensor::to_string(std::source_location where) const try {
  if (!defined()) return "tensor(undefined)";
  const FloatingPointScope floating_point;             // formatting depends on the rounding mode
  if (numel() > 0) static_cast<void>(storage(where));  // a graph break with the caller's line
  std::string text = absl::StrCat(std::string(kPrefix), Printer(host_copy("to_string", dtype(), where)).values());
  std::vector<std::string> more;
  const bool empty = numel() == 0;
  // In all other cases the nesting of the brackets already shows the shape.
  if ((empty && rank() > 1) || numel() > kThreshold) more.push_back("size=" + rondo::to_string(sizes()));
  if (dtype() != kF32 && (empty || (dtype() != kI64 && dtype() != kBool)))
    more.push_back("dtype=" + std::string(name_of(dtype())));
  if (!has_host_memory(device())) more.push_back(absl::StrCat("device=", rondo::to_string(device())));
  const AutogradMeta* meta = impl_->autograd.get();
  if (meta != nullptr && meta->grad_fn != nullptr)
    more.push_back(absl::StrCat("grad_fn=<", meta->grad_fn->name(), ">"));
  else if (requires_grad()) more.push_back("requires_grad=True");

  const size_t last_line = text.rfind('\n');
  size_t column = last_line == text.npos ? text.size() + 2 : text.size() - last_line + 1;
  for (const std::string& part : more) {
    if (column + part.size() + 2 > kLineWidth) {
      absl::StrAppend(&text, ",\n", std::string(kPrefix.size(), ' '), part);
      column = kPrefix.size() + part.size();
    } else {
      absl::StrAppend(&text, ", ", part);
      column += part.size() + 2;
    }
  }
  return text + ")";
} catch (const std::bad_alloc&) {
  throw_out_of_memory("to_string");
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << tensor.to_string(); }
std::ostream& operator<<(std::ostream& out, const Dims& dims) { return out << to_string(dims); }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }

}  // namespace rondo
