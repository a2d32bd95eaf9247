// The lines of a file, one after the other, in bounded memory.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rondo/runtime/io/open_file.h"

namespace rondo::data {

class LineReader {
 public:
  // `longest`: bytes that a line may have. Throws FileError.
  explicit LineReader(const std::string& path, uint64_t longest = kLongestLine) : file_(path), longest_(longest) {}

  // The next line, without its end. Valid until the next call. False at the end of the file. A byte order mark at the
  // file's beginning is left out. Throws DataError for invalid UTF-8 and for a line that is too long.
  bool next(std::string_view& line);
  // From 1; of the line that next() returned last.
  int64_t number() const { return number_; }
  // That line ended with a line feed: false only for the last one of a file.
  bool ended() const { return ended_; }
  const std::string& path() const { return file_.path(); }

  static constexpr uint64_t kLongestLine = uint64_t{1} << 30;

 private:
  void check_length(uint64_t bytes) const;

  static constexpr uint64_t kChunk = uint64_t{1} << 20;
  io::OpenFile file_;
  const uint64_t longest_;
  std::string buffer_;
  size_t at_ = 0;      // in the buffer
  uint64_t read_ = 0;  // bytes of the file that are in the buffer, or were
  int64_t number_ = 0;
  bool ended_ = false;
};

// Leaves out a carriage return at the end.
inline std::string_view without_return(std::string_view line) {
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}
inline bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace rondo::data
