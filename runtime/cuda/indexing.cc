// Reads or writes elements by an index tensor along one dimension. If several elements are written to one place, the
// result does not depend on the order of threads: the last one wins, or they are sorted and added in order.
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/bad_index.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/sort.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/lookup.h"

namespace rondo::cuda {
namespace {

// The operands of a layout are those of the kernel, in order. In the layout, the indexed operand has stride 0 along the
// dimension; `step` is its real stride along the dimension.
constexpr Source kMoves = {"indexing", R"cuda(
extern "C" __global__ void rondo_gather(WORD* out, const long long* index, const WORD* x, RondoLayout layout,
                                        long long step, long long size, DeviceStatus* status, unsigned call) {
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[3];
    offsets_of(layout, i, at);
    const long long k = read(index + at[1]);
    if (k < 0 || k >= size) {
      rondo_report(status, call, k, at[1]);
      continue;
    }
    write(out + at[0], read(x + at[2] + k * step));
  }
}
extern "C" __global__ void rondo_check_indices(bool* checked, const long long* index, RondoLayout layout,
                                               long long size, DeviceStatus* status, unsigned call) {
  if (first_index() == 0) write(checked, true);
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[1];
    offsets_of(layout, i, at);
    const long long k = read(index + at[0]);
    if (k < 0 || k >= size) rondo_report(status, call, k, i);
  }
}
// The number of the last element, from 1, that is written to each place.
extern "C" __global__ void rondo_scatter_claim(unsigned long long* winners, const long long* index, RondoLayout layout,
                                               long long step, long long size, DeviceStatus* status, unsigned call) {
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[2];
    offsets_of(layout, i, at);
    const long long k = read(index + at[1]);
    if (k < 0 || k >= size) {
      rondo_report(status, call, k, at[1]);
      continue;
    }
    atomicMax(winners + at[0] + k * step, static_cast<unsigned long long>(i) + 1ull);
  }
}
extern "C" __global__ void rondo_scatter(WORD* out, const long long* index, const WORD* source,
                                         const unsigned long long* winners, RondoLayout layout, long long step,
                                         long long size) {
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[3];
    offsets_of(layout, i, at);
    const long long k = read(index + at[1]);
    if (k < 0 || k >= size) continue;
    const long long to = at[0] + k * step;
    if (read(winners + to) == static_cast<unsigned long long>(i) + 1ull) write(out + to, read(source + at[2]));
  }
}
// Operands of the layout are `out` and `rows`, (B, H, T, D). Of several rows for one place, the last is written.
extern "C" __global__ void rondo_write_rows(WORD* out, const WORD* rows, const long long* places, RondoLayout layout,
                                            long long step, long long size) {
  const long long count = layout.sizes[2];
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    const long long d = i % layout.sizes[3], t = i / layout.sizes[3] % count,
                    head = i / layout.sizes[3] / count % layout.sizes[1],
                    batch = i / layout.sizes[3] / count / layout.sizes[1];
    const long long* const own = places + batch * count;
    const long long place = read(own + t);
    bool writes = place >= 0 && place < size;
    for (long long later = t + 1; writes && later < count; ++later) writes = read(own + later) != place;
    if (writes)
      write(out + batch * layout.strides[0][0] + head * layout.strides[0][1] + place * step + d * layout.strides[0][3],
            read(rows + batch * layout.strides[1][0] + head * layout.strides[1][1] + t * layout.strides[1][2] +
                 d * layout.strides[1][3]));
  }
}
// Where each element goes. Those whose index is out of range come last.
extern "C" __global__ void rondo_destinations(unsigned long long* keys, const long long* index, RondoLayout layout,
                                              long long step, long long size, DeviceStatus* status, unsigned call) {
  for (long long i = first_index(); i < layout.numel; i += index_step()) {
    long long at[2];
    offsets_of(layout, i, at);
    const long long k = read(index + at[1]);
    const bool bad = k < 0 || k >= size;
    if (bad) rondo_report(status, call, k, at[1]);
    write(keys + i, bad ? ~0ull : static_cast<unsigned long long>(at[0] + k * step));
  }
}
)cuda"};

