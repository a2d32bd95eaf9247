// Rules for writing over a gradient. Gradients are as large as parameters, so the tape adds to them in place, and keeps
// them as .grad without a copy, wherever nobody can see the difference. Every such decision is made here.
//
// Note [Gradient memory]. Memory may be written over if one handle is the only way to it: no other handle, no view, no
// saved tensor and no host array shares it. Handles are counted, so the caller must hold exactly one of them: a
// gradient is moved along the tape, never copied. The other conditions depend on the use; each function states its own.
#pragma once

#include "rondo/runtime/tensor/tensor.h"

namespace rondo::autograd {

// True if two elements of `tensor` share memory, as those of an expanded tensor do.
bool overlaps_itself(const Tensor& tensor);

// True if the memory is freed together with this handle: nobody else holds the handle or the memory, and the memory is
// Rondo's own.
bool is_only_holder(const Tensor& tensor);

// True if another gradient may be added in place to `gradient`, which has not reached its leaf yet. False under
// create_graph and while a region is recorded: both need the old value.
bool may_overwrite(const Tensor& gradient);

// True if slices may be added in place to `gradient`, which has not reached its leaf yet. As may_overwrite(), but also
// true under create_graph: the write gets a history of its own, and nobody has saved the old value.
bool may_add_slices_in_place(const Tensor& gradient);

// True if `gradient` may become a leaf's .grad as it is. Otherwise .grad gets a dense copy, so that neither another
// leaf's .grad, nor the caller's tensor, nor a hook's tensor shares its memory.
bool may_become_grad(const Tensor& gradient);

// Returns `gradient`, or a copy if it is the .grad of a leaf: backward() adds to .grad in place, and that must not
// change a gradient that is still on the tape. Call this for gradients that come from the user.
Tensor apart_from_grads(Tensor gradient);

// True if a gradient rule may write its result over `saved`, a tensor that its node saved. Only the last backward
// through a node may do so: release_saved() follows it.
bool may_overwrite_saved(const Tensor& saved);

// While in scope, `one` is the initial gradient of a backward from a single root. Its value is known to be 1 without
// reading it from the device. The handle is kept, so no other tensor gets its address. Undefined: no gradient is known
// to be 1.
class KnownOne {
 public:
  explicit KnownOne(Tensor one);
  ~KnownOne();
  KnownOne(const KnownOne&) = delete;
  KnownOne& operator=(const KnownOne&) = delete;

 private:
  Tensor previous_;
  uint32_t previous_version_;
};
// True if `gradient` is the tensor of the innermost KnownOne, and nobody has written to it since.
bool is_known_one(const Tensor& gradient);

// While in scope, now() tells whether the running node's backward() is the last to read what the node saved.
class LastRead {
 public:
  explicit LastRead(bool last);
  ~LastRead();
  LastRead(const LastRead&) = delete;
  LastRead& operator=(const LastRead&) = delete;
  static bool now();

 private:
  bool previous_;
};

}  // namespace rondo::autograd
