// Kernels that put a tensor together from parts. Parts that have the same layout and do not overlap share a launch, up
// to the 64 of RondoPieces. So the slices of a loop over time take a few launches, not one each.
#include "rondo/runtime/ops/parts.h"

#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::cuda {
namespace {

// The operands of the layout: a part as it lies in the result, and the part in its own memory.
constexpr Source kCopies = {"parts_copied", R"cuda(
extern "C" __global__ void rondo_copy_parts(WORD* out, RondoPieces pieces, RondoLayout layout) {
  for (long long i = first_index(); i < pieces.count * layout.numel; i += index_step()) {
    const long long k = i / layout.numel;
    long long at[2];
    offsets_of(layout, i - k * layout.numel, at);
    const WORD* const from = reinterpret_cast<const WORD*>(pieces.from[k]);
    write(out + pieces.to[k] + at[0], read(from + at[1]));
  }
}
)cuda"};
constexpr Source kAddParts = {"parts_added", R"cuda(
extern "C" __global__ void rondo_add_parts(T* out, RondoPieces pieces, RondoLayout layout, long long to_zeros) {
  using C = typename RondoCompute<T>::Type;
  for (long long i = first_index(); i < pieces.count * layout.numel; i += index_step()) {
    const long long k = i / layout.numel;
    long long at[2];
    offsets_of(layout, i - k * layout.numel, at);
    T* const to = out + pieces.to[k] + at[0];
    const T* const from = reinterpret_cast<const T*>(pieces.from[k]);
    const C before = to_zeros != 0 ? static_cast<C>(0) : widen(read(to));
    write(to, convert<T>(before + widen(read(from + at[1]))));
  }
}
)cuda"};

enum class Put { kCopy, kAdd, kAddToZero };

// Copies or adds the operands [first, last) to their places in the result. They have the same layout. If there are
// several, their places do not overlap.
void put(const KernelContext& context, const ops::Parts& parts, size_t first, size_t last, Put how) {
  const Tensor &out = context.out(), &like = *context.inputs[first];
  if (like.numel() == 0) return;
  const int device = out.device().index;
  const ops::Part& place = parts.places[first];
  const RondoLayout layout = layout_of(
      IterationSpace<2>(place.sizes, std::array<Dims, 2>{place.strides, like.strides()}));
  RondoPieces pieces = {};
  for (size_t i = first; i < last; ++i, ++pieces.count) {
    pieces.from[pieces.count] = reinterpret_cast<long long>(address_of(*context.inputs[i]));
    pieces.to[pieces.count] = parts.places[i].offset;
  }
  const int64_t n = pieces.count * layout.numel;
  if (how == Put::kCopy)
    return launch_threads(device, kernel_of(device, kCopies, "rondo_copy_parts", {{"WORD", word_name(out.dtype())}}), n,
                          address_of(out), pieces, layout);
  launch_threads(device, kernel_of(device, kAddParts, "rondo_add_parts", {{"T", type_name(out.dtype())}}), n,
                 address_of(out), pieces, layout, static_cast<long long>(how == Put::kAddToZero));
}

// Copies or adds all operands from `first` on, in order.
void put_all(const KernelContext& context, const ops::Parts& parts, size_t first, Put how) {
  const auto alike = [&](size_t a, size_t b) {
    return parts.places[a].sizes == parts.places[b].sizes && parts.places[a].strides == parts.places[b].strides &&
           context.inputs[a]->strides() == context.inputs[b]->strides();
  };
  for (size_t begin = first; begin < parts.places.size();) {
    size_t end = begin + 1;
    while (parts.apart && end < parts.places.size() && end - begin < kMostPieces && alike(begin, end)) ++end;
    put(context, parts, begin, end, how);
    begin = end;
  }
}

}  // namespace

void cat_kernel(const KernelContext& context) { put_all(context, ops::parts_of_cat(context), 0, Put::kCopy); }

void slice_grad_kernel(const KernelContext& context) {
  const Tensor& out = context.out();
  if (out.numel() == 0) return;
  const ops::Parts parts = ops::parts_of_slice_grad(context);
  const bool clears = !parts.first_is_whole && (!parts.apart || !parts.gaps.empty());
  if (clears) backend_of(out.device()).fill(out.device().index, address_of(out), 0, static_cast<size_t>(out.nbytes()));
  const bool in_place = parts.first_is_whole && address_of(context.in(0)) == address_of(out);
  if (!in_place) put(context, parts, 0, 1, Put::kCopy);
  put_all(context, parts, 1, parts.first_is_whole || !parts.apart ? Put::kAdd : Put::kAddToZero);
}

}  // namespace rondo::cuda
