#include "rondo/runtime/io/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::io {

void check_path(const std::string& path) {
  if (const size_t end = path.find('\0'); end != path.npos)
    throw FileError(path.substr(0, end), "is what the system would read of a path that has a zero byte");
}

OpenFile::OpenFile(std::string path) : path_(std::move(path)) {
  check_path(path_);
  const auto fail = [&](const char* what) {
    const std::string reason = absl::StrCat(what, ": ", std::generic_category().message(errno));
    if (fd_ >= 0) ::close(fd_);
    throw FileError(path_, reason);
  };
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) fail("cannot open");
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail("cannot stat");
  if (!S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw FileError(path_, "is not a regular file");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

OpenFile::~OpenFile() { ::close(fd_); }

void OpenFile::read(uint64_t offset, void* out, size_t bytes) const {
  constexpr size_t kMost = size_t{1} << 30;  // Linux reads at most about 2 GB in one call
  auto* to = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, to, std::min(bytes, kMost), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw FileError(path_, absl::StrCat("cannot read: ", std::generic_category().message(errno)));
    if (n == 0)
      throw FileError(path_, absl::StrCat("ends at byte ", offset, ", ", bytes,
                                          " bytes too early: it was truncated while it was read"));
    to += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

std::string read_text(const std::string& path, uint64_t limit) {
  const OpenFile file(path);
  if (file.size() > limit) throw FileError(path, absl::StrCat("has ", file.size(), " bytes, the limit is ", limit));
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

}  // namespace rondo::io
