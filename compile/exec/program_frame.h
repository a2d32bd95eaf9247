// The memory of one run of a program; for program_run.cc and program_tune.cc.
#pragma once

#include "absl/container/inlined_vector.h"
#include "rondo/compile/exec/program.h"

namespace rondo::compile {

// Inputs, fresh buffers, the arena.
struct Program::Frame {
  struct Slot {
    std::byte* data = nullptr;
    Storage storage;
    int64_t byte_offset = 0;  // of `data` in it
  };
  absl::InlinedVector<Slot, 48> slots;

  std::byte* at(const Address& address) const {
    return address.slot < 0 ? nullptr : slots[static_cast<size_t>(address.slot)].data + address.offset;
  }
  // The memory there, seen with the layout of `like`.
  Tensor tensor(const Value& like, const Address& address) const {
    const Slot& slot = slots[static_cast<size_t>(address.slot)];
    return Tensor::over(slot.storage, (slot.byte_offset + address.offset) / static_cast<int64_t>(size_of(like.dtype)),
                        like.sizes, like.strides, like.dtype);
  }
};

}  // namespace rondo::compile
