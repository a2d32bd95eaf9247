// Windows as ops: a view of any strides, and a copy with other values in a window. Recordings turn in-place writes into
// these ops (compile/capture/writes.cc); eager execution writes into the view itself.
#include "rondo/runtime/ops/window.h"

#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

// Returns the window that the ints from `first` on describe: first the sizes, then the strides.
Window window_of(const Attrs& attrs, size_t first, int64_t offset) {
  const std::span<const int64_t> dims(attrs.ints.data() + first, attrs.ints.size() - first);
  return {offset, Dims(dims.first(dims.size() / 2)), Dims(dims.last(dims.size() / 2))};
}

// Fails unless the window lies inside a tensor of `numel` elements.
void check(InferContext& c, size_t first, int64_t offset, int64_t numel) {
  const size_t n = c.attrs().ints.size() - std::min(c.attrs().ints.size(), first);
  if (n % 2 != 0 || n / 2 > static_cast<size_t>(kMaxRank)) c.fail("needs the sizes and the strides of a window");
  const Window window = window_of(c.attrs(), first, offset);
  if (offset < 0 || offset > numel || checked_numel(window.sizes) < 0) c.fail("the window reaches out of the tensor");
  if (window.sizes.numel() == 0) return;
  for (int d = 0; d < window.sizes.rank(); ++d)
    if (window.strides[d] < 0 || (window.sizes[d] > 1 && window.strides[d] > numel) ||
        (window.strides[d] > 0 && window.sizes[d] > numel))
      c.fail("the window has a size or a stride that is out of range");
  if (!window.fits_in(numel)) c.fail("the window reaches out of the tensor");
}

}  // namespace

int64_t Window::extent() const {
  int64_t extent = 1;
  for (int d = 0; d < sizes.rank(); ++d) extent += (sizes[d] - 1) * strides[d];
  return extent;
}
Window Window::of(const Tensor& view, const Tensor& base) {
  // An empty slice may begin anywhere, so its offset is set to 0.
  return {view.numel() == 0 ? 0 : view.storage_offset() - base.storage_offset(), view.sizes(), view.strides()};
}
Attrs Window::for_view() const {
  Attrs attrs;
  attrs.ints.push_back(offset);
  attrs.ints.append(std::span(sizes.begin(), sizes.end()));
  attrs.ints.append(std::span(strides.begin(), strides.end()));
  return attrs;
}
Attrs Window::for_write() const {
  Attrs attrs;
  attrs.ints.append(std::span(sizes.begin(), sizes.end()));
  attrs.ints.append(std::span(strides.begin(), strides.end()));
  attrs.floats.push_back(static_cast<double>(offset));
  return attrs;
}
Window window_of_call(const Attrs& attrs, int64_t numel) {
  const Window window = window_of(attrs, 0, static_cast<int64_t>(attrs.floats[0].value()));
  invariant(window.fits_in(numel), "a window reaches out of its tensor");
  return window;
}
Tensor look(const Tensor& dense, const Window& window) {
  return Tensor::over(dense.impl()->storage, dense.storage_offset() + window.offset, window.sizes, window.strides,
                      dense.dtype());
}

// ints: {offset, sizes..., strides...}
constexpr OpDef kStridedView = {
    .name = "strided_view",
    .kind = OpKind::kView,
    .infer =
        [](InferContext& c) {
          if (c.attrs().ints.empty()) c.fail("needs the offset of a window");
          if (!is_contiguous(c.sizes(0), c.strides(0))) c.fail("the tensor is not dense");
          check(c, 1, c.integer(0), c.sizes(0).numel());
          const Window window = window_of(c.attrs(), 1, c.integer(0));
          c.view(window.sizes, window.strides, c.offset(0) + window.offset);
        },
    .grad =
        [](const GradContext& g) {
          // Adds the gradient to its window of the total gradient, in place, as for a view whose base was overwritten:
          // Note [Views].
          const Window window = window_of(g.attrs(), 1, g.integer(0));
          Tensor total = g.take_total(0);
          if (total.defined() && total.dtype() == g.grad_out().dtype()) {
            total = total.contiguous();
            const Tensor sum = call(kStridedView, {total}, window.for_view()) + g.grad_out();
            return g.set(0, call(kOverwrite, {total, sum}, window.for_write()));
          }
          const Tensor zeros = Tensor::zeros(g.input_sizes(0), {g.input_dtype(0), g.grad_out().device()});
          const Tensor grad = call(kOverwrite, {zeros, g.grad_out()}, window.for_write());
          g.set(0, total.defined() ? total + grad : grad);
        },
    .grad_adds = true,
};

