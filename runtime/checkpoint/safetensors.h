// safetensors (https://github.com/huggingface/safetensors, format section): named tensors in one file.
//   8 bytes   N, little-endian
//   N bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {..}}
//   the rest  the tensors' bytes, row-major, without holes or overlaps
//
//   auto [tensors, metadata] = io::load_safetensors("model.safetensors");
//   io::save_safetensors("copy.safetensors", tensors, {{"format", "pt"}});
//
// Loading maps the file; a tensor is a view of the mapping, which it keeps alive, so a 500 MB file opens in
// microseconds. The mapping is copy-on-write: writing such a tensor in place is allowed, costs memory page by page and
// never reaches the file. Mapped tensors are aligned to their element size only; one that is not even that is copied.
// SafetensorsFile reads by copying if asked to (Reading::kCopy).
//
// A file is hostile until proven well-formed: everything in the header is checked before a tensor is made, and the
// check needs less than 16 times the header's memory. Every failure is a FileError with path and reason.
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

// One line of the header.
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
  kCopy,  // tensors have memory of their own. A file that is truncated meanwhile is a FileError.
};

// An opened file: the header is read and checked, tensors are made when asked for.
class SafetensorsFile {
 public:
  // The limit of the reference implementation.
  static constexpr uint64_t kMaxHeader = 100'000'000;

  explicit SafetensorsFile(const std::string& path, Reading reading = Reading::kMap);

  const std::string& path() const;
  const Metadata& metadata() const { return metadata_; }
  // Sorted by name.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  // Throws FileError if there is no such tensor, or if a BOOL tensor holds a byte that is neither 0 nor 1.
  Tensor tensor(std::string_view name) const;
  Tensor tensor(const TensorEntry& entry) const;
  // Returns the entry of this name; null: there is none.
  const TensorEntry* find(std::string_view name) const;
  // Copies `bytes` bytes of a tensor, from its byte `begin` on, without touching a mapping. Throws FileError if the
  // file has shrunk. REQUIRES: these bytes lie in the tensor.
  void read(const TensorEntry& entry, uint64_t begin, void* out, size_t bytes) const;
  // Loads all tensors. The metadata moves along, because two copies would break the memory bound.
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

// All tensors of a file, or of a sharded model where `path` ends in ".index.json" (load_sharded_safetensors), on
// default_device(). In host memory they are views of the mapped file.
LoadedTensors load_safetensors(const std::string& path);

// `index_path` is {"metadata": {..}, "weight_map": {"tensor name": "file beside the index"}}. File names with a folder,
// "..", or a leading "/" are refused: an index cannot reach out of its folder. The metadata is the first shard's.
LoadedTensors load_sharded_safetensors(const std::string& index_path);
// The weight_map of such an index, checked: tensor name -> file name.
std::map<std::string, std::string> read_safetensors_index(const std::string& index_path);

// Writes atomically (atomic_file.h). Tensors go by descending element size, then name, and the header is padded with
// spaces so that the data starts at a multiple of 8: with the same tensors, byte for byte what the reference
// implementation writes. Tensors that are not contiguous are copied one at a time.
void save_safetensors(const std::string& path, const TensorMap& tensors, const Metadata& metadata = {});

// The dtype's name in the format, e.g. "BF16".
std::string_view safetensors_name(DType dtype);
// The order in which save_safetensors lays the tensors out.
std::vector<TensorMap::const_iterator> file_order(const TensorMap& tensors);

}  // namespace rondo::io
#pragma GCC visibility pop