constexpr Source kScatterSum = {"scatter_sum", R"cuda(
template <class V> RONDO_DEVICE void add_to(V& sum, V value) { sum = sum + value; }
RONDO_DEVICE void add_to(bool& sum, bool value) { sum = sum || value; }
// The thread of a place's first element adds up all of them.
extern "C" __global__ void rondo_scatter_sum(T* out, const T* values, const unsigned long long* keys,
                                             const long long* positions, RondoLayout layout) {
  using C = typename RondoCompute<T>::Type;
  const long long n = layout.numel;
  for (long long first = first_index(); first < n; first += index_step()) {
    const unsigned long long key = read(keys + first);
    if (key == ~0ull || (first > 0 && read(keys + first - 1) == key)) continue;
    C sum = 0;
    for (long long i = first; i < n && read(keys + i) == key; ++i) {
      long long at[1];
      offsets_of(layout, read(positions + i), at);
      add_to(sum, widen(read(values + at[0])));
    }
    write(out + static_cast<long long>(key), convert<T>(sum));
  }
}
)cuda"};

constexpr Source kRunningSums = {"cumsum", R"cuda(
// A thread for each line.
extern "C" __global__ void rondo_cumsum(OUT* out, const IN* in, RondoLayout layout, long long out_step,
                                        long long in_step, long long length, long long reverse) {
  for (long long line = first_index(); line < layout.numel; line += index_step()) {
    long long at[2];
    offsets_of(layout, line, at);
    TOTAL total = 0;
    for (long long n = 0; n < length; ++n) {
      const long long i = reverse != 0 ? length - 1 - n : n;
      total = total + static_cast<TOTAL>(widen(read(in + at[1] + i * in_step)));
      write(out + at[0] + i * out_step, convert<OUT>(total));
    }
  }
}
)cuda"};

int dim_of(const KernelContext& context) { return static_cast<int>(context.attrs.ints[0]); }
int64_t length_of(const Dims& sizes, int dim) { return sizes.empty() ? 1 : sizes[dim]; }
int64_t step_of(const Tensor& t, int dim) { return t.rank() == 0 ? 0 : t.strides()[dim]; }

// Returns the strides of `t` for a walk over the positions of an index tensor. `sizes`: the shape of the index tensor.
// `t` may be a scalar, or larger than the index tensor in every dimension.
Dims strides_within(const Tensor& t, const Dims& sizes) {
  return t.rank() == 0 ? Dims::filled(sizes.rank(), 0) : t.strides();
}
Dims without(Dims strides, int dim) {
  if (!strides.empty()) strides[dim] = 0;
  return strides;
}
template <class... D> RondoLayout layout_with(const Dims& sizes, const D&... strides) {
  return layout_of(IterationSpace<sizeof...(D)>(sizes, std::array<Dims, sizeof...(D)>{strides...}));
}

void clear(const Tensor& t) {
  backend_of(t.device()).fill(t.device().index, address_of(t), 0, static_cast<size_t>(t.nbytes()));
}

}  // namespace

void gather_kernel(const KernelContext& context) {
  const Tensor &x = context.in(0), &index = context.in(1), &out = context.out();
  if (out.numel() == 0) return;
  const int dim = dim_of(context), device = out.device().index;
  const int64_t size = length_of(x.sizes(), dim);
  const IndexCheck check = check_indices(context, size);
  const Dims& sizes = index.sizes();
  launch_threads(device, kernel_of(device, kMoves, "rondo_gather", {{"WORD", word_name(x.dtype())}}), out.numel(),
                 address_of(out), address_of(index), address_of(x),
                 layout_with(sizes, out.strides(), index.strides(), without(strides_within(x, sizes), dim)),
                 step_of(x, dim), size, check.status, check.call);
}

void check_indices_kernel(const KernelContext& context) {
  const Tensor &index = context.in(0), &out = context.out();
  const int64_t size = context.attrs.ints[0];
  const int device = out.device().index;
  const ops::LookupName lookup = ops::lookup_of(context.attrs);
  const IndexCheck check = check_indices_of(lookup.op, context, size, lookup.at_position);
  launch_threads(device, kernel_of(device, kMoves, "rondo_check_indices", {{"WORD", word_name(kI64)}}),
                 std::max<int64_t>(index.numel(), 1), address_of(out), address_of(index),
                 layout_with(index.sizes(), index.strides()), size, check.status, check.call);
}

