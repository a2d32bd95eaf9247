// Hides the differences between the interfaces of oneDNN 2 (from 2.6 on) and 3. Callers have the same source for both
// versions; they include this instead of oneDNN's own header.
//
//   Kernels<dnnl::matmul> kernels(attributes, a, b, bias, c);  // the library's first choice
//   while (is_wrong(kernels.name(), call)) kernels.next();
//   dnnl::matmul product = kernels.make();
//
// The versions also differ in which kernels are correct and fast: see wrong_kernels.h and convolution_library.cc.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "rondo/runtime/onednn/onednn.h"
#include "rondo/runtime/onednn/onednn_library.h"

namespace rondo::cpu {

using Desc = dnnl::memory::desc;

// The library's kernels for one operation, in its order of preference. Movable; used by one thread at a time.
//
// `operation`: the arguments of version 2's operation descriptor, which version 3 takes directly: descriptors of memory
// (an empty one for an operand that is missing), an algorithm, sizes. A gradient of a convolution needs a forward
// kernel as its hint. Throws dnnl::error if there is no kernel.
template <class Primitive> class Kernels {
 public:
  using Hint = Kernels<dnnl::convolution_forward>;
  template <class... Operation> explicit Kernels(const dnnl::primitive_attr& attributes, const Operation&... operation);
  template <class... Operation>
  Kernels(Hint hint, const dnnl::primitive_attr& attributes, const Operation&... operation);

  std::string_view name() const { return chosen_.impl_info_str(); }
  // Goes to the next kernel. If there is none, keeps the current one and returns false.
  bool next() { return chosen_.next_impl(); }
  Primitive make() const { return Primitive(chosen_); }
  Desc scratchpad() const { return chosen_.scratchpad_desc(); }
  Desc layout_of(dnnl::query operand) const { return chosen_.query_md(operand); }

 private:
  template <class P> friend class Kernels;
  // The hint of a gradient; null for other operations. next() makes the library read the hint, and in version 2 also
  // the operation, so both must keep their addresses.
  std::shared_ptr<const Hint> hint_;
#if DNNL_VERSION_MAJOR == 2
  std::unique_ptr<const typename Primitive::desc> operation_;
#endif
  typename Primitive::primitive_desc chosen_;
};

// A strided layout, of single numbers or of blocks.
struct BlockedLayout {
  dnnl::memory::dims sizes, padded_sizes, strides;
  dnnl::memory::dims block_sizes, block_dims;  // size and dimension of each level of blocks, the innermost last
};
// Returns nullopt if the layout is of another kind, begins inside another memory, or contains extra data.
std::optional<BlockedLayout> blocked_layout(const Desc& desc);

dnnl::memory::dims sizes_of(const Desc& desc);
dnnl::memory::data_type type_of(const Desc& desc);

void append_eltwise(dnnl::post_ops& to, dnnl::algorithm function);
void set_address(const dnnl::memory& memory, const void* address, const dnnl::stream& stream);

// ---- The two versions

#if DNNL_VERSION_MAJOR == 2

template <class Primitive>
template <class... Operation>
Kernels<Primitive>::Kernels(const dnnl::primitive_attr& attributes, const Operation&... operation)
    : operation_(std::make_unique<const typename Primitive::desc>(operation...)),
      chosen_(*operation_, attributes, library_engine()) {}

template <class Primitive>
template <class... Operation>
Kernels<Primitive>::Kernels(Hint hint, const dnnl::primitive_attr& attributes, const Operation&... operation)
    : hint_(std::make_shared<const Hint>(std::move(hint))),
      operation_(std::make_unique<const typename Primitive::desc>(operation...)),
      chosen_(*operation_, attributes, library_engine(), hint_->chosen_) {}

inline std::optional<BlockedLayout> blocked_layout(const Desc& desc) {
  const dnnl_memory_desc_t& data = desc.data;
  if (data.format_kind != dnnl_blocked || data.offset0 != 0 || data.extra.flags != 0) return std::nullopt;
  const dnnl_blocking_desc_t& blocks = data.format_desc.blocking;
  const auto list = [](const dnnl_dim_t* values, int count) { return dnnl::memory::dims(values, values + count); };
  return BlockedLayout{.sizes = list(data.dims, data.ndims),
                       .padded_sizes = list(data.padded_dims, data.ndims),
                       .strides = list(blocks.strides, data.ndims),
                       .block_sizes = list(blocks.inner_blks, blocks.inner_nblks),
                       .block_dims = list(blocks.inner_idxs, blocks.inner_nblks)};
}

inline dnnl::memory::dims sizes_of(const Desc& desc) { return desc.dims(); }
inline dnnl::memory::data_type type_of(const Desc& desc) { return desc.data_type(); }

inline void append_eltwise(dnnl::post_ops& to, dnnl::algorithm function) { to.append_eltwise(1.0f, function, 0, 0); }
inline void set_address(const dnnl::memory& memory, const void* address, const dnnl::stream& stream) {
  memory.set_data_handle(const_cast<void*>(address), stream);
}

#else

template <class Primitive>
template <class... Operation>
Kernels<Primitive>::Kernels(const dnnl::primitive_attr& attributes, const Operation&... operation)
    : chosen_(library_engine(), operation..., attributes) {}

template <class Primitive>
template <class... Operation>
Kernels<Primitive>::Kernels(Hint hint, const dnnl::primitive_attr& attributes, const Operation&... operation)
    : hint_(std::make_shared<const Hint>(std::move(hint))),
      chosen_(library_engine(), operation..., hint_->chosen_, attributes) {}

// Version 3 does not report whether a layout contains extra data; only layouts of 8-bit numbers do.
inline std::optional<BlockedLayout> blocked_layout(const Desc& desc) {
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked || desc.get_submemory_offset() != 0)
    return std::nullopt;
  return BlockedLayout{.sizes = desc.get_dims(),
                       .padded_sizes = desc.get_padded_dims(),
                       .strides = desc.get_strides(),
                       .block_sizes = desc.get_inner_blks(),
                       .block_dims = desc.get_inner_idxs()};
}

inline dnnl::memory::dims sizes_of(const Desc& desc) { return desc.get_dims(); }
inline dnnl::memory::data_type type_of(const Desc& desc) { return desc.get_data_type(); }

inline void append_eltwise(dnnl::post_ops& to, dnnl::algorithm function) { to.append_eltwise(function, 0, 0); }
inline void set_address(const dnnl::memory& memory, const void* address, const dnnl::stream&) {
  memory.set_data_handle(const_cast<void*>(address));
}

#endif

}  // namespace rondo::cpu
