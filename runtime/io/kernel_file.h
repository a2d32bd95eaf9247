// The file format of compiled kernels. An entry of the disk cache holds one kernel, a section of an artifact many.
//
//   bytes 0..7    "RONDOKRN"
//   8..11         format version, u32 (all numbers are little-endian)
//   12..15        number of kernels, u32
//   16..23        XXH64 of all bytes after this field
//   then strings, each as u64 length and bytes: the text of the host key; for each kernel its text and its object code
//
// An artifact has one such file for each target: "RONDOART", the number of sections as u64, then each section as u64
// length and bytes.
//
// The reader does not trust the bytes: hostile ones give an error, never a crash or a large allocation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace rondo::io {

struct KernelRecord {
  std::string kernel;  // the text from which the object is made, for example code_text()
  std::string object;
};

struct KernelFile {
  std::string host;  // HostKey::text
  std::vector<KernelRecord> kernels;
};

std::string pack(const KernelFile& file);
// Reads a file of kernels. Errors: kFailedPrecondition for another version of the format, kInvalidArgument with the
// reason for damaged bytes.
absl::StatusOr<KernelFile> unpack(std::string_view bytes);

// Returns the bytes of an artifact file.
std::string pack_artifact(const std::vector<KernelFile>& sections);
// Reads an artifact file. Errors as for unpack().
absl::StatusOr<std::vector<KernelFile>> unpack_artifact(std::string_view bytes);

}  // namespace rondo::io
