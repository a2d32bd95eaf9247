// LineReader: reads the lines of a file in bounded memory.
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
  // `longest`: the largest number of bytes in a line. Throws FileError.
  explicit LineReader(const std::string& path, uint64_t longest = kLongestLine) : file_(path), longest_(longest) {}

  // Sets `line` to the next line without its line feed, valid until the next call. Returns false at the end of the
  // file. Skips a byte order mark at the file's beginning. Throws DataError for invalid UTF-8 and for a line that is
  // longer than `longest`.
  bool next(std::string_view& line);
  // Returns the number of the line that next() returned last, from 1.
  int64_t number() const { return number_; }
  // True if the line that next() returned last ended with a line feed. Only the last line of a file may have none.
  bool ended() const { return ended_; }
  const std::string& path() const { return file_.path(); }

  static constexpr uint64_t kLongestLine = uint64_t{1} << 30;

 private:
  void check_length(uint64_t bytes) const;

  static constexpr uint64_t kChunk = uint64_t{1} << 20;
  io::OpenFile file_;
  const uint64_t longest_;
  std::string buffer_;
  size_t at_ = 0;      // position in the buffer
  uint64_t read_ = 0;  // bytes of the file that were read into the buffer so far
  int64_t number_ = 0;
  bool ended_ = false;
};

// Returns the line without the carriage return at its end, if it has one.
inline std::string_view without_return(std::string_view line) {
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}
inline bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace rondo::data
