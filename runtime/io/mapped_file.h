// A file mapped into memory: pages are read when they are first used, and processes share them.
//
//   std::shared_ptr<const MappedFile> file = MappedFile::open("train.tok");
//   parse(file->text());
//
// Lifetime: the mapping lives as long as its shared_ptr; meanwhile the file may be replaced by a rename, or unlinked. A
// file that is truncated in place while it is mapped raises SIGBUS, as with every mapping: replace files with
// AtomicFile. Thread safety: immutable.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace rondo::io {

enum class Mapping {
  kReadOnly,     // a write faults
  kCopyOnWrite,  // a write goes to a private copy of the page and never reaches the file
};

class MappedFile {
 public:
  // Throws FileError if `path` is not a readable regular file. An empty file is fine.
  static std::shared_ptr<const MappedFile> open(const std::string& path, Mapping mapping = Mapping::kReadOnly);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  const std::byte* data() const { return data_; }
  // Writable only under kCopyOnWrite.
  std::byte* mutable_data() const { return data_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  MappedFile(std::string path, std::byte* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  std::byte* data_;  // null if the file is empty
  size_t size_;
};

}  // namespace rondo::io
#pragma GCC visibility pop
