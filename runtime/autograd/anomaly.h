// autograd::DetectAnomaly: names the call that makes the first NaN or infinity.
//
//   autograd::DetectAnomaly detect;            // in this scope, on this thread
//   model(x).backward();
//   // throws: backward of sqrt: the gradient of operand 0, f32[8], has an infinity, first at [3]; ...
//   //         (train.cc:41, in h.3.mlp)
//
// In the scope every call of an op, and every gradient rule in a backward, is checked:
//   - a result with a NaN is an error, always. The message says which operand had a NaN already, if one had: then the
//     NaN came into the scope with the data;
//   - a result with an infinity is an error if every operand is finite. Masks of -infinity therefore pass: masked_fill
//     with an infinite value, and every result computed from it. A softmax over a fully masked row gives a NaN, and
//     that is an error.
// The operands of a gradient rule are the arriving gradients and what the op saved. Float attributes are operands, too.
// Sums of gradients are checked. Views, integers, Tensor::full and copies from the host are not.
//
// Compiled regions run op by op in the scope, forward and backward, so that the op can be named. So the scope
// does not find errors of compiled code: run with Stance::kForceEager and compare, or use tests/fuzz. A backward whose
// forward ran outside of the scope is checked, too, but its messages do not name the module. GradScaler expects some
// infinite f16 gradients while it searches for the scale; in this scope they are errors.
//
// The scope is slow: each result is read once more, and each op inside a recording is a graph break. Outside of any
// scope a call pays for one test of a thread-local flag.
#pragma once

#pragma GCC visibility push(default)
namespace rondo::autograd {

class DetectAnomaly {
 public:
  explicit DetectAnomaly(bool on = true);  // false: switches detection off in an inner scope
  ~DetectAnomaly();
  DetectAnomaly(const DetectAnomaly&) = delete;
  DetectAnomaly& operator=(const DetectAnomaly&) = delete;

 private:
  bool in_scope_, detecting_;  // the flags of the outer scope, restored at the end
};

bool detecting_anomaly();

}  // namespace rondo::autograd
#pragma GCC visibility pop
