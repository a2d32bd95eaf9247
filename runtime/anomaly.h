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
//     with an infinite value, and whatever is computed from its result. Only a NaN stops them, such as that of a
//     softmax over a row that is masked throughout.
// The operands of a gradient rule are the arriving gradients and what the op saved. Float attributes are operands, too.
// Views, integers, and what is not an op (Tensor::full, copies from the host) are not checked. Sums of gradients are.
//
// Compiled regions run op by op in the scope, forward and backward, so that the op can be named. What is wrong only in
// compiled code is therefore not found: run with Stance::kForceEager and compare, or use tests/fuzz. A backward whose
// forward ran outside of the scope is checked, too, but its messages do not name the module. With an f16 loss scale,
// infinities in gradients are part of the search for the scale (GradScaler), and are errors here.
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
  bool in_scope_, detecting_;  // of the outer scope
};

bool detecting_anomaly();

}  // namespace rondo::autograd
#pragma GCC visibility pop
