// The targets that there are.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "rondo/compile/target/target.h"

namespace rondo::compile {

// The target whose code runs on a device; null: there is none.
const Target* find_target(Device device);
// The same. Throws Error if there is none.
const Target& target_of(Device device);
// A device of this process that its code runs on; nothing: none is here.
std::optional<Device> device_of(const Target& target);
// By Target::name, whether a device of it is here or not. Throws Error that lists the targets if there is none.
const Target& target_named(std::string_view name);
std::span<const Target* const> targets();

}  // namespace rondo::compile
