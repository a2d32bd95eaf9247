// The CPU as a target.
#pragma once

#include "rondo/compile/target/target.h"

namespace rondo::compile::cpu {

extern const Target kTarget;

}  // namespace rondo::compile::cpu
