#include "rondo/tests/replay/own_ops.h"

namespace rondo::compile {

// const OpDef* const kOwn[] = {&my::kSwish};
// std::span<const OpDef* const> own_ops() { return kOwn; }
std::span<const OpDef* const> own_ops() { return {}; }

}  // namespace rondo::compile
