// Finds the targets that the compiler has.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "rondo/compile/target/target.h"

namespace rondo::compile {

// Returns the target whose code runs on a device; null if there is none.
const Target* find_target(Device device);
// Returns the same target as find_target(), but throws Error if there is none.
const Target& target_of(Device device);
// Returns a device of this process on which the target's code runs; nullopt if there is none.
std::optional<Device> device_of(const Target& target);
// Returns the target with this Target::name, with or without a device for it in this process. If there is none, throws
// Error that lists the targets.
const Target& target_named(std::string_view name);
std::span<const Target* const> targets();

}  // namespace rondo::compile
