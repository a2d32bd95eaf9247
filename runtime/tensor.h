// Tensor: START HERE. A counted handle to a strided array with autograd state.
//
//   Tensor w = Tensor::randn({768, 768}).requires_grad_();
//   Tensor loss = ops::mean(ops::gelu(ops::matmul(x, w)));
//   loss.backward();                       // w.grad() is now defined
//
// Copying a Tensor copies the handle. Views share storage and a version counter; in-place ops (a trailing underscore)
// bump it, and backward refuses a saved tensor whose version has moved.
// Thread safety: handles may be copied between threads; one tensor's contents and autograd state must not be written by
// two threads at once.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "rondo/runtime/device.h"
#include "rondo/runtime/dtype.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/shape.h"
#include "rondo/runtime/source_location.h"
#include "rondo/runtime/storage.h"

#pragma GCC visibility push(default)
namespace rondo {

class Generator;
class Recorder;
class Tensor;
struct AutogradMeta;
struct DynamicDims;
struct TensorImpl;

void intrusive_retain(TensorImpl* impl);
void intrusive_release(TensorImpl* impl) noexcept;

struct TensorOptions {
  DType dtype = kF32;
  Device device = kCPU;
};

// [begin, end) with a step; the bounds may be negative, `end` defaults to the size.
struct Slice {
  int64_t begin = 0;
  int64_t end = INT64_MAX;
  int64_t step = 1;
};

// The operand of x[i], which carries the caller's line.
struct IndexArg {
  IndexArg(int64_t value, std::source_location where = std::source_location::current()) : value(value), where(where) {}
  int64_t value;
  std::source_location where;
};

class Tensor {
 public:
  Tensor() {}
  explicit Tensor(TensorImpl* adopted) : impl_(adopted) {}  // takes over one reference
  Tensor(const Tensor& other) : impl_(other.impl_) {
    if (impl_) intrusive_retain(impl_);
  }
  Tensor(Tensor&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
  }
  ~Tensor() {
    if (impl_) intrusive_release(impl_);
  }

  // ---- Making one
  static Tensor empty(const Dims& sizes, TensorOptions options = {});
  static Tensor zeros(const Dims& sizes, TensorOptions options = {});
  static Tensor ones(const Dims& sizes, TensorOptions options = {});
  static Tensor full(const Dims& sizes, double value, TensorOptions options = {});
  static Tensor arange(int64_t end, TensorOptions options = {kI64});
  // Random values come from `generator`, or the default one (random.h).
  static Tensor randn(const Dims& sizes, TensorOptions options = {}, Generator* generator = nullptr);
  static Tensor rand(const Dims& sizes, TensorOptions options = {}, Generator* generator = nullptr);
  static Tensor randint(int64_t low, int64_t high, const Dims& sizes, TensorOptions options = {kI64},
                        Generator* generator = nullptr);
  // Copies host values; their type decides the dtype.
  template <class T> static Tensor from(std::span<const T> values, const Dims& sizes);
  template <class T> static Tensor from(std::initializer_list<T> values, const Dims& sizes) {
    return from(std::span<const T>(values.begin(), values.size()), sizes);
  }
  template <class T> static Tensor from(const std::vector<T>& values, const Dims& sizes) {
    return from(std::span<const T>(values), sizes);
  }
  // A scalar tensor.
  template <class T> static Tensor scalar(T value) { return from<T>({value}, {}); }
  // A view of memory that `storage` owns.
  static Tensor from_storage(Storage storage, int64_t offset, const Dims& sizes, const Dims& strides, DType dtype);

  // ---- Looking at it (never touches the data)
  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Dims& sizes() const;
  const Dims& strides() const;
  int64_t size(int64_t dim) const;
  int rank() const { return sizes().rank(); }
  int64_t numel() const { return sizes().numel(); }
  DType dtype() const;
  Device device() const;
  bool is_contiguous() const;
  int64_t nbytes() const { return numel() * static_cast<int64_t>(size_of(dtype())); }

