// Tensor: START HERE. A reference-counted handle to a strided array with autograd state.
//
//   Tensor w = Tensor::randn({768, 768}).requires_grad_();
//   Tensor loss = ops::gelu(x.matmul(w)).mean();
//   loss.backward();                       // w.grad() is now defined
//   std::string text = w.grad().to_string();  // as PyTorch prints it; operator<< writes the same
//
// Copying a Tensor copies the handle. Views share their base's storage and its version counter. In-place ops (their
// names end in an underscore) raise the version; backward refuses a saved tensor whose version has changed.
// A default-constructed Tensor is undefined: every function throws Error, except defined(), is_same() and printing.
// `t[0] = u` and `if (t)` do not compile: write t[0].copy_(u), and t.defined() or t.item().
// Thread safety: threads may copy handles at the same time. One tensor's contents and autograd state must not be
// written by two threads at once.
#pragma once

#include <atomic>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/scalar.h"
#include "rondo/runtime/base/shape.h"
#include "rondo/runtime/base/source_location.h"
#include "rondo/runtime/device/device.h"
#include "rondo/runtime/device/storage.h"

#pragma GCC visibility push(default)
namespace rondo {

class Generator;
class Recorder;
class Tensor;
struct AutogradMeta;
struct DynamicDims;
struct TensorArg;
struct TensorImpl;

void intrusive_retain(TensorImpl* impl);
void intrusive_release(TensorImpl* impl) noexcept;

// The dtype and device of a new tensor: zeros({2, 3}, kF64), zeros({2, 3}, {kF64, device}). The default device is that
// of the innermost DeviceScope, else kCPU.
struct TensorOptions {
  TensorOptions(DType dtype = kF32, Device device = default_device()) : dtype(dtype), device(device) {}
  TensorOptions(Device device) : device(device) {}
  DType dtype = kF32;
  Device device;
};

// The options of Tensor::arange. Without a dtype, the arguments decide it, as in PyTorch.
struct ArangeOptions {
  ArangeOptions() : device(default_device()) {}
  ArangeOptions(DType dtype, Device device = default_device()) : dtype(dtype), device(device) {}
  ArangeOptions(Device device) : device(device) {}
  ArangeOptions(TensorOptions options) : dtype(options.dtype), device(options.device) {}
  std::optional<DType> dtype = {};
  Device device;
};

// The indices begin, begin + step, ... below `end`. A negative bound counts from the back; `end` defaults to the size.
struct Slice {
  int64_t begin = 0;
  int64_t end = INT64_MAX;
  int64_t step = 1;
};

// The index of x[i] and the caller's line.
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
  Tensor& operator=(Tensor other) & noexcept {
    std::swap(impl_, other.impl_);
    return *this;
  }
  void operator=(Tensor other) && = delete;  // `x[0] = y` would only change a temporary handle: write x[0].copy_(y)
  explicit operator bool() const = delete;   // a tensor has no truth value: write defined(), or item() of one element
  ~Tensor() {
    if (impl_) intrusive_release(impl_);
  }