void scatter_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const Tensor &index = context.in(1), &source = context.in(2);
  Tensor& out = context.out();
  out.copy_(context.in(0));
  if (index.numel() == 0) return;
  const int dim = dim_of(context), device = out.device().index;
  const int64_t size = length_of(out.sizes(), dim), step = step_of(out, dim);
  const Tensor winners = Tensor::empty({out.numel()}, {kI64, out.device()});
  clear(winners);
  const IndexCheck check = check_indices(context, size);
  const Dims& sizes = index.sizes();
  const Dims target = without(strides_within(out, sizes), dim);
  const std::initializer_list<Define> types = {{"WORD", word_name(out.dtype())}};
  launch_threads(device, kernel_of(device, kMoves, "rondo_scatter_claim", types), index.numel(), address_of(winners),
                 address_of(index), layout_with(sizes, target, index.strides()), step, size, check.status, check.call);
  launch_threads(device, kernel_of(device, kMoves, "rondo_scatter", types), index.numel(), address_of(out),
                 address_of(index), address_of(source), address_of(winners),
                 layout_with(sizes, target, index.strides(), strides_within(source, sizes)), step, size);
}

void scatter_sum_kernel(const KernelContext& context) {
  const RecorderScope run(nullptr);
  const Tensor &values = context.in(0), &index = context.in(1);
  Tensor& out = context.out();
  if (context.has(2)) {
    const NoGrad off;
    Tensor sums = Tensor::empty(out.sizes(), {out.dtype(), out.device()});
    scatter_sum_kernel({context.op, context.inputs.first(2), {&sums, 1}, context.attrs, context.where});
    out.copy_(context.in(2) + sums);
    return;
  }
  clear(out);
  const int64_t n = index.numel();
  if (n == 0) return;
  const int dim = dim_of(context), device = out.device().index;
  const int64_t size = length_of(out.sizes(), dim);
  const Tensor keys = Tensor::empty({n}, {kI64, out.device()});
  const IndexCheck check = check_indices(context, size);
  const Dims& sizes = index.sizes();
  launch_threads(device, kernel_of(device, kMoves, "rondo_destinations", {{"WORD", word_name(out.dtype())}}), n,
                 address_of(keys), address_of(index),
                 layout_with(sizes, without(strides_within(out, sizes), dim), index.strides()), step_of(out, dim), size,
                 check.status, check.call);
  const Order order = sort_keys(keys, 1, n);
  launch_threads(device, kernel_of(device, kScatterSum, "rondo_scatter_sum", {{"T", type_name(out.dtype())}}), n,
                 address_of(out), address_of(values), address_of(order.keys), address_of(order.positions),
                 layout_with(sizes, strides_within(values, sizes)));
}

void write_rows_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const Tensor &rows = context.in(1), places = dense(context.in(2));
  Tensor& out = context.out();
  if (address_of(out) != address_of(context.in(0))) out.copy_(context.in(0));
  if (rows.numel() == 0) return;
  // Keeps all four dimensions, which layout_of() might merge, because the kernel needs the number of each row.
  RondoLayout layout = {.numel = rows.numel(), .rank = 4, .sizes = {}, .strides = {}};
  for (int d = 0; d < 4; ++d) {
    layout.sizes[d] = rows.sizes()[d];
    layout.strides[0][d] = out.strides()[d];
    layout.strides[1][d] = rows.strides()[d];
  }
  launch_threads(
      out.device().index, kernel_of(out.device().index, kMoves, "rondo_write_rows", {{"WORD", word_name(out.dtype())}}),
      rows.numel(), address_of(out), address_of(rows), address_of(places), layout, out.strides()[2], out.sizes()[2]);
}

void cumsum_kernel(const KernelContext& context) {
  const Tensor &x = context.in(0), &out = context.out();
  if (out.numel() == 0) return;
  const int dim = dim_of(context), device = out.device().index;
  Dims lines = x.sizes(), to = out.strides(), from = x.strides();
  if (!lines.empty()) {
    lines.erase(dim);
    to.erase(dim);
    from.erase(dim);
  }
  const DType in = x.dtype();
  // Floats are summed in f64: in f32, a running sum of ones would not grow beyond 2^24.
  const char* const total = is_floating(in) ? "double" : "long long";
  const Kernel kernel = kernel_of(device, kRunningSums, "rondo_cumsum",
                                  {{"IN", type_name(in)}, {"OUT", type_name(out.dtype())}, {"TOTAL", total}});
  launch_threads(device, kernel, lines.numel(), address_of(out), address_of(x), layout_with(lines, to, from),
                 step_of(out, dim), step_of(x, dim), length_of(x.sizes(), dim), context.attrs.ints[1]);
}

}  // namespace rondo::cuda