namespace {
// Checks the window of a call with floats {offset, ...} and returns its sizes. The offset is a run-time argument, so
// kernels check it again, and no shape may depend on it.
Dims checked_window(InferContext& c, size_t most_floats) {
  const size_t n = c.attrs().floats.size();
  if (n < 1 || n > most_floats) c.fail("needs the offset of a window");
  const double offset = c.scalar(0).value();
  const int64_t numel = c.sizes(0).numel();
  if (!(offset >= 0 && offset <= static_cast<double>(numel))) c.fail("the window reaches out of the tensor");
  check(c, 0, static_cast<int64_t>(offset), numel);
  return window_of(c.attrs(), 0, 0).sizes;
}
Attrs same_place(const GradContext& g) { return {.ints = g.attrs().ints, .floats = {g.scalar(0)}}; }
}  // namespace

// A dense copy of a window of input 0, which is dense. ints: {sizes..., strides...}; floats: {offset}.
constexpr OpDef kWindowCopy = {
    .name = "window_copy",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          if (!is_contiguous(c.sizes(0), c.strides(0))) c.fail("the tensor is not dense");
          c.output(0, c.dtype(0), checked_window(c, 1));
        },
    .host = {&cpu::window_copy_kernel},
    .grad =
        [](const GradContext& g) {
          const Tensor zeros = Tensor::zeros(g.input_sizes(0), {g.input_dtype(0), g.grad_out().device()});
          g.set(0, call(kOverwrite, {zeros, g.grad_out()}, same_place(g)));
        },
};

// Input 0, which is dense, with a window of it overwritten by input 1, which is broadcast and converted, or by a number
// if there is no input 1. ints: {sizes..., strides...}; floats: {offset} or {offset, number}. The offset is a run-time
// argument, because a cache is written at another position on every call.
constexpr OpDef kOverwrite = {
    .name = "overwrite",
    .kind = OpKind::kOpaque,
    .infer =
        [](InferContext& c) {
          const Dims into = checked_window(c, c.has(1) ? 1 : 2);
          Dims sizes;
          if (c.has(1) && (!broadcast_shapes(into, c.sizes(1), sizes) || !(sizes == into)))
            c.fail("the source does not broadcast to the window");
          if (!c.has(1) && c.attrs().floats.size() != 2) c.fail("needs a source or a number");
          c.output(0, c.dtype(0), c.sizes(0));
        },
    .host = {&cpu::overwrite_kernel},
    .grad =
        [](const GradContext& g) {
          const Tensor grad = g.grad_out().contiguous();
          if (g.needs(1)) g.set_reduced(1, call(kWindowCopy, {grad}, same_place(g)));
          if (!g.needs(0)) return;
          Attrs nothing = same_place(g);
          nothing.floats.push_back(0.0);
          g.set(0, call(kOverwrite, {grad, {}}, nothing));
        },
    .reuses = 0,
};

// The values of input 1 with the history of input 0. It stands for a write, without gradient, to a
// tensor with a history.
constexpr OpDef kRevalue = {
    .name = "revalue",
    .kind = OpKind::kElementwise,
    .infer =
        [](InferContext& c) {
          c.require_same_dtype(0, 1);
          if (!(c.sizes(0) == c.sizes(1))) c.fail("the values have another shape");
          c.output(0, c.dtype(0), c.sizes(0));
        },
    .host = {&cpu::copy_kernel},
    .grad = [](const GradContext& g) { g.set(0, g.grad_out()); },
    .lower = [](LoopBuilder& b) { b.output(0, b.input(1)); },
};

bool is_same_variable(const OpDef& op) { return &op == &kRevalue; }

constexpr OpList kWindowOps = {&kStridedView, &kWindowCopy, &kOverwrite, &kRevalue};

}  // namespace rondo::ops
