// The file format of compiled kernels: an entry of the disk cache has one, a section of an artifact file many.
//
//   bytes 0..7    "RONDOKRN"
//   8..11         format version, u32 (all numbers are little-endian)
//   12..15        number of kernels, u32
//   16..23        XXH64 of all that follows
//   then strings, each as u64 length and bytes: the host key's text; of each kernel its text and its object code
//
// An artifact is such a file for each target, behind each other: "RONDOART", the number of sections as u64, then each
// as u64 length and bytes.
//
// Reading trusts nothing: hostile bytes give an error, never a crash or a large allocation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace rondo::io {

struct KernelRecord {
  std::string kernel;  // code_text
  std::string object;
};

struct KernelFile {
  std::string host;  // HostKey::text
  std::vector<KernelRecord> kernels;
};

std::string pack(const KernelFile& file);
// kFailedPrecondition: another version of the format. kInvalidArgument with the reason: damaged.
absl::StatusOr<KernelFile> unpack(std::string_view bytes);

// An artifact file.
std::string pack_artifact(const std::vector<KernelFile>& sections);
// Errors as unpack().
absl::StatusOr<std::vector<KernelFile>> unpack_artifact(std::string_view bytes);

}  // namespace rondo::io
