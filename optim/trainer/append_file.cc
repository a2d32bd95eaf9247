#include "rondo/optim/trainer/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/open_to_write.h"

namespace rondo::optim {

AppendFile::AppendFile(std::string path, Mode mode)
    : path_(std::move(path)), fd_(io::open_to_write(path_, O_WRONLY | O_APPEND, io::Links::kFollow)) {
  if (mode == kContinue || ::ftruncate(fd_, 0) == 0) return;
  const int error = errno;
  ::close(fd_);
  fail(error);
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view record) {
  const off_t begin = ::lseek(fd_, 0, SEEK_END);
  if (begin < 0) fail(errno);
  for (size_t done = 0; done < record.size();) {
    const ssize_t n = ::write(fd_, record.data() + done, record.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n < 0 && errno != EINTR) {
      const int error = errno;
      if (::ftruncate(fd_, begin) != 0) fail(errno);
      fail(error);
    }
  }
}

void AppendFile::sync() {
  if (::fdatasync(fd_) != 0) fail(errno);
}

void AppendFile::fail(int error) const { throw FileError(path_, std::strerror(error)); }

}  // namespace rondo::optim
