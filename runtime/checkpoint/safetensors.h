// safetensors (https://github.com/huggingface/safetensors, format section): named tensors in one file.
//   8 bytes   N, little-endian
//   N bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {..}}
//   the rest  the tensors' bytes, row-major, without holes or overlaps
//
//   auto [tensors, metadata] = io::load_safetensors("model.safetensors");
//   io::save_safetensors("copy.safetensors", tensors, {{"format", "pt"}});
//
// Loading maps the file; a tensor is a view of the mapping and keeps it alive, so a 500 MB file opens in microseconds.
// The mapping is copy-on-write: an in-place write to such a tensor is allowed, takes memory page by page and never
// reaches the file. Mapped tensors are aligned only to their element size; a tensor without even that alignment is
// copied. SafetensorsFile can also read by copying (Reading::kCopy).
//
// Files are not trusted: everything in the header is checked before a tensor is made, and the check needs less than 16
// times the header's size in memory. Every failure is a FileError with path and reason.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/io/mapped_file.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::io {

class OpenFile;
using TensorMap = std::map<std::string, Tensor>;
using Metadata = std::map<std::string, std::string>;

// The entry of one tensor in the header.
struct TensorEntry {
  std::string name;
  DType dtype = kF32;
  Dims shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the data
};

struct LoadedTensors {
  TensorMap tensors;
  Metadata metadata;
};

enum class Reading {
  kMap,   // tensors are views of the mapping. A file that is truncated in place while mapped raises SIGBUS.
  kCopy,  // tensors have their own memory. A file that is truncated meanwhile gives a FileError.
};

// An open safetensors file. The constructor reads and checks the header; tensors are made on demand.
class SafetensorsFile {
 public:
  // The largest header in bytes, as in the reference implementation.
  static constexpr uint64_t kMaxHeader = 100'000'000;

  explicit SafetensorsFile(const std::string& path, Reading reading = Reading::kMap);

  const std::string& path() const;
  const Metadata& metadata() const { return metadata_; }
  // Returns the entries of all tensors, sorted by name.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  // Makes the tensor with this name. Throws FileError if there is none, or if a BOOL tensor contains a byte that is
  // neither 0 nor 1.
  Tensor tensor(std::string_view name) const;
  Tensor tensor(const TensorEntry& entry) const;
  // Returns the entry with this name, or null if there is none.
  const TensorEntry* find(std::string_view name) const;
  // Copies `bytes` bytes of a tensor, from its byte `begin` on, without using a mapping. Throws FileError if the file
  // has shrunk. REQUIRES: the range is within the tensor.
  void read(const TensorEntry& entry, uint64_t begin, void* out, size_t bytes) const;
  // Loads all tensors. Moves the metadata out, because two copies would exceed the memory bound.
  LoadedTensors load_all() &&;

 private:
  void parse_header(std::string_view header);
  void check_layout(uint64_t data_bytes) const;

  std::shared_ptr<const OpenFile> file_;
  std::shared_ptr<const MappedFile> mapping_;  // kMap
  size_t data_start_ = 0;
  std::vector<TensorEntry> entries_;
  Metadata metadata_;
};

// Loads all tensors of a file to default_device(); in host memory they are views of the mapped file. If `path` ends in
// ".index.json", loads a sharded model (load_sharded_safetensors).
LoadedTensors load_safetensors(const std::string& path);

// Loads all tensors of a sharded model. The file `index_path` is
//   {"metadata": {..}, "weight_map": {"tensor name": "name of a file in the same folder"}}
// File names with a "/" or a "\", and "..", are refused, so an index cannot name files outside its folder. The metadata
// is that of the first shard.
LoadedTensors load_sharded_safetensors(const std::string& index_path);
// Reads and checks the weight_map of an index file. Returns tensor name -> file name.
std::map<std::string, std::string> read_safetensors_index(const std::string& index_path);

// Writes a file atomically (atomic_file.h). Tensors are ordered by descending element size, then by name. The header is
// padded with spaces, so that the data starts at a multiple of 8. For the same tensors the file equals that of the
// reference implementation byte for byte. Tensors that are not contiguous are copied one at a time.
void save_safetensors(const std::string& path, const TensorMap& tensors, const Metadata& metadata = {});

// Returns the name of the dtype in the format, e.g. "BF16".
std::string_view safetensors_name(DType dtype);
// Returns the tensors in the order in which save_safetensors writes them.
std::vector<TensorMap::const_iterator> file_order(const TensorMap& tensors);

}  // namespace rondo::io
#pragma GCC visibility pop
