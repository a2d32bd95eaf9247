#include "rondo/runtime/io/open_to_write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/open_file.h"

namespace rondo::io {

int open_to_write(const std::string& path, int flags, Links links, int mode) {
  check_path(path);
  const int no_links = links == Links::kRefuse ? O_NOFOLLOW : 0;
  const int fd = ::open(path.c_str(), flags | O_CREAT | O_CLOEXEC | O_NONBLOCK | no_links, mode);
  if (fd < 0) {
    if (errno == ELOOP && no_links != 0) throw FileError(path, "cannot write: is a symbolic link; remove it");
    if (errno == ENXIO) throw FileError(path, "cannot write: is not a regular file");  // a FIFO without a reader
    throw FileError(path, "cannot write: " + std::generic_category().message(errno));
  }
  struct stat info;
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (regular && (links == Links::kFollow || info.st_nlink <= 1)) return fd;
  ::close(fd);
  throw FileError(
      path, regular ? "cannot write: has another name, a hard link; remove it" : "cannot write: is not a regular file");
}

}  // namespace rondo::io
