#include "rondo/runtime/tensor/tensor.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/per_thread.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo {

namespace {

// Freed handles of this thread, as a list through their own memory.
struct HandleCache {
  struct Free {
    Free* next;
  };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr int kMost = 0;  // so that the sanitizer sees every lifetime
#else
  static constexpr int kMost = 256;
#endif
  Free* first = nullptr;
  int count = 0;

  HandleCache() = default;
  ~HandleCache() {
    while (first != nullptr) ::operator delete(std::exchange(first, first->next));
  }
};

}  // namespace

void* TensorImpl::operator new(size_t bytes) {
  HandleCache* cache = PerThread<HandleCache>::get();
  if (cache == nullptr || cache->first == nullptr) return ::operator new(bytes);
  --cache->count;
  return std::exchange(cache->first, cache->first->next);
}
void TensorImpl::operator delete(void* memory) noexcept {
  HandleCache* cache = PerThread<HandleCache>::get();
  if (cache == nullptr || cache->count >= HandleCache::kMost) return ::operator delete(memory);
  cache->first = new (memory) HandleCache::Free{cache->first};
  ++cache->count;
}

void intrusive_release(TensorImpl* impl) noexcept {
  // The last holder need not lock the bus to know that it is.
  if (impl->refs.load(std::memory_order_acquire) == 1 || impl->refs.fetch_sub(1, std::memory_order_acq_rel) == 1)
    delete impl;
}

Tensor Tensor::from_storage(Storage storage, int64_t offset, const Dims& sizes, const Dims& strides, DType dtype,
                            std::source_location where) {
  if (!storage) throw_op_error("Tensor::from_storage", "the storage is empty", where);
  const auto fail = [&](std::string_view what) {
    throw_op_error(
        "Tensor::from_storage",
        absl::StrCat(std::string(what), ": sizes ", rondo::to_string(sizes), ", strides ", rondo::to_string(strides),
                     ", offset ", offset, ", ", storage.bytes(), " bytes of ", std::string(name_of(dtype))),
        where);
  };
  const int64_t numel = checked_numel(sizes);
  if (numel < 0 || strides.rank() != sizes.rank() || offset < 0) fail("these describe no tensor");
  int64_t last = offset, extent = 0;
  bool inside = true;
  for (int d = 0; d < sizes.rank(); ++d) {
    if (strides[d] < 0) fail("a stride is negative");
    inside = inside && !__builtin_mul_overflow(sizes[d] - 1, strides[d], &extent) &&
             !__builtin_add_overflow(last, extent, &last);
  }
  if (numel > 0 && !(inside && last < static_cast<int64_t>(storage.bytes() / size_of(dtype))))
    fail("an element lies outside of the storage");
  return over(std::move(storage), offset, sizes, strides, dtype);
}

Tensor Tensor::over(Storage storage, int64_t offset, const Dims& sizes, const Dims& strides, DType dtype) {
  auto* impl = within_memory("a tensor", [] { return new TensorImpl; });
  impl->dtype = dtype;
  impl->device = storage.device();
  impl->sizes = sizes;
  impl->strides = strides;
  impl->offset = offset;
  impl->storage = std::move(storage);
  return Tensor(impl);
}

int64_t Tensor::size(int64_t dim, std::source_location where) const {
  const Dims& sizes = checked("size", where)->sizes;
  if (sizes.empty()) throw_op_error("size", "a scalar has no dimensions", where);
  return sizes[normalize_dim("size", dim, sizes, where)];
}

const Tensor& TensorArg::undefined() {
  static const Tensor kUndefined;
  return kUndefined;
}

}  // namespace rondo