  // ---- Factories. Errors name the function and the caller's line.
  static Tensor empty(const Dims& sizes, TensorOptions options = {},
                      std::source_location where = std::source_location::current());
  static Tensor zeros(const Dims& sizes, TensorOptions options = {},
                      std::source_location where = std::source_location::current());
  static Tensor ones(const Dims& sizes, TensorOptions options = {},
                     std::source_location where = std::source_location::current());
  static Tensor full(const Dims& sizes, Scalar value, TensorOptions options = {},
                     std::source_location where = std::source_location::current());
  // Returns begin, begin + step, ... up to but excluding `end`; a negative step counts down. The dtype is that of
  // `options`. Without a dtype, arange(12), arange(0, 12) and arange(12, device) are i64, because all arguments are
  // integers; arange(1.5) and arange(12.0, device) are f32.
  static Tensor arange(Scalar end, ArangeOptions options = {},
                       std::source_location where = std::source_location::current());
  static Tensor arange(Scalar begin, Scalar end, ArangeOptions options = {},
                       std::source_location where = std::source_location::current());
  static Tensor arange(Scalar begin, Scalar end, Scalar step, ArangeOptions options = {},
                       std::source_location where = std::source_location::current());
  // Random values come from `generator`, or from the default one (random.h).
  static Tensor randn(const Dims& sizes, TensorOptions options = {}, Generator* generator = nullptr,
                      std::source_location where = std::source_location::current());
  static Tensor rand(const Dims& sizes, TensorOptions options = {}, Generator* generator = nullptr,
                     std::source_location where = std::source_location::current());
  static Tensor randint(int64_t low, int64_t high, const Dims& sizes, TensorOptions options = {kI64},
                        Generator* generator = nullptr, std::source_location where = std::source_location::current());
  // Copies host values. The dtype is that of `options`, converted as .to() converts. Without options:
  // - numbers in braces are literals: double gives f32, the default dtype, as in PyTorch; int gives i32, which index
  //   arguments take; from<double>({0.1, 0.2}, {2}) and from({0.1, 0.2}, {2}, kF64) give f64;
  // - a vector or span keeps its element type: vector<double> gives f64.
  static Tensor from(std::initializer_list<double> literals, const Dims& sizes, Device device = default_device(),
                     std::source_location where = std::source_location::current());
  static Tensor from(std::initializer_list<double> literals, const Dims& sizes, TensorOptions options,
                     std::source_location where = std::source_location::current()) {
    return from(std::span<const double>(literals.begin(), literals.size()), sizes, options, where);
  }
  template <class T>
  static Tensor from(std::span<const T> values, const Dims& sizes, TensorOptions options,
                     std::source_location where = std::source_location::current()) {
    return copy_of(values.data(), values.size(), dtype_of<T>, sizes, options, where);
  }
  template <class T>
  static Tensor from(std::span<const T> values, const Dims& sizes, Device device = default_device(),
                     std::source_location where = std::source_location::current()) {
    return from(values, sizes, TensorOptions(dtype_of<T>, device), where);
  }
  template <class T>
  static Tensor from(std::initializer_list<T> values, const Dims& sizes, TensorOptions options,
                     std::source_location where = std::source_location::current()) {
    return from(std::span<const T>(values.begin(), values.size()), sizes, options, where);
  }
  template <class T>
  static Tensor from(std::initializer_list<T> values, const Dims& sizes, Device device = default_device(),
                     std::source_location where = std::source_location::current()) {
    return from(std::span<const T>(values.begin(), values.size()), sizes, TensorOptions(dtype_of<T>, device), where);
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Dims& sizes, TensorOptions options,
                     std::source_location where = std::source_location::current()) {
    return from(std::span<const T>(values), sizes, options, where);
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Dims& sizes, Device device = default_device(),
                     std::source_location where = std::source_location::current()) {
    return from(std::span<const T>(values), sizes, TensorOptions(dtype_of<T>, device), where);
  }
  // Makes a scalar tensor. The dtype follows the same rules: scalar(0.5) is f32; scalar<double>(0.5) and scalar(0.5,
  // kF64) are f64.
  static Tensor scalar(double literal, Device device = default_device()) { return from({literal}, {}, device); }
  template <class T> static Tensor scalar(T value, Device device = default_device()) {
    return from<T>({value}, {}, device);
  }
  template <class T> static Tensor scalar(T value, TensorOptions options) { return from<T>({value}, {}, options); }
  // Makes a tensor over the memory of `storage`; `offset` is in elements. Throws Error if an element would lie outside
  // of the storage.
  static Tensor from_storage(Storage storage, int64_t offset, const Dims& sizes, const Dims& strides, DType dtype,
                             std::source_location where = std::source_location::current());

  // ---- Description. These functions never access the data.
  bool defined() const { return impl_ != nullptr; }
  const Dims& sizes(std::source_location where = std::source_location::current()) const;
  const Dims& strides(std::source_location where = std::source_location::current()) const;
  int64_t size(int64_t dim, std::source_location where = std::source_location::current()) const;
  int rank(std::source_location where = std::source_location::current()) const { return sizes(where).rank(); }
  int64_t numel(std::source_location where = std::source_location::current()) const { return sizes(where).numel(); }
  DType dtype(std::source_location where = std::source_location::current()) const;
  Device device(std::source_location where = std::source_location::current()) const;
  bool is_contiguous(std::source_location where = std::source_location::current()) const;
  int64_t nbytes(std::source_location where = std::source_location::current()) const {
    return numel(where) * static_cast<int64_t>(size_of(dtype(where)));
  }

