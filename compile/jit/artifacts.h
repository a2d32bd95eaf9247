// The parts of artifact files: for save_artifacts() and compile_for().
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rondo/compile/target/target.h"

namespace rondo::compile {

// Returns all code of this process for these targets: generated and hand-written.
std::vector<io::KernelFile> artifact_sections(std::span<const Target* const> of);
// Writes `packed`, a result of io::pack_artifact(), to a file. Throws FileError.
void write_artifact(const std::string& path, const std::string& packed);

}  // namespace rondo::compile
