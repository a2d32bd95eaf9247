// Ops of a program of your own, so that rondo_replay reads its reproducers: list them in own_ops.cc, and build it
// again.
#pragma once

#include <span>

#include "rondo/runtime/op/op.h"

namespace rondo::compile {

std::span<const OpDef* const> own_ops();

}  // namespace rondo::compile
