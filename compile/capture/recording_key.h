// The key of a recording: what must be equal for two recordings to run the same compiled code.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// The whole recording, packed: inputs' metadata, calls, attributes, gradient flags, live outputs, and the stages of the
// compiler that are left out. Two recordings on one device, with one region's options, do the same if and only if their
// keys are equal. Regions and eager ops append the device to the key. Keys without floats are equal for recordings that
// can run the same plans, as long as the guards of their floats hold (FloatGuards). What is left out of the key, and
// why: Note [What shapes a plan] in recording_key.cc.
using RecordingKey = std::vector<uint64_t>;
enum class PackFloats : uint8_t { kYes, kNo };
RecordingKey pack(const Graph& graph, PackFloats floats = PackFloats::kYes);

}  // namespace rondo::compile