  // ---- Host access. Inside a compiled region each of these is a graph break: the recorded ops run first. Reading a
  // value waits for the tensor's device. The functions that return pointers throw Error unless the tensor is in host
  // memory.
  template <class T> const T* data(std::source_location where = std::source_location::current()) const {
    return static_cast<const T*>(checked_data(dtype_of<T>, where));
  }
  // Returns the memory for writing. Each call raises the version. Inside a region, call it after each op, as
  // Note [Host writes] in compile/compile.h explains.
  template <class T> T* mutable_data(std::source_location where = std::source_location::current()) {
    return static_cast<T*>(checked_mutable_data(dtype_of<T>, where));
  }
  const void* raw_data(std::source_location where = std::source_location::current()) const;
  void* raw_mutable_data(std::source_location where = std::source_location::current());
  // Returns the value of a one-element tensor. Throws Error if an integer is not exact as a double: use
  // item<int64_t>().
  double item(std::source_location where = std::source_location::current()) const;
  // Returns the value, converted to T as .to() converts. item<int64_t>() is exact for all integers.
  template <class T> T item(std::source_location where = std::source_location::current()) const {
    return *static_cast<const T*>(one_element(dtype_of<T>, where).raw_data(where));
  }
  // Returns the contents in row-major order, converted to T.
  template <class T> std::vector<T> to_vector(std::source_location where = std::source_location::current()) const;
  // Returns the values in rows, as PyTorch prints them, and properties that are not the default: the shape if the
  // values do not show it, the dtype, the gradient. An undefined tensor is "tensor(undefined)". A tensor of more than
  // 1000 elements is summarised.
  std::string to_string(std::source_location where = std::source_location::current()) const;

  // ---- Autograd
  bool requires_grad(std::source_location where = std::source_location::current()) const;
  Tensor& requires_grad_(bool on = true, std::source_location where = std::source_location::current());
  bool is_leaf(std::source_location where = std::source_location::current()) const;
  // Returns the accumulated gradient of a leaf, or of any tensor after retain_grad(). Undefined before a backward
  // reaches it.
  const Tensor& grad(std::source_location where = std::source_location::current()) const;
  void set_grad(Tensor grad, std::source_location where = std::source_location::current());
  void zero_grad(bool set_to_none = true, std::source_location where = std::source_location::current());
  void retain_grad(std::source_location where = std::source_location::current());
  // Backward calls `hook` with this tensor's complete gradient. If the hook returns a defined tensor, that replaces the
  // gradient. Returns an id for remove_hook.
  int64_t register_hook(std::function<Tensor(const Tensor&)> hook,
                        std::source_location where = std::source_location::current());
  void remove_hook(int64_t id, std::source_location where = std::source_location::current());
  // Accumulates the gradients of this tensor into every leaf that requires grad. The tensor must be a scalar unless
  // `grad` is given.
  void backward(const Tensor& grad = Tensor(), bool retain_graph = false, bool create_graph = false,
                std::source_location where = std::source_location::current()) const;
  // Returns a tensor that shares the data but not the history.
  Tensor detach(std::source_location where = std::source_location::current()) const;
  uint32_t version(std::source_location where = std::source_location::current()) const;

  // ---- Views and copies. Each calls the op of the same name (ops/ops.h).
  Tensor view(const Dims& sizes, std::source_location where = std::source_location::current()) const;
  Tensor reshape(const Dims& sizes, std::source_location where = std::source_location::current()) const;
  Tensor transpose(int64_t a, int64_t b, std::source_location where = std::source_location::current()) const;
  Tensor permute(const Dims& order, std::source_location where = std::source_location::current()) const;
  // The transpose of a matrix. Throws Error unless the tensor has two dimensions. For more, use transpose().
  Tensor t(std::source_location where = std::source_location::current()) const;
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
  // Returns this tensor if it is on `device` already, else a dense copy. Differentiable: the gradient goes back to the
  // tensor's own device. A copy to the host waits for the device. Inside a compiled region it is a graph break.
  Tensor to(Device device, std::source_location where = std::source_location::current()) const;

  // ---- Arithmetic. Each calls the op of the same name (ops/ops.h).
  Tensor exp(std::source_location where = std::source_location::current()) const;
  Tensor log(std::source_location where = std::source_location::current()) const;
  Tensor sqrt(std::source_location where = std::source_location::current()) const;
  Tensor abs(std::source_location where = std::source_location::current()) const;
  Tensor matmul(const Tensor& other, std::source_location where = std::source_location::current()) const;
  Tensor softmax(int64_t dim = -1, std::source_location where = std::source_location::current()) const;
  Tensor sum(const ReduceDims& dims = {}, bool keepdim = false,
             std::source_location where = std::source_location::current()) const;
  Tensor mean(const ReduceDims& dims = {}, bool keepdim = false,
              std::source_location where = std::source_location::current()) const;
  Tensor max(const ReduceDims& dims = {}, bool keepdim = false,
             std::source_location where = std::source_location::current()) const;
  Tensor min(const ReduceDims& dims = {}, bool keepdim = false,
             std::source_location where = std::source_location::current()) const;
  Tensor argmax(std::optional<int64_t> dim = std::nullopt, bool keepdim = false,
                std::source_location where = std::source_location::current()) const;

