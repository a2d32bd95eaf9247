#include "rondo/runtime/data/line_reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/data/example_set.h"
#include "rondo/runtime/io/utf8.h"

namespace rondo::data {

void LineReader::check_length(uint64_t bytes) const {
  if (bytes > longest_)
    throw DataError(path(), number_ + 1, absl::StrCat("the line has more than ", longest_, " bytes"));
}

bool LineReader::next(std::string_view& line) {
  size_t searched = 0;  // bytes from at_ on that contain no line feed
  size_t end = std::string::npos;
  for (;;) {
    end = buffer_.find('\n', at_ + searched);
    if (end != std::string::npos || read_ == file_.size()) break;
    searched = buffer_.size() - at_;
    check_length(searched);
    buffer_.erase(0, at_);
    at_ = 0;
    const size_t bytes = std::min(kChunk, file_.size() - read_), old = buffer_.size();
    buffer_.resize(old + bytes);
    file_.read(read_, buffer_.data() + old, bytes);
    read_ += bytes;
    if (old == 0 && number_ == 0 && buffer_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    if (searched < at_) searched = 0;
  }
  if (end == std::string::npos && at_ == buffer_.size()) return false;
  ended_ = end != std::string::npos;
  line = std::string_view(buffer_).substr(at_, (ended_ ? end : buffer_.size()) - at_);
  check_length(line.size());
  at_ += line.size() + (ended_ ? 1 : 0);
  ++number_;
  if (const size_t valid = io::valid_utf8_prefix(line); valid < line.size())
    throw DataError(path(), number_, absl::StrCat("invalid UTF-8 at byte ", valid, " of the line"));
  return true;
}

}  // namespace rondo::data
