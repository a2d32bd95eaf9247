#include "rondo/optim/trainer/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/open_to_write.h"

namespace rondo::optim {
namespace {

std::string contents(int fd) {
  char text[32] = {};
  const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
  return std::string(absl::StripAsciiWhitespace(std::string(text, n > 0 ? static_cast<size_t>(n) : 0)));
}

}  // namespace

RunLock::RunLock(const std::string& folder) {
  io::make_folders(folder);
  const std::string path = folder + "/.lock";
  // Refuses a symbolic link, because writing to it would overwrite the file that it names.
  fd_ = io::open_to_write(path, O_RDWR, io::Links::kRefuse);
  const auto fail = [&](auto error) {
    ::close(fd_);
    throw error;
  };
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail(FileError(path, std::strerror(errno)));
    const std::string holder = contents(fd_);
    fail(Error(absl::StrCat("another run writes to ", folder, holder.empty() ? "" : " (process " + holder + ")",
                            "; wait for it, or choose another folder")));
  }
  const std::string own = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, own.data(), own.size(), 0) != static_cast<ssize_t>(own.size()))
    fail(FileError(path, std::strerror(errno)));
  io::sweep_temporaries(folder);  // this run has the lock, so no other writer is at work
}

RunLock::~RunLock() { ::close(fd_); }

}  // namespace rondo::optim