  // ---- In place. `other` broadcasts to this tensor's shape. All of these work on a view: x[0].add_(1), x[0] += 1.
  Tensor& add_(const Tensor& other, std::source_location where = std::source_location::current());
  Tensor& sub_(const Tensor& other, std::source_location where = std::source_location::current());
  Tensor& mul_(const Tensor& other, std::source_location where = std::source_location::current());
  Tensor& div_(const Tensor& other, std::source_location where = std::source_location::current());
  Tensor& add_(Scalar other, std::source_location where = std::source_location::current());
  Tensor& sub_(Scalar other, std::source_location where = std::source_location::current());
  Tensor& mul_(Scalar other, std::source_location where = std::source_location::current());
  Tensor& div_(Scalar other, std::source_location where = std::source_location::current());
  Tensor& copy_(const Tensor& source, std::source_location where = std::source_location::current());
  Tensor& fill_(Scalar value, std::source_location where = std::source_location::current());
  Tensor& zero_(std::source_location where = std::source_location::current()) { return fill_(0, where); }
  Tensor& operator+=(TensorArg other);
  Tensor& operator-=(TensorArg other);
  Tensor& operator*=(TensorArg other);
  Tensor& operator/=(TensorArg other);
  Tensor& operator+=(ScalarArg other) { return add_(other.value, other.where); }
  Tensor& operator-=(ScalarArg other) { return sub_(other.value, other.where); }
  Tensor& operator*=(ScalarArg other) { return mul_(other.value, other.where); }
  Tensor& operator/=(ScalarArg other) { return div_(other.value, other.where); }

  // ---- Inside the library
  // Like from_storage() but without checks; also for a tensor that has no memory yet.
  static Tensor over(Storage storage, int64_t offset, const Dims& sizes, const Dims& strides, DType dtype);
  TensorImpl* impl() const { return impl_; }
  TensorImpl* release() { return std::exchange(impl_, nullptr); }
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  // Like raw_data() and raw_mutable_data(), but for any device: addresses on the tensor's device, for kernels and the
  // code that launches them.
  const std::byte* address(std::source_location where = std::source_location::current()) const;
  std::byte* mutable_address(std::source_location where = std::source_location::current());
  // Call before_write() (recorder.h) before you write through storage().data().
  const Storage& storage(std::source_location where = std::source_location::current()) const;
  int64_t storage_offset(std::source_location where = std::source_location::current()) const;

 private:
  // Returns the object behind this handle. Throws Error "op: the tensor is undefined" if there is none.
  TensorImpl* checked(const char* op, std::source_location where) const {
    if (impl_ == nullptr) [[unlikely]]
      throw_undefined(op, where);
    return impl_;
  }
  static Tensor copy_of(const void* values, size_t count, DType dtype, const Dims& sizes, TensorOptions options,
                        std::source_location where);
  const void* checked_data(DType expected, std::source_location where) const;
  void* checked_mutable_data(DType expected, std::source_location where);
  // Returns a dense copy in host memory with dtype `dtype` and no history, made outside of any recording. If the tensor
  // is dense, in host memory and of that dtype already, returns the tensor itself.
  Tensor host_copy(const char* op, DType dtype, std::source_location where) const;
  Tensor one_element(DType dtype, std::source_location where) const;
  // True for a view without history whose base was later overwritten by a value that requires grad.
  bool base_requires_grad() const;
  TensorImpl* impl_ = nullptr;
};

// Prints to_string().
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);
std::ostream& operator<<(std::ostream& out, const Dims& dims);  // [2, 3]
std::ostream& operator<<(std::ostream& out, DType dtype);       // f32

// An operand of an op: a tensor and the caller's line, which the constructor takes implicitly. {}: an undefined tensor.
struct TensorArg {
  TensorArg(const Tensor& t, std::source_location where = std::source_location::current()) : tensor(t), where(where) {}
  // `t` was converted from a tensor of dtype `given`; error messages show `given`.
  TensorArg(const Tensor& t, std::source_location where, DType given) : tensor(t), where(where), given(given) {}
  TensorArg(std::source_location where = std::source_location::current()) : tensor(undefined()), where(where) {}
  const Tensor& tensor;
  std::source_location where;
  std::optional<DType> given = std::nullopt;