  // ---- Host access. While a region is recording, these are graph breaks: what is recorded runs first.
  template <class T> const T* data(std::source_location where = std::source_location::current()) const {
    return static_cast<const T*>(checked_data(dtype_of<T>, where));
  }
  // Writable memory; the caller bumps the version by calling this.
  template <class T> T* mutable_data(std::source_location where = std::source_location::current()) {
    return static_cast<T*>(checked_mutable_data(dtype_of<T>, where));
  }
  const void* raw_data(std::source_location where = std::source_location::current()) const;
  void* raw_mutable_data(std::source_location where = std::source_location::current());
  // The value of a one-element tensor.
  double item(std::source_location where = std::source_location::current()) const;
  // Contents in row-major order, converted to T.
  template <class T> std::vector<T> to_vector(std::source_location where = std::source_location::current()) const;
  std::string to_string(std::source_location where = std::source_location::current()) const;

  // ---- Autograd
  bool requires_grad() const;
  Tensor& requires_grad_(bool on = true);
  bool is_leaf() const;
  // Accumulated gradient of a leaf (or after retain_grad); undefined until backward reaches it.
  const Tensor& grad() const;
  void set_grad(Tensor grad);
  void zero_grad(bool set_to_none = true);
  void retain_grad();
  // Calls `hook` with this tensor's gradient when backward has it complete; what it returns, if defined, replaces it.
  // Returns an id for remove_hook.
  int64_t register_hook(std::function<Tensor(const Tensor&)> hook);
  void remove_hook(int64_t id);
  // Gradients of this tensor (a scalar unless `grad` is given) are accumulated into every leaf that requires them.
  void backward(const Tensor& grad = Tensor(), bool retain_graph = false, bool create_graph = false,
                std::source_location where = std::source_location::current()) const;
  // Shares the data, not the history.
  Tensor detach() const;
  uint32_t version() const;

  // ---- Views and copies: the same ops as rondo::ops, as members
  Tensor view(const Dims& sizes, std::source_location where = std::source_location::current()) const;
  Tensor reshape(const Dims& sizes, std::source_location where = std::source_location::current()) const;
  Tensor transpose(int64_t a, int64_t b, std::source_location where = std::source_location::current()) const;
  Tensor permute(const Dims& order, std::source_location where = std::source_location::current()) const;
  Tensor t(std::source_location where = std::source_location::current()) const { return transpose(0, 1, where); }
  Tensor expand(const Dims& sizes, std::source_location where = std::source_location::current()) const;
  Tensor select(int64_t dim, int64_t index, std::source_location where = std::source_location::current()) const;
  Tensor slice(int64_t dim, Slice range, std::source_location where = std::source_location::current()) const;
  Tensor operator[](IndexArg index) const { return select(0, index.value, index.where); }
  Tensor squeeze(int64_t dim, std::source_location where = std::source_location::current()) const;
  Tensor unsqueeze(int64_t dim, std::source_location where = std::source_location::current()) const;
  Tensor flatten(int64_t first = 0, int64_t last = -1,
                 std::source_location where = std::source_location::current()) const;
  Tensor contiguous(std::source_location where = std::source_location::current()) const;
  Tensor clone(std::source_location where = std::source_location::current()) const;
  Tensor to(DType dtype, std::source_location where = std::source_location::current()) const;

  // ---- In place. `other` broadcasts to this tensor's shape.
  Tensor& add_(const Tensor& other, std::source_location where = std::source_location::current());
  Tensor& sub_(const Tensor& other, std::source_location where = std::source_location::current());
  Tensor& mul_(const Tensor& other, std::source_location where = std::source_location::current());
  Tensor& div_(const Tensor& other, std::source_location where = std::source_location::current());
  Tensor& add_(double other, std::source_location where = std::source_location::current());
  Tensor& mul_(double other, std::source_location where = std::source_location::current());
  Tensor& copy_(const Tensor& source, std::source_location where = std::source_location::current());
  Tensor& fill_(double value, std::source_location where = std::source_location::current());
  Tensor& zero_(std::source_location where = std::source_location::current()) { return fill_(0.0, where); }

