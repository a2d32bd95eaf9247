// Dropout (Srivastava et al., 2014): y = x / (1 - p) where a random number is at least p, else 0.
//
// The stream's state is an input tensor, not an attribute: a recorded region then takes it as data, and the next step's
// numbers need no new recording (Note [Random state]). No mask is stored: dropout is linear in x, so its gradient is
// dropout of the gradient with the same state.
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::ops {
// Inputs x, state i64 (2) = {seed, base}. Attributes: dropout_attrs().
constexpr OpDef kDropout = {
    .name = "dropout",
    .kind = OpKind::kElementwise,
    .saved = {.inputs = kSecond},
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          check_dropout(c, 1, c.scalar(0));
          if (c.attrs().floats.size() != 2) c.fail("needs the attributes of dropout_attrs()");
          c.output(0, c.dtype(0), c.sizes(0));
        },
    .host = {&cpu::dropout_kernel},
    .grad =
        [](const GradContext& g) {
          g.set(0, call(kDropout, {g.grad_out(), g.input(1)}, g.attrs()));
        },
    .lower =
        [](LoopBuilder& b) {
          const LoopValue x = b.input(0);
          const LoopValue kept = b.random(LoopOp::kRandomKeep, 1, b.integer(0), /*p=*/0);
          const LoopValue scaled = b.emit(LoopOp::kMul, x.type, x, b.scalar(1));
          b.output(0, b.emit(LoopOp::kSelect, x.type, kept, scaled, b.constant(0.0, x.type)));
        },
    .trait = trait::Draw{.state = 1},
};

Attrs dropout_attrs(SymFloat p, int64_t increment) {
  const FloatingPointScope floating_point;
  p = floating_point.here(p);
  return {.ints = {increment}, .floats = {p, p < 1 ? 1 / (1 - p) : SymFloat(0)}};  // as DropoutRule::factor
}

void check_random_state(InferContext& c, int state) {
  if (c.dtype(state) != kI64 || !(c.sizes(state) == Dims{2})) c.fail("the random state must be i64 [2]");
}

void check_dropout(InferContext& c, int state, SymFloat p) {
  check_random_state(c, state);
  if (!(p >= 0 && p <= 1)) c.fail(absl::StrCat("p must be in [0, 1], got ", p.value()));
}

void require_probability(const char* op, double p, std::source_location where) {
  const FloatingPointScope floating_point;
  p = floating_point.here(p);
  if (!(p >= 0 && p <= 1)) throw_op_error(op, absl::StrCat("p must be in [0, 1], got ", p), where);
}

Tensor dropout(TensorArg x, double p, Generator* generator) {
  require_defined("dropout", x);
  require_probability("dropout", p, x.where);
  Generator& source = generator ? *generator : default_generator();
  const RandomState random = next_random_state(source, x.tensor.device());
  return call(kDropout, {x, {random.state, x.where}}, dropout_attrs(p, random.increment));
}

constexpr OpList kDropoutOps = {&kDropout};

}  // namespace rondo::ops