 private:
  static const Tensor& undefined();
};

// The object behind a Tensor. Only the runtime uses the fields; ops and modules go through Tensor.
struct TensorImpl {
  std::atomic<int32_t> refs{1};
  DType dtype = kF32;
  Device device;
  bool requires_grad = false;  // set by the user on a leaf; on a result, true if an input requires grad
  Dims sizes;
  Dims strides;
  int64_t offset = 0;  // elements from the start of the storage
  Storage storage;     // empty while the value is only recorded
  std::unique_ptr<AutogradMeta> autograd;
  std::unique_ptr<const DynamicDims> marks;  // compile::mark_dynamic; nearly always null

  // Set while this value exists only in a recording (recorder.h).
  Recorder* recorder = nullptr;
  int32_t recorded_value = -1;

  TensorImpl();
  ~TensorImpl();
  // A recording creates and frees many of these objects, so each thread keeps the memory of some freed ones.
  static void* operator new(size_t bytes);
  static void operator delete(void* memory) noexcept;
  std::byte* data() const { return storage.data() + offset * static_cast<int64_t>(size_of(dtype)); }
};

inline void intrusive_retain(TensorImpl* impl) { impl->refs.fetch_add(1, std::memory_order_relaxed); }

inline const Dims& Tensor::sizes(std::source_location where) const { return checked("sizes", where)->sizes; }
inline const Dims& Tensor::strides(std::source_location where) const { return checked("strides", where)->strides; }
inline DType Tensor::dtype(std::source_location where) const { return checked("dtype", where)->dtype; }
inline Device Tensor::device(std::source_location where) const { return checked("device", where)->device; }
inline bool Tensor::requires_grad(std::source_location where) const {
  const TensorImpl* impl = checked("requires_grad", where);
  return impl->requires_grad || (impl->autograd != nullptr && base_requires_grad());
}
inline bool Tensor::is_contiguous(std::source_location where) const {
  const TensorImpl* impl = checked("is_contiguous", where);
  return rondo::is_contiguous(impl->sizes, impl->strides);
}
inline int64_t Tensor::storage_offset(std::source_location where) const {
  return checked("storage_offset", where)->offset;
}

template <class T> std::vector<T> Tensor::to_vector(std::source_location where) const {
  const Tensor dense = host_copy("to_vector", dtype_of<T>, where);
  const T* values = dense.data<T>();
  return std::vector<T>(values, values + dense.numel());
}

// Operators: elementwise, operands broadcast. Comparisons give a bool tensor.
Tensor operator+(TensorArg a, TensorArg b);
Tensor operator-(TensorArg a, TensorArg b);
Tensor operator*(TensorArg a, TensorArg b);
Tensor operator/(TensorArg a, TensorArg b);
Tensor operator+(TensorArg a, Scalar b);
Tensor operator-(TensorArg a, Scalar b);
Tensor operator*(TensorArg a, Scalar b);
Tensor operator/(TensorArg a, Scalar b);
Tensor operator+(Scalar a, TensorArg b);
Tensor operator-(Scalar a, TensorArg b);
Tensor operator*(Scalar a, TensorArg b);
Tensor operator/(Scalar a, TensorArg b);
Tensor operator==(TensorArg a, TensorArg b);
Tensor operator!=(TensorArg a, TensorArg b);
Tensor operator<(TensorArg a, TensorArg b);
Tensor operator<=(TensorArg a, TensorArg b);
Tensor operator>(TensorArg a, TensorArg b);
Tensor operator>=(TensorArg a, TensorArg b);
Tensor operator==(TensorArg a, Scalar b);
Tensor operator!=(TensorArg a, Scalar b);
Tensor operator<(TensorArg a, Scalar b);
Tensor operator<=(TensorArg a, Scalar b);
Tensor operator>(TensorArg a, Scalar b);
Tensor operator>=(TensorArg a, Scalar b);
Tensor operator==(Scalar a, TensorArg b);
Tensor operator!=(Scalar a, TensorArg b);
Tensor operator<(Scalar a, TensorArg b);
Tensor operator<=(Scalar a, TensorArg b);
Tensor operator>(Scalar a, TensorArg b);
Tensor operator>=(Scalar a, TensorArg b);
Tensor operator-(TensorArg a);

}  // namespace rondo
#pragma GCC visibility pop
