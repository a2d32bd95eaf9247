// A file that is read at given positions, by copying. There is no mapping, so a file that is truncated meanwhile gives
// a FileError, not a signal.
//
//   const OpenFile file("model.safetensors");
//   file.read(8, header.data(), header.size());
//
// Thread safety: threads may read at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rondo::io {

// Throws FileError if `path` contains a zero byte: the system would end the path there and open another file.
void check_path(const std::string& path);

class OpenFile {
 public:
  // Throws FileError if `path` is not a readable regular file.
  explicit OpenFile(std::string path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::string& path() const { return path_; }
  // Returns the size in bytes when the file was opened.
  uint64_t size() const { return size_; }
  // Copies `bytes` bytes from `offset` on to `out`. Throws FileError if the file ends before offset + bytes.
  void read(uint64_t offset, void* out, size_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// Returns the contents of a small file. Throws FileError if it is longer than `limit` bytes.
std::string read_text(const std::string& path, uint64_t limit);

}  // namespace rondo::io