  // ---- Inside the library
  TensorImpl* impl() const { return impl_; }
  TensorImpl* release() { return std::exchange(impl_, nullptr); }
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  const Storage& storage() const;
  int64_t storage_offset() const;

 private:
  const void* checked_data(DType expected, std::source_location where) const;
  void* checked_mutable_data(DType expected, std::source_location where);
  // Dense, in `dtype`, without history, outside of any recording.
  Tensor host_copy(DType dtype, std::source_location where) const;
  // A view of plain data whose base was since overwritten by something that requires grad.
  bool base_requires_grad() const;
  TensorImpl* impl_ = nullptr;
};

// An op's operand: the tensor and the caller's line, which rides along implicitly.
struct TensorArg {
  TensorArg(const Tensor& t, std::source_location where = std::source_location::current()) : tensor(t), where(where) {}
  const Tensor& tensor;
  std::source_location where;
};

// What a Tensor points to. Fields are for the runtime; ops and modules go through Tensor.
struct TensorImpl {
  std::atomic<int32_t> refs{1};
  DType dtype = kF32;
  Device device;
  bool requires_grad = false;  // asked for by the user, or follows from an input
  Dims sizes;
  Dims strides;
  int64_t offset = 0;  // elements from the start of the storage
  Storage storage;     // empty while the value is only recorded
  std::unique_ptr<AutogradMeta> autograd;
  std::unique_ptr<const DynamicDims> marks;  // compile::mark_dynamic; null almost always

  // Set while this value exists only in a recording (recorder.h).
  Recorder* recorder = nullptr;
  int32_t recorded_value = -1;

  TensorImpl();
  ~TensorImpl();
  // A recording makes and drops handles by the dozen: each thread keeps some of their memory.
  static void* operator new(size_t bytes);
  static void operator delete(void* memory) noexcept;
  std::byte* data() const { return storage.data() + offset * static_cast<int64_t>(size_of(dtype)); }
};

inline void intrusive_retain(TensorImpl* impl) { impl->refs.fetch_add(1, std::memory_order_relaxed); }

inline const Dims& Tensor::sizes() const { return impl_->sizes; }
inline const Dims& Tensor::strides() const { return impl_->strides; }
inline DType Tensor::dtype() const { return impl_->dtype; }
inline Device Tensor::device() const { return impl_->device; }
inline bool Tensor::requires_grad() const {
  return impl_->requires_grad || (impl_->autograd != nullptr && base_requires_grad());
}
inline bool Tensor::is_contiguous() const { return rondo::is_contiguous(impl_->sizes, impl_->strides); }
inline int64_t Tensor::storage_offset() const { return impl_->offset; }

template <class T> Tensor Tensor::from(std::span<const T> values, const Dims& sizes) {
  if (static_cast<int64_t>(values.size()) != sizes.numel())
    throw Error("Tensor::from: " + std::to_string(values.size()) + " values for shape " + rondo::to_string(sizes));
  Tensor result = empty(sizes, {dtype_of<T>});
  std::copy(values.begin(), values.end(), result.mutable_data<T>());
  return result;
}

template <class T> std::vector<T> Tensor::to_vector(std::source_location where) const {
  const Tensor dense = host_copy(dtype_of<T>, where);
  const T* values = dense.data<T>();
  return std::vector<T>(values, values + dense.numel());
}

// Operators: elementwise, broadcasting.
Tensor operator+(TensorArg a, TensorArg b);
Tensor operator-(TensorArg a, TensorArg b);
Tensor operator*(TensorArg a, TensorArg b);
Tensor operator/(TensorArg a, TensorArg b);
Tensor operator+(TensorArg a, double b);
Tensor operator-(TensorArg a, double b);
Tensor operator*(TensorArg a, double b);
Tensor operator/(TensorArg a, double b);
Tensor operator+(double a, TensorArg b);
Tensor operator-(double a, TensorArg b);
Tensor operator*(double a, TensorArg b);
Tensor operator/(double a, TensorArg b);
Tensor operator-(TensorArg a);

}  // namespace rondo
#pragma GCC visibility pop
