#include "rondo/runtime/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/open_file.h"

namespace rondo::io {

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, Mapping mapping) {
  const auto fail = [&](const std::string& what) {
    throw FileError(path, what + ": " + std::generic_category().message(errno));
  };
  check_path(path);
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("cannot open");
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};

  struct stat status {};
  if (::fstat(fd, &status) != 0) fail("cannot stat");
  if (!S_ISREG(status.st_mode)) throw FileError(path, "is not a regular file");
  const size_t size = static_cast<size_t>(status.st_size);
  void* data = nullptr;
  if (size > 0) {
    const bool writable = mapping == Mapping::kCopyOnWrite;
    // MAP_NORESERVE: a model larger than the free memory may still be mapped; only pages that are written cost memory.
    data = ::mmap(nullptr, size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_PRIVATE | (writable ? MAP_NORESERVE : 0),
                  fd, 0);
    if (data == MAP_FAILED) fail("cannot map");
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace rondo::io
