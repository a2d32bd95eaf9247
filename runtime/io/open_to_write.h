// Opens files that are written in place: logs that grow, locks. For files that are written whole see atomic_file.h.
#pragma once

#include <string>

namespace rondo::io {

enum class Links {
  kFollow,
  kRefuse,  // refuses symbolic and hard links; for guessable names in folders that other users can write to
};

// Returns a descriptor, which the caller closes. `flags` are those of open(2), with O_WRONLY or O_RDWR. A missing file
// is created with `mode`; an existing file is not truncated. Throws FileError, also if `path` is not a regular file.
// Never waits for the other end of a FIFO or a device.
int open_to_write(const std::string& path, int flags, Links links, int mode = 0666);

}  // namespace rondo::io
