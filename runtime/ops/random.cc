// Tensors of random numbers. The stream's state is an input, as dropout's is (dropout.cc): a region that draws has one
// recording for all steps.
#include "absl/strings/str_cat.h"
#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/random_draw.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

// Infers the result of a draw. The integer attribute number `dtype` is its dtype; the integers from number `first` on
// are its sizes.
void infer_draw(InferContext& c, size_t dtype, size_t first, bool floating) {
  check_random_state(c, 0);
  const IntList& ints = c.attrs().ints;
  if (ints.size() < first) c.fail("integers are missing");
  const auto type = static_cast<DType>(ints[dtype]);
  if (is_floating(type) != floating) c.fail(absl::StrCat("cannot make ", std::string(name_of(type))));
  c.output(0, type, Dims(std::span(ints.begin() + first, ints.end())));
}

void lower_draw(LoopBuilder& b) {
  const LoopValue u = b.random(LoopOp::kRandomFirst, 0, b.integer(1));
  if (static_cast<Distribution>(b.integer(0)) == Distribution::kUniform) return b.output(0, u);
  const LoopValue v = b.random(LoopOp::kRandomSecond, 0, b.integer(1));
  b.output(0, normal_of(b.emit(LoopOp::kCast, kF64, u), b.emit(LoopOp::kCast, kF64, v)));
}

}  // namespace

constexpr OpDef kDraw = {.name = "draw",
                         .kind = OpKind::kElementwise,
                         .infer = [](InferContext& c) { infer_draw(c, 2, 3, true); },
                         .host = {&cpu::draw_kernel},
                         .lower = &lower_draw,
                         .trait = trait::Draw{.state = 0}};
constexpr OpDef kDrawIntegers = {.name = "draw_integers",
                                 .kind = OpKind::kOpaque,
                                 .infer = [](InferContext& c) { infer_draw(c, 1, 4, false); },
                                 .host = {&cpu::draw_integers_kernel}};

Tensor bernoulli(TensorArg p, Generator* generator) {
  require_defined("bernoulli", p);
  const DType dtype = p.tensor.dtype();
  if (!is_floating(dtype)) throw_op_error("bernoulli", "probabilities must be floats", p.where);
  const Tensor u = Tensor::rand(p.tensor.sizes(), {dtype == kF64 ? kF64 : kF32, p.tensor.device()}, generator, p.where);
  return less({u, p.where}, {p.tensor.detach(), p.where}).to(dtype);
}

constexpr OpList kRandomOps = {&kDraw, &kDrawIntegers};

}  // namespace rondo::ops
